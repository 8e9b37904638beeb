"""Q8_0: 32 weights = half d, 32 signed bytes. w = d * q.

VNNI multiplies u8 by s8 without saturating, so there the quants are shifted by 128; maddubs would saturate on
them, so elsewhere they stay signed.
"""

from .blocks import chunks32, rows32, scales32
from .simd import VNNI256, inline, load

BLOCK, BYTES, SUB, QMAX, HAS_MIN, SIGNED = 32, 34, 32, 255, False, not VNNI256
OFFSET = 0 if SIGNED else 128

_u8x32, _i8x32 = load("u8", 32), load("i8", 32)


@inline
def signed_bytes(p):
    """32 signed bytes at p: u8 x 32 offset by 128, or s8 x 32 where SIGNED."""
    if SIGNED:
        return _i8x32(p)
    return _u8x32(p) ^ 128


@inline
def quants(p):
    return signed_bytes(p + 2)


row_u8 = rows32(BYTES, quants, HAS_MIN)
chunks = chunks32(BYTES, quants)
scales256 = scales32(BYTES, HAS_MIN)
