"""Attention over the paged KV cache, for generated tokens (`decode`, `merge`) and for prompts (`prompt`).

Both walk the KV axis in pieces of PIECE tokens whose borders are fixed from position 0, so that a token's result
depends on neither its chunk, nor its neighbours, nor the number of threads. Query heads that share a KV head are
handled together (GQA). `window` > 0: a token sees itself and the window - 1 before it. `cap` > 0: cap * tanh(s / cap).
`alibi`: 0, or f32 (heads,) slopes of a penalty on distance (Press et al. 2021). `sinks`: 0, or f32 (heads,) scores that
take part in the softmax without a value.
"""

from __future__ import annotations

import numpy as np

from .act import first_row
from .kv import KINDS, page_of
from .layout import BLOCK, PAGE, PIECE
from .simd import (
    atomic_add,
    const,
    exp,
    f32,
    f32_at,
    fma,
    hmax,
    hsum,
    i32_at,
    i64_at,
    inline,
    lane,
    load,
    set_f32,
    splat,
    store,
    to_f32,
    vmax,
    where_negative,
    zeros,
)

NOTHING = np.float32(-1e30)  # a score that no key has, finite so that differences of two are 0

_f16v, _f32v = load("f32", 16), load("f32", 32)
_full16, _full32, _i16 = splat("f32", 16), splat("f32", 32), splat("i32", 16)
_zero16, _zero32 = zeros("f32", 16), zeros("f32", 32)
_iota = const("i32", *range(16))
_exp16 = exp(16)
_lane0 = lane(0)


@inline
def exp1(x):
    return _lane0(_exp16(_full16(x)))


@inline
def cap_scores(s, scale, cap):
    s = s * scale
    if cap > 0:
        s = (_full16(1.0) - _full16(2.0) / (_exp16(s * (np.float32(2) / cap)) + _full16(1.0))) * cap
    return s


@inline
def softmax_piece(s, first, low, high, scale, cap, slope, m_old):
    """Scores s (PIECE,) of keys first.. in place -> exp(s - m), 0 outside low..high; returns (m, sum).

    high is the query's own position.
    """
    top = _full16(m_old)
    for i in range(0, PIECE, 16):
        v = cap_scores(_f16v(s + 4 * i), scale, cap)
        at = _iota() + (first + i)
        if slope != 0:
            v = fma(to_f32(at - high), _full16(slope), v)
        v = where_negative(at - low, _full16(NOTHING), where_negative(_i16(high) - at, _full16(NOTHING), v))
        store(s + 4 * i, v)
        top = vmax(top, v)
    m = hmax(top)
    total = _zero16()
    for i in range(0, PIECE, 16):
        at = _iota() + (first + i)
        p = _exp16(_f16v(s + 4 * i) - m)
        p = where_negative(at - low, _zero16(), where_negative(_i16(high) - at, _zero16(), p))
        store(s + 4 * i, p)
        total = total + p
    return m, hsum(total)


def decode(kind):
    """One query token a row: partial results of every (row, KV head, piece), taken from the cursor.

    q (rows, heads * d_k) f32. partial: per row f32 (piece, head, d_v + 2): max, sum, weighted values.
    scratch: per thread f32 (4, PIECE).
    """
    size, element, widen, _ = KINDS[kind]
    load32, load16 = load(element, 32), load(element, 16)

    @inline
    def scores_page(kp, q0, q1, q2, q3, d, s):
        """Four heads' products with the PAGE keys of one page -> s (4, PIECE)."""
        a, b, c, e = _zero32(), _zero32(), _zero32(), _zero32()
        for i in range(d):
            k = widen(load32(kp + size * PAGE * i))
            a = fma(k, _full32(f32_at(q0 + 4 * i)), a)
            b = fma(k, _full32(f32_at(q1 + 4 * i)), b)
            c = fma(k, _full32(f32_at(q2 + 4 * i)), c)
            e = fma(k, _full32(f32_at(q3 + 4 * i)), e)
        store(s, a)
        store(s + 4 * PIECE, b)
        store(s + 8 * PIECE, c)
        store(s + 12 * PIECE, e)

    def attention_decode(
        tid, nth, batch, q, ldq, cache, page_bytes, heads, kv_heads, d_k, d_v, window, alibi, partial, ld_partial,
        scratch, ld_scratch, cursor, scale: f32, cap: f32,
    ):
        m, positions, group = i64_at(batch), i64_at(batch + 32), heads // kv_heads
        s = scratch + ld_scratch * tid
        item, row, done = atomic_add(cursor, 1), 0, 0
        while row < m:
            position = i32_at(positions + 4 * row)
            low = max(0, position - window + 1) if window else 0
            first_piece = low // PIECE
            pieces = position // PIECE - first_piece + 1
            if item - done >= pieces * kv_heads:
                done += pieces * kv_heads
                row += 1
                continue
            h_kv, index = (item - done) // pieces, (item - done) % pieces
            start = PIECE * (first_piece + index)
            end = min(start + PIECE, position + 1)
            seen = max(start, low // PAGE * PAGE)  # earlier pages may be gone
            for h in range(h_kv * group, (h_kv + 1) * group, 4):
                last = (h_kv + 1) * group - 1
                q0 = q + ldq * row + 4 * d_k * h
                q1 = q + ldq * row + 4 * d_k * min(h + 1, last)
                q2 = q + ldq * row + 4 * d_k * min(h + 2, last)
                q3 = q + ldq * row + 4 * d_k * min(h + 3, last)
                for t in range(seen, end, PAGE):
                    kp = cache + page_bytes * page_of(batch, row, t) + size * PAGE * (d_k + d_v) * h_kv
                    scores_page(kp, q0, q1, q2, q3, d_k, s + 4 * (t - start))
                count = min(4, last + 1 - h)
                out = partial + ld_partial * row + 4 * (d_v + 2) * (heads * index + h)
                for j in range(count):
                    slope = f32_at(alibi + 4 * (h + j)) if alibi else np.float32(0)
                    top, total = softmax_piece(s + 4 * PIECE * j, start, low, position, scale, cap, slope, NOTHING)
                    set_f32(out + 4 * (d_v + 2) * j, top)
                    set_f32(out + 4 * (d_v + 2) * j + 4, total)
                for c in range(0, d_v, 16):
                    a0, a1, a2, a3 = _zero16(), _zero16(), _zero16(), _zero16()
                    for t in range(seen, end, PAGE):
                        page = cache + page_bytes * page_of(batch, row, t)
                        vp = page + size * (PAGE * (d_k + d_v) * h_kv + PAGE * d_k + c)
                        p = s + 4 * (t - start)
                        for i in range(max(0, low - t), min(PAGE, end - t)):
                            v = widen(load16(vp + size * d_v * i))
                            a0 = fma(v, _full16(f32_at(p + 4 * i)), a0)
                            a1 = fma(v, _full16(f32_at(p + 4 * PIECE + 4 * i)), a1)
                            a2 = fma(v, _full16(f32_at(p + 8 * PIECE + 4 * i)), a2)
                            a3 = fma(v, _full16(f32_at(p + 12 * PIECE + 4 * i)), a3)
                    to = out + 8 + 4 * c
                    store(to, a0)
                    if count > 1:
                        store(to + 4 * (d_v + 2), a1)
                    if count > 2:
                        store(to + 8 * (d_v + 2), a2)
                    if count > 3:
                        store(to + 12 * (d_v + 2), a3)
            item = atomic_add(cursor, 1)

    return attention_decode


def merge(tid, nth, batch, partial, ld_partial, heads, d_v, window, sinks, y, ldy):
    """Pieces of `decode`, in order -> y (rows, heads * d_v)."""
    m, positions = i64_at(batch), i64_at(batch + 32)
    for r in range(first_row(m, tid, nth), first_row(m, tid + 1, nth)):
        position = i32_at(positions + 4 * r)
        low = max(0, position - window + 1) if window else 0
        pieces = position // PIECE - low // PIECE + 1
        step = 4 * (d_v + 2) * heads
        for h in range(heads):
            p = partial + ld_partial * r + 4 * (d_v + 2) * h
            top = NOTHING
            for i in range(pieces):
                top = max(top, f32_at(p + step * i))
            total = np.float32(0)
            for i in range(pieces):
                weight = exp1(f32_at(p + step * i) - top)
                set_f32(p + step * i, weight)
                total += f32_at(p + step * i + 4) * weight
            if sinks:
                total += exp1(f32_at(sinks + 4 * h) - top)
            for c in range(0, d_v, 16):
                a = _zero16()
                for i in range(pieces):
                    a = fma(_f16v(p + step * i + 8 + 4 * c), _full16(f32_at(p + step * i)), a)
                store(y + ldy * r + 4 * (d_v * h + c), a * (np.float32(1) / total))


def prompt(kind):
    """Blocked attention for prompts (FlashAttention, Dao et al. 2022): items are (sequence, query block, KV head).

    Keys and values of a piece are widened to f32 once and used by all query tokens and heads of the item.
    scratch: per thread f32 K (d_k, PIECE), V (PIECE, d_v), scores (4, PIECE), values (queries, d_v),
    max and sum (queries, 2), for queries = BLOCK * group (layout.attention_scratch_bytes).
    """
    size, element, widen, _ = KINDS[kind]
    load32, load16 = load(element, 32), load(element, 16)

    @inline
    def widen_piece(batch, row, cache, page_bytes, head_bytes, d_k, d_v, start, low, end, kf, vf):
        for t in range(max(start, low // PAGE * PAGE), end, PAGE):
            kp = cache + page_bytes * page_of(batch, row, t) + head_bytes
            for i in range(d_k):
                store(kf + 4 * (PIECE * i + t - start), widen(load32(kp + size * PAGE * i)))
            vp = kp + size * PAGE * d_k
            for i in range(min(PAGE, end - t)):
                for c in range(0, d_v, 16):
                    store(vf + 4 * (d_v * (t - start + i) + c), widen(load16(vp + size * (d_v * i + c))))

    @inline
    def scores(q0, q1, q2, q3, d, kf, s):
        """Four queries by PIECE keys."""
        for j in range(0, PIECE, 32):
            a, b, c, e = _zero32(), _zero32(), _zero32(), _zero32()
            for i in range(d):
                k = _f32v(kf + 4 * (PIECE * i + j))
                a = fma(k, _full32(f32_at(q0 + 4 * i)), a)
                b = fma(k, _full32(f32_at(q1 + 4 * i)), b)
                c = fma(k, _full32(f32_at(q2 + 4 * i)), c)
                e = fma(k, _full32(f32_at(q3 + 4 * i)), e)
            store(s + 4 * j, a)
            store(s + 4 * (PIECE + j), b)
            store(s + 4 * (2 * PIECE + j), c)
            store(s + 4 * (3 * PIECE + j), e)

    @inline
    def weigh(s, vf, d_v, acc, keys):
        """acc (4, d_v) += weights s (4, PIECE) by V."""
        for c in range(0, d_v, 16):
            p = acc + 4 * c
            a0, a1, a2, a3 = _f16v(p), _f16v(p + 4 * d_v), _f16v(p + 8 * d_v), _f16v(p + 12 * d_v)
            for t in range(keys):
                v, w = _f16v(vf + 4 * (d_v * t + c)), s + 4 * t
                a0 = fma(v, _full16(f32_at(w)), a0)
                a1 = fma(v, _full16(f32_at(w + 4 * PIECE)), a1)
                a2 = fma(v, _full16(f32_at(w + 8 * PIECE)), a2)
                a3 = fma(v, _full16(f32_at(w + 12 * PIECE)), a3)
            store(p, a0)
            store(p + 4 * d_v, a1)
            store(p + 8 * d_v, a2)
            store(p + 12 * d_v, a3)

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
            queries = rows * group
            for i in range(queries):
                set_f32(ms + 8 * i, NOTHING)
                set_f32(ms + 8 * i + 4, np.float32(0))
            for i in range(0, (queries + 3) // 4 * 4 * d_v, 16):
                store(acc + 4 * i, _zero16())
            p0, p1 = i32_at(positions + 4 * first), i32_at(positions + 4 * (first + rows - 1))
            oldest = max(0, p0 - window + 1) if window else 0
            for start in range(oldest // PIECE * PIECE, p1 + 1, PIECE):
                end = min(start + PIECE, p1 + 1)
                head_bytes = size * PAGE * (d_k + d_v) * h_kv
                widen_piece(batch, first, cache, page_bytes, head_bytes, d_k, d_v, start, oldest, end, kf, vf)
                for i in range(0, queries, 4):
                    # Query i is row i // group, head i % group; a short last four repeats its last query.
                    i1, i2, i3 = min(i + 1, queries - 1), min(i + 2, queries - 1), min(i + 3, queries - 1)
                    # The keys that at least one of the four sees; others may never have been written.
                    low = max(start, i32_at(positions + 4 * (first + i // group)) - window + 1) if window else start
                    high = min(end, i32_at(positions + 4 * (first + i3 // group)) + 1)
                    if low >= high:
                        continue
                    base = q + ldq * first + 4 * d_k * group * h_kv
                    scores(
                        base + ldq * (i // group) + 4 * d_k * (i % group),
                        base + ldq * (i1 // group) + 4 * d_k * (i1 % group),
                        base + ldq * (i2 // group) + 4 * d_k * (i2 % group),
                        base + ldq * (i3 // group) + 4 * d_k * (i3 % group),
                        d_k, kf, s,
                    )
                    for j in range(min(4, queries - i)):
                        last = i32_at(positions + 4 * (first + (i + j) // group))
                        since = max(0, last - window + 1) if window else 0
                        values = acc + 4 * d_v * (i + j)
                        slope = np.float32(0)
                        if alibi:
                            slope = f32_at(alibi + 4 * (h_kv * group + (i + j) % group))
                        rescale(
                            s + 4 * PIECE * j, ms + 8 * (i + j), values, d_v, start, since, last, scale, cap, slope
                        )
                    skip = low - start
                    weigh(s + 4 * skip, vf + 4 * d_v * skip, d_v, acc + 4 * d_v * i, high - low)
            for i in range(queries):
                total = f32_at(ms + 8 * i + 4)
                if sinks:
                    total += exp1(f32_at(sinks + 4 * (h_kv * group + i % group)) - f32_at(ms + 8 * i))
                inverse = np.float32(1) / total
                out = y + ldy * (first + i // group) + 4 * d_v * (h_kv * group + i % group)
                for c in range(0, d_v, 16):
                    store(out + 4 * c, _f16v(acc + 4 * (d_v * i + c)) * inverse)
            item = atomic_add(cursor, 1)

    return attention_prompt
