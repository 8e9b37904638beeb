"""Mixture of experts: routing, grouping of (token, expert) pairs by expert, and the weighted sum of results.

A pair lives in a slot; slots of one expert are adjacent and start on a border of `align` slots, so that the slab
matmul sees each expert's tokens as whole tiles and touches the weights of an expert once.
"""

from __future__ import annotations

import numpy as np

from .act import f32x16, first_row, full16
from .attn import exp1
from .simd import f32, f32_at, fma, i32_at, i64_at, inline, set_f32, set_i32, set_i64, store, zeros

zero16 = zeros("f32", 16)

SOFTMAX, SIGMOID, SOFTMAX_OF_CHOSEN = 1, 2, 3  # gating, as GGUF numbers it
NEVER = np.float32(-3e38)  # a score that is never chosen
LEAST = np.float32(6.103515625e-05)  # a sum of weights is taken to be at least this, as llama.cpp does


@inline
def softmax(p, n):
    """p (n,) in place."""
    top = f32_at(p)
    for i in range(1, n):
        top = max(top, f32_at(p + 4 * i))
    total = np.float32(0)
    for i in range(n):
        e = exp1(f32_at(p + 4 * i) - top)
        set_f32(p + 4 * i, e)
        total += e
    for i in range(n):
        set_f32(p + 4 * i, f32_at(p + 4 * i) / total)


@inline
def largest(p, n):
    """Index of the largest of p (n,), the first of equals."""
    best = 0
    for i in range(1, n):
        if f32_at(p + 4 * i) > f32_at(p + 4 * best):
            best = i
    return best


@inline
def keep_groups(p, experts, groups, groups_used):
    """Leave only the `groups_used` groups of p (experts,) whose two largest sum to most; the others become NEVER."""
    size = experts // groups
    for _ in range(groups - groups_used):
        worst, least = 0, np.float32(3.4e38)
        for g in range(groups):
            q = p + 4 * size * g
            first = largest(q, size)
            value = f32_at(q + 4 * first)
            if value == NEVER:
                continue
            set_f32(q + 4 * first, NEVER)
            both = value + f32_at(q + 4 * largest(q, size))
            set_f32(q + 4 * first, value)
            if both <= least:
                worst, least = g, both
        for i in range(size):
            set_f32(p + 4 * (size * worst + i), NEVER)


def route(
    tid, nth, count, logits, ldl, experts, used, bias, groups, groups_used, gating, ids, weights, normalise, factor: f32
):
    """Logits (rows, experts) -> the `used` best experts, ids i32 and weights f32 (rows, used), best first.

    Weights are `factor` times the softmax or sigmoid of the logits, or the softmax of those chosen; with normalise
    they sum to `factor`. Experts are chosen by these, plus bias f32 (experts,) unless 0 (DeepSeek-AI 2024), from the
    best `groups_used` of `groups`. Ties go to the lower expert. A row of logits has room for twice the experts.
    """
    m = i64_at(count)
    for r in range(first_row(m, tid, nth), first_row(m, tid + 1, nth)):
        p = logits + ldl * r
        score = p + 4 * experts
        if gating == SOFTMAX:
            softmax(p, experts)
        for i in range(experts):
            if gating == SIGMOID:
                set_f32(p + 4 * i, np.float32(1) / (np.float32(1) + exp1(-f32_at(p + 4 * i))))
            set_f32(score + 4 * i, f32_at(p + 4 * i) + (f32_at(bias + 4 * i) if bias else np.float32(0)))
        if groups_used < groups:
            keep_groups(score, experts, groups, groups_used)
        out, chosen = weights + 4 * used * r, np.float32(0)
        for j in range(used):
            best = largest(score, experts)
            set_f32(score + 4 * best, NEVER)
            set_i32(ids + 4 * (used * r + j), best)
            set_f32(out + 4 * j, f32_at(p + 4 * best))
            chosen += f32_at(p + 4 * best)
        if gating == SOFTMAX_OF_CHOSEN:
            softmax(out, used)
            chosen = np.float32(1)
        for j in range(used):
            set_f32(out + 4 * j, f32_at(out + 4 * j) * factor / (max(chosen, LEAST) if normalise else np.float32(1)))


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
        for i in range(0, n - 15, 16):
            sums = zero16()
            for j in range(used):
                pair = used * r + j
                v = f32x16(x + ldx * i32_at(slot_of + 4 * pair) + 4 * i)
                sums = fma(v, full16(f32_at(weights + 4 * pair)), sums)
            out = y + ldy * r + 4 * i
            if accumulate:
                sums = sums + f32x16(out)
            store(out, sums)
        for i in range(n - n % 16, n):
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
        for i in range(0, n - 15, 16):
            store(y + ldy * s + 4 * i, f32x16(x + ldx * row + 4 * i) if row >= 0 else zero16())
        for i in range(n - n % 16, n):
            set_f32(y + ldy * s + 4 * i, f32_at(x + ldx * row + 4 * i) if row >= 0 else np.float32(0))


def add_bias(tid, nth, count, bias, expert_of, y, ld, n):
    """y (slots, n) += bias[expert] (experts, n)."""
    m = i64_at(count)
    for s in range(first_row(m, tid, nth), first_row(m, tid + 1, nth)):
        b = bias + 4 * n * i32_at(expert_of + 4 * s)
        for i in range(0, n - 15, 16):
            store(y + ld * s + 4 * i, f32x16(y + ld * s + 4 * i) + f32x16(b + 4 * i))
        for i in range(n - n % 16, n):
            p = y + ld * s + 4 * i
            set_f32(p, f32_at(p) + f32_at(b + 4 * i))


def scale(tid, nth, count, scales, expert_of, y, ld, n):
    """y (slots, n) *= scales[expert] (experts,)."""
    m = i64_at(count)
    for s in range(first_row(m, tid, nth), first_row(m, tid + 1, nth)):
        factor = f32_at(scales + 4 * i32_at(expert_of + 4 * s))
        for i in range(n):
            p = y + ld * s + 4 * i
            set_f32(p, f32_at(p) * factor)
