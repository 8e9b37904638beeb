"""Q4_0: 32 weights = half d, 16 bytes of nibbles (low nibbles first). w = d * (q - 8)."""

from .blocks import dot32, rows32
from .simd import concat, inline, load

BLOCK, BYTES, SUB, QMAX, HAS_MIN, SIGNED = 32, 18, 32, 15, False, False
OFFSET = 8

_u8x16 = load("u8", 16)


@inline
def quants(p):
    """u8 x 32 in weight order."""
    a = _u8x16(p + 2)
    return concat(a & 15, a >> 4)


row_u8 = rows32(BYTES, quants, HAS_MIN)
dot = dot32(BYTES, quants, 3, HAS_MIN, SIGNED)
