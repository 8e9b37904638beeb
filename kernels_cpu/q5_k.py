"""Q5_K: Q4_K with 32 bytes of fifth bits before the nibbles; bit t of byte l belongs to weight 32 t + l."""

from .blocks import AHEAD, eighths, evens, f32x16, full8, i8x64, i_zero16, odds, scales_6bit, zero8, zero16
from .simd import concat, dot4_u8s8, fma, half_at, hsum, inline, load, prefetch, store, to_f32

BLOCK, BYTES, SUB, OFFSET, HAS_MIN, SIGNED = 256, 176, 32, 0, True, False

_u8x32 = load("u8", 32)
_scale0, _scale1, _scale2, _scale3 = eighths


@inline
def quants(p, j):
    """u8 x 64: weights 64 j .. 64 j + 63."""
    a, h = _u8x32(p + 48 + 32 * j), _u8x32(p + 16) >> (2 * j)
    return concat((a & 15) | ((h & 1) << 4), (a >> 4) | ((h & 2) << 3))


@inline
def row_u8(w, nb, q, s, m):
    for i in range(nb):
        p = w + BYTES * i
        sc, mn = scales_6bit(p + 4)
        store(s + 32 * i, sc * full8(half_at(p)))
        store(m + 32 * i, mn * full8(half_at(p + 2)))
        for j in range(4):
            store(q + 256 * i + 64 * j, quants(p, j))


@inline
def dot(w, nb, xq, x4, ds, s16):
    acc, mins = zero16(), zero8()
    for i in range(nb):
        p = w + BYTES * i
        prefetch(p + AHEAD)
        prefetch(p + AHEAD + 64)
        prefetch(p + AHEAD + 128)
        x = xq + 256 * i
        pairs = f32x16(ds + 64 * i)
        sc, mn = scales_6bit(p + 4)
        s = sc * (evens(pairs) * full8(half_at(p)))
        mins = fma(mn * full8(half_at(p + 2)), odds(pairs), mins)
        acc = fma(to_f32(dot4_u8s8(i_zero16(), quants(p, 0), i8x64(x))), _scale0(s), acc)
        acc = fma(to_f32(dot4_u8s8(i_zero16(), quants(p, 1), i8x64(x + 64))), _scale1(s), acc)
        acc = fma(to_f32(dot4_u8s8(i_zero16(), quants(p, 2), i8x64(x + 128))), _scale2(s), acc)
        acc = fma(to_f32(dot4_u8s8(i_zero16(), quants(p, 3), i8x64(x + 192))), _scale3(s), acc)
    return hsum(acc) - hsum(mins)
