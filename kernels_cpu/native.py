"""Products of rows in native GGUF blocks with 8-bit activation rows: one row, or GROUP rows at a time.

Weights are taken 256 at a time. The integer products of each 32 (or each 16, where a scale covers no more) are exact,
spread over four lanes; they are scaled and added up in f32 in one of four vectors of four lanes, always in the same
order. Alone, a row's four vectors are one wide vector; in a group each of them holds the four lanes of all rows.
Hence a row's result is the same to the bit in both. Offsets and mins are taken off through the sums of x.

A type says in which of two orders its 256 come out of `chunks`, four u8 x 64:
    plain   64 in a row each; or
    PAIRED  first halves of runs 0 2 4 6 (a run: 32 weights), their second halves, the same of runs 1 3 5 7.
The activations of 256 are laid out accordingly (`act.quantise_rows`), SUPER bytes a row:
    a row alone     i8 x 256 plain, i8 x 256 paired, f32 x 8 scales, f32 x 8 scale * sum, f32 x 16 scale * sum of 16
    GROUP rows      i8 (16, GROUP, 16), f32 (8, GROUP, 4) scales, f32 (GROUP, 8) and (GROUP, 16) scale * sum
Where k is no multiple of 256, the last 256 overlap the ones before, and x has zero scales for what was counted there.
"""

from __future__ import annotations

import importlib

import numpy as np

from .layout import GROUP, SUPER
from .simd import (
    dot4_s8s8,
    dot4_u8s8,
    f32_at,
    fma,
    hsum,
    inline,
    load,
    part,
    pick,
    prefetch,
    splat,
    store,
    to_f32,
    zeros,
)

AHEAD = 4096  # bytes of software prefetch; 4-8 kB ahead beats a plain read loop by a quarter

SCALES, SUMS32, SUMS16 = 512, 544, 576  # in 256 of a row alone
GROUP_SCALES, GROUP_SUMS32, GROUP_SUMS16 = 1024, 1536, 1664  # in 256 of a group

_x64, _f32x8, _f32x16 = load("i8", 64), load("f32", 8), load("f32", 16)
_i_zero, _f_zero, _full = zeros("i32", 16), zeros("f32", 16), splat("f32", 16)
_four_times = pick(*list(range(16)) * 4)
_twice = pick(*[i // 2 for i in range(16)])


def _dots(t):
    """(acc, weights, x) -> acc + dots of four."""
    return dot4_s8s8 if t.SIGNED else dot4_u8s8


def _spread(t):
    """Four shuffles: the scales of 256 -> those of a chunk's sixteen lanes (two different ones when PAIRED)."""
    if t.PAIRED:
        return [pick(*[2 * (i // 4) + odd for i in range(16)]) for odd in (0, 1, 0, 1)]
    lanes = 16 * t.SUB // 64
    return [pick(*[64 // t.SUB * c + i // lanes for i in range(16)]) for c in range(4)]


def _factor(t):
    """What the sums of mins count: the offset, or 1; 0 without either."""
    return np.float32(1 if t.HAS_MIN else t.OFFSET)


def dot(name):
    """(w, k, x) -> f32: a row of weights (k,) of the type by a row of x that is alone."""
    t = importlib.import_module(f"{__package__}.{name.lower()}")
    block, bytes_, sub, paired = t.BLOCK, t.BYTES, t.SUB, t.PAIRED
    chunks, scales, dots, factor = t.chunks, t.scales256, _dots(t), _factor(t)
    size, n = 256 // t.BLOCK * t.BYTES, 256 // sub
    s0, s1, s2, s3 = _spread(t)
    no_mins, load_sums = zeros("f32", n), load("f32", n)
    sums_at, x_at = (SUMS32, 256 if paired else 0) if sub == 32 else (SUMS16, 0)

    @inline
    def paired_products(q, x, v, acc):
        z = dots(dots(_i_zero(), q[0], _x64(x)), q[1], _x64(x + 64))
        acc = fma(to_f32(z), s0(v), acc)
        z = dots(dots(_i_zero(), q[2], _x64(x + 128)), q[3], _x64(x + 192))
        return fma(to_f32(z), s1(v), acc)

    @inline
    def plain_products(q, x, v, acc):
        acc = fma(to_f32(dots(_i_zero(), q[0], _x64(x))), s0(v), acc)
        acc = fma(to_f32(dots(_i_zero(), q[1], _x64(x + 64))), s1(v), acc)
        acc = fma(to_f32(dots(_i_zero(), q[2], _x64(x + 128))), s2(v), acc)
        return fma(to_f32(dots(_i_zero(), q[3], _x64(x + 192))), s3(v), acc)

    products = paired_products if paired else plain_products

    @inline
    def x_scales(x):
        return _f32x8(x + SCALES) if sub == 32 else _twice(_f32x8(x + SCALES))

    @inline
    def add(p, x, acc, mins):
        for line in range(0, size, 64):
            prefetch(p + AHEAD + line)
        scale, low = scales(p)
        if factor:
            mins = fma(low, load_sums(x + sums_at), mins)
        return products(chunks(p), x + x_at, scale * x_scales(x), acc), mins

    @inline
    def op(w, k, x):
        acc, mins = _f_zero(), no_mins()
        for i in range(k >> 8):
            acc, mins = add(w + size * i, x + SUPER * i, acc, mins)
        if k & 255:
            acc, mins = add(w + (k - 256) // block * bytes_, x + SUPER * (k >> 8), acc, mins)
        return hsum(acc) - hsum(mins) * factor if factor else hsum(acc)

    return op


def unpack(name):
    """(w, k, to): a row's quants at `to`, u8 in the order of `chunks`, then its scales, then its mins.

    k is rounded up to 256s, of which there are `layout.native_scratch_bytes`; the last ones overlap as above.
    """
    t = importlib.import_module(f"{__package__}.{name.lower()}")
    block, bytes_, chunks, scales = t.BLOCK, t.BYTES, t.chunks, t.scales256
    size, n, with_mins = 256 // t.BLOCK * t.BYTES, 256 // t.SUB, _factor(t) != 0

    @inline
    def one(p, to, s, m):
        for line in range(0, size, 64):
            prefetch(p + AHEAD + line)
        q0, q1, q2, q3 = chunks(p)
        store(to, q0)
        store(to + 64, q1)
        store(to + 128, q2)
        store(to + 192, q3)
        scale, low = scales(p)
        store(s, scale)
        if with_mins:
            store(m, low)

    @inline
    def op(w, k, to):
        supers = (k + 255) >> 8
        s = to + 256 * supers
        m = s + 4 * n * supers
        for i in range(k >> 8):
            one(w + size * i, to + 256 * i, s + 4 * n * i, m + 4 * n * i)
        if k & 255:
            i = k >> 8
            one(w + (k - 256) // block * bytes_, to + 256 * i, s + 4 * n * i, m + 4 * n * i)

    return op


def group_dot(name):
    """(a, b, k, x) -> (f32 x GROUP, f32 x GROUP): two unpacked rows by a group of rows of x."""
    t = importlib.import_module(f"{__package__}.{name.lower()}")
    sub, factor, n = t.SUB, _factor(t), 256 // t.SUB
    run = _paired_run(t) if t.PAIRED else _plain_run(t)
    no_mins, load_sums, load_low = zeros("f32", GROUP * n), load("f32", GROUP * n), load("f32", n)
    sums_at = GROUP_SUMS32 if sub == 32 else GROUP_SUMS16
    every = pick(*list(range(n)) * GROUP)
    p0, p1, p2, p3 = (part(4 * i, 4) for i in range(4))
    m0, m1, m2, m3 = (part(n * i, n) for i in range(4))

    @inline
    def totals(c0, c1, c2, c3, mins):
        v = (c0 + c2) + (c1 + c3)
        r0, r1, r2, r3 = hsum(p0(v)), hsum(p1(v)), hsum(p2(v)), hsum(p3(v))
        if factor:
            return (
                r0 - hsum(m0(mins)) * factor, r1 - hsum(m1(mins)) * factor,
                r2 - hsum(m2(mins)) * factor, r3 - hsum(m3(mins)) * factor,
            )  # fmt: skip
        return r0, r1, r2, r3

    @inline
    def op(a, b, k, x):
        supers = (k + 255) >> 8
        sa, sb, mins_at = a + 256 * supers, b + 256 * supers, 4 * n * supers
        a0, a1, a2, a3, b0, b1, b2, b3 = (
            _f_zero(), _f_zero(), _f_zero(), _f_zero(), _f_zero(), _f_zero(), _f_zero(), _f_zero()
        )  # fmt: skip
        ma, mb = no_mins(), no_mins()
        for i in range(supers):
            xp, s, q = x + GROUP * SUPER * i, 4 * n * i, 256 * i
            a0, a1, a2, a3, b0, b1, b2, b3 = run(a + q, b + q, sa + s, sb + s, xp, a0, a1, a2, a3, b0, b1, b2, b3)
            if factor:
                sums = load_sums(xp + sums_at)
                ma = fma(every(load_low(sa + mins_at + s)), sums, ma)
                mb = fma(every(load_low(sb + mins_at + s)), sums, mb)
        return totals(a0, a1, a2, a3, ma), totals(b0, b1, b2, b3, mb)

    return op


def _paired_run(t):
    """256 weights of two rows by a group, PAIRED; run j adds to vector j // 2."""
    dots, quarter = _dots(t), load("i8" if t.SIGNED else "u8", 16)

    @inline
    def run(q, sq, j, x0, x1, xs, acc):
        at = 128 * (j & 1) + 16 * (j >> 1)
        z = dots(dots(_i_zero(), _four_times(quarter(q + at)), x0), _four_times(quarter(q + at + 64)), x1)
        return fma(to_f32(z), _full(f32_at(sq + 4 * j)) * xs, acc)

    @inline
    def both(a, b, sa, sb, x, j, va, vb):
        x0, x1, xs = _x64(x + 128 * j), _x64(x + 128 * j + 64), _f32x16(x + GROUP_SCALES + 64 * j)
        return run(a, sa, j, x0, x1, xs, va), run(b, sb, j, x0, x1, xs, vb)

    @inline
    def op(a, b, sa, sb, x, a0, a1, a2, a3, b0, b1, b2, b3):
        a0, b0 = both(a, b, sa, sb, x, 0, a0, b0)
        a1, b1 = both(a, b, sa, sb, x, 2, a1, b1)
        a2, b2 = both(a, b, sa, sb, x, 4, a2, b2)
        a3, b3 = both(a, b, sa, sb, x, 6, a3, b3)
        a0, b0 = both(a, b, sa, sb, x, 1, a0, b0)
        a1, b1 = both(a, b, sa, sb, x, 3, a1, b1)
        a2, b2 = both(a, b, sa, sb, x, 5, a2, b2)
        a3, b3 = both(a, b, sa, sb, x, 7, a3, b3)
        return a0, a1, a2, a3, b0, b1, b2, b3

    return op


def _plain_run(t):
    """256 weights of two rows by a group, plain; each 16 add to vector (i // 16) % 4."""
    dots, quarter, sub = _dots(t), load("i8" if t.SIGNED else "u8", 16), t.SUB

    @inline
    def run(q, sq, i, x0, xs, acc):
        z = dots(_i_zero(), _four_times(quarter(q + 16 * i)), x0)
        return fma(to_f32(z), _full(f32_at(sq + 4 * (16 * i // sub))) * xs, acc)

    @inline
    def both(a, b, sa, sb, x, i, va, vb):
        x0, xs = _x64(x + 64 * i), _f32x16(x + GROUP_SCALES + 64 * (i >> 1))
        return run(a, sa, i, x0, xs, va), run(b, sb, i, x0, xs, vb)

    @inline
    def chunk(a, b, sa, sb, x, i, a0, a1, a2, a3, b0, b1, b2, b3):
        a0, b0 = both(a, b, sa, sb, x, i, a0, b0)
        a1, b1 = both(a, b, sa, sb, x, i + 1, a1, b1)
        a2, b2 = both(a, b, sa, sb, x, i + 2, a2, b2)
        a3, b3 = both(a, b, sa, sb, x, i + 3, a3, b3)
        return a0, a1, a2, a3, b0, b1, b2, b3

    @inline
    def op(a, b, sa, sb, x, a0, a1, a2, a3, b0, b1, b2, b3):
        a0, a1, a2, a3, b0, b1, b2, b3 = chunk(a, b, sa, sb, x, 0, a0, a1, a2, a3, b0, b1, b2, b3)
        a0, a1, a2, a3, b0, b1, b2, b3 = chunk(a, b, sa, sb, x, 4, a0, a1, a2, a3, b0, b1, b2, b3)
        a0, a1, a2, a3, b0, b1, b2, b3 = chunk(a, b, sa, sb, x, 8, a0, a1, a2, a3, b0, b1, b2, b3)
        return chunk(a, b, sa, sb, x, 12, a0, a1, a2, a3, b0, b1, b2, b3)

    return op
