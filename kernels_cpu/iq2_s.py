"""IQ2_S: 256 weights = half d, 32 low index bytes, 32 sign bytes, eight of high index bits, eight of 4-bit scales.

w = d * (scale + 1/2) / 4 * point for each 16; a point of the grid is eight weights.
"""

import numpy as np

from .iq2_xxs import signed
from .iq_grids import grid, signs
from .simd import half_at, inline, store, u8_at

BLOCK, BYTES = 256, 82

_points = grid("IQ2_S")


@inline
def row_f32(w, nb, out):
    for i in range(nb):
        p = w + BYTES * i
        for j in range(32):
            scale = (u8_at(p + 74 + j // 4) >> 4 * (j // 2 & 1)) & 15
            d = half_at(p) * (np.float32(0.5) + np.float32(scale)) * np.float32(0.25)
            index = u8_at(p + 2 + j) | ((u8_at(p + 66 + j // 4) >> 2 * (j & 3)) & 3) << 8
            v = signed(_points() + 8 * index, signs() + 8 * u8_at(p + 34 + j))
            store(out + 1024 * i + 32 * j, v * d)
