"""Q4_K: 256 weights = half d, half dmin, 12 bytes of eight 6-bit scales and mins, 128 bytes of nibbles.

w = d * sc * q - dmin * mn for each 32; a chunk of 32 bytes holds two runs of 32 weights, low nibbles first.
"""

from .blocks import bytes64, pieces2, rows256, scales_and_mins, shifts, words
from .simd import concat, inline, load

BLOCK, BYTES, SUB, QMAX, OFFSET, HAS_MIN, SIGNED = 256, 144, 32, 15, 0, True, False

_u8x32, _u8x64 = load("u8", 32), load("u8", 64)
_c0, _c1, _c2, _c3 = (pieces2(*[32 * (r // 2) + 8 * c for r in range(8)]) for c in range(4))
_low_high = shifts(0, 4, 0, 4, 0, 4, 0, 4)
scales256 = scales_and_mins


@inline
def quants(p, j):
    """u8 x 64: weights 64 j .. 64 j + 63."""
    a = _u8x32(p + 16 + 32 * j)
    return concat(a & 15, a >> 4)


@inline
def nibble(v):
    """Runs of low nibbles, runs of high ones, in turn."""
    return bytes64(words(v) >> _low_high()) & 15


@inline
def nibbles(p):
    """`chunks` of 128 bytes at p."""
    a, b = _u8x64(p), _u8x64(p + 64)
    return nibble(_c0(a, b)), nibble(_c1(a, b)), nibble(_c2(a, b)), nibble(_c3(a, b))


@inline
def chunks(p):
    return nibbles(p + 16)


row_u8 = rows256(BYTES, SUB, quants, scales256, HAS_MIN)
