"""Matmul for generated tokens: native blocks straight from the file, one dot per row and token.

Rows are handed out in chunks by an atomic cursor, so a busy core does less. A result is one dot product whose order
never changes: neither the batch nor the number of threads can alter it.
"""

from __future__ import annotations

import importlib

from .dense import FLOATS, float_dot
from .simd import atomic_add, f32_at, i32_at, i64_at, inline, set_f32


def _native_matmul(row_bytes, dot):
    """count: address of m. experts: 0, or i32 (m,) expert of each row. y: address of f32 (m, n) with stride ldy."""

    def native_matmul(tid, nth, count, x, ldx, w, n, k, y, ldy, accumulate, cursor, experts, expert_bytes):
        m = i64_at(count)
        chunk = max(16, (n // (8 * nth) + 15) // 16 * 16)
        while m:
            first = chunk * atomic_add(cursor, 1)
            if first >= n:
                break
            for r in range(first, min(first + chunk, n)):
                row = w + row_bytes(k) * r
                for t in range(m):
                    p = row
                    if experts:
                        p += expert_bytes * i32_at(experts + 4 * t)
                    out = y + ldy * t + 4 * r
                    v = dot(p, k, x + ldx * t)
                    if accumulate:
                        v += f32_at(out)
                    set_f32(out, v)

    return native_matmul


def decode(name):
    """Native matmul of a quant type with q8 rows."""
    t = importlib.import_module(f"{__package__}.{name.lower()}")
    block, size, block_dot = t.BLOCK, t.BYTES, t.dot

    @inline
    def row_bytes(k):
        return k // block * size

    @inline
    def dot(w, k, x):
        return block_dot(w, k // block, x, x + k, x + 2 * k, x + 2 * k + k // 4)

    return _native_matmul(row_bytes, dot)


def dense(name):
    """Native matmul of F32, F16 or BF16 weights with f32 rows."""
    size = FLOATS[name][0]

    @inline
    def row_bytes(k):
        return size * k

    return _native_matmul(row_bytes, float_dot(name))
