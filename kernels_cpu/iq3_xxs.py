"""IQ3_XXS: 256 weights = half d, 64 index bytes, eight u32 (four times seven sign bits, a scale).

w = d * (scale + 1/2) / 2 * point for each 32; a point of the grid is four weights.
"""

import numpy as np

from .blocks import u8x8
from .iq2_xxs import i8x8
from .iq_grids import even_signs, grid
from .simd import bitcast, half_at, inline, store, to_f32, u8_at, u32_at

BLOCK, BYTES = 256, 98

_points, _signed_bytes = grid("IQ3_XXS"), bitcast("i8", 8)


@inline
def signed_pair(point0, point1, mask):
    """f32 x 8: the four weights at each point, negative where the mask at `mask` is -1."""
    m = i8x8(mask)
    v = _signed_bytes(u8x8(u32_at(point0) | u32_at(point1) << 32))
    return to_f32((v ^ m) - m)


@inline
def row_f32(w, nb, out):
    for i in range(nb):
        p = w + BYTES * i
        for j in range(8):
            word = u32_at(p + 66 + 4 * j)
            d = half_at(p) * (np.float32(0.5) + np.float32(word >> 28)) * np.float32(0.5)
            for k in range(4):
                q = p + 2 + 8 * j + 2 * k
                mask = even_signs() + 8 * ((word >> 7 * k) & 127)
                v = signed_pair(_points() + 4 * u8_at(q), _points() + 4 * u8_at(q + 1), mask)
                store(out + 1024 * i + 128 * j + 32 * k, v * d)
