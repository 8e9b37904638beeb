"""Q2_K: 256 weights = 16 bytes of 4-bit scales (low) and mins (high), 64 bytes of bit pairs, half d, half dmin.

w = d * sc * q - dmin * mn for each 16. Weight 128 n + 32 j + l has its pair in byte 32 n + l at bit 2 j.
"""

from .blocks import AHEAD, evens, f32x16, full16, i8x64, i_zero16, quarters, twice, zero16
from .simd import concat, dot4_u8s8, fma, half_at, hsum, inline, load, prefetch, store, to_f32

BLOCK, BYTES, SUB, OFFSET, HAS_MIN, SIGNED = 256, 84, 16, 0, True, False

_u8x32, _u8x16 = load("u8", 32), load("u8", 16)
_scale0, _scale1, _scale2, _scale3 = quarters


@inline
def quants(p, j):
    """u8 x 64: weights 64 j .. 64 j + 63."""
    a = _u8x32(p + 16 + 32 * (j >> 1)) >> (4 * (j & 1))
    return concat(a & 3, (a >> 2) & 3)


@inline
def row_u8(w, nb, q, s, m):
    for i in range(nb):
        p = w + BYTES * i
        sc = _u8x16(p)
        store(s + 64 * i, to_f32(sc & 15) * full16(half_at(p + 80)))
        store(m + 64 * i, to_f32(sc >> 4) * full16(half_at(p + 82)))
        for j in range(4):
            store(q + 256 * i + 64 * j, quants(p, j))


@inline
def dot(w, nb, xq, x4, ds, s16):
    acc, mins = zero16(), zero16()
    for i in range(nb):
        p = w + BYTES * i
        prefetch(p + AHEAD)
        prefetch(p + AHEAD + 64)
        x = xq + 256 * i
        sc = _u8x16(p)
        s = to_f32(sc & 15) * full16(half_at(p + 80)) * twice(evens(f32x16(ds + 64 * i)))
        mins = fma(to_f32(sc >> 4) * full16(half_at(p + 82)), f32x16(s16 + 64 * i), mins)
        acc = fma(to_f32(dot4_u8s8(i_zero16(), quants(p, 0), i8x64(x))), _scale0(s), acc)
        acc = fma(to_f32(dot4_u8s8(i_zero16(), quants(p, 1), i8x64(x + 64))), _scale1(s), acc)
        acc = fma(to_f32(dot4_u8s8(i_zero16(), quants(p, 2), i8x64(x + 128))), _scale2(s), acc)
        acc = fma(to_f32(dot4_u8s8(i_zero16(), quants(p, 3), i8x64(x + 192))), _scale3(s), acc)
    return hsum(acc) - hsum(mins)
