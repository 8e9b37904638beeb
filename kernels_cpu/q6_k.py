"""Q6_K: 256 weights = 128 bytes of low nibbles, 64 bytes of high pairs of bits, 16 signed scales, half d.

w = d * sc * (q - 32) for each 16. Half h of the block takes 64 nibble bytes and 32 bit-pair bytes: its four runs of
32 weights are the low nibbles of both 32-byte chunks, then the high nibbles.
"""

from .blocks import AHEAD, evens, f32x16, full16, i8x64, i32x16, i_zero16, quarters, twice, zero16
from .simd import concat, dot4_u8s8, fma, half_at, hsum, inline, load, prefetch, store, to_f32

BLOCK, BYTES, SUB, OFFSET, HAS_MIN, SIGNED = 256, 210, 16, 32, False, False

_u8x32, _i8x16 = load("u8", 32), load("i8", 16)
_scale0, _scale1, _scale2, _scale3 = quarters


@inline
def quants(p, j):
    """u8 x 64: weights 64 j .. 64 j + 63 (j = 2 * half + 1 for the high nibbles)."""
    half, high = j >> 1, j & 1
    a, b = _u8x32(p + 64 * half), _u8x32(p + 64 * half + 32)
    h = _u8x32(p + 128 + 32 * half)
    if high:
        return concat((a >> 4) | (h & 48), (b >> 4) | ((h >> 2) & 48))
    return concat((a & 15) | ((h & 3) << 4), (b & 15) | ((h << 2) & 48))


@inline
def row_u8(w, nb, q, s, m):
    for i in range(nb):
        p = w + BYTES * i
        store(s + 64 * i, to_f32(_i8x16(p + 192)) * full16(half_at(p + 208)))
        for j in range(4):
            store(q + 256 * i + 64 * j, quants(p, j))


@inline
def dot(w, nb, xq, x4, ds, s16):
    acc = zero16()
    for i in range(nb):
        p = w + BYTES * i
        prefetch(p + AHEAD)
        prefetch(p + AHEAD + 64)
        prefetch(p + AHEAD + 128)
        prefetch(p + AHEAD + 192)
        x, sums = xq + 256 * i, x4 + 256 * i
        s = to_f32(_i8x16(p + 192)) * full16(half_at(p + 208)) * twice(evens(f32x16(ds + 64 * i)))
        z = dot4_u8s8(i_zero16() - (i32x16(sums) << 5), quants(p, 0), i8x64(x))
        acc = fma(to_f32(z), _scale0(s), acc)
        z = dot4_u8s8(i_zero16() - (i32x16(sums + 64) << 5), quants(p, 1), i8x64(x + 64))
        acc = fma(to_f32(z), _scale1(s), acc)
        z = dot4_u8s8(i_zero16() - (i32x16(sums + 128) << 5), quants(p, 2), i8x64(x + 128))
        acc = fma(to_f32(z), _scale2(s), acc)
        z = dot4_u8s8(i_zero16() - (i32x16(sums + 192) << 5), quants(p, 3), i8x64(x + 192))
        acc = fma(to_f32(z), _scale3(s), acc)
    return hsum(acc)
