"""IQ1_S: 256 weights = half d, 32 low index bytes, eight u16 (four times three high index bits, scale, sign of delta).

w = d * (2 scale + 1) * (point +- 1/8) for each 32, a point of the grid being eight weights.
"""

import numpy as np

from .iq_grids import grid
from .simd import half_at, inline, load, store, to_f32, u8_at, u16_at

BLOCK, BYTES = 256, 50

points, _i8x8 = grid("IQ1_S"), load("i8", 8)


@inline
def point(index, delta):
    """f32 x 8: a point of the grid, moved by delta."""
    return to_f32(_i8x8(points() + 8 * index)) + delta


@inline
def row_f32(w, nb, out):
    for i in range(nb):
        p = w + BYTES * i
        for j in range(8):
            h = u16_at(p + 34 + 2 * j)
            d = half_at(p) * np.float32(2 * ((h >> 12) & 7) + 1)
            delta = np.float32(-0.125 if h & 0x8000 else 0.125)
            for k in range(4):
                index = u8_at(p + 2 + 4 * j + k) | ((h >> 3 * k) & 7) << 8
                store(out + 1024 * i + 128 * j + 32 * k, point(index, delta) * d)
