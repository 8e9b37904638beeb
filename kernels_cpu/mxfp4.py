"""MXFP4: 32 weights = exponent byte, 16 bytes of nibbles, low nibbles first (OCP Microscaling Formats 1.0).

A nibble is a sign and an E2M1 number; LEVELS holds its double, so w = 2^(exponent - 128) * LEVELS[nibble].
"""

from .simd import bitcast, concat, inline, lane, load, splat, store, to_f32, u8_at
from .tables import lookup16

BLOCK, BYTES = 32, 17
LEVELS = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)

_u8x16, levels = load("u8", 16), lookup16(LEVELS)
_word, _float, _first = splat("i32", 4), bitcast("f32", 4), lane(0)


@inline
def float_of(bits):
    """The f32 with these bits."""
    return _first(_float(_word(bits)))


@inline
def power(e):
    """2^(e - 128), subnormal for e < 2."""
    return float_of((e - 1) << 23 if e >= 2 else 0x00200000 << e)


@inline
def row_f32(w, nb, out):
    for i in range(nb):
        p = w + BYTES * i
        v = _u8x16(p + 1)
        store(out + 128 * i, to_f32(levels(concat(v & 15, v >> 4))) * power(u8_at(p)))
