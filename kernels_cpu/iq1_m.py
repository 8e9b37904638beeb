"""IQ1_M: 256 weights = 32 low index bytes, 16 bytes of nibbles (three high index bits, sign of delta), four u16.

The four u16 hold four 3-bit scales each and, in their top nibbles, the half d. w = d * (2 scale + 1) * (point +- 1/8)
for each 16.
"""

import numpy as np

from .iq1_s import point
from .mxfp4 import float_of
from .simd import inline, store, u8_at, u16_at

BLOCK, BYTES = 256, 56


@inline
def half_of(h):
    """The f32 of the bits of a half."""
    magnitude = float_of((h & 0x7FFF) << 13) * np.float32(2.0**112)
    if h & 0x7C00 == 0x7C00:
        magnitude = float_of((h & 0x7FFF) << 13 | 0x7F800000)
    return -magnitude if h & 0x8000 else magnitude


@inline
def row_f32(w, nb, out):
    for i in range(nb):
        p = w + BYTES * i
        s0, s1, s2, s3 = u16_at(p + 48), u16_at(p + 50), u16_at(p + 52), u16_at(p + 54)
        scale = half_of(s0 >> 12 | (s1 >> 8 & 0xF0) | (s2 >> 4 & 0xF00) | (s3 & 0xF000))
        for j in range(16):
            d = scale * np.float32(2 * ((u16_at(p + 48 + j // 4 * 2) >> 3 * (j & 3)) & 7) + 1)
            high = u8_at(p + 32 + j)
            for k in range(2):
                h = high >> 4 * k
                delta = np.float32(-0.125 if h & 8 else 0.125)
                index = u8_at(p + 2 * j + k) | (h & 7) << 8
                store(out + 1024 * i + 64 * j + 32 * k, point(index, delta) * d)
