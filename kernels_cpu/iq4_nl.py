"""IQ4_NL: 32 weights = half d, 16 bytes of nibbles, low nibbles first. w = d * LEVELS[nibble]."""

from .simd import concat, half_at, inline, load, store, to_f32
from .tables import lookup16

BLOCK, BYTES = 32, 18
LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)

_u8x16, levels = load("u8", 16), lookup16(LEVELS)


@inline
def quants(p):
    """i8 x 32: the values behind sixteen bytes of nibbles."""
    v = _u8x16(p)
    return levels(concat(v & 15, v >> 4))


@inline
def row_f32(w, nb, out):
    for i in range(nb):
        p = w + BYTES * i
        store(out + 128 * i, to_f32(quants(p + 2)) * half_at(p))
