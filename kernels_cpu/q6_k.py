"""Q6_K: 256 weights = 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 s8 scales, half d.

w = d * sc * (q - 32) for each 16. In each half of 128 weights, byte l of 64 holds the nibbles of weights l and 64 + l,
and byte l of 32 the bit pairs of weights l, 32 + l, 64 + l and 96 + l.
"""

from .blocks import bytes64, full16, pieces, pieces2, rows256, shifts, words
from .simd import concat, half_at, inline, load, to_f32

BLOCK, BYTES, SUB, QMAX, OFFSET, HAS_MIN, SIGNED = 256, 210, 16, 63, 32, False, False

_u8x64, _u8x32, _i8x16 = load("u8", 64), load("u8", 32), load("i8", 16)
_nibble_of_run, _pair_of_run = shifts(0, 0, 4, 4, 0, 0, 4, 4), shifts(0, 2, 4, 6, 0, 2, 4, 6)
_a0, _a1, _a2, _a3 = (
    pieces2(*[64 * half + 32 * (r % 2) + 8 * c for half in (0, 1) for r in range(4)]) for c in range(4)
)
_h0, _h1, _h2, _h3 = (pieces(*[32 * half + 8 * c for half in (0, 1) for _ in range(4)]) for c in range(4))


@inline
def quants(p, j):
    """u8 x 64: weights 64 j .. 64 j + 63 (j = 2 * half + 1 for the high nibbles)."""
    half, high = j >> 1, j & 1
    a, b = _u8x32(p + 64 * half), _u8x32(p + 64 * half + 32)
    h = _u8x32(p + 128 + 32 * half)
    if high:
        return concat((a >> 4) | (h & 48), (b >> 4) | ((h >> 2) & 48))
    return concat((a & 15) | ((h & 3) << 4), (b & 15) | ((h << 2) & 48))


@inline
def joined(low, high):
    """Nibbles and bit pairs of the runs, eight bytes each."""
    return (bytes64(words(low) >> _nibble_of_run()) & 15) | ((bytes64(words(high) >> _pair_of_run()) & 3) << 4)


@inline
def chunks(p):
    a, b, h = _u8x64(p), _u8x64(p + 64), _u8x64(p + 128)
    return joined(_a0(a, b), _h0(h)), joined(_a1(a, b), _h1(h)), joined(_a2(a, b), _h2(h)), joined(_a3(a, b), _h3(h))


@inline
def scales256(p):
    """(d * sc, no min), f32 x 16."""
    s = to_f32(_i8x16(p + 192)) * full16(half_at(p + 208))
    return s, s


row_u8 = rows256(BYTES, SUB, quants, scales256, HAS_MIN)
