"""IQ2_XXS: 256 weights = half d, eight times (four index bytes, u32 of four times seven sign bits and a scale).

w = d * (scale + 1/2) / 4 * point for each 32; a point of the grid is eight weights.
"""

import numpy as np

from .blocks import full8, points256, rows256
from .iq_grids import even_signs, grid
from .simd import half_at, i64_at, inline, strided, to_f32, u8_at, u32_at

BLOCK, BYTES, SUB, QMAX, OFFSET, HAS_MIN, SIGNED = 256, 66, 32, 107, 64, False, False

_points, _words8 = grid("IQ2_XXS"), strided("u32", 8, 8)


@inline
def point(p, r, k):
    return i64_at(_points() + 8 * u8_at(p + 2 + 8 * r + k))


@inline
def mask(p, r, k):
    return i64_at(even_signs() + 8 * ((u32_at(p + 6 + 8 * r) >> 7 * k) & 127))


@inline
def scales256(p):
    """(d * (scale + 1/2) / 4, no min), f32 x 8."""
    s = full8(half_at(p)) * (to_f32(_words8(p + 6) >> 28) + np.float32(0.5)) * np.float32(0.25)
    return s, s


quants, chunks = points256(point, mask, OFFSET)
row_u8 = rows256(BYTES, SUB, quants, scales256, HAS_MIN)
