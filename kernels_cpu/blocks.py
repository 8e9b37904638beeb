"""What the quant types share: the two loops over blocks of 32, and 6-bit scale unpacking of the K types.

Every type file defines BLOCK (weights), BYTES (of a block), SUB (weights that share a scale), OFFSET (subtracted
from the stored u8 quant) or HAS_MIN (a value subtracted instead), SIGNED (quants are s8), and

    row_u8(w, nb, q, s, m)               decode nb blocks: quants, scale and min per SUB weights
    dot(w, nb, xq, x4, ds, s16) -> f32   the row's product with one quantised activation row

so that w = s * (q - OFFSET), or s * q - m. An activation row is (see act.quantise) xq: i8 (k,), x4: i32 (k/4,)
sums of four, ds: f32 (k/32, 2) scale and scale * sum, s16: f32 (k/16,) scale * sum.
"""

import numpy as np

from .simd import (
    bitcast,
    concat,
    dot4_s8s8,
    dot4_u8s8,
    f32_at,
    fma,
    half_at,
    hsum,
    inline,
    load,
    pick,
    prefetch,
    set_f32,
    splat,
    store,
    to_f32,
    u32_at,
    zeros,
)

AHEAD = 4096  # bytes of software prefetch; 4-8 kB ahead beats a plain read loop by a quarter

i8x64, i8x32, i32x16, i32x8 = load("i8", 64), load("i8", 32), load("i32", 16), load("i32", 8)
f32x16, f32x8 = load("f32", 16), load("f32", 8)
zero16, zero8, i_zero16, i_zero8 = zeros("f32", 16), zeros("f32", 8), zeros("i32", 16), zeros("i32", 8)
full8, full16 = splat("f32", 8), splat("f32", 16)
evens, odds = pick(*range(0, 16, 2)), pick(*range(1, 16, 2))
twice = pick(*[i // 2 for i in range(16)])  # f32x8 -> each lane two times
eighths = [pick(*[2 * j] * 8, *[2 * j + 1] * 8) for j in range(4)]  # scales of chunk j, two of 32 weights
quarters = [pick(*[4 * j + i // 4 for i in range(16)]) for j in range(4)]  # scales of chunk j, four of 16
_word, _bytes8 = splat("i64", 1), bitcast("u8", 8)


@inline
def u8x8(word):
    """Eight bytes of an int64 as a vector."""
    return _bytes8(_word(word))


@inline
def scales_6bit(p):
    """The twelve packed bytes at p -> (eight 6-bit scales, eight 6-bit mins) as f32x8, for Q4_K and Q5_K."""
    a, b, c = u32_at(p), u32_at(p + 4), u32_at(p + 8)
    high_s = (c & 0x0F0F0F0F) | ((a >> 2) & 0x30303030)
    high_m = ((c >> 4) & 0x0F0F0F0F) | ((b >> 2) & 0x30303030)
    s = (a & 0x3F3F3F3F) | (high_s << 32)
    m = (b & 0x3F3F3F3F) | (high_m << 32)
    return to_f32(u8x8(s)), to_f32(u8x8(m))


def rows32(size, quants, has_min):
    """row_u8 of a type with 32 weights a block, half d first, half m second."""

    @inline
    def row_u8(w, nb, q, s, m):
        for i in range(nb):
            p = w + size * i
            store(q + 32 * i, quants(p))
            set_f32(s + 4 * i, half_at(p))
            if has_min:
                set_f32(m + 4 * i, -half_at(p + 2))

    return row_u8


def dot32(size, quants, offset_shift, has_min, signed):
    """dot of such a type, two blocks at a time; offset_shift = log2(OFFSET), or -1 for none."""

    @inline
    def integer(u, x, x4, wide_zero):
        if signed:
            return dot4_s8s8(wide_zero, u, x)
        if offset_shift >= 0:
            return dot4_u8s8(wide_zero - (x4 << offset_shift), u, x)
        return dot4_u8s8(wide_zero, u, x)

    @inline
    def dot(w, nb, xq, x4, ds, s16):
        acc = zero16()
        low = zero8()  # an odd last block
        total_min = np.float32(0)
        for i in range(0, nb - 1, 2):
            p = w + size * i
            prefetch(p + AHEAD)
            u = concat(quants(p), quants(p + size))
            z = integer(u, i8x64(xq + 32 * i), i32x16(x4 + 32 * i), i_zero16())
            d0 = half_at(p) * f32_at(ds + 8 * i)
            d1 = half_at(p + size) * f32_at(ds + 8 * i + 8)
            acc = fma(to_f32(z), concat(full8(d0), full8(d1)), acc)
            if has_min:
                total_min += half_at(p + 2) * f32_at(ds + 8 * i + 4)
                total_min += half_at(p + size + 2) * f32_at(ds + 8 * i + 12)
        if nb & 1:
            i = nb - 1
            p = w + size * i
            z = integer(quants(p), i8x32(xq + 32 * i), i32x8(x4 + 32 * i), i_zero8())
            low = to_f32(z) * full8(half_at(p) * f32_at(ds + 8 * i))
            if has_min:
                total_min += half_at(p + 2) * f32_at(ds + 8 * i + 4)
        return hsum(acc) + hsum(low) + total_min

    return dot
