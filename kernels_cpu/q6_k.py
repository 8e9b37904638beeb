"""Q6_K: 256 weights = 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 s8 scales, half d.

w = d * sc * (q - 32) for each 16. In each half of 128 weights, byte l of 64 holds the nibbles of weights l and 64 + l,
and byte l of 32 the bit pairs of weights l, 32 + l, 64 + l and 96 + l.
"""

from .blocks import full16, rows256
from .simd import bitcast, const, half_at, inline, load, pick, to_f32

BLOCK, BYTES, SUB, QMAX, OFFSET, HAS_MIN, SIGNED, PAIRED = 256, 210, 16, 63, 32, False, False, False

_u8x64, _u8x32, _i8x16 = load("u8", 64), load("u8", 32), load("i8", 16)
_twice, _words, _bytes = pick(*list(range(32)) * 2), bitcast("u32", 16), bitcast("u8", 64)
_shifts = const("u32", *[0] * 8, *[2] * 8)


@inline
def half_chunks(nibbles, pairs):
    """128 weights: u8 x 64 twice."""
    a = _u8x64(nibbles)
    h = _bytes(_words(_twice(_u8x32(pairs))) >> _shifts())
    return (a & 15) | ((h & 3) << 4), (a >> 4) | (h & 48)


@inline
def chunks(p):
    q0, q1 = half_chunks(p, p + 128)
    q2, q3 = half_chunks(p + 64, p + 160)
    return q0, q1, q2, q3


@inline
def scales256(p):
    """(d * sc, no min), f32 x 16."""
    s = to_f32(_i8x16(p + 192)) * full16(half_at(p + 208))
    return s, s


row_u8 = rows256(BYTES, SUB, chunks, scales256, HAS_MIN)
