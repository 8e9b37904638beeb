"""IQ1_M: 256 weights = 32 low index bytes, 16 bytes of nibbles (three high index bits, sign of delta), four u16.

The four u16 hold four 3-bit scales each and, in their top nibbles, the half d. w = d * (2 scale + 1) * (point +- 1/8)
for each 16.
"""

import numpy as np

from .blocks import eights256, full16, rows256
from .iq1_s import HAS_MIN, OFFSET, QMAX, SIGNED, eight
from .mxfp4 import float_of
from .simd import const, convert, inline, load, pick, to_f32, u8_at, u16_at

BLOCK, BYTES, SUB = 256, 56, 16

_u16x4, _four_times, _wide = load("u16", 4), pick(*[i // 4 for i in range(16)]), convert("u32")
_shifts = const("u32", *[3 * (i % 4) for i in range(16)])


@inline
def half_of(h):
    """The f32 of the bits of a half."""
    magnitude = float_of((h & 0x7FFF) << 13) * np.float32(2.0**112)
    if h & 0x7C00 == 0x7C00:
        magnitude = float_of((h & 0x7FFF) << 13 | 0x7F800000)
    return -magnitude if h & 0x8000 else magnitude


@inline
def word(p, r, k):
    h = u8_at(p + 32 + 2 * r + k // 2) >> 4 * (k & 1)
    return eight(u8_at(p + 4 * r + k) | (h & 7) << 8, h & 8)


@inline
def scales256(p):
    """(d * (2 scale + 1) / 8, no min), f32 x 16."""
    s0, s1, s2, s3 = u16_at(p + 48), u16_at(p + 50), u16_at(p + 52), u16_at(p + 54)
    d = half_of(s0 >> 12 | (s1 >> 8 & 0xF0) | (s2 >> 4 & 0xF00) | (s3 & 0xF000))
    three_bits = (_wide(_four_times(_u16x4(p + 48))) >> _shifts()) & 7
    s = full16(d) * (to_f32(three_bits) * 2 + 1) * np.float32(0.125)
    return s, s


quants, chunks = eights256(word)
row_u8 = rows256(BYTES, SUB, quants, scales256, HAS_MIN)

__all__ = ["OFFSET", "QMAX", "SIGNED", "chunks", "row_u8", "scales256"]
