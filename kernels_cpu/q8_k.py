"""Q8_K: 256 weights = f32 d, 256 signed bytes, 16 sums of 16 quants (i16, for dot products). w = d * q."""

from .blocks import full8, rows256, transposed
from .q8_0 import HAS_MIN, OFFSET, QMAX, SIGNED, signed_bytes
from .simd import concat, f32_at, inline

BLOCK, BYTES, SUB = 256, 292, 32

_in_chunks = transposed()


@inline
def quants(p, j):
    """64 quants: weights 64 j .. 64 j + 63."""
    return concat(signed_bytes(p + 4 + 64 * j), signed_bytes(p + 36 + 64 * j))


@inline
def chunks(p):
    return _in_chunks(quants(p, 0), quants(p, 1), quants(p, 2), quants(p, 3))


@inline
def scales256(p):
    """(d, no min), f32 x 8."""
    s = full8(f32_at(p))
    return s, s


row_u8 = rows256(BYTES, SUB, quants, scales256, HAS_MIN)

__all__ = ["OFFSET", "QMAX", "SIGNED", "chunks", "row_u8", "scales256"]
