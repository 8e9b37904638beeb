"""Q3_K: 256 weights = 32 bytes of third bits, 64 bytes of bit pairs, 12 bytes of sixteen 6-bit scales, half d.

w = d * (sc - 32) * (q - 4) for each 16. Weight 128 n + 32 j + l has its pair in byte 32 n + l at bit 2 j and its
third bit in byte l at bit 4 n + j.
"""

from .blocks import full16, rows256, u8x8
from .q2_k import pair_chunks
from .q5_k import run_bits
from .simd import concat, half_at, i64_at, inline, load, to_f32, to_i32, u32_at

BLOCK, BYTES, SUB, QMAX, OFFSET, HAS_MIN, SIGNED = 256, 110, 16, 7, 4, False, False

_u8x32 = load("u8", 32)


@inline
def quants(p, j):
    """u8 x 64: weights 64 j .. 64 j + 63."""
    n, t = j >> 1, 2 * (j & 1)
    a, h = _u8x32(p + 32 + 32 * n), _u8x32(p) >> (4 * n + t)
    return concat(((a >> (2 * t)) & 3) | ((h & 1) << 2), ((a >> (2 * t + 2)) & 3) | ((h & 2) << 1))


@inline
def chunks(p):
    q0, q1, q2, q3 = pair_chunks(p + 32)
    b0, b1, b2, b3 = run_bits(_u8x32(p))
    return q0 | (b0 << 2), q1 | (b1 << 2), q2 | (b2 << 2), q3 | (b3 << 2)


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


row_u8 = rows256(BYTES, SUB, quants, scales256, HAS_MIN)
