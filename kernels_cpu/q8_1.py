"""Q8_1: 32 weights = half d, half s (d times the sum of the quants, for dot products), 32 signed bytes. w = d * q."""

from .simd import half_at, inline, load, store, to_f32

BLOCK, BYTES = 32, 36

_i8x32 = load("i8", 32)


@inline
def row_f32(w, nb, out):
    for i in range(nb):
        p = w + BYTES * i
        store(out + 128 * i, to_f32(_i8x32(p + 4)) * half_at(p))
