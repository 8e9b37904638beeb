"""Blocked attention for prompts over the paged KV cache (FlashAttention, Dao et al. 2022)."""

from __future__ import annotations

import numpy as np

from .attn import NOTHING, exp1, softmax_piece
from .kv import key_row, page_of, value_part
from .layout import BLOCK, KV_TYPES, PAGE, PIECE
from .simd import LANES, atomic_add, f32, f32_at, fma, i32_at, i64_at, inline, load, set_f32, splat, store, zeros

WIDE = 2 * LANES  # keys, or components of values, side by side: with four queries as many sums as hide the latency

_f16v, _full16, _zero16 = load("f32", 16), splat("f32", 16), zeros("f32", 16)
_v, _full, _zero = load("f32", WIDE), splat("f32", WIDE), zeros("f32", WIDE)


@inline
def scores(q0, q1, q2, q3, d, kf, s, first, last):
    """Four queries by the keys first..last - 1 of a piece (more of them, up to a multiple of WIDE)."""
    for j in range(first // WIDE * WIDE, last, WIDE):
        a, b, c, e = _zero(), _zero(), _zero(), _zero()
        for i in range(d):
            k = _v(kf + 4 * (PIECE * i + j))
            a = fma(k, _full(f32_at(q0 + 4 * i)), a)
            b = fma(k, _full(f32_at(q1 + 4 * i)), b)
            c = fma(k, _full(f32_at(q2 + 4 * i)), c)
            e = fma(k, _full(f32_at(q3 + 4 * i)), e)
        store(s + 4 * j, a)
        store(s + 4 * (PIECE + j), b)
        store(s + 4 * (2 * PIECE + j), c)
        store(s + 4 * (3 * PIECE + j), e)


def _columns(width):
    """(weights (4, PIECE), V, d_v, acc, keys): acc (4, d_v) += weights by V, `width` components alone."""
    v, full = load("f32", width), splat("f32", width)

    @inline
    def op(s, vf, d_v, p, keys):
        a0, a1, a2, a3 = v(p), v(p + 4 * d_v), v(p + 8 * d_v), v(p + 12 * d_v)
        for t in range(keys):
            x, w = v(vf + 4 * d_v * t), s + 4 * t
            a0 = fma(x, full(f32_at(w)), a0)
            a1 = fma(x, full(f32_at(w + 4 * PIECE)), a1)
            a2 = fma(x, full(f32_at(w + 8 * PIECE)), a2)
            a3 = fma(x, full(f32_at(w + 12 * PIECE)), a3)
        store(p, a0)
        store(p + 4 * d_v, a1)
        store(p + 8 * d_v, a2)
        store(p + 12 * d_v, a3)

    return op


_wide, _sixteen = _columns(WIDE), _columns(min(16, WIDE))


@inline
def weigh(s, vf, d_v, acc, keys):
    """acc (4, d_v) += weights s (4, PIECE) by V."""
    whole = d_v // WIDE * WIDE
    for c in range(0, whole, WIDE):
        _wide(s, vf + 4 * c, d_v, acc + 4 * c, keys)
    if WIDE > 16 and whole < d_v:
        _sixteen(s, vf + 4 * whole, d_v, acc + 4 * whole, keys)


@inline
def rescale(s, ms, acc, d_v, start, low, high, scale, cap, slope):
    """Online softmax of one query: weights in place, running max and sum, earlier values scaled down."""
    old = f32_at(ms)
    top, total = softmax_piece(s, start, low, high, scale, cap, slope, old)
    factor = exp1(old - top)
    set_f32(ms, top)
    set_f32(ms + 4, f32_at(ms + 4) * factor + total)
    if factor != 1:
        for c in range(0, d_v, 16):
            store(acc + 4 * c, _f16v(acc + 4 * c) * factor)


@inline
def four_queries(q, ldq, positions, i, queries, group, d_k, d_v, kf, vf, s, ms, acc, start, end, window, slopes,
                 scale, cap):  # fmt: skip
    """Queries i..i + 3 of an item over one piece; query i is row i // group, head i % group.

    A short last four repeats its last query.
    """
    i1, i2, i3 = min(i + 1, queries - 1), min(i + 2, queries - 1), min(i + 3, queries - 1)
    # The keys that at least one of the four sees; others may never have been written.
    low = max(start, i32_at(positions + 4 * (i // group)) - window + 1) if window else start
    high = min(end, i32_at(positions + 4 * (i3 // group)) + 1)
    if low >= high:
        return
    scores(
        q + ldq * (i // group) + 4 * d_k * (i % group), q + ldq * (i1 // group) + 4 * d_k * (i1 % group),
        q + ldq * (i2 // group) + 4 * d_k * (i2 % group), q + ldq * (i3 // group) + 4 * d_k * (i3 % group),
        d_k, kf, s, low - start, high - start,
    )
    for j in range(min(4, queries - i)):
        last = i32_at(positions + 4 * ((i + j) // group))
        since = max(0, last - window + 1) if window else 0
        slope = f32_at(slopes + 4 * ((i + j) % group)) if slopes else np.float32(0)
        sums = acc + 4 * d_v * (i + j)
        rescale(s + 4 * PIECE * j, ms + 8 * (i + j), sums, d_v, start, since, last, scale, cap, slope)
    skip = low - start
    weigh(s + 4 * skip, vf + 4 * d_v * skip, d_v, acc + 4 * d_v * i, high - low)


@inline
def clear(ms, acc, queries, d_v):
    """No key seen yet: max, sum and values of all queries."""
    for i in range(queries):
        set_f32(ms + 8 * i, NOTHING)
        set_f32(ms + 8 * i + 4, np.float32(0))
    for i in range(0, (queries + 3) // 4 * 4 * d_v, 16):
        store(acc + 4 * i, _zero16())


@inline
def finish(y, ldy, ms, acc, queries, group, d_v, sinks):
    """Values over sums -> y (rows, heads of the group, d_v)."""
    for i in range(queries):
        total = f32_at(ms + 8 * i + 4)
        if sinks:
            total += exp1(f32_at(sinks + 4 * (i % group)) - f32_at(ms + 8 * i))
        inverse, out = np.float32(1) / total, y + ldy * (i // group) + 4 * d_v * (i % group)
        for c in range(0, d_v, 16):
            store(out + 4 * c, _f16v(acc + 4 * (d_v * i + c)) * inverse)


def prompt(kind):
    """Items are (sequence, query block, KV head), taken from the cursor.

    Keys and values of a piece are widened to f32 once and used by all query tokens and heads of the item.
    scratch: per thread f32 K (d_k, PIECE), V (PIECE, d_v), scores (4, PIECE), values (queries, d_v),
    max and sum (queries, 2), for queries = BLOCK * group (layout.attention_scratch_bytes).
    """
    unit, row_of_keys, part_of_value = KV_TYPES[kind], key_row(kind), value_part(kind)

    @inline
    def widen_piece(batch, row, cache, page_bytes, d_k, d_v, start, low, end, kf, vf):
        for t in range(max(start, low // PAGE * PAGE), end, PAGE):  # earlier pages may be gone
            kp = cache + page_bytes * page_of(batch, row, t)
            for i in range(d_k):
                store(kf + 4 * (PIECE * i + t - start), row_of_keys(kp, i))
            vp = kp + unit * d_k
            for i in range(min(PAGE, end - t)):
                for c in range(0, d_v, 16):
                    store(vf + 4 * (d_v * (t - start + i) + c), part_of_value(vp, d_v, i, c))

    def attention_prompt(
        tid, nth, batch, q, ldq, cache, page_bytes, heads, kv_heads, d_k, d_v, window, alibi, sinks, y, ldy,
        scratch, ld_scratch, cursor, scale: f32, cap: f32,
    ):
        seqs, positions, starts = i64_at(batch + 8), i64_at(batch + 32), i64_at(batch + 64)
        group = heads // kv_heads
        kf = scratch + ld_scratch * tid
        vf = kf + 4 * PIECE * d_k
        s = vf + 4 * PIECE * d_v
        acc = s + 16 * PIECE
        ms = acc + 4 * d_v * BLOCK * group
        item, seq, done = atomic_add(cursor, 1), 0, 0
        while seq < seqs:
            row0, row1 = i32_at(starts + 4 * seq), i32_at(starts + 4 * seq + 4)
            blocks = (row1 - row0 + BLOCK - 1) // BLOCK
            if item - done >= blocks * kv_heads:
                done += blocks * kv_heads
                seq += 1
                continue
            # Later blocks see more keys: hand them out first, so that the threads end together.
            h_kv, block = (item - done) % kv_heads, blocks - 1 - (item - done) // kv_heads
            first = row0 + BLOCK * block
            rows = min(BLOCK, row1 - first)
            queries, at, q0 = rows * group, positions + 4 * first, q + ldq * first + 4 * d_k * group * h_kv
            slopes = alibi + 4 * group * h_kv if alibi else 0
            head = cache + unit * (d_k + d_v) * h_kv
            clear(ms, acc, queries, d_v)
            p0, p1 = i32_at(at), i32_at(at + 4 * (rows - 1))
            oldest = max(0, p0 - window + 1) if window else 0
            for start in range(oldest // PIECE * PIECE, p1 + 1, PIECE):
                end = min(start + PIECE, p1 + 1)
                widen_piece(batch, first, head, page_bytes, d_k, d_v, start, oldest, end, kf, vf)
                for i in range(0, queries, 4):
                    four_queries(
                        q0, ldq, at, i, queries, group, d_k, d_v, kf, vf, s, ms, acc, start, end, window, slopes,
                        scale, cap,
                    )
            faint = sinks + 4 * group * h_kv if sinks else 0
            finish(y + ldy * first + 4 * d_v * group * h_kv, ldy, ms, acc, queries, group, d_v, faint)
            item = atomic_add(cursor, 1)

    return attention_prompt
