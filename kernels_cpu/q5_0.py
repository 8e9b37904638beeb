"""Q5_0: 32 weights = half d, 32 fifth bits, 16 bytes of nibbles (low nibbles first). w = d * (q - 16)."""

from .blocks import fifth_bits, nibble_chunks, rows32, scales32
from .simd import bits, concat, inline, load

BLOCK, BYTES, SUB, QMAX, HAS_MIN, SIGNED = 32, 22, 32, 31, False, False
OFFSET = 16

_u8x16 = load("u8", 16)
_fifth = bits(32, 16)


@inline
def quants(p):
    """u8 x 32 in weight order."""
    a = _u8x16(p + 6)
    return concat(a & 15, a >> 4) | _fifth(p + 2)


row_u8 = rows32(BYTES, quants, HAS_MIN)
_nibbles, _bits = nibble_chunks(BYTES, 6), fifth_bits(BYTES, 2)


@inline
def chunks(p):
    q0, q1, q2, q3 = _nibbles(p)
    b0, b1, b2, b3 = _bits(p)
    return q0 | b0, q1 | b1, q2 | b2, q3 | b3


scales256 = scales32(BYTES, HAS_MIN)
