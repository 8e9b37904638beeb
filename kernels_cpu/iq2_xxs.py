"""IQ2_XXS: 256 weights = half d, eight times (four index bytes, u32 of four times seven sign bits and a scale).

w = d * (scale + 1/2) / 4 * point for each 32; a point of the grid is eight weights.
"""

import numpy as np

from .iq_grids import even_signs, grid
from .simd import half_at, inline, load, store, to_f32, u8_at, u32_at

BLOCK, BYTES = 256, 66

_points, i8x8 = grid("IQ2_XXS"), load("i8", 8)


@inline
def signed(point, mask):
    """f32 x 8: the eight weights at `point`, negative where the mask at `mask` is -1."""
    m = i8x8(mask)
    return to_f32((i8x8(point) ^ m) - m)


@inline
def row_f32(w, nb, out):
    for i in range(nb):
        p = w + BYTES * i
        for j in range(8):
            word = u32_at(p + 2 + 8 * j + 4)
            d = half_at(p) * (np.float32(0.5) + np.float32(word >> 28)) * np.float32(0.25)
            for k in range(4):
                point = _points() + 8 * u8_at(p + 2 + 8 * j + k)
                v = signed(point, even_signs() + 8 * ((word >> 7 * k) & 127))
                store(out + 1024 * i + 128 * j + 32 * k, v * d)
