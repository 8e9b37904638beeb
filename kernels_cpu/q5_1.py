"""Q5_1: 32 weights = half d, half m, 32 fifth bits, 16 bytes of nibbles (low nibbles first). w = d * q + m."""

from .blocks import chunks32, rows32, scales32
from .simd import bits, concat, inline, load

BLOCK, BYTES, SUB, QMAX, HAS_MIN, SIGNED, PAIRED = 32, 24, 32, 31, True, False, False
OFFSET = 0

_u8x16 = load("u8", 16)
_fifth = bits(32, 16)


@inline
def quants(p):
    """u8 x 32 in weight order."""
    a = _u8x16(p + 8)
    return concat(a & 15, a >> 4) | _fifth(p + 4)


row_u8 = rows32(BYTES, quants, HAS_MIN)
chunks = chunks32(BYTES, quants)
scales256 = scales32(BYTES, HAS_MIN)
