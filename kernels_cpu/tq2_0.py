"""TQ2_0: 256 weights = 64 bytes of 2-bit quants, half d. w = d * (q - 1); 32 bytes hold four runs of 32 weights."""

from .simd import half_at, inline, load, store, to_f32

BLOCK, BYTES = 256, 66

_u8x32 = load("u8", 32)


@inline
def row_f32(w, nb, out):
    for i in range(nb):
        p, to = w + BYTES * i, out + 1024 * i
        d = half_at(p + 64)
        for j in range(2):
            v = _u8x32(p + 32 * j)
            for k in range(4):
                store(to + 512 * j + 128 * k, (to_f32((v >> 2 * k) & 3) - 1) * d)
