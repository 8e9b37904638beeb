"""IQ4_XS: 256 weights = half d, u16 of eight high scale bits, 4 bytes of eight low scale nibbles, 128 of nibbles.

w = d * (scale - 32) * LEVELS[nibble] for each 32, the 6-bit scale being high bits and low nibble.
"""

import numpy as np

from .iq4_nl import quants
from .simd import half_at, inline, store, to_f32, u8_at, u16_at

BLOCK, BYTES = 256, 136


@inline
def row_f32(w, nb, out):
    for i in range(nb):
        p = w + BYTES * i
        high = u16_at(p + 2)
        for j in range(8):
            low = (u8_at(p + 4 + j // 2) >> 4 * (j & 1)) & 15
            d = half_at(p) * np.float32((low | ((high >> 2 * j) & 3) << 4) - 32)
            store(out + 1024 * i + 128 * j, to_f32(quants(p + 8 + 16 * j)) * d)
