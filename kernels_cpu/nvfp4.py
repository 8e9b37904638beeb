"""NVFP4: 64 weights = four scale bytes (E4M3 without sign, one per 16 weights), 32 bytes of E2M1 nibbles.

Eight bytes hold 16 weights, low nibbles first. LEVELS of MXFP4 are doubled numbers, so w = scale / 2 * LEVELS[nibble].
"""

import numpy as np

from .blocks import pieces2
from .mxfp4 import HAS_MIN, OFFSET, QMAX, SIGNED, level64
from .simd import bitcast, concat, inline, load, shuffle, store, strided, to_i32, where_negative, zeros

BLOCK, BYTES, SUB = 64, 36, 16

_u8x32, _bytes4, _words4, _bytes16 = load("u8", 32), load("u8", 4), strided("u32", 4, BYTES), bitcast("u8", 16)
_floats4, _floats16, _zero4, _zero16 = bitcast("f32", 4), bitcast("f32", 16), zeros("f32", 4), zeros("f32", 16)
_even, _odd = (pieces2(*[16 * r + 8 * c for r in range(8)]) for c in (0, 1))
_ordered = shuffle(*[8 * (i // 16) + i % 8 + 32 * (i // 8 % 2) for i in range(64)])


def _half_scales(floats, zero):
    """Half the E4M3 numbers of bytes: their bits are those of f32 that are 2^-120 times as large. 0x7F counts as 0."""

    @inline
    def op(e):
        e = to_i32(e)
        return where_negative((e ^ 0x7F) - 1, zero(), floats((e & 0x7F) << 20) * np.float32(2.0**119))

    return op


_scales4, _scales16 = _half_scales(_floats4, _zero4), _half_scales(_floats16, _zero16)


@inline
def chunks(p):
    a = concat(_u8x32(p + 4), _u8x32(p + 4 + BYTES))
    b = concat(_u8x32(p + 4 + 2 * BYTES), _u8x32(p + 4 + 3 * BYTES))
    x, y = _even(a, b), _odd(a, b)
    return level64(x & 15), level64(x >> 4), level64(y & 15), level64(y >> 4)


@inline
def scales256(p):
    """(half a scale, no min), f32 x 16."""
    s = _scales16(_bytes16(_words4(p)))
    return s, s


@inline
def row_u8(w, nb, q, s, m):
    for i in range(nb):
        p = w + BYTES * i
        v = _u8x32(p + 4)
        store(q + 64 * i, level64(_ordered(v & 15, v >> 4)))
        store(s + 16 * i, _scales4(_bytes4(p)))


__all__ = ["HAS_MIN", "OFFSET", "QMAX", "SIGNED", "chunks", "row_u8", "scales256"]
