"""TQ1_0: 256 weights = 48 + 4 bytes of five (the last four: four) ternary digits, half d. w = d * (digit - 1).

A byte is a fraction of 256 in base 3: digit n is the carry of byte * 3^n, modulo 256, times 3. Bytes are read in
runs of 32, 16 and 4; digit n of all bytes of a run makes adjacent weights.
"""

from .simd import convert, half_at, inline, load, store, to_f32

BLOCK, BYTES = 256, 54

_u8x32, _u8x16, _u8x4 = load("u8", 32), load("u8", 16), load("u8", 4)
_wide = convert("u16")


@inline
def digit(v):
    """Leading digit of u8 fractions, less 1, as f32."""
    return to_f32((_wide(v) * 3) >> 8) - 1


@inline
def row_f32(w, nb, out):
    for i in range(nb):
        p, to = w + BYTES * i, out + 1024 * i
        d = half_at(p + 52)
        a, b, c = _u8x32(p), _u8x16(p + 32), _u8x4(p + 48)
        for n in range(5):
            store(to + 128 * n, digit(a) * d)
            store(to + 640 + 64 * n, digit(b) * d)
            if n < 4:
                store(to + 960 + 16 * n, digit(c) * d)
            a, b, c = a * 3, b * 3, c * 3
