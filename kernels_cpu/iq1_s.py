"""IQ1_S: 256 weights = half d, 32 low index bytes, eight u16 (four times three high index bits, scale, sign of delta).

w = d * (2 scale + 1) * (point +- 1/8) for each 32, a point of the grid being eight weights.
Here a quant is 8 point +- 1 + 16, and a scale an eighth.
"""

import numpy as np

from .blocks import eights256, full8, rows256
from .iq_grids import grid
from .simd import half_at, i64_at, inline, load, to_f32, u8_at, u16_at

BLOCK, BYTES, SUB, QMAX, OFFSET, HAS_MIN, SIGNED = 256, 50, 32, 25, 16, False, False

_points, _u16x8 = grid("IQ1_S", 1), load("u16", 8)
ONES = 0x0101010101010101


@inline
def eight(index, minus):
    """The quants of a point, eight bytes: 8 point + 17, or 8 point + 15 where `minus`."""
    return (i64_at(_points() + 8 * index) << 3) + (7 * ONES if minus else 9 * ONES)


@inline
def word(p, r, k):
    h = u16_at(p + 34 + 2 * r)
    return eight(u8_at(p + 2 + 4 * r + k) | ((h >> 3 * k) & 7) << 8, h & 0x8000)


@inline
def scales256(p):
    """(d * (2 scale + 1) / 8, no min), f32 x 8."""
    s = full8(half_at(p)) * (to_f32((_u16x8(p + 34) >> 12) & 7) * 2 + 1) * np.float32(0.125)
    return s, s


quants, chunks = eights256(word)
row_u8 = rows256(BYTES, SUB, quants, scales256, HAS_MIN)
