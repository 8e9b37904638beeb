"""Attention of generated tokens over the paged KV cache: `decode` by pieces of the KV axis, `merge` of the pieces."""

from __future__ import annotations

import numpy as np

from .act import first_row
from .attn import NOTHING, exp1, softmax_piece
from .attn_pages import queries, scores, weigh
from .kv import page_of
from .layout import KV_TYPES, PAGE, PIECE
from .simd import atomic_add, f32, f32_at, fma, i32_at, i64_at, inline, load, set_f32, splat, store, zeros

_f16v, _full16, _zero16 = load("f32", 16), splat("f32", 16), zeros("f32", 16)


def decode(kind):
    """One query token a row: partial results of every (row, piece, KV head), taken from the cursor.

    q (rows, heads * d_k) f32. partial: per row f32 (piece, head, d_v + 2): max, sum, weighted values.
    scratch: per thread f32 scores (4, PIECE), weights of a page (4, PAGE), queries (4, d_k), values (4, d_v).
    """
    unit, load_queries, page_scores, weigh_page = KV_TYPES[kind], queries(kind), scores(kind), weigh(kind)

    @inline
    def four_heads(batch, row, cache, page_bytes, d_k, d_v, low, start, position, count, slopes, q, s, out, then,
                   next_start, scale, cap):  # fmt: skip
        """One piece for `count` heads from q -> out (count, d_v + 2). cache: the KV head's place in page 0.

        then, next_start: the place in page 0 and the first token of what this thread reads next.
        """
        end, seen = min(start + PIECE, position + 1), max(start, low // PAGE * PAGE)  # earlier pages may be gone
        w = s + 16 * PIECE
        qs = w + 16 * PAGE
        acc = qs + 16 * d_k
        load_queries(q, d_k, count - 1, qs)
        for t in range(seen, end, PAGE):
            kp = cache + page_bytes * page_of(batch, row, t)
            page_scores(kp, d_k, qs, s + 4 * (t - start), kp + unit * d_k)
        for j in range(count):
            slope = f32_at(slopes + 4 * j) if slopes else np.float32(0)
            top, total = softmax_piece(s + 4 * PIECE * j, start, low, position, scale, cap, slope, NOTHING)
            set_f32(out + 4 * (d_v + 2) * j, top)
            set_f32(out + 4 * (d_v + 2) * j + 4, total)
        for c in range(0, 4 * d_v, 16):
            store(acc + 4 * c, _zero16())
        for t in range(seen, end, PAGE):
            vp = cache + page_bytes * page_of(batch, row, t) + unit * d_k
            coming = min(next_start + t - seen, position)
            ahead = then + page_bytes * page_of(batch, row, coming)
            weigh_page(vp, d_v, s + 4 * (t - start), w, max(0, low - t), min(PAGE, end - t), acc, ahead)
        for j in range(count):
            for c in range(0, d_v, 16):
                store(out + 4 * (d_v + 2) * j + 8 + 4 * c, _f16v(acc + 4 * (d_v * j + c)))

    def attention_decode(
        tid, nth, batch, q, ldq, cache, page_bytes, heads, kv_heads, d_k, d_v, window, alibi, partial, ld_partial,
        scratch, ld_scratch, cursor, scale: f32, cap: f32,
    ):
        m, positions, group, head_bytes = i64_at(batch), i64_at(batch + 32), heads // kv_heads, unit * (d_k + d_v)
        item, row, done = atomic_add(cursor, 1), 0, 0
        while row < m:
            position = i32_at(positions + 4 * row)
            low = max(0, position - window + 1) if window else 0
            first_piece = low // PIECE
            items = (position // PIECE - first_piece + 1) * kv_heads
            if item - done >= items:
                done += items
                row += 1
                continue
            h_kv, index = (item - done) % kv_heads, (item - done) // kv_heads
            following = atomic_add(cursor, 1)
            coming = min(following - done, items - 1)  # another row's are not worth finding
            then, next_start = cache + head_bytes * (coming % kv_heads), PIECE * (first_piece + coming // kv_heads)
            next_start = max(next_start, low // PAGE * PAGE)
            start, s = PIECE * (first_piece + index), scratch + ld_scratch * tid
            for h in range(h_kv * group, (h_kv + 1) * group, 4):
                out = partial + ld_partial * row + 4 * (d_v + 2) * (heads * index + h)
                count, slopes = min(4, (h_kv + 1) * group - h), alibi + 4 * h if alibi else 0
                four_heads(
                    batch, row, cache + head_bytes * h_kv, page_bytes, d_k, d_v, low, start, position, count, slopes,
                    q + ldq * row + 4 * d_k * h, s, out, then, next_start, scale, cap,
                )
            item = following

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
