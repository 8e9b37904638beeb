"""Q5_K: Q4_K with 32 bytes of fifth bits before the nibbles; bit t of byte l belongs to weight 32 t + l."""

from .blocks import dot256, full8, rows256, scales_6bit
from .simd import concat, half_at, inline, load

BLOCK, BYTES, SUB, QMAX, OFFSET, HAS_MIN, SIGNED = 256, 176, 32, 31, 0, True, False

_u8x32 = load("u8", 32)


@inline
def quants(p, j):
    """u8 x 64: weights 64 j .. 64 j + 63."""
    a, h = _u8x32(p + 48 + 32 * j), _u8x32(p + 16) >> (2 * j)
    return concat((a & 15) | ((h & 1) << 4), (a >> 4) | ((h & 2) << 3))


@inline
def scales(p):
    """(d * sc, dmin * mn), f32 x 8."""
    sc, mn = scales_6bit(p + 4)
    return sc * full8(half_at(p)), mn * full8(half_at(p + 2))


row_u8 = rows256(BYTES, SUB, quants, scales, HAS_MIN)
dot = dot256(BYTES, SUB, quants, scales, -1, HAS_MIN)
