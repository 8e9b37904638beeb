"""Selection over a row of logits."""

from __future__ import annotations

import numpy as np

from .simd import f32_at, hmax, i32_at, load, set_f32, set_i32

_load = load("f32", 16)


def top(tid, nth, logits, n, k, ids, values):
    """The k largest of logits (n,), largest first, lower id first among equals -> ids i32 (k,), values f32 (k,)."""
    if tid or k < 1:
        return
    have = 0
    for i in range(0, n, 16):
        if have == k and i + 16 <= n and hmax(_load(logits + 4 * i)) <= f32_at(values + 4 * (k - 1)):
            continue
        for j in range(i, min(i + 16, n)):
            v = f32_at(logits + 4 * j)
            if v != v:
                v = np.float32(-np.inf)
            if have == k:
                if v <= f32_at(values + 4 * (k - 1)):
                    continue
            else:
                have += 1
            at = have - 1
            while at > 0 and f32_at(values + 4 * (at - 1)) < v:
                set_f32(values + 4 * at, f32_at(values + 4 * (at - 1)))
                set_i32(ids + 4 * at, i32_at(ids + 4 * (at - 1)))
                at -= 1
            set_f32(values + 4 * at, v)
            set_i32(ids + 4 * at, j)
