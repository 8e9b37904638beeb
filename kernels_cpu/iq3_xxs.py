"""IQ3_XXS: 256 weights = half d, 64 index bytes, eight u32 (four times seven sign bits, a scale).

w = d * (scale + 1/2) / 2 * point for each 32; a point of the grid is four weights.
"""

import numpy as np

from .blocks import full8, points256, rows256
from .iq_grids import even_signs, grid
from .simd import half_at, i64_at, inline, load, to_f32, u8_at, u32_at

BLOCK, BYTES, SUB, QMAX, OFFSET, HAS_MIN, SIGNED = 256, 98, 32, 126, 64, False, False

_points, _words8 = grid("IQ3_XXS"), load("u32", 8)


@inline
def point(p, r, k):
    """Two points of four weights."""
    q = p + 2 + 8 * r + 2 * k
    return u32_at(_points() + 4 * u8_at(q)) | u32_at(_points() + 4 * u8_at(q + 1)) << 32


@inline
def mask(p, r, k):
    return i64_at(even_signs() + 8 * ((u32_at(p + 66 + 4 * r) >> 7 * k) & 127))


@inline
def scales256(p):
    """(d * (scale + 1/2) / 2, no min), f32 x 8."""
    s = full8(half_at(p)) * (to_f32(_words8(p + 66) >> 28) + np.float32(0.5)) * np.float32(0.5)
    return s, s


quants, chunks = points256(point, mask, OFFSET)
row_u8 = rows256(BYTES, SUB, quants, scales256, HAS_MIN)
