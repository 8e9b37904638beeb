"""TQ1_0: 256 weights = 48 + 4 bytes of five (the last four: four) ternary digits, half d. w = d * (digit - 1).

A byte is a fraction of 256 in base 3: digit n is the carry of byte * 3^n, modulo 256, times 3. Bytes are read in
runs of 32, 16 and 4; digit n of all bytes of a run makes adjacent weights.
"""

from .blocks import full8, rows256, transposed
from .simd import concat, convert, half_at, inline, load

BLOCK, BYTES, SUB, QMAX, OFFSET, HAS_MIN, SIGNED = 256, 54, 32, 2, 1, False, False

_u8x32, _u8x16, _u8x4 = load("u8", 32), load("u8", 16), load("u8", 4)
_wide, _narrow = convert("u16"), convert("u8")
_in_chunks = transposed()


@inline
def digit(v):
    """Leading digit of u8 fractions."""
    return _narrow((_wide(v) * 3) >> 8)


@inline
def natural(p):
    """All weights in order, as four u8 x 64."""
    a, b, c = _u8x32(p), _u8x16(p + 32), _u8x4(p + 48)
    a1, b1, c1 = a * 3, b * 3, c * 3
    a2, b2, c2 = a * 9, b * 9, c * 9
    a3, b3, c3 = a * 27, b * 27, c * 27
    a4, b4 = a * 81, b * 81
    last = concat(concat(digit(c), digit(c1)), concat(digit(c2), digit(c3)))
    sixth = concat(digit(b), digit(b1))
    return (
        concat(digit(a), digit(a1)), concat(digit(a2), digit(a3)), concat(digit(a4), sixth),
        concat(concat(digit(b2), digit(b3)), concat(digit(b4), last)),
    )  # fmt: skip


@inline
def quants(p, j):
    """u8 x 64: weights 64 j .. 64 j + 63."""
    q0, q1, q2, q3 = natural(p)
    if j == 0:
        return q0
    if j == 1:
        return q1
    return q2 if j == 2 else q3


@inline
def chunks(p):
    q0, q1, q2, q3 = natural(p)
    return _in_chunks(q0, q1, q2, q3)


@inline
def scales256(p):
    """(d, no min), f32 x 8."""
    s = full8(half_at(p + 52))
    return s, s


row_u8 = rows256(BYTES, SUB, quants, scales256, HAS_MIN)
