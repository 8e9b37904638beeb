"""Q2_K: 256 weights = 16 bytes of 4-bit scales (low) and mins (high), 64 bytes of bit pairs, half d, half dmin.

w = d * sc * q - dmin * mn for each 16. Weight 128 n + 32 j + l has its pair in byte 32 n + l at bit 2 j.
"""

from .blocks import bytes64, full16, pieces, rows256, shifts, words
from .simd import concat, half_at, inline, load, to_f32

BLOCK, BYTES, SUB, QMAX, OFFSET, HAS_MIN, SIGNED = 256, 84, 16, 3, 0, True, False

_u8x64, _u8x32, _u8x16 = load("u8", 64), load("u8", 32), load("u8", 16)
_c0, _c1, _c2, _c3 = (pieces(*[32 * half + 8 * c for half in (0, 1) for _ in range(4)]) for c in range(4))
_pair_of_run = shifts(0, 2, 4, 6, 0, 2, 4, 6)


@inline
def pairs(p, j):
    """u8 x 64: weights 64 j .. 64 j + 63 of 64 bytes of bit pairs at p."""
    a = _u8x32(p + 32 * (j >> 1)) >> (4 * (j & 1))
    return concat(a & 3, (a >> 2) & 3)


@inline
def quants(p, j):
    return pairs(p + 16, j)


@inline
def pair(v):
    """The bit pairs of each run."""
    return bytes64(words(v) >> _pair_of_run()) & 3


@inline
def pair_chunks(p):
    """`chunks` of 64 bytes of bit pairs at p."""
    a = _u8x64(p)
    return pair(_c0(a)), pair(_c1(a)), pair(_c2(a)), pair(_c3(a))


@inline
def chunks(p):
    return pair_chunks(p + 16)


@inline
def scales256(p):
    """(d * sc, dmin * mn), f32 x 16."""
    packed = _u8x16(p)
    return to_f32(packed & 15) * full16(half_at(p + 80)), to_f32(packed >> 4) * full16(half_at(p + 82))


row_u8 = rows256(BYTES, SUB, quants, scales256, HAS_MIN)
