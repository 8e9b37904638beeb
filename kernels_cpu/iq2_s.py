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
        for j in range(16):
            scale = (u8_at(p + 74 + j // 2) >> 4 * (j & 1)) & 15
            d = half_at(p) * (np.float32(0.5) + np.float32(scale)) * np.float32(0.25)
            high = u8_at(p + 66 + j // 2) >> 4 * (j & 1)
            for k in range(2):
                index = u8_at(p + 2 + 2 * j + k) | ((high >> 2 * k) & 3) << 8
                v = signed(_points() + 8 * index, signs() + 8 * u8_at(p + 34 + 2 * j + k))
                store(out + 1024 * i + 64 * j + 32 * k, v * d)
