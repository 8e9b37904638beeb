"""Q4_K: 256 weights = half d, half dmin, 12 bytes of eight 6-bit scales and mins, 128 bytes of nibbles.

w = d * sc * q - dmin * mn for each 32; a chunk of 32 bytes holds two runs of 32 weights, low nibbles first.
"""

from .blocks import dot256, full8, rows256, scales_6bit
from .simd import concat, half_at, inline, load

BLOCK, BYTES, SUB, QMAX, OFFSET, HAS_MIN, SIGNED = 256, 144, 32, 15, 0, True, False

_u8x32 = load("u8", 32)


@inline
def quants(p, j):
    """u8 x 64: weights 64 j .. 64 j + 63."""
    a = _u8x32(p + 16 + 32 * j)
    return concat(a & 15, a >> 4)


@inline
def scales(p):
    """(d * sc, dmin * mn), f32 x 8."""
    sc, mn = scales_6bit(p + 4)
    return sc * full8(half_at(p)), mn * full8(half_at(p + 2))


row_u8 = rows256(BYTES, SUB, quants, scales, HAS_MIN)
dot = dot256(BYTES, SUB, quants, scales, -1, HAS_MIN)
