"""The slab matmul: Y (m, n) = X (m, k) @ W (n, k)^T for prompt tokens and for exact mode.

A thread takes a slab of weight rows, decodes it once into its scratch (natural row order), and multiplies it with
every tile of TILE tokens. Tokens are the lanes, weights are broadcast, six rows at a time: no horizontal sums, and a
token's result depends on nothing but its own row. Two engines share everything else: u8 x s8 integer dots with a
scale per SUB weights (`prompt`), and f32 (`exact`, and any type without an integer form).
"""

from __future__ import annotations

import importlib

from .dense import row_f32
from .layout import SLAB
from .simd import (
    AVX2,
    LANES,
    TILE,
    VNNI256,
    add_pairs,
    atomic_add,
    broadcast_u32,
    dot2_u8s8,
    dot4_s8s8,
    dot4_u8s8,
    f32_at,
    fma,
    i32_at,
    i64_at,
    inline,
    load,
    set_f32,
    splat,
    store,
    to_f32,
    transpose,
    zeros,
)

ROWS = 6  # weight rows that the integer and f32 engines multiply at once
_f32t, _i32t, _i8t = load("f32", TILE), load("i32", TILE), load("i8", 4 * TILE)
_zero, _i_zero, _full = zeros("f32", TILE), zeros("i32", TILE), splat("f32", TILE)
_square, _f32w = load("f32", LANES * LANES), load("f32", LANES)
_PARTS = TILE // LANES


@inline
def store_tile(c, row, v):
    """One row of TILE results into the output tile, kept as [TILE / LANES][slab rows][LANES] to be transposed."""
    _store_parts(c + 4 * LANES * row, v)


if _PARTS == 1:

    @inline
    def _store_parts(p, v):
        store(p, v)

elif _PARTS == 2:
    from .simd import part

    _first, _second = part(0, LANES), part(LANES, LANES)

    @inline
    def _store_parts(p, v):
        store(p, _first(v))
        store(p + 4 * LANES * SLAB, _second(v))

else:
    raise ImportError(f"no tile of {TILE} tokens with {LANES} lanes")


@inline
def write_out(c, slab_rows, swap, y, ldy, tokens, n, accumulate):
    """Output tile c (slab_rows x TILE tokens) -> y[token][row], `tokens` and `n` of them; adds if accumulate."""
    for part_ in range(_PARTS):
        first = part_ * LANES
        if first >= tokens:
            break
        for r in range(0, n, LANES):
            store(swap, transpose(_square(c + 4 * LANES * (slab_rows * part_ + r))))
            for t in range(min(LANES, tokens - first)):
                src, dst = swap + 4 * LANES * t, y + ldy * (first + t) + 4 * r
                if r + LANES <= n:
                    v = _f32w(src)
                    if accumulate:
                        v = v + _f32w(dst)
                    store(dst, v)
                else:
                    for i in range(n - r):
                        old = f32_at(dst + 4 * i) if accumulate else f32_at(src) * 0
                        set_f32(dst + 4 * i, old + f32_at(src + 4 * i) if accumulate else f32_at(src + 4 * i))


def _multiply(t):
    """(tokens, weights, row stride, start) -> six rows' i32 dots over SUB weights, added to start."""
    spread = broadcast_u32("i8" if t.SIGNED else "u8", 4 * TILE)
    dot4, groups = dot4_s8s8 if t.SIGNED else dot4_u8s8, t.SUB // 4

    @inline
    def multiply(x, w, k, start):
        i0, i1, i2, i3, i4, i5 = start, start, start, start, start, start
        for g in range(groups):
            v, p = _i8t(x + 4 * TILE * g), w + 4 * g
            i0 = dot4(i0, spread(p), v)
            i1 = dot4(i1, spread(p + k), v)
            i2 = dot4(i2, spread(p + 2 * k), v)
            i3 = dot4(i3, spread(p + 3 * k), v)
            i4 = dot4(i4, spread(p + 4 * k), v)
            i5 = dot4(i5, spread(p + 5 * k), v)
        return i0, i1, i2, i3, i4, i5

    return multiply


def _multiply_narrow(t):
    """The same for AVX2 without VNNI: sums stay in 16 bits for as long as quants up to QMAX cannot overflow them."""
    spread = broadcast_u32("u8", 4 * TILE)
    groups = t.SUB // 4
    run = min(groups, 32767 // (2 * 127 * t.QMAX))
    run = 1 << (run.bit_length() - 1)  # so that it divides groups

    @inline
    def multiply(x, w, k, start):
        i0, i1, i2, i3, i4, i5 = start, start, start, start, start, start
        for h in range(0, groups, run):
            v, p = _i8t(x + 4 * TILE * h), w + 4 * h
            c0, c1, c2 = dot2_u8s8(spread(p), v), dot2_u8s8(spread(p + k), v), dot2_u8s8(spread(p + 2 * k), v)
            p += 3 * k
            c3, c4, c5 = dot2_u8s8(spread(p), v), dot2_u8s8(spread(p + k), v), dot2_u8s8(spread(p + 2 * k), v)
            for g in range(1, run):
                v, p = _i8t(x + 4 * TILE * (h + g)), w + 4 * (h + g)
                c0 = c0 + dot2_u8s8(spread(p), v)
                c1 = c1 + dot2_u8s8(spread(p + k), v)
                c2 = c2 + dot2_u8s8(spread(p + 2 * k), v)
                c3 = c3 + dot2_u8s8(spread(p + 3 * k), v)
                c4 = c4 + dot2_u8s8(spread(p + 4 * k), v)
                c5 = c5 + dot2_u8s8(spread(p + 5 * k), v)
            i0, i1, i2 = i0 + add_pairs(c0), i1 + add_pairs(c1), i2 + add_pairs(c2)
            i3, i4, i5 = i3 + add_pairs(c3), i4 + add_pairs(c4), i5 + add_pairs(c5)
        return i0, i1, i2, i3, i4, i5

    return multiply


def _integer_tile(t):
    """tile(x, q, s, m, k, c, row): six rows of decoded u8 weights by one q8 tile."""
    sub, has_min = t.SUB, t.HAS_MIN
    shift = t.OFFSET.bit_length() - 1
    per32, multiply = 32 // sub, _multiply_narrow(t) if AVX2 and not VNNI256 and not t.SIGNED else _multiply(t)

    @inline
    def tile(x, q, s, m, k, c, row):
        xd, xs, n_sub = x + TILE * k, x + TILE * (k + k // 8), k // sub
        q = q + k * row
        s, m = s + 4 * n_sub * row, m + 4 * n_sub * row
        a0, a1, a2, a3, a4, a5 = _zero(), _zero(), _zero(), _zero(), _zero(), _zero()
        for b in range(n_sub):
            if sub == 32:
                sums = _i32t(xs + 8 * TILE * b) + _i32t(xs + 8 * TILE * b + 4 * TILE)
            else:
                sums = _i32t(xs + 4 * TILE * b)
            start = _i_zero()
            if shift >= 0:
                start = start - (sums << shift)
            i0, i1, i2, i3, i4, i5 = multiply(x + TILE * sub * b, q + sub * b, k, start)
            d = _f32t(xd + 4 * TILE * (b // per32))
            p = s + 4 * b
            a0 = fma(to_f32(i0) * d, _full(f32_at(p)), a0)
            a1 = fma(to_f32(i1) * d, _full(f32_at(p + 4 * n_sub)), a1)
            a2 = fma(to_f32(i2) * d, _full(f32_at(p + 8 * n_sub)), a2)
            a3 = fma(to_f32(i3) * d, _full(f32_at(p + 12 * n_sub)), a3)
            a4 = fma(to_f32(i4) * d, _full(f32_at(p + 16 * n_sub)), a4)
            a5 = fma(to_f32(i5) * d, _full(f32_at(p + 20 * n_sub)), a5)
            if has_min:
                less = _zero() - to_f32(sums) * d
                p = m + 4 * b
                a0 = fma(less, _full(f32_at(p)), a0)
                a1 = fma(less, _full(f32_at(p + 4 * n_sub)), a1)
                a2 = fma(less, _full(f32_at(p + 8 * n_sub)), a2)
                a3 = fma(less, _full(f32_at(p + 12 * n_sub)), a3)
                a4 = fma(less, _full(f32_at(p + 16 * n_sub)), a4)
                a5 = fma(less, _full(f32_at(p + 20 * n_sub)), a5)
        store_tile(c, row, a0)
        store_tile(c, row + 1, a1)
        store_tile(c, row + 2, a2)
        store_tile(c, row + 3, a3)
        store_tile(c, row + 4, a4)
        store_tile(c, row + 5, a5)

    return tile


@inline
def f32_tile(x, w, k, c, row):
    """Six rows of f32 weights by one f32 tile."""
    w = w + 4 * k * row
    a0, a1, a2, a3, a4, a5 = _zero(), _zero(), _zero(), _zero(), _zero(), _zero()
    for i in range(k):
        v, p = _f32t(x + 4 * TILE * i), w + 4 * i
        a0 = fma(v, _full(f32_at(p)), a0)
        a1 = fma(v, _full(f32_at(p + 4 * k)), a1)
        a2 = fma(v, _full(f32_at(p + 8 * k)), a2)
        a3 = fma(v, _full(f32_at(p + 12 * k)), a3)
        a4 = fma(v, _full(f32_at(p + 16 * k)), a4)
        a5 = fma(v, _full(f32_at(p + 20 * k)), a5)
    store_tile(c, row, a0)
    store_tile(c, row + 1, a1)
    store_tile(c, row + 2, a2)
    store_tile(c, row + 3, a3)
    store_tile(c, row + 4, a4)
    store_tile(c, row + 5, a5)


def slab_kernel(row_bytes, tile_bytes, decode, multiply, slab_rows=SLAB, step=ROWS):
    """The kernel around an engine that multiplies `step` rows at once: items are (expert, slab), from the cursor.

    count: address of m. segments: 0, or i32 (experts + 1,) first tile of each expert's rows, which then start on
    tile borders. y: address, or 0 for the batch's logits.
    """

    def slab_matmul(
        tid, nth, count, x, w, n, k, y, ldy, accumulate, scratch, ld_scratch, cursor, experts, segments, expert_bytes
    ):
        m = i64_at(count)
        if m == 0:
            return
        slab = scratch + ld_scratch * tid
        c = slab + 4 * SLAB * k + 4 * k
        swap = c + 4 * SLAB * TILE
        slabs = (n + slab_rows - 1) // slab_rows
        while True:
            item = atomic_add(cursor, 1)
            if item >= slabs * experts:
                break
            expert, first = item // slabs, slab_rows * (item % slabs)
            t0, t1 = 0, (m + TILE - 1) // TILE
            if segments:
                t0, t1 = i32_at(segments + 4 * expert), i32_at(segments + 4 * expert + 4)
            if t0 == t1:
                continue
            rows = min(slab_rows, n - first)
            decode(w + expert_bytes * expert + row_bytes(k) * first, rows, k, slab)
            for t in range(t0, t1):
                xt = x + tile_bytes(k) * t
                for r in range(0, rows, step):
                    multiply(xt, slab, k, c, r)
                tokens = TILE if segments else min(TILE, m - TILE * t)
                write_out(c, slab_rows, swap, y + ldy * TILE * t + 4 * first, ldy, tokens, rows, accumulate)

    return slab_matmul


def prompt(name):
    """Slab matmul of a quant type with q8 tiles."""
    t = importlib.import_module(f"{__package__}.{name.lower()}")
    block, size, sub, row_u8, tile = t.BLOCK, t.BYTES, t.SUB, t.row_u8, _integer_tile(t)

    @inline
    def row_bytes(k):
        return k // block * size

    @inline
    def tile_bytes(k):
        return TILE * (k + k // 8 + k // 4)

    @inline
    def decode(w, rows, k, slab):
        s = slab + SLAB * k
        m = s + SLAB * 4 * (k // sub)
        for r in range(rows):
            row_u8(w + row_bytes(k) * r, k // block, slab + k * r, s + 4 * (k // sub) * r, m + 4 * (k // sub) * r)

    @inline
    def multiply(xt, slab, k, c, r):
        s = slab + SLAB * k
        tile(xt, slab, s, s + SLAB * 4 * (k // sub), k, c, r)

    return slab_kernel(row_bytes, tile_bytes, decode, multiply)


def exact(name):
    """Slab matmul of any type with f32 tiles, weights decoded to f32."""
    row_bytes, decode_row = row_f32(name)

    @inline
    def tile_bytes(k):
        return TILE * 4 * k

    @inline
    def decode(w, rows, k, slab):
        for r in range(rows):
            decode_row(w + row_bytes(k) * r, k, slab + 4 * k * r, slab + 4 * SLAB * k)

    @inline
    def multiply(xt, slab, k, c, r):
        f32_tile(xt, slab, k, c, r)

    return slab_kernel(row_bytes, tile_bytes, decode, multiply)
