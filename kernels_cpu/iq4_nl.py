"""IQ4_NL: 32 weights = half d, 16 bytes of nibbles, low nibbles first. w = d * LEVELS[nibble]."""

from .blocks import nibble_chunks, rows32, scales32
from .simd import VNNI256, bitcast, concat, inline, load
from .tables import lookup16

BLOCK, BYTES, SUB, QMAX, HAS_MIN, SIGNED = 32, 18, 32, 255, False, not VNNI256  # as in q8_0
OFFSET = 0 if SIGNED else 128
LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)

_u8x16, _look_up = load("u8", 16), lookup16(tuple(level + OFFSET for level in LEVELS))
_u8x32, _u8x64 = bitcast("u8", 32), bitcast("u8", 64)
_nibbles = nibble_chunks(BYTES, 2)


@inline
def level64(v):
    """Nibbles u8 x 64 -> quants."""
    q = _look_up(v)
    return q if SIGNED else _u8x64(q)


@inline
def quants(p):
    """32 quants of a block in weight order."""
    v = _u8x16(p + 2)
    q = _look_up(concat(v & 15, v >> 4))
    return q if SIGNED else _u8x32(q)


@inline
def chunks(p):
    a, b, c, d = _nibbles(p)
    return level64(a), level64(b), level64(c), level64(d)


row_u8 = rows32(BYTES, quants, HAS_MIN)
scales256 = scales32(BYTES, HAS_MIN)
