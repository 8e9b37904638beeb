"""Q3_K: 256 weights = 32 bytes of third bits, 64 bytes of bit pairs, 12 bytes of sixteen 6-bit scales, half d.

w = d * (sc - 32) * (q - 4) for each 16. Weight 128 n + 32 j + l has its pair in byte 32 n + l at bit 2 j and its
third bit in byte l at bit 4 n + j.
"""

from .blocks import AHEAD, evens, f32x16, full16, i8x64, i32x16, i_zero16, quarters, twice, u8x8, zero16
from .simd import concat, dot4_u8s8, fma, half_at, hsum, i64_at, inline, load, prefetch, store, to_f32, to_i32, u32_at

BLOCK, BYTES, SUB, OFFSET, HAS_MIN, SIGNED = 256, 110, 16, 4, False, False

_u8x32 = load("u8", 32)
_scale0, _scale1, _scale2, _scale3 = quarters


@inline
def quants(p, j):
    """u8 x 64: weights 64 j .. 64 j + 63."""
    n, t = j >> 1, 2 * (j & 1)
    a, h = _u8x32(p + 32 + 32 * n), _u8x32(p) >> (4 * n + t)
    return concat(((a >> (2 * t)) & 3) | ((h & 1) << 2), ((a >> (2 * t + 2)) & 3) | ((h & 2) << 1))


@inline
def scales(p):
    """f32x16: d * (sc - 32)."""
    low, high = i64_at(p + 96), u32_at(p + 104)
    top0 = (high & 0x03030303) | (((high >> 2) & 0x03030303) << 32)
    top1 = ((high >> 4) & 0x03030303) | (((high >> 6) & 0x03030303) << 32)
    nibbles = 0x0F0F0F0F0F0F0F0F
    sc = concat(u8x8((low & nibbles) | (top0 << 4)), u8x8(((low >> 4) & nibbles) | (top1 << 4)))
    return to_f32(to_i32(sc) - 32) * full16(half_at(p + 108))


@inline
def row_u8(w, nb, q, s, m):
    for i in range(nb):
        p = w + BYTES * i
        store(s + 64 * i, scales(p))
        for j in range(4):
            store(q + 256 * i + 64 * j, quants(p, j))


@inline
def dot(w, nb, xq, x4, ds, s16):
    acc = zero16()
    for i in range(nb):
        p = w + BYTES * i
        prefetch(p + AHEAD)
        prefetch(p + AHEAD + 64)
        x, sums = xq + 256 * i, x4 + 256 * i
        s = scales(p) * twice(evens(f32x16(ds + 64 * i)))
        z = dot4_u8s8(i_zero16() - (i32x16(sums) << 2), quants(p, 0), i8x64(x))
        acc = fma(to_f32(z), _scale0(s), acc)
        z = dot4_u8s8(i_zero16() - (i32x16(sums + 64) << 2), quants(p, 1), i8x64(x + 64))
        acc = fma(to_f32(z), _scale1(s), acc)
        z = dot4_u8s8(i_zero16() - (i32x16(sums + 128) << 2), quants(p, 2), i8x64(x + 128))
        acc = fma(to_f32(z), _scale2(s), acc)
        z = dot4_u8s8(i_zero16() - (i32x16(sums + 192) << 2), quants(p, 3), i8x64(x + 192))
        acc = fma(to_f32(z), _scale3(s), acc)
    return hsum(acc)
