"""Q5_K: Q4_K with 32 bytes of fifth bits before the nibbles; bit t of byte l belongs to weight 32 t + l."""

from .blocks import chunks256, rows256, scales_and_mins
from .q4_k import nibbles
from .simd import bitcast, concat, const, inline, load, pick

BLOCK, BYTES, SUB, QMAX, OFFSET, HAS_MIN, SIGNED, PAIRED = 256, 176, 32, 31, 0, True, False, True

_u8x32, _u8x16 = load("u8", 32), load("u8", 16)
_four_times = pick(*list(range(16)) * 4)
_words, _bytes = bitcast("u32", 16), bitcast("u8", 64)
_even_bits, _odd_bits = (const("u32", *[2 * (i // 4) + odd for i in range(16)]) for odd in (0, 1))
scales256 = scales_and_mins


@inline
def quants(p, j):
    """u8 x 64: weights 64 j .. 64 j + 63."""
    a, h = _u8x32(p + 48 + 32 * j), _u8x32(p + 16) >> (2 * j)
    return concat((a & 15) | ((h & 1) << 4), (a >> 4) | ((h & 2) << 3))


@inline
def fifth(h, bits):
    return (_bytes(h >> bits) & 1) << 4


@inline
def chunks(p):
    first, second = nibbles(p + 48)
    h, g = _words(_four_times(_u8x16(p + 16))), _words(_four_times(_u8x16(p + 32)))
    return (
        (first & 15) | fifth(h, _even_bits()),
        (second & 15) | fifth(g, _even_bits()),
        (first >> 4) | fifth(h, _odd_bits()),
        (second >> 4) | fifth(g, _odd_bits()),
    )


row_u8 = rows256(BYTES, SUB, chunks256(quants), scales256, HAS_MIN)
