"""Q3_K: 256 weights = 32 bytes of third bits, 64 bytes of bit pairs, 12 bytes of sixteen 6-bit scales, half d.

w = d * (sc - 32) * (q - 4) for each 16. Weight 128 n + 32 j + l has its pair in byte 32 n + l at bit 2 j and its
third bit in byte l at bit 4 n + j.
"""

from .blocks import full16, rows256, u8x8
from .q2_k import bytes64, pairs, twice, words
from .simd import concat, const, half_at, i64_at, inline, load, to_f32, to_i32, u32_at

BLOCK, BYTES, SUB, QMAX, OFFSET, HAS_MIN, SIGNED, PAIRED = 256, 110, 16, 7, 4, False, False, False

_u8x32 = load("u8", 32)
_t0, _t1, _t2, _t3 = (const("u32", *[2 * c] * 8, *[2 * c + 1] * 8) for c in range(4))


@inline
def third(h, bits):
    return (bytes64(h >> bits) & 1) << 2


@inline
def chunks(p):
    h = words(twice(_u8x32(p)))
    q0, q1 = pairs(p + 32)
    q2, q3 = pairs(p + 64)
    return q0 | third(h, _t0()), q1 | third(h, _t1()), q2 | third(h, _t2()), q3 | third(h, _t3())


@inline
def scales256(p):
    """(d * (sc - 32), no min), f32 x 16."""
    low, high = i64_at(p + 96), u32_at(p + 104)
    top0 = (high & 0x03030303) | (((high >> 2) & 0x03030303) << 32)
    top1 = ((high >> 4) & 0x03030303) | (((high >> 6) & 0x03030303) << 32)
    nibbles = 0x0F0F0F0F0F0F0F0F
    sc = concat(u8x8((low & nibbles) | (top0 << 4)), u8x8(((low >> 4) & nibbles) | (top1 << 4)))
    s = to_f32(to_i32(sc) - 32) * full16(half_at(p + 108))
    return s, s


row_u8 = rows256(BYTES, SUB, chunks, scales256, HAS_MIN)
