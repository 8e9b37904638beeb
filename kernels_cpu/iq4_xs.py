"""IQ4_XS: 256 weights = half d, u16 of eight high scale bits, 4 bytes of eight low scale nibbles, 128 of nibbles.

w = d * (scale - 32) * LEVELS[nibble] for each 32, the 6-bit scale being high bits and low nibble.
"""

from .blocks import full8, pieces2, rows256, u8x8
from .iq4_nl import OFFSET, QMAX, SIGNED, level64
from .simd import half_at, inline, load, pick, shuffle, to_f32, to_i32, u16_at, u32_at

BLOCK, BYTES, SUB, HAS_MIN = 256, 136, 32, False

_u8x64, _u8x32 = load("u8", 64), load("u8", 32)
_first, _second = (pieces2(*[16 * r + 8 * c for r in range(8)]) for c in (0, 1))
_runs = shuffle(*range(16), *range(32, 48), *range(16, 32), *range(48, 64))
_in_turn = pick(0, 4, 1, 5, 2, 6, 3, 7)


@inline
def quants(p, j):
    """64 quants: weights 64 j .. 64 j + 63."""
    v = _u8x32(p + 8 + 32 * j)
    return level64(_runs(v & 15, v >> 4))


@inline
def chunks(p):
    a, b = _u8x64(p + 8), _u8x64(p + 72)
    x, y = _first(a, b), _second(a, b)
    return level64(x & 15), level64(y & 15), level64(x >> 4), level64(y >> 4)


@inline
def high_bits(h):
    """Every second bit pair of a u16, as bits 4 and 5 of four bytes."""
    return ((h & 3) | (h >> 4 & 3) << 8 | (h >> 8 & 3) << 16 | (h >> 12 & 3) << 24) << 4


@inline
def scales256(p):
    """(d * (scale - 32), no min), f32 x 8."""
    high, low = u16_at(p + 2), u32_at(p + 4)
    even, odd = (low & 0x0F0F0F0F) | high_bits(high), (low >> 4 & 0x0F0F0F0F) | high_bits(high >> 2)
    s = to_f32(to_i32(_in_turn(u8x8(even | odd << 32))) - 32) * full8(half_at(p))
    return s, s


row_u8 = rows256(BYTES, SUB, quants, scales256, HAS_MIN)

__all__ = ["OFFSET", "QMAX", "SIGNED", "chunks", "row_u8", "scales256"]
