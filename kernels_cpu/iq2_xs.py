"""IQ2_XS: 256 weights = half d, 32 u16 (nine index bits, seven sign bits), eight bytes of sixteen 4-bit scales.

w = d * (scale + 1/2) / 4 * point for each 16; a point of the grid is eight weights.
"""

import numpy as np

from .blocks import full16, nibbles16, points256, rows256
from .iq_grids import even_signs, grid
from .simd import half_at, i64_at, inline, to_f32, u16_at

BLOCK, BYTES, SUB, QMAX, OFFSET, HAS_MIN, SIGNED = 256, 74, 16, 107, 64, False, False

_points = grid("IQ2_XS")


@inline
def point(p, r, k):
    return i64_at(_points() + 8 * (u16_at(p + 2 + 8 * r + 2 * k) & 511))


@inline
def mask(p, r, k):
    return i64_at(even_signs() + 8 * (u16_at(p + 2 + 8 * r + 2 * k) >> 9))


@inline
def scales256(p):
    """(d * (scale + 1/2) / 4, no min), f32 x 16."""
    s = full16(half_at(p)) * (to_f32(nibbles16(p + 66)) + np.float32(0.5)) * np.float32(0.25)
    return s, s


quants, chunks = points256(point, mask, OFFSET)
row_u8 = rows256(BYTES, SUB, quants, scales256, HAS_MIN)
