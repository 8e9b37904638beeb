"""Q6_K: 256 weights = 128 bytes of low nibbles, 64 bytes of high pairs of bits, 16 signed scales, half d.

w = d * sc * (q - 32) for each 16. Half h of the block takes 64 nibble bytes and 32 bit-pair bytes: its four runs of
32 weights are the low nibbles of both 32-byte chunks, then the high nibbles.
"""

from .blocks import dot256, full16, rows256
from .simd import concat, half_at, inline, load, to_f32

BLOCK, BYTES, SUB, QMAX, OFFSET, HAS_MIN, SIGNED = 256, 210, 16, 63, 32, False, False

_u8x32, _i8x16 = load("u8", 32), load("i8", 16)


@inline
def quants(p, j):
    """u8 x 64: weights 64 j .. 64 j + 63 (j = 2 * half + 1 for the high nibbles)."""
    half, high = j >> 1, j & 1
    a, b = _u8x32(p + 64 * half), _u8x32(p + 64 * half + 32)
    h = _u8x32(p + 128 + 32 * half)
    if high:
        return concat((a >> 4) | (h & 48), (b >> 4) | ((h >> 2) & 48))
    return concat((a & 15) | ((h & 3) << 4), (b & 15) | ((h << 2) & 48))


@inline
def scales(p):
    """(d * sc, no min), f32 x 16."""
    s = to_f32(_i8x16(p + 192)) * full16(half_at(p + 208))
    return s, s


row_u8 = rows256(BYTES, SUB, quants, scales, HAS_MIN)
dot = dot256(BYTES, SUB, quants, scales, 5, HAS_MIN)
