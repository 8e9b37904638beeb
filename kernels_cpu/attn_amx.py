"""Attention of prompts on AMX: scores and weighted values by bf16 tiles, online softmax in f32 between them.

Items, pieces and masks are those of attn_prompt.prompt. Keys and values of a piece become B operands once for all
queries of an item; 32 queries at a time are the rows of A, first themselves, then their weights. What a query does not
see has the weight 0 exactly, so a row's result depends on nothing but its own position.
"""

from __future__ import annotations

import math

import numpy as np

from .amx import multiply
from .amx_tiles import configure, release
from .attn import NOTHING, cap_scores, exp1
from .kv import key_row, page_of, value_part
from .layout import AMX_BLOCK, KV_TYPES, PAGE, PIECE
from .simd import (
    atomic_add,
    concat,
    const,
    exp2i,
    f32,
    f32_at,
    floor,
    fma,
    hmax,
    hsum,
    i32_at,
    i64_at,
    inline,
    lane,
    load,
    lookup32,
    part,
    set_f32,
    splat,
    store,
    tile_bf16,
    to_f32,
    to_i32,
    vmax,
    where_negative,
    zeros,
)

LOG2E, LN2 = np.float32(math.log2(math.e)), np.float32(math.log(2))

_f16v, _full16, _i16, _zero16 = load("f32", 16), splat("f32", 16), splat("i32", 16), zeros("f32", 16)
_iota, _zero32, _none = const("i32", *range(16)), zeros("f32", 32), zeros("u16", 32)
_lane0 = lane(0)
_low, _high = part(0, 16), part(16, 16)
_alternate = const("u16", *[i // 2 + 16 * (i % 2) for i in range(32)])


@inline
def exp2(x):
    """2**x for x <= 0, relative error below 3e-6 (Taylor to the fifth power); 2**-126 and less become 2**-126."""
    x = vmax(x, _full16(-126.0))
    k = floor(x + 0.5)
    r = x - k
    y = fma(_full16(1.3333558e-3), r, _full16(9.6181291e-3))
    y = fma(y, r, _full16(5.5504109e-2))
    y = fma(y, r, _full16(2.4022651e-1))
    y = fma(y, r, _full16(6.9314718e-1))
    return fma(y, r, _full16(1.0)) * exp2i(to_i32(k))


@inline
def pair_up(x, y):
    """Two rows of 16 f32 -> bf16 x0 y0 x1 y1 ..., a row of a B tile."""
    return lookup32(tile_bf16(concat(x, y)), _alternate())


@inline
def weights(s, p, first, low, high, scale, cap, slope, m_old):
    """Scores of one query (PIECE / 16 vectors, 2048 bytes apart) -> bf16 2**(s - m) at p (PIECE / 32 lines, 2048 bytes
    apart), 0 outside of low..high; returns (m, sum), m in units of log 2. high is the query's own position."""
    factor, top = scale * LOG2E, _full16(m_old)
    total = _zero16()
    if cap == 0 and slope == 0 and low <= first and first + PIECE - 1 <= high:
        best = _f16v(s)
        for i in range(1, PIECE // 16):
            best = vmax(best, _f16v(s + 2048 * i))
        m = max(m_old, hmax(best) * factor)
        for i in range(PIECE // 32):
            a = exp2(fma(_f16v(s + 4096 * i), _full16(factor), _full16(-m)))
            b = exp2(fma(_f16v(s + 4096 * i + 2048), _full16(factor), _full16(-m)))
            total = total + (a + b)
            store(p + 2048 * i, tile_bf16(concat(a, b)))
        return m, hsum(total)
    for i in range(PIECE // 16):
        v, at = _f16v(s + 2048 * i), _iota() + (first + 16 * i)
        v = cap_scores(v, scale, cap) * LOG2E if cap > 0 else v * factor
        if slope != 0:
            v = fma(to_f32(at - high), _full16(slope * LOG2E), v)
        v = where_negative(at - low, _full16(NOTHING), where_negative(_i16(high) - at, _full16(NOTHING), v))
        store(s + 2048 * i, v)
        top = vmax(top, v)
    m = hmax(top)
    for i in range(PIECE // 32):
        at = _iota() + (first + 32 * i)
        a, b = exp2(_f16v(s + 4096 * i) - m), exp2(_f16v(s + 4096 * i + 2048) - m)
        a = where_negative(at - low, _zero16(), where_negative(_i16(high) - at, _zero16(), a))
        b = where_negative(at - (low - 16), _zero16(), where_negative(_i16(high - 16) - at, _zero16(), b))
        total = total + (a + b)
        store(p + 2048 * i, tile_bf16(concat(a, b)))
    return m, hsum(total)


@inline
def pack_queries(q, ldq, rows, group, d, wide, out):
    """Queries (row, head) f32 -> A tiles: for each 32 of them bf16 (wide / 32, 32, 32), zeros beyond d and the last."""
    for i in range((rows * group + 31) // 32 * 32):
        src, dst = q + ldq * (i // group) + 4 * d * (i % group), out + 64 * wide * (i // 32) + 64 * (i % 32)
        for c in range(0, wide, 32):
            a, b = _zero16(), _zero16()
            if i < rows * group:
                a, b = some(src + 4 * c, d - c), some(src + 4 * c + 64, d - c - 16)
            store(dst + 64 * c, tile_bf16(concat(a, b)))


@inline
def some(p, count):
    """16 f32 at p, zeros from the lane `count` on. May read up to a vector beyond."""
    if count <= 0:
        return _zero16()
    return where_negative(_iota() - count, _f16v(p), _zero16())


@inline
def clear(ms, acc, queries, wide_v):
    """No key seen yet: max, sum and values of all queries."""
    for i in range(queries):
        set_f32(ms + 8 * i, NOTHING)
        set_f32(ms + 8 * i + 4, np.float32(0))
    for i in range(0, (queries + 31) // 32 * 32 * wide_v, 16):
        store(acc + 4 * i, _zero16())


@inline
def soften(s, p, ms, acc, positions, i, count, group, wide_v, start, end, g0, g1, window, slopes, scale, cap):
    """Online softmax of queries i.. (32 at most) over one piece: scores s -> weights p; earlier values are scaled.

    Weights are made for the PAGEs g0..g1 - 1 that some of the queries see.
    """
    for j in range(count):
        last = i32_at(positions + 4 * ((i + j) // group))
        since = max(0, last - window + 1) if window else 0
        line, out = p + 64 * j, ms + 8 * (i + j)
        if since >= end or last < start:
            for g in range(g0, g1):
                store(line + 2048 * g, _none())
            continue
        slope = f32_at(slopes + 4 * ((i + j) % group)) if slopes else np.float32(0)
        old = f32_at(out)
        top, total = weights(s + 64 * j, line, start, since, last, scale, cap, slope, old)
        if top != old:
            factor = exp2(_full16(old - top))
            set_f32(out, top)
            set_f32(out + 4, f32_at(out + 4) * _lane0(factor))
            for c in range(0, wide_v, 16):
                v = acc + 128 * c + 64 * j
                store(v, _f16v(v) * factor)
        set_f32(out + 4, f32_at(out + 4) + total)


@inline
def finish(y, ldy, ms, acc, queries, group, d_v, wide_v, sinks):
    """Values over sums -> y (rows, heads of the group, d_v)."""
    for i in range(queries):
        total = f32_at(ms + 8 * i + 4)
        if sinks:
            total += exp1(f32_at(sinks + 4 * (i % group)) - f32_at(ms + 8 * i) * LN2)
        inverse, out = np.float32(1) / total, y + ldy * (i // group) + 4 * d_v * (i % group)
        for c in range(0, d_v, 16):
            store(out + 4 * c, _f16v(acc + 4 * wide_v * (i // 32 * 32) + 128 * c + 64 * (i % 32)) * inverse)


def prompt(kind):
    """attn_prompt.prompt by tiles, for the same pages. config: address of the 64-byte tile configuration.

    scratch: per thread bf16 keys and values of a piece, bf16 queries, f32 scores (32, PIECE), bf16 weights, f32 values,
    max and sum of every query, and emulated tiles (layout.amx_attention_scratch_bytes).
    """
    unit, row_of_keys, part_of_value = KV_TYPES[kind], key_row(kind), value_part(kind)

    @inline
    def pack_keys(page, d, wide, out):
        """A page of keys -> B tiles bf16 (wide / 32, 2, 16, 16, 2)."""
        for i in range(0, wide, 2):
            a, b = _zero32(), _zero32()
            if i < d:
                a = row_of_keys(page, i)
            if i + 1 < d:
                b = row_of_keys(page, i + 1)
            p = out + 2048 * (i // 32) + 32 * (i % 32)
            store(p, pair_up(_low(a), _low(b)))
            store(p + 1024, pair_up(_high(a), _high(b)))

    @inline
    def pack_values(page, d, first, last, out):
        """Tokens first..last - 1 of a page of values -> B tiles, 0 for others; columns 32 c.. at out + 8192 c."""
        for i in range(0, PAGE, 2):
            for c in range(0, d, 16):
                a, b = _zero16(), _zero16()
                if first <= i and i < last:
                    a = part_of_value(page, d, i, c)
                if first <= i + 1 and i + 1 < last:
                    b = part_of_value(page, d, i + 1, c)
                store(out + 8192 * (c // 32) + 1024 * (c % 32 // 16) + 32 * i, pair_up(a, b))

    @inline
    def pack_piece(batch, row, cache, page_bytes, h_kv, d_k, d_v, start, oldest, end, keys, values):
        """The pages of a piece that may be seen: earlier ones may be gone."""
        wide_k = (d_k + 31) // 32 * 32
        for t in range(max(start, oldest // PAGE * PAGE), end, PAGE):
            page = cache + page_bytes * page_of(batch, row, t) + unit * (d_k + d_v) * h_kv
            pack_keys(page, d_k, wide_k, keys + 2 * wide_k * (t - start))
            pack_values(page + unit * d_k, d_v, oldest - t, end - t, values + 64 * (t - start))

    def amx_attention(
        tid, nth, batch, q, ldq, cache, page_bytes, heads, kv_heads, d_k, d_v, window, alibi, sinks, y, ldy,
        scratch, ld_scratch, cursor, config, scale: f32, cap: f32,
    ):
        seqs, positions, starts = i64_at(batch + 8), i64_at(batch + 32), i64_at(batch + 64)
        group, wide_k, wide_v = heads // kv_heads, (d_k + 31) // 32 * 32, (d_v + 31) // 32 * 32
        keys = scratch + ld_scratch * tid
        values = keys + 2 * PIECE * wide_k
        s = values + 2 * PIECE * wide_v
        p = s + 4 * 32 * PIECE
        state = p + 2 * 32 * PIECE
        most = (AMX_BLOCK * group + 31) // 32 * 32
        packed = state + 8192
        acc = packed + 2 * wide_k * most
        ms = acc + 4 * wide_v * most
        configure(config)
        item, seq, done = atomic_add(cursor, 1), 0, 0
        while seq < seqs:
            row0, row1 = i32_at(starts + 4 * seq), i32_at(starts + 4 * seq + 4)
            blocks = (row1 - row0 + AMX_BLOCK - 1) // AMX_BLOCK
            if item - done >= blocks * kv_heads:
                done += blocks * kv_heads
                seq += 1
                continue
            # Later blocks see more keys: hand them out first, so that the threads end together.
            h_kv, block = (item - done) % kv_heads, blocks - 1 - (item - done) // kv_heads
            first = row0 + AMX_BLOCK * block
            rows = min(AMX_BLOCK, row1 - first)
            queries, at = rows * group, positions + 4 * first
            slopes = alibi + 4 * group * h_kv if alibi else 0
            pack_queries(q + ldq * first + 4 * d_k * group * h_kv, ldq, rows, group, d_k, wide_k, packed)
            clear(ms, acc, queries, wide_v)
            p0, p1 = i32_at(at), i32_at(at + 4 * (rows - 1))
            oldest = max(0, p0 - window + 1) if window else 0
            for start in range(oldest // PIECE * PIECE, p1 + 1, PIECE):
                end = min(start + PIECE, p1 + 1)
                pack_piece(batch, first, cache, page_bytes, h_kv, d_k, d_v, start, oldest, end, keys, values)
                for i in range(0, queries, 32):
                    count = min(32, queries - i)
                    # The keys that at least one of the queries sees; others may never have been written.
                    low = max(start, i32_at(at + 4 * (i // group)) - window + 1) if window else start
                    high = min(end, i32_at(at + 4 * ((i + count - 1) // group)) + 1)
                    if low >= high:
                        continue
                    g0, g1 = (low - start) // 32, (high - start + 31) // 32
                    for g in range(g0, g1):
                        multiply(keys + 64 * wide_k * g, packed + 2 * wide_k * i, wide_k // 32, s + 4096 * g, 0, state)
                    sums = acc + 4 * wide_v * i
                    soften(s, p, ms, sums, at, i, count, group, wide_v, start, end, g0, g1, window, slopes, scale, cap)
                    for c in range(0, wide_v, 32):
                        b = values + 256 * c + 2048 * g0
                        multiply(b, p + 2048 * g0, g1 - g0, sums + 128 * c, 1, state)
            faint = sinks + 4 * group * h_kv if sinks else 0
            finish(y + ldy * first + 4 * d_v * group * h_kv, ldy, ms, acc, queries, group, d_v, wide_v, faint)
            item = atomic_add(cursor, 1)
        release()

    return amx_attention
