"""MXFP4: 32 weights = exponent byte, 16 bytes of nibbles, low nibbles first (OCP Microscaling Formats 1.0).

A nibble is a sign and an E2M1 number; LEVELS holds its double, so w = 2^(exponent - 128) * LEVELS[nibble].
"""

from .blocks import nibble_chunks
from .simd import bitcast, concat, const, inline, lane, load, set_f32, splat, store, strided, to_i32, u8_at, vmax, vmin
from .tables import lookup16

BLOCK, BYTES, SUB, QMAX, OFFSET, HAS_MIN, SIGNED = 32, 17, 32, 28, 16, False, False
LEVELS = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)

_u8x16, _look_up = load("u8", 16), lookup16(tuple(level + OFFSET for level in LEVELS))
_u8x32, _u8x64 = bitcast("u8", 32), bitcast("u8", 64)
_word, _float, _first, _floats8 = splat("i32", 4), bitcast("f32", 4), lane(0), bitcast("f32", 8)
_exponents, _one = strided("u8", 8, BYTES), const("i32", *[1] * 8)
_nibbles = nibble_chunks(BYTES, 1)


@inline
def float_of(bits):
    """The f32 with these bits."""
    return _first(_float(_word(bits)))


@inline
def power(e):
    """2^(e - 128), subnormal for e < 2."""
    return float_of((e - 1) << 23 if e >= 2 else 0x00200000 << e)


@inline
def level64(v):
    """Nibbles u8 x 64 -> quants."""
    return _u8x64(_look_up(v))


@inline
def chunks(p):
    a, b, c, d = _nibbles(p)
    return level64(a), level64(b), level64(c), level64(d)


@inline
def scales256(p):
    """(2^(e - 128), no min), f32 x 8."""
    e = to_i32(_exponents(p))
    s = _floats8(vmax((e - 1) << 23, (vmin(e, _one()) + 1) << 21))
    return s, s


@inline
def row_u8(w, nb, q, s, m):
    for i in range(nb):
        p = w + BYTES * i
        v = _u8x16(p + 1)
        store(q + 32 * i, _u8x32(_look_up(concat(v & 15, v >> 4))))
        set_f32(s + 4 * i, power(u8_at(p)))
