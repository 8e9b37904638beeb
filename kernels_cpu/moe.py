"""Mixture of experts: routing, grouping of (token, expert) pairs by expert, and the weighted sum of results.

A pair lives in a slot; slots of one expert are adjacent and start on a border of `align` slots, so that the slab
matmul sees each expert's tokens as whole tiles and touches the weights of an expert once.
"""

from __future__ import annotations

import numpy as np

from .act import first_row
from .attn import exp1
from .simd import f32, f32_at, i32_at, i64_at, set_f32, set_i32, set_i64


def route(tid, nth, count, logits, experts, used, ids, weights, normalise, factor: f32):
    """Softmax over logits (rows, experts), the `used` largest -> ids i32 and weights f32 (rows, used).

    normalise: weights of a row sum to 1. Ties go to the lower expert. logits are overwritten.
    """
    m = i64_at(count)
    for r in range(first_row(m, tid, nth), first_row(m, tid + 1, nth)):
        p = logits + 4 * experts * r
        top = f32_at(p)
        for i in range(1, experts):
            top = max(top, f32_at(p + 4 * i))
        total = np.float32(0)
        for i in range(experts):
            e = exp1(f32_at(p + 4 * i) - top)
            set_f32(p + 4 * i, e)
            total += e
        chosen = np.float32(0)
        for j in range(used):
            best, value = 0, np.float32(-1)
            for i in range(experts):
                if f32_at(p + 4 * i) > value:
                    best, value = i, f32_at(p + 4 * i)
            set_f32(p + 4 * best, np.float32(-2))
            set_i32(ids + 4 * (used * r + j), best)
            set_f32(weights + 4 * (used * r + j), value / total)
            chosen += value / total
        for j in range(used):
            w = weights + 4 * (used * r + j)
            set_f32(w, f32_at(w) * factor / (chosen if normalise else np.float32(1)))


def group(tid, nth, count, ids, used, experts, align, slots, segments, source, expert_of, slot_of):
    """Pairs -> slots. slots: address of the number of slots (i64). segments: i32 (experts + 1,), in units of align, and
    room for i32 (experts,) behind it.

    source: i32 (slots,) token row, -1 for padding; expert_of: i32 (slots,); slot_of: i32 (rows, used).
    """
    if tid:
        return
    pairs = i64_at(count) * used
    for e in range(experts + 1):
        set_i32(segments + 4 * e, 0)
    for i in range(pairs):
        p = segments + 4 * (i32_at(ids + 4 * i) + 1)
        set_i32(p, i32_at(p) + 1)
    for e in range(experts):
        size = (i32_at(segments + 4 * e + 4) + align - 1) // align
        set_i32(segments + 4 * e + 4, i32_at(segments + 4 * e) + size)
    total = i32_at(segments + 4 * experts) * align
    set_i64(slots, total)
    for e in range(experts):
        for s in range(align * i32_at(segments + 4 * e), align * i32_at(segments + 4 * e + 4)):
            set_i32(source + 4 * s, -1)
            set_i32(expert_of + 4 * s, e)
    following = segments + 4 * (experts + 1)
    for e in range(experts):
        set_i32(following + 4 * e, align * i32_at(segments + 4 * e))
    for i in range(pairs):
        p = following + 4 * i32_at(ids + 4 * i)
        s = i32_at(p)
        set_i32(p, s + 1)
        set_i32(source + 4 * s, i // used)
        set_i32(slot_of + 4 * i, s)


def combine(tid, nth, count, x, ldx, weights, slot_of, used, y, ldy, n, accumulate):
    """y (rows, n) = sum over the row's pairs, best first, of weight * x[slot]; added to y if accumulate."""
    m = i64_at(count)
    for r in range(first_row(m, tid, nth), first_row(m, tid + 1, nth)):
        for i in range(n):
            total = np.float32(0)
            for j in range(used):
                pair = used * r + j
                total += f32_at(weights + 4 * pair) * f32_at(x + ldx * i32_at(slot_of + 4 * pair) + 4 * i)
            out = y + ldy * r + 4 * i
            if accumulate:
                total += f32_at(out)
            set_f32(out, total)


def gather(tid, nth, count, source, x, ldx, y, ldy, n):
    """y (slots, n) = rows of x named by source; zeros for padding."""
    m = i64_at(count)
    for s in range(first_row(m, tid, nth), first_row(m, tid + 1, nth)):
        row = i32_at(source + 4 * s)
        for i in range(n):
            set_f32(y + ldy * s + 4 * i, f32_at(x + ldx * row + 4 * i) if row >= 0 else np.float32(0))
