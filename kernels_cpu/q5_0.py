"""Q5_0: 32 weights = half d, 32 fifth bits, 16 bytes of nibbles (low nibbles first). w = d * (q - 16)."""

from .blocks import chunks32, rows32, scales32
from .simd import bits, concat, inline, load

BLOCK, BYTES, SUB, QMAX, HAS_MIN, SIGNED, PAIRED = 32, 22, 32, 31, False, False, False
OFFSET = 16

_u8x16 = load("u8", 16)
_fifth = bits(32, 16)


@inline
def quants(p):
    """u8 x 32 in weight order."""
    a = _u8x16(p + 6)
    return concat(a & 15, a >> 4) | _fifth(p + 2)


row_u8 = rows32(BYTES, quants, HAS_MIN)
chunks = chunks32(BYTES, quants)
scales256 = scales32(BYTES, HAS_MIN)
