"""Q2_K: 256 weights = 16 bytes of 4-bit scales (low) and mins (high), 64 bytes of bit pairs, half d, half dmin.

w = d * sc * q - dmin * mn for each 16. Weight 128 n + 32 j + l has its pair in byte 32 n + l at bit 2 j.
"""

from .blocks import full16, rows256
from .simd import bitcast, const, half_at, inline, load, pick, to_f32

BLOCK, BYTES, SUB, QMAX, OFFSET, HAS_MIN, SIGNED, PAIRED = 256, 84, 16, 3, 0, True, False, False

_u8x32, _u8x16 = load("u8", 32), load("u8", 16)
twice, words, bytes64 = pick(*list(range(32)) * 2), bitcast("u32", 16), bitcast("u8", 64)
_low, _high = const("u32", *[0] * 8, *[2] * 8), const("u32", *[4] * 8, *[6] * 8)


@inline
def pairs(p):
    """32 bytes of bit pairs -> the two u8 x 64 they hold."""
    a = words(twice(_u8x32(p)))
    return bytes64(a >> _low()) & 3, bytes64(a >> _high()) & 3


@inline
def chunks(p):
    q0, q1 = pairs(p + 16)
    q2, q3 = pairs(p + 48)
    return q0, q1, q2, q3


@inline
def scales256(p):
    """(d * sc, dmin * mn), f32 x 16."""
    packed = _u8x16(p)
    return to_f32(packed & 15) * full16(half_at(p + 80)), to_f32(packed >> 4) * full16(half_at(p + 82))


row_u8 = rows256(BYTES, SUB, chunks, scales256, HAS_MIN)
