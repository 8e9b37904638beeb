"""Q4_K: 256 weights = half d, half dmin, 12 bytes of eight 6-bit scales and mins, 128 bytes of nibbles.

w = d * sc * q - dmin * mn for each 32; a chunk of 32 bytes holds two runs of 32 weights, low nibbles first.
"""

from .blocks import chunks256, rows256, scales_and_mins
from .simd import concat, inline, load, shuffle

BLOCK, BYTES, SUB, QMAX, OFFSET, HAS_MIN, SIGNED, PAIRED = 256, 144, 32, 15, 0, True, False, True

_u8x32, _u8x64 = load("u8", 32), load("u8", 64)
_first_halves = shuffle(*[32 * c + i for c in range(4) for i in range(16)])
_second_halves = shuffle(*[32 * c + 16 + i for c in range(4) for i in range(16)])
scales256 = scales_and_mins


@inline
def quants(p, j):
    """u8 x 64: weights 64 j .. 64 j + 63."""
    a = _u8x32(p + 16 + 32 * j)
    return concat(a & 15, a >> 4)


@inline
def nibbles(p):
    """128 bytes at p -> (first, second) halves of their four runs of 32."""
    a, b = _u8x64(p), _u8x64(p + 64)
    return _first_halves(a, b), _second_halves(a, b)


@inline
def chunks(p):
    first, second = nibbles(p + 16)
    return first & 15, second & 15, first >> 4, second >> 4


row_u8 = rows256(BYTES, SUB, chunks256(quants), scales256, HAS_MIN)
