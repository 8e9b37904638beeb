"""Small operations on rows that few architectures need: clamps, gates, pieces of heads, scales by position."""

from __future__ import annotations

import numpy as np

from .act import f32x16, first_row, full16
from .attn import exp1
from .simd import f32, f32_at, fma, hsum, i32_at, i64_at, set_f32, store, vmax, vmin, zeros

_zero = zeros("f32", 16)


def clamp(tid, nth, count, y, ld, n, limit: f32):
    """y (rows, n) within +-limit."""
    m = i64_at(count)
    for r in range(first_row(m, tid, nth), first_row(m, tid + 1, nth)):
        p = y + ld * r
        for i in range(0, n - 15, 16):
            store(p + 4 * i, vmin(vmax(f32x16(p + 4 * i), full16(-limit)), full16(limit)))
        for i in range(n - n % 16, n):
            set_f32(p + 4 * i, min(max(f32_at(p + 4 * i), -limit), limit))


def gate(tid, nth, count, x, ldx, w, k, y, ldy, n):
    """y (rows, n) *= sigmoid(x (rows, k) @ w (k,))."""
    m = i64_at(count)
    for r in range(first_row(m, tid, nth), first_row(m, tid + 1, nth)):
        acc = _zero()
        for i in range(0, k - 15, 16):
            acc = fma(f32x16(x + ldx * r + 4 * i), f32x16(w + 4 * i), acc)
        dot = hsum(acc)
        for i in range(k - k % 16, k):
            dot += f32_at(x + ldx * r + 4 * i) * f32_at(w + 4 * i)
        factor = np.float32(1) / (np.float32(1) + exp1(-dot))
        for i in range(n):
            p = y + ldy * r + 4 * i
            set_f32(p, f32_at(p) * factor)


def copy_heads(tid, nth, count, x, ldx, step_x, y, ldy, step_y, heads, n):
    """The first n of each head of x -> y; steps: bytes from head to head (0: the same for all)."""
    m = i64_at(count)
    for r in range(first_row(m, tid, nth), first_row(m, tid + 1, nth)):
        for h in range(heads):
            a, b = x + ldx * r + step_x * h, y + ldy * r + step_y * h
            for i in range(0, n - 15, 16):
                store(b + 4 * i, f32x16(a + 4 * i))
            for i in range(n - n % 16, n):
                set_f32(b + 4 * i, f32_at(a + 4 * i))


def scale_at(tid, nth, batch, table, y, ldy, n):
    """y (tokens, n) *= table[position], f32 (n_ctx,)."""
    m, positions = i64_at(batch), i64_at(batch + 32)
    for r in range(first_row(m, tid, nth), first_row(m, tid + 1, nth)):
        factor = f32_at(table + 4 * i32_at(positions + 4 * r))
        for i in range(n):
            p = y + ldy * r + 4 * i
            set_f32(p, f32_at(p) * factor)
