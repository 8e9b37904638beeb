"""NVFP4: 64 weights = four scale bytes (E4M3 without sign, one per 16 weights), 32 bytes of E2M1 nibbles.

Eight bytes hold 16 weights, low nibbles first. LEVELS of MXFP4 are doubled numbers, so w = scale / 2 * LEVELS[nibble].
"""

import numpy as np

from .mxfp4 import float_of, levels
from .simd import concat, inline, load, pick, store, to_f32, u8_at

BLOCK, BYTES = 64, 36

_u8x16 = load("u8", 16)
_ordered = pick(*range(8), *range(16, 24), *range(8, 16), *range(24, 32))
_first, _second = pick(*range(16)), pick(*range(16, 32))


@inline
def half_scale(e):
    """Half the E4M3 number of a byte: its bits are those of an f32 that is 2^-120 times as large. 0x7F counts as 0."""
    if e == 0x7F:
        return np.float32(0)
    return float_of((e & 0x7F) << 20) * np.float32(2.0**119)


@inline
def row_f32(w, nb, out):
    for i in range(nb):
        p = w + BYTES * i
        for j in range(2):
            v = _u8x16(p + 4 + 16 * j)
            q = to_f32(_ordered(levels(concat(v & 15, v >> 4))))
            to = out + 256 * i + 128 * j
            store(to, _first(q) * half_scale(u8_at(p + 2 * j)))
            store(to + 64, _second(q) * half_scale(u8_at(p + 2 * j + 1)))
