"""IQ3_S: 256 weights = half d, 64 low index bytes, eight of high index bits, 32 sign bytes, four of 4-bit scales.

w = d * (2 scale + 1) * point for each 32; a point of the grid is four weights.
"""

import numpy as np

from .iq3_xxs import signed_pair
from .iq_grids import grid, signs
from .simd import half_at, inline, store, u8_at

BLOCK, BYTES = 256, 110

_points = grid("IQ3_S")


@inline
def row_f32(w, nb, out):
    for i in range(nb):
        p = w + BYTES * i
        for j in range(8):
            scale = (u8_at(p + 106 + j // 2) >> 4 * (j & 1)) & 15
            d = half_at(p) * np.float32(2 * scale + 1)
            high = u8_at(p + 66 + j)
            for k in range(4):
                q = p + 2 + 8 * j + 2 * k
                a = u8_at(q) | (high << 8 - 2 * k & 256)
                b = u8_at(q + 1) | (high << 7 - 2 * k & 256)
                v = signed_pair(_points() + 4 * a, _points() + 4 * b, signs() + 8 * u8_at(p + 74 + 4 * j + k))
                store(out + 1024 * i + 128 * j + 32 * k, v * d)
