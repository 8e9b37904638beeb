"""IQ3_S: 256 weights = half d, 64 low index bytes, eight of high index bits, 32 sign bytes, four of 4-bit scales.

w = d * (2 scale + 1) * point for each 32; a point of the grid is four weights.
"""

from .blocks import full8, points256, rows256, u8x8
from .iq_grids import grid, signs
from .simd import half_at, i64_at, inline, shuffle, to_f32, u8_at, u32_at

BLOCK, BYTES, SUB, QMAX, OFFSET, HAS_MIN, SIGNED = 256, 110, 32, 31, 16, False, False

_points, _in_turn = grid("IQ3_S"), shuffle(0, 8, 1, 9, 2, 10, 3, 11)


@inline
def point(p, r, k):
    """Two points of four weights."""
    q, high = p + 2 + 8 * r + 2 * k, u8_at(p + 66 + r)
    a = u8_at(q) | (high << 8 - 2 * k & 256)
    b = u8_at(q + 1) | (high << 7 - 2 * k & 256)
    return u32_at(_points() + 4 * a) | u32_at(_points() + 4 * b) << 32


@inline
def mask(p, r, k):
    return i64_at(signs() + 8 * u8_at(p + 74 + 4 * r + k))


@inline
def scales256(p):
    """(d * (2 scale + 1), no min), f32 x 8."""
    v = u8x8(u32_at(p + 106))
    s = full8(half_at(p)) * (to_f32(_in_turn(v & 15, v >> 4)) * 2 + 1)
    return s, s


quants, chunks = points256(point, mask, OFFSET)
row_u8 = rows256(BYTES, SUB, quants, scales256, HAS_MIN)
