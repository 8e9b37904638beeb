"""TQ2_0: 256 weights = 64 bytes of 2-bit quants, half d. w = d * (q - 1); 32 bytes hold four runs of 32 weights."""

from .blocks import full8, rows256
from .q2_k import pair_chunks, pairs
from .simd import half_at, inline

BLOCK, BYTES, SUB, QMAX, OFFSET, HAS_MIN, SIGNED = 256, 66, 32, 3, 1, False, False

quants, chunks = pairs, pair_chunks


@inline
def scales256(p):
    """(d, no min), f32 x 8."""
    s = full8(half_at(p + 64))
    return s, s


row_u8 = rows256(BYTES, SUB, quants, scales256, HAS_MIN)
