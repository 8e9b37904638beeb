"""What the quant types share: the loops over blocks, and 6-bit scale unpacking of the K types.

Every type file defines BLOCK (weights), BYTES (of a block), SUB (weights that share a scale), QMAX (the largest
stored quant), OFFSET (subtracted from it) or HAS_MIN (a value subtracted instead), SIGNED (quants are s8), and

    row_u8(w, nb, q, s, m)    decode nb blocks: quants, and scale and min per SUB weights
    dot(T)(w, nb, x) -> T f32 the row's products with a group of T quantised activation rows

so that w = s * (q - OFFSET), or s * q - m. `x` is laid out for this (layout.q8_row_bytes): for each 256 of k the rows'
i8 (4, T, 64), i32 negated sums of four (4, T, 16), f32 (T, 8, 2) scale and scale * sum per 32, f32 (T, 16)
scale * sum per 16, and again f32 (T, 8) scales, f32 (T, 8) scale * sum per 32, each form as some type wants it.
The rows are side by side in one wide vector, so that a block is decoded once for all of them and each row's sums are
made in the same order whatever T.
"""

from .layout import SUPER
from .simd import (
    bitcast,
    concat,
    dot4_s8s8,
    dot4_u8s8,
    fma,
    half_at,
    half_to_f32,
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
    """(u, x, negated sums of four) -> i32 x 16 t dots of four, weights' offset 2**offset_shift taken off (-1: none)."""
    zero, load_x4, rep = zeros("i32", 16 * t), load("i32", 16 * t), repeat(64, t)

    @inline
    def op(u, x, x4):
        if signed:
            return dot4_s8s8(zero(), rep(u), x)
        if offset_shift >= 0:
            return dot4_u8s8(load_x4(x4) << offset_shift, rep(u), x)
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
        load_x = load("i8", 64 * t)
        zero, no_mins = zeros("f32", 16 * t), zeros("f32", n * t)
        rep, dots, totals = repeat(n, t), integer_dot(t, offset_shift, False), _totals(t, n if has_min else 0)
        every = pick(*[8 * r + i * sub // 32 for r in range(t) for i in range(n)])  # scale of x for each SUB
        load_8, load_16 = load("f32", 8 * t), load("f32", 16 * t)
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
                scale, low = scales(p)
                s = rep(scale) * every(load_8(xp + 640 * t))
                if has_min:
                    if sub == 32:
                        mins = fma(rep(low), load_8(xp + 672 * t), mins)
                    else:
                        mins = fma(rep(low), load_16(xp + 576 * t), mins)
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
    """dot of such a type, two blocks at a time.

    The halves at the head of both blocks times the x scales and sums give (d0 xd0, m0 sum0, d1 xd1, m1 sum1) at once;
    without a min the odd lanes are never used.
    """

    def dot(t):
        load_x, zero, dots = load("i8", 64 * t), zeros("f32", 16 * t), integer_dot(t, offset_shift, signed)
        products, no_mins, totals = _head_products(t), zeros("f32", 4 * t), _totals32(t, has_min)
        spread = pick(*[4 * r + 2 * (i // 8) for r in range(t) for i in range(16)])
        nothing = zeros("i8" if signed else "u8", 32)

        @inline
        def pair(u, heads, x, j, acc, mins):
            v = products(heads, x + 512 * t + 16 * j)
            z = dots(u, load_x(x + 64 * t * j), x + 256 * t + 64 * t * j)
            return fma(to_f32(z), spread(v), acc), mins + v if has_min else mins

        @inline
        def two(p, x, j, acc, mins):
            prefetch(p + AHEAD)
            u = concat(quants(p), quants(p + block_bytes))
            return pair(u, concat(_two_halves(p), _two_halves(p + block_bytes)), x, j, acc, mins)

        @inline
        def op(w, nb, x):
            acc, mins = zero(), no_mins()
            for i in range(nb >> 3):
                p, xp = w + 8 * block_bytes * i, x + SUPER * t * i
                acc, mins = two(p, xp, 0, acc, mins)
                acc, mins = two(p + 2 * block_bytes, xp, 1, acc, mins)
                acc, mins = two(p + 4 * block_bytes, xp, 2, acc, mins)
                acc, mins = two(p + 6 * block_bytes, xp, 3, acc, mins)
            p, xp = w + 8 * block_bytes * (nb >> 3), x + SUPER * t * (nb >> 3)
            for j in range((nb & 7) >> 1):
                acc, mins = two(p + 2 * block_bytes * j, xp, j, acc, mins)
            if nb & 1:
                # quantise_rows gives the block beyond the end of k a scale of zero.
                p, j = w + block_bytes * (nb - 1), (nb & 7) >> 1
                u = concat(quants(p), nothing())
                acc, mins = pair(u, concat(_two_halves(p), _no_halves()), xp, j, acc, mins)
            return totals(acc, mins)

        return op

    return dot


_two_halves, _no_halves, _f32x4 = load("u16", 2), zeros("u16", 2), load("f32", 4)


def _head_products(t):
    """(four halves, address of the rows' x scales and sums) -> f32 x 4 t products, row by row."""
    if t == 1:
        return inline(lambda heads, ds: half_to_f32(heads) * _f32x4(ds))
    rep = repeat(4, 4)

    @inline
    def four(heads, ds):
        low = concat(_f32x4(ds), _f32x4(ds + 64))
        return rep(half_to_f32(heads)) * concat(low, concat(_f32x4(ds + 128), _f32x4(ds + 192)))

    return four


def _totals32(t, has_min):
    """(acc, mins) -> tuple of each row's acc plus the odd lanes of its mins."""
    acc_sums = sums(t, 16)
    if not has_min:
        return inline(lambda acc, mins: acc_sums(acc))
    odd = pick(*[4 * r + i for r in range(t) for i in (1, 3)])
    if t == 1:
        both = sums(1, 2)
        return inline(lambda acc, mins: (acc_sums(acc)[0] + both(odd(mins))[0],))
    pairs = sums(4, 2)

    @inline
    def totals(acc, mins):
        a, m = acc_sums(acc), pairs(odd(mins))
        return a[0] + m[0], a[1] + m[1], a[2] + m[2], a[3] + m[3]

    return totals
