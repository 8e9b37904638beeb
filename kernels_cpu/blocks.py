"""What the quant types share: the loops over blocks, and 6-bit scale unpacking of the K types.

Every type file defines BLOCK (weights), BYTES (of a block), SUB (weights that share a scale), OFFSET (subtracted
from the stored u8 quant) or HAS_MIN (a value subtracted instead), SIGNED (quants are s8), and

    row_u8(w, nb, q, s, m)    decode nb blocks: quants, and scale and min per SUB weights
    dot(T)(w, nb, x) -> T f32 the row's products with a group of T quantised activation rows

so that w = s * (q - OFFSET), or s * q - m. `x` is laid out for this (layout.q8_row_bytes): for each 256 of k the rows'
i8 (4, T, 64), i32 sums of four (4, T, 16), f32 (T, 8, 2) scale and scale * sum per 32, f32 (T, 16) scale * sum per 16.
The rows are side by side in one wide vector, so that a block is decoded once for all of them and each row's sums are
made in the same order whatever T.
"""

import numpy as np

from .layout import SUPER
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
    part,
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

full8, full16 = splat("f32", 8), splat("f32", 16)
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


def repeat(n, t):
    """(vector of n lanes) -> t times itself."""
    return pick(*list(range(n)) * t)


def sums(t, n):
    """(t rows of n lanes side by side) -> tuple of their sums."""
    if t == 1:
        return inline(lambda v: (hsum(v),))
    a, b, c, d = (part(n * i, n) for i in range(4))
    return inline(lambda v: (hsum(a(v)), hsum(b(v)), hsum(c(v)), hsum(d(v))))


def _totals(t, n_mins):
    """(acc, mins) -> tuple of each row's acc - mins; n_mins: lanes of a row's mins, 0 without."""
    acc_sums = sums(t, 16)
    if not n_mins:
        return inline(lambda acc, mins: acc_sums(acc))
    min_sums = sums(t, n_mins)
    if t == 1:
        return inline(lambda acc, mins: (acc_sums(acc)[0] - min_sums(mins)[0],))

    @inline
    def totals(acc, mins):
        a, m = acc_sums(acc), min_sums(mins)
        return a[0] - m[0], a[1] - m[1], a[2] - m[2], a[3] - m[3]

    return totals


def integer_dot(t, offset_shift, signed):
    """(u, x, sums of four) -> i32 x 16 t dots of four, weights' offset 2**offset_shift taken off (-1: none)."""
    zero, load_x4, rep = zeros("i32", 16 * t), load("i32", 16 * t), repeat(64, t)

    @inline
    def op(u, x, x4):
        if signed:
            return dot4_s8s8(zero(), rep(u), x)
        if offset_shift >= 0:
            return dot4_u8s8(zero() - (load_x4(x4) << offset_shift), rep(u), x)
        return dot4_u8s8(zero(), rep(u), x)

    return op


def rows256(block_bytes, sub, quants, scales, has_min):
    """row_u8 of a K type from `quants(p, j)`, u8 x 64, and `scales(p)`, scale and min vectors."""

    @inline
    def row_u8(w, nb, q, s, m):
        for i in range(nb):
            p = w + block_bytes * i
            scale, low = scales(p)
            store(s + 1024 // sub * i, scale)
            if has_min:
                store(m + 1024 // sub * i, low)
            for j in range(4):
                store(q + 256 * i + 64 * j, quants(p, j))

    return row_u8


def dot256(block_bytes, sub, quants, scales, offset_shift, has_min):
    """dot of a K type."""

    def dot(t):
        n = 256 // sub  # scales of a block
        load_x, load_pairs = load("i8", 64 * t), load("f32", 16 * t)
        zero, no_mins = zeros("f32", 16 * t), zeros("f32", n * t)
        rep, dots, totals = repeat(n, t), integer_dot(t, offset_shift, False), _totals(t, n if has_min else 0)
        every = pick(*[16 * r + 2 * (i * sub // 32) for r in range(t) for i in range(n)])  # scale of x for each SUB
        odds = pick(*[16 * r + 2 * i + 1 for r in range(t) for i in range(8)])
        lanes = 64 // sub  # scales of a chunk
        s0, s1, s2, s3 = (
            pick(*[n * r + lanes * j + i * lanes // 16 for r in range(t) for i in range(16)]) for j in range(4)
        )

        @inline
        def chunk(p, j, x, s, acc):
            z = dots(quants(p, j), load_x(x + 64 * t * j), x + 256 * t + 64 * t * j)
            return fma(to_f32(z), s, acc)

        @inline
        def op(w, nb, x):
            acc, mins = zero(), no_mins()
            for i in range(nb):
                p, xp = w + block_bytes * i, x + SUPER * t * i
                for line in range(0, block_bytes, 64):
                    prefetch(p + AHEAD + line)
                pairs = load_pairs(xp + 512 * t)
                scale, low = scales(p)
                s = rep(scale) * every(pairs)
                if has_min:
                    if sub == 32:
                        mins = fma(rep(low), odds(pairs), mins)
                    else:
                        mins = fma(rep(low), load_pairs(xp + 576 * t), mins)
                acc = chunk(p, 0, xp, s0(s), acc)
                acc = chunk(p, 1, xp, s1(s), acc)
                acc = chunk(p, 2, xp, s2(s), acc)
                acc = chunk(p, 3, xp, s3(s), acc)
            return totals(acc, mins)

        return op

    return dot


def rows32(block_bytes, quants, has_min):
    """row_u8 of a type with 32 weights a block, half d first, half m second."""

    @inline
    def row_u8(w, nb, q, s, m):
        for i in range(nb):
            p = w + block_bytes * i
            store(q + 32 * i, quants(p))
            set_f32(s + 4 * i, half_at(p))
            if has_min:
                set_f32(m + 4 * i, -half_at(p + 2))

    return row_u8


def dot32(block_bytes, quants, offset_shift, has_min, signed):
    """dot of such a type, two blocks at a time."""

    def dot(t):
        load_x, zero, dots = load("i8", 64 * t), zeros("f32", 16 * t), integer_dot(t, offset_shift, signed)
        totals, scales, nothing = _totals(t, 0), _pair_scales(t), zeros("i8" if signed else "u8", 32)

        @inline
        def pair(u, d0, d1, x, j, acc):
            z = dots(u, load_x(x + 64 * t * j), x + 256 * t + 64 * t * j)
            return fma(to_f32(z), scales(x + 512 * t + 16 * j, d0, d1), acc)

        @inline
        def op(w, nb, x):
            acc = zero()
            m0, m1, m2, m3 = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
            for i in range(0, nb, 2):
                p, xp, j = w + block_bytes * i, x + SUPER * t * (i // 8), i % 8 // 2
                prefetch(p + AHEAD)
                if i + 1 < nb:
                    d1 = half_at(p + block_bytes)
                    acc = pair(concat(quants(p), quants(p + block_bytes)), half_at(p), d1, xp, j, acc)
                else:
                    acc = pair(concat(quants(p), nothing()), half_at(p), np.float32(0), xp, j, acc)
                if has_min:
                    a = half_at(p + 2)
                    b = half_at(p + block_bytes + 2) if i + 1 < nb else np.float32(0)
                    low = xp + 512 * t + 16 * j + 4
                    m0 += a * f32_at(low)
                    if i + 1 < nb:
                        m0 += b * f32_at(low + 8)
                    if t == 4:
                        m1 += a * f32_at(low + 64)
                        m2 += a * f32_at(low + 128)
                        m3 += a * f32_at(low + 192)
                        if i + 1 < nb:
                            m1 += b * f32_at(low + 72)
                            m2 += b * f32_at(low + 136)
                            m3 += b * f32_at(low + 200)
            v = totals(acc, acc)
            if t == 1:
                return (v[0] + m0,)
            return v[0] + m0, v[1] + m1, v[2] + m2, v[3] + m3

        return op

    return dot


def _pair_scales(t):
    """(address of the rows' x scales, d0, d1) -> f32 x 16 t: scales of two blocks, eight lanes each, row by row."""

    @inline
    def one(ds, d0, d1):
        high = d1 * f32_at(ds + 8) if d1 != 0 else d1  # past the end of x there may be anything
        return concat(full8(d0 * f32_at(ds)), full8(high))

    if t == 1:
        return one

    @inline
    def four(ds, d0, d1):
        low = concat(one(ds, d0, d1), one(ds + 64, d0, d1))
        return concat(low, concat(one(ds + 128, d0, d1), one(ds + 192, d0, d1)))

    return four
