"""IQ2_XS: 256 weights = half d, 32 u16 (nine index bits, seven sign bits), eight bytes of sixteen 4-bit scales.

w = d * (scale + 1/2) / 4 * point for each 16; a point of the grid is eight weights.
"""

import numpy as np

from .iq2_xxs import signed
from .iq_grids import even_signs, grid
from .simd import half_at, inline, store, u8_at, u16_at

BLOCK, BYTES = 256, 74

_points = grid("IQ2_XS")


@inline
def row_f32(w, nb, out):
    for i in range(nb):
        p = w + BYTES * i
        for j in range(16):
            scale = (u8_at(p + 66 + j // 2) >> 4 * (j & 1)) & 15
            d = half_at(p) * (np.float32(0.5) + np.float32(scale)) * np.float32(0.25)
            for k in range(2):
                word = u16_at(p + 2 + 4 * j + 2 * k)
                v = signed(_points() + 8 * (word & 511), even_signs() + 8 * (word >> 9))
                store(out + 1024 * i + 64 * j + 32 * k, v * d)
