"""Q8_1: 32 weights = half d, half s (d times the sum of the quants, for dot products), 32 signed bytes. w = d * q."""

from .blocks import chunks32, rows32, scales32
from .q8_0 import HAS_MIN, OFFSET, QMAX, SIGNED, signed_bytes
from .simd import inline

BLOCK, BYTES, SUB = 32, 36, 32


@inline
def quants(p):
    return signed_bytes(p + 4)


row_u8 = rows32(BYTES, quants, HAS_MIN)
chunks = chunks32(BYTES, quants)
scales256 = scales32(BYTES, HAS_MIN)

__all__ = ["OFFSET", "QMAX", "SIGNED", "chunks", "row_u8", "scales256"]
