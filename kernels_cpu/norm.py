"""Row norms. A row of the batch may hold several groups (heads) of n that are normed one by one."""

from __future__ import annotations

import math

import numpy as np

from .act import first_row
from .simd import f32, f32_at, fma, hsum, i64_at, inline, load, set_f32, splat, store, zeros

_load, _full, _zero = load("f32", 16), splat("f32", 16), zeros("f32", 16)


@inline
def sum_squares(x, n):
    """Sum of squares of x (n,): sixteen running sums, then the tail in order."""
    acc = _zero()
    for i in range(0, n - 15, 16):
        v = _load(x + 4 * i)
        acc = fma(v, v, acc)
    total = hsum(acc)
    for i in range(n - n % 16, n):
        total += f32_at(x + 4 * i) * f32_at(x + 4 * i)
    return total


@inline
def total(x, n):
    """Sum of x (n,)."""
    acc = _zero()
    for i in range(0, n - 15, 16):
        acc = acc + _load(x + 4 * i)
    out = hsum(acc)
    for i in range(n - n % 16, n):
        out += f32_at(x + 4 * i)
    return out


def rmsnorm(tid, nth, count, x, ldx, w, y, ldy, n, groups, add_to, eps: f32):
    """y = x / sqrt(mean(x^2) + eps) * w (Zhang & Sennrich 2019); w 0: no weight; y += if add_to; y may be x."""
    m = i64_at(count)
    for r in range(first_row(m, tid, nth), first_row(m, tid + 1, nth)):
        for g in range(groups):
            a, b = x + ldx * r + 4 * n * g, y + ldy * r + 4 * n * g
            s = np.float32(1) / math.sqrt(sum_squares(a, n) / np.float32(n) + eps)
            for i in range(0, n - 15, 16):
                v = _load(a + 4 * i) * s
                if w:
                    v = v * _load(w + 4 * i)
                if add_to:
                    v = v + _load(b + 4 * i)
                store(b + 4 * i, v)
            for i in range(n - n % 16, n):
                u = f32_at(a + 4 * i) * s
                if w:
                    u = u * f32_at(w + 4 * i)
                if add_to:
                    u = u + f32_at(b + 4 * i)
                set_f32(b + 4 * i, u)


def layernorm(tid, nth, count, x, ldx, w, bias, y, ldy, n, groups, w_step, eps: f32):
    """y = (x - mean) / sqrt(var + eps) * w + bias (Ba et al. 2016); w or bias 0: none; y may be x.

    w_step: bytes from one group's weights to the next's, 0 where groups share them.
    """
    m = i64_at(count)
    for r in range(first_row(m, tid, nth), first_row(m, tid + 1, nth)):
        for g in range(groups):
            a, b, weights = x + ldx * r + 4 * n * g, y + ldy * r + 4 * n * g, w + w_step * g
            mean = total(a, n) / np.float32(n)
            for i in range(0, n - 15, 16):
                store(b + 4 * i, _load(a + 4 * i) - mean)
            for i in range(n - n % 16, n):
                set_f32(b + 4 * i, f32_at(a + 4 * i) - mean)
            s = np.float32(1) / math.sqrt(sum_squares(b, n) / np.float32(n) + eps)
            for i in range(0, n - 15, 16):
                v = _load(b + 4 * i) * s
                if w:
                    v = v * _load(weights + 4 * i)
                if bias:
                    v = v + _load(bias + 4 * i)
                store(b + 4 * i, v)
            for i in range(n - n % 16, n):
                u = f32_at(b + 4 * i) * s
                if w:
                    u = u * f32_at(weights + 4 * i)
                if bias:
                    u = u + f32_at(bias + 4 * i)
                set_f32(b + 4 * i, u)
