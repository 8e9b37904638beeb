"""Q4_1: 32 weights = half d, half m, 16 bytes of nibbles (low nibbles first). w = d * q + m."""

from .blocks import nibble_chunks, rows32, scales32
from .simd import concat, inline, load

BLOCK, BYTES, SUB, QMAX, HAS_MIN, SIGNED = 32, 20, 32, 15, True, False
OFFSET = 0

_u8x16 = load("u8", 16)


@inline
def quants(p):
    """u8 x 32 in weight order."""
    a = _u8x16(p + 4)
    return concat(a & 15, a >> 4)


row_u8 = rows32(BYTES, quants, HAS_MIN)
chunks = nibble_chunks(BYTES, 4)
scales256 = scales32(BYTES, HAS_MIN)
