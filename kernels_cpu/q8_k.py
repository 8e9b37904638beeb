"""Q8_K: 256 weights = f32 d, 256 signed bytes, 16 sums of 16 quants (i16, for dot products). w = d * q."""

from .simd import f32_at, inline, load, store, to_f32

BLOCK, BYTES = 256, 292

_i8x32 = load("i8", 32)


@inline
def row_f32(w, nb, out):
    for i in range(nb):
        p = w + BYTES * i
        for j in range(0, 256, 32):
            store(out + 4 * (256 * i + j), to_f32(_i8x32(p + 4 + j)) * f32_at(p))
