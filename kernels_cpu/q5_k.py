"""Q5_K: Q4_K with 32 bytes of fifth bits before the nibbles; bit t of byte l belongs to weight 32 t + l."""

from .blocks import bytes64, pieces, rows256, scales_and_mins, shifts, words
from .q4_k import nibbles
from .simd import concat, inline, load

BLOCK, BYTES, SUB, QMAX, OFFSET, HAS_MIN, SIGNED = 256, 176, 32, 31, 0, True, False

_u8x32 = load("u8", 32)
_h0, _h1, _h2, _h3 = (pieces(*[8 * c] * 8) for c in range(4))
_run = shifts(*range(8))
scales256 = scales_and_mins


@inline
def quants(p, j):
    """u8 x 64: weights 64 j .. 64 j + 63."""
    a, h = _u8x32(p + 48 + 32 * j), _u8x32(p + 16) >> (2 * j)
    return concat((a & 15) | ((h & 1) << 4), (a >> 4) | ((h & 2) << 3))


@inline
def bit_of_run(v):
    """Bit r of each byte of run r."""
    return bytes64(words(v) >> _run()) & 1


@inline
def run_bits(h):
    """`chunks` of 32 bytes, of which bit r belongs to run r."""
    return bit_of_run(_h0(h)), bit_of_run(_h1(h)), bit_of_run(_h2(h)), bit_of_run(_h3(h))


@inline
def chunks(p):
    q0, q1, q2, q3 = nibbles(p + 48)
    b0, b1, b2, b3 = run_bits(_u8x32(p + 16))
    return q0 | (b0 << 4), q1 | (b1 << 4), q2 | (b2 << 4), q3 | (b3 << 4)


row_u8 = rows256(BYTES, SUB, quants, scales256, HAS_MIN)
