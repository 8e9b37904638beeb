"""IQ2_S: 256 weights = half d, 32 low index bytes, 32 sign bytes, eight of high index bits, eight of 4-bit scales.

w = d * (scale + 1/2) / 4 * point for each 16; a point of the grid is eight weights.
"""

import numpy as np

from .blocks import full16, nibbles16, points256, rows256
from .iq_grids import grid, signs
from .simd import half_at, i64_at, inline, to_f32, u8_at

BLOCK, BYTES, SUB, QMAX, OFFSET, HAS_MIN, SIGNED = 256, 82, 16, 107, 64, False, False

_points = grid("IQ2_S")


@inline
def point(p, r, k):
    return i64_at(_points() + 8 * (u8_at(p + 2 + 4 * r + k) | ((u8_at(p + 66 + r) >> 2 * k) & 3) << 8))


@inline
def mask(p, r, k):
    return i64_at(signs() + 8 * u8_at(p + 34 + 4 * r + k))


@inline
def scales256(p):
    """(d * (scale + 1/2) / 4, no min), f32 x 16."""
    s = full16(half_at(p)) * (to_f32(nibbles16(p + 74)) + np.float32(0.5)) * np.float32(0.25)
    return s, s


quants, chunks = points256(point, mask, OFFSET)
row_u8 = rows256(BYTES, SUB, quants, scales256, HAS_MIN)
