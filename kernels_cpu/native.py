"""Products of rows in native GGUF blocks with 8-bit activation rows: one row, or GROUP rows at a time.

256 weights are eight runs of 32, and every type's `chunks` gives them as four u8 x 64: chunk c holds bytes 8 c to
8 c + 7 of each run, so that each two lanes of a 4-byte dot belong to one run, and chunks 0 1 and 2 3 to halves of 16.
The integer products of a run (a half, where a scale covers no more) are exact, spread over two lanes; they are scaled
and added up in f32, always in the same order. Alone, a row's sums are the sixteen lanes of one vector; in a group each
four of them are one vector, with the lanes of all rows side by side. Hence a row's result is the same to the bit in
both. Offsets and mins are taken off through the sums of x.

The activations of 256 are laid out accordingly (`act.quantise_rows`), SUPER bytes a row:
    a row alone     i8 (4 chunks, 8 runs, 8), f32 x 8 scales, f32 x 8 scale * sum, f32 x 16 scale * sum of 16
    GROUP rows      i8 (4 chunks, 4 pairs of runs, GROUP, 2, 8), f32 (4 pairs, GROUP, 2) scales,
                    f32 (GROUP, 8) and (GROUP, 16) scale * sum
Where k is no multiple of 256, the last 256 overlap the ones before, and x has zero scales for what was counted there.
"""

from __future__ import annotations

import importlib

import numpy as np

from .layout import GROUP, SUPER
from .simd import (
    dot4_s8s8,
    dot4_u8s8,
    fma,
    hsum,
    inline,
    load,
    part,
    pick,
    prefetch,
    store,
    to_f32,
    zeros,
)
from .vec import LANES

AHEAD = 4096  # bytes of software prefetch; 4-8 kB ahead beats a plain read loop by a quarter
ROWS = 4 if LANES == 16 else 2  # unpacked weight rows at a time, as many as there are registers for

SCALES, SUMS32, SUMS16 = 256, 288, 320  # in 256 of a row alone
GROUP_SCALES, GROUP_SUMS32, GROUP_SUMS16 = 1024, 1152, 1280  # in 256 of a group

_x64, _f32x4, _f32x8 = load("i8", 64), load("f32", 4), load("f32", 8)
_i_zero, _f_zero = zeros("i32", 16), zeros("f32", 16)
_four_times = pick(*list(range(16)) * 4)
_four_scales = pick(*list(range(4)) * 4)
_rows_scales = pick(*[2 * (i // 4) + i % 4 // 2 for i in range(16)])
_twice = pick(*[i // 2 for i in range(16)])
_even, _odd = (pick(*[i // 2 * 2 + odd for i in range(16)]) for odd in (0, 1))


def _dots(t):
    """(acc, weights, x) -> acc + dots of four."""
    return dot4_s8s8 if t.SIGNED else dot4_u8s8


def _factor(t):
    """What the sums of mins count: the offset, or 1; 0 without either."""
    return np.float32(1 if t.HAS_MIN else t.OFFSET)


def dot(name):
    """(w, k, x) -> f32: a row of weights (k,) of the type by a row of x that is alone."""
    t = importlib.import_module(f"{__package__}.{name.lower()}")
    block, bytes_, sub = t.BLOCK, t.BYTES, t.SUB
    chunks, scales, dots, factor = t.chunks, t.scales256, _dots(t), _factor(t)
    size, n = 256 // t.BLOCK * t.BYTES, 256 // sub
    no_mins, load_sums, sums_at = zeros("f32", n), load("f32", n), SUMS32 if sub == 32 else SUMS16

    @inline
    def runs(q, x, scale, acc):
        z = dots(dots(_i_zero(), q[0], _x64(x)), q[1], _x64(x + 64))
        z = dots(dots(z, q[2], _x64(x + 128)), q[3], _x64(x + 192))
        return fma(to_f32(z), _twice(scale * _f32x8(x + SCALES)), acc)

    @inline
    def halves(q, x, scale, acc):
        v = scale * _twice(_f32x8(x + SCALES))
        z = dots(dots(_i_zero(), q[0], _x64(x)), q[1], _x64(x + 64))
        acc = fma(to_f32(z), _even(v), acc)
        z = dots(dots(_i_zero(), q[2], _x64(x + 128)), q[3], _x64(x + 192))
        return fma(to_f32(z), _odd(v), acc)

    products = runs if sub == 32 else halves

    @inline
    def add(p, x, acc, mins):
        for line in range(0, size, 64):
            prefetch(p + AHEAD + line)
        scale, low = scales(p)
        if factor:
            mins = fma(low, load_sums(x + sums_at), mins)
        return products(chunks(p), x, scale, acc), mins

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
    """(w, k, to, ahead): a row's chunks at `to`, then its scales by lanes of a dot, then its mins.

    ahead: packed weights of half a row's length, fetched meanwhile.
    k is rounded up to 256s, of which there are `layout.native_row_bytes`; the last ones overlap as above.
    """
    t = importlib.import_module(f"{__package__}.{name.lower()}")
    block, bytes_, sub, chunks, scales = t.BLOCK, t.BYTES, t.SUB, t.chunks, t.scales256
    size, n, with_mins = 256 // t.BLOCK * t.BYTES, 256 // t.SUB, _factor(t) != 0

    @inline
    def put_scales(s, scale):
        if sub == 32:
            store(s, _twice(scale))
        else:
            store(s, _even(scale))
            store(s + 64, _odd(scale))

    @inline
    def one(p, to, s, m, ahead):
        for line in range(0, size // 2, 64):
            prefetch(ahead + line)
        q0, q1, q2, q3 = chunks(p)
        store(to, q0)
        store(to + 64, q1)
        store(to + 128, q2)
        store(to + 192, q3)
        scale, low = scales(p)
        put_scales(s, scale)
        if with_mins:
            store(m, low)

    @inline
    def op(w, k, to, ahead):
        supers = (k + 255) >> 8
        s = to + 256 * supers
        m = s + 8 * n * supers
        for i in range(k >> 8):
            one(w + size * i, to + 256 * i, s + 8 * n * i, m + 4 * n * i, ahead + size // 2 * i)
        if k & 255:
            i = k >> 8
            one(w + (k - 256) // block * bytes_, to + 256 * i, s + 8 * n * i, m + 4 * n * i, ahead)

    return op


def each(op):
    """op(q, x, acc) for ROWS unpacked rows a stride apart, each with an acc of its own."""

    @inline
    def two(q, stride, x, acc):
        return op(q, x, acc[0]), op(q + stride, x, acc[1])

    @inline
    def four(q, stride, x, acc):
        return op(q, x, acc[0]), op(q + stride, x, acc[1]), op(q + 2 * stride, x, acc[2]), op(q + 3 * stride, x, acc[3])

    return four if ROWS == 4 else two


@inline
def _copies(v):
    return (v, v, v, v) if ROWS == 4 else (v, v)


def group_dot(name):
    """(q, stride, k, x, ahead) -> an (f32 x GROUP) a weight row: ROWS unpacked rows by a group of rows of x.

    Row r is at q + stride * r. ahead: packed weights of half of ROWS rows, fetched meanwhile.
    """
    t = importlib.import_module(f"{__package__}.{name.lower()}")
    sub, factor, n = t.SUB, _factor(t), 256 // t.SUB
    fetch = ROWS * 256 // t.BLOCK * t.BYTES // 2
    no_mins, load_sums, load_low = zeros("f32", GROUP * n), load("f32", GROUP * n), load("f32", n)
    sums_at = GROUP_SUMS32 if sub == 32 else GROUP_SUMS16
    every = pick(*list(range(n)) * GROUP)
    p0, p1, p2, p3 = (part(4 * i, 4) for i in range(4))
    m0, m1, m2, m3 = (part(n * i, n) for i in range(4))
    pair0, pair1, pair2, pair3 = (_pair_of_runs(t, u) for u in range(4))

    @inline
    def add_mins(low, sums, mins):
        return fma(every(load_low(low)), sums, mins)

    each_mins = each(add_mins)

    @inline
    def total(v0, v1, v2, v3, mins):
        v = (v0 + v2) + (v1 + v3)
        r0, r1, r2, r3 = hsum(p0(v)), hsum(p1(v)), hsum(p2(v)), hsum(p3(v))
        if factor:
            return (
                r0 - hsum(m0(mins)) * factor, r1 - hsum(m1(mins)) * factor,
                r2 - hsum(m2(mins)) * factor, r3 - hsum(m3(mins)) * factor,
            )  # fmt: skip
        return r0, r1, r2, r3

    @inline
    def totals(v0, v1, v2, v3, mins):
        first, second = total(v0[0], v1[0], v2[0], v3[0], mins[0]), total(v0[1], v1[1], v2[1], v3[1], mins[1])
        if ROWS == 4:
            third, fourth = total(v0[2], v1[2], v2[2], v3[2], mins[2]), total(v0[3], v1[3], v2[3], v3[3], mins[3])
            return first, second, third, fourth
        return first, second

    @inline
    def op(q, stride, k, x, ahead):
        supers = (k + 255) >> 8
        zero = _copies(_f_zero())
        v0, v1, v2, v3, mins = zero, zero, zero, zero, _copies(no_mins())
        for i in range(supers):
            qi, xi = q + 256 * i, x + GROUP * SUPER * i
            for line in range(0, fetch, 64):
                prefetch(ahead + fetch * i + line)
            to_scales = 256 * supers + (8 * n - 256) * i  # from qi
            v0, v1 = pair0(qi, stride, to_scales, xi, v0), pair1(qi, stride, to_scales, xi, v1)
            v2, v3 = pair2(qi, stride, to_scales, xi, v2), pair3(qi, stride, to_scales, xi, v3)
            if factor:
                low = q + (256 + 8 * n) * supers + 4 * n * i
                mins = each_mins(low, stride, load_sums(xi + sums_at), mins)
        return totals(v0, v1, v2, v3, mins)

    return op


def _pair_of_runs(t, u):
    """(q, stride, to_scales, x, acc): runs 2 u and 2 u + 1 of 256 weights, ROWS rows by a group."""
    dots, quarter, at = _dots(t), load("i8" if t.SIGNED else "u8", 16), 16 * u

    @inline
    def two_dots(q, x0, x1, z):
        return dots(dots(z, _four_times(quarter(q)), x0), _four_times(quarter(q + 64)), x1)

    @inline
    def runs(q, x, acc):
        to_scales, x0, x1, x2, x3, xs = x
        z = two_dots(q + at + 128, x2, x3, two_dots(q + at, x0, x1, _i_zero()))
        return fma(to_f32(z), _four_scales(_f32x4(q + to_scales + at)) * xs, acc)

    @inline
    def halves(q, x, acc):
        to_scales, x0, x1, x2, x3, xs = x
        s = q + to_scales + at
        acc = fma(to_f32(two_dots(q + at, x0, x1, _i_zero())), _four_scales(_f32x4(s)) * xs, acc)
        return fma(to_f32(two_dots(q + at + 128, x2, x3, _i_zero())), _four_scales(_f32x4(s + 64)) * xs, acc)

    rows = each(runs if t.SUB == 32 else halves)

    @inline
    def op(q, stride, to_scales, x, acc):
        x0, x1, x2, x3 = _x64(x + 4 * at), _x64(x + 256 + 4 * at), _x64(x + 512 + 4 * at), _x64(x + 768 + 4 * at)
        xs = _rows_scales(_f32x8(x + GROUP_SCALES + 2 * at))
        return rows(q, stride, (to_scales, x0, x1, x2, x3, xs), acc)

    return op
