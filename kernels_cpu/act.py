"""Activations: quantised rows and tiles for the matmuls, gated units, sums, scaling.

All kernels here split the rows of a batch over threads the same way (`my_rows`), so a chain of them needs no
barrier in between.
"""

from __future__ import annotations

import numpy as np

from .layout import SUPER
from .simd import (
    TILE,
    bitcast,
    concat,
    const,
    convert,
    dot4_u8s8,
    exp,
    f32,
    f32_at,
    f32_to_bf16,
    fma,
    hmax,
    hsum,
    i32_at,
    i64_at,
    inline,
    lane,
    load,
    part,
    set_f32,
    set_i32,
    splat,
    store,
    vabs,
    vmax,
    zeros,
)

f32x16, i32x16 = load("f32", 16), load("i32", 16)
full16 = splat("f32", 16)
_i_zero8, _to_i8 = zeros("i32", 8), convert("i8")
_ones = const("u8", *[1] * 32)
_words = _pairs = bitcast("i32", 8)
_low4, _high4 = part(0, 4), part(4, 4)
_piece0, _piece1, _piece2, _piece3 = (part(8 * c, 8) for c in range(4))
_lanes8 = [lane(i) for i in range(8)]
_l0, _l1, _l2, _l3, _l4, _l5, _l6, _l7 = _lanes8


@inline
def first_row(m, tid, nth):
    """First of the rows that thread tid handles; the next thread's first row is its end."""
    return m * tid // nth


@inline
def quantise32(x):
    """32 f32 at x -> (i8x32, scale): symmetric, largest magnitude on 127."""
    a, b = f32x16(x), f32x16(x + 64)
    d = hmax(vmax(vabs(a), vabs(b))) / np.float32(127)
    inverse = np.float32(0)
    if d > 0:
        inverse = np.float32(1) / d
    return concat(_to_i8(a * inverse), _to_i8(b * inverse)), d


def quantise_rows(tid, nth, count, x, ldx, k, out, group):
    """Rows of x (rows, k) f32 -> q8 rows as `native` describes, in groups (a single row alone). k: at least 256."""
    m, whole = i64_at(count), k // 32
    grouped = group > 1 and m > 1
    for r in range(first_row(m, tid, nth), first_row(m, tid + 1, nth)):
        t = group if grouped else 1
        to = out + SUPER * ((k + 255) // 256) * t * (r // t)
        for b in range(whole):
            v, d = quantise32(x + ldx * r + 128 * b)
            if grouped:
                put_grouped(to + SUPER * t * (b // 8), r % t, b % 8, v, d)
            else:
                put_alone(to + SUPER * (b // 8), b % 8, v, d)
        if whole % 8:  # the last 256: those that the 256s before hold get a scale of zero
            at = to + SUPER * t * (whole // 8)
            for j in range(8):
                b = whole - 8 + j
                v, d = quantise32(x + ldx * r + 128 * b)
                if b < whole // 8 * 8:
                    d = np.float32(0)
                if grouped:
                    put_grouped(at, r % t, j, v, d)
                else:
                    put_alone(at, j, v, d)


@inline
def half_sums(v):
    """i8 x 32 -> sums of both halves."""
    fours = dot4_u8s8(_i_zero8(), _ones(), v)
    return np.float32(hsum(_low4(fours))), np.float32(hsum(_high4(fours)))


@inline
def put_alone(to, j, v, d):
    """Run j of 256 of a row alone."""
    low, high = half_sums(v)
    at = to + 8 * j
    store(at, _piece0(v))
    store(at + 64, _piece1(v))
    store(at + 128, _piece2(v))
    store(at + 192, _piece3(v))
    set_f32(to + 256 + 4 * j, d)
    set_f32(to + 288 + 4 * j, d * (low + high))
    set_f32(to + 320 + 8 * j, d * low)
    set_f32(to + 324 + 8 * j, d * high)


@inline
def put_grouped(to, row, j, v, d):
    """Run j of 256 of row `row` of a group of four."""
    low, high = half_sums(v)
    pair, odd = j >> 1, j & 1
    at = to + 64 * pair + 16 * row + 8 * odd
    store(at, _piece0(v))
    store(at + 256, _piece1(v))
    store(at + 512, _piece2(v))
    store(at + 768, _piece3(v))
    set_f32(to + 1024 + 32 * pair + 8 * row + 4 * odd, d)
    set_f32(to + 1152 + 32 * row + 4 * j, d * (low + high))
    set_f32(to + 1280 + 64 * row + 8 * j, d * low)
    set_f32(to + 1284 + 64 * row + 8 * j, d * high)


def quantise_tiles(tid, nth, count, x, ldx, k, out):
    """Rows of x (rows, k) f32 -> q8 tiles (layout.q8_tile_bytes)."""
    m = i64_at(count)
    for r in range(first_row(m, tid, nth), first_row(m, tid + 1, nth)):
        src = x + ldx * r
        tile = out + (r // TILE) * TILE * (k + k // 8 + k // 4)
        q = tile + 4 * (r % TILE)
        xd = tile + TILE * k + 4 * (r % TILE)
        xs = tile + TILE * (k + k // 8) + 4 * (r % TILE)
        step = 4 * TILE
        for b in range(k // 32):
            v, d = quantise32(src + 128 * b)
            fours = dot4_u8s8(_i_zero8(), _ones(), v)
            set_f32(xd + step * b, d)
            set_i32(xs + step * 2 * b, hsum(_low4(fours)))
            set_i32(xs + step * (2 * b + 1), hsum(_high4(fours)))
            w, p = _words(v), q + step * 8 * b
            set_i32(p, _l0(w))
            set_i32(p + step, _l1(w))
            set_i32(p + 2 * step, _l2(w))
            set_i32(p + 3 * step, _l3(w))
            set_i32(p + 4 * step, _l4(w))
            set_i32(p + 5 * step, _l5(w))
            set_i32(p + 6 * step, _l6(w))
            set_i32(p + 7 * step, _l7(w))


def pack_tiles(tid, nth, count, x, ldx, k, out):
    """Rows of x (rows, k) f32 -> f32 tiles (k, TILE)."""
    m = i64_at(count)
    for r in range(first_row(m, tid, nth), first_row(m, tid + 1, nth)):
        src = x + ldx * r
        dst = out + (r // TILE) * TILE * 4 * k + 4 * (r % TILE)
        for i in range(k):
            set_f32(dst + 4 * TILE * i, f32_at(src + 4 * i))


def pack_pairs(tid, nth, count, x, ldx, k, out):
    """Rows of x (rows, k) f32 -> bf16 tiles (layout.bf16_tile_bytes), k a multiple of 32."""
    m = i64_at(count)
    for r in range(first_row(m, tid, nth), first_row(m, tid + 1, nth)):
        src = x + ldx * r
        dst = out + (r // TILE) * TILE * 2 * k + 1024 * (r % TILE // 16) + 4 * (r % 16)
        for b in range(k // 32):
            for half in range(2):
                v = _pairs(f32_to_bf16(f32x16(src + 128 * b + 64 * half)))
                p = dst + 64 * TILE * b + 512 * half
                set_i32(p, _l0(v))
                set_i32(p + 64, _l1(v))
                set_i32(p + 128, _l2(v))
                set_i32(p + 192, _l3(v))
                set_i32(p + 256, _l4(v))
                set_i32(p + 320, _l5(v))
                set_i32(p + 384, _l6(v))
                set_i32(p + 448, _l7(v))


_exp = exp(16)


def add(tid, nth, count, x, y, ld, n, scale: f32):
    """y += scale * x, rows of n."""
    m = i64_at(count)
    for r in range(first_row(m, tid, nth), first_row(m, tid + 1, nth)):
        a, b = x + ld * r, y + ld * r
        for i in range(0, n - 15, 16):
            store(b + 4 * i, fma(f32x16(a + 4 * i), full16(scale), f32x16(b + 4 * i)))
        for i in range(n - n % 16, n):
            set_f32(b + 4 * i, f32_at(b + 4 * i) + scale * f32_at(a + 4 * i))


def add_bias(tid, nth, count, bias, y, ld, n):
    """y += bias (n,), each row."""
    m = i64_at(count)
    for r in range(first_row(m, tid, nth), first_row(m, tid + 1, nth)):
        p = y + ld * r
        for i in range(0, n - 15, 16):
            store(p + 4 * i, f32x16(p + 4 * i) + f32x16(bias + 4 * i))
        for i in range(n - n % 16, n):
            set_f32(p + 4 * i, f32_at(p + 4 * i) + f32_at(bias + 4 * i))


def scale(tid, nth, count, y, ld, n, factor: f32):
    """y *= factor, each row."""
    m = i64_at(count)
    for r in range(first_row(m, tid, nth), first_row(m, tid + 1, nth)):
        for i in range(n):
            p = y + ld * r + 4 * i
            set_f32(p, f32_at(p) * factor)


@inline
def tanh(x):
    """1 - 2 / (e^(2x) + 1)."""
    return full16(1.0) - full16(2.0) / (_exp(x + x) + full16(1.0))


def head_scale(tid, nth, count, batch, n, factor: f32, cap: f32):
    """Logits (out, n) in place: times factor, then cap * tanh(logits / cap) when cap > 0. Split over columns."""
    m, y = i64_at(count), i64_at(batch + 72)
    for r in range(m):
        for i in range(16 * (n // 16 * tid // nth), 16 * (n // 16 * (tid + 1) // nth), 16):
            p = y + 4 * (n * r + i)
            v = f32x16(p) * factor
            if cap > 0:
                v = tanh(v * (np.float32(1) / cap)) * cap
            store(p, v)
        if tid == 0:
            for i in range(n - n % 16, n):
                p = y + 4 * (n * r + i)
                v1 = full16(f32_at(p) * factor)
                if cap > 0:
                    v1 = tanh(v1 * (np.float32(1) / cap)) * cap
                set_f32(p, _f0(v1))


_f0 = lane(0)


def gather_rows(tid, nth, batch, x, ldx, y, n):
    """y (out, n) = the rows of x that want logits."""
    m, rows = i64_at(batch + 16), i64_at(batch + 48)
    for r in range(first_row(m, tid, nth), first_row(m, tid + 1, nth)):
        src = x + ldx * i32_at(rows + 4 * r)
        for i in range(n):
            set_f32(y + 4 * (n * r + i), f32_at(src + 4 * i))
