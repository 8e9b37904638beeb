"""Matmul for generated tokens: native blocks straight from the file, one dot per row and token.

Rows are handed out in chunks by an atomic cursor, so a busy core does less. A result is one dot product whose order
never changes: neither the batch nor the number of threads can alter it.
"""

from __future__ import annotations

import importlib

from .dense import FLOATS, float_dot
from .layout import GROUP
from .simd import atomic_add, f32_at, i32_at, i64_at, inline, set_f32


@inline
def put(out, v, accumulate):
    if accumulate:
        v += f32_at(out)
    set_f32(out, v)


@inline
def chunk_rows(n, nth):
    """Rows handed out at a time: an eighth of a thread's share, at least 16."""
    return max(16, (n // (8 * nth) + 15) // 16 * 16)


def decode(name):
    """Native matmul of a quant type with q8 rows in groups of `group` (GROUP, or 1 where each row has its own expert).

    count: address of m. experts: 0, or i32 (m,) expert of each row. y: f32 (m, n) with stride ldy.
    """
    t = importlib.import_module(f"{__package__}.{name.lower()}")
    block, size, dot1, dot4 = t.BLOCK, t.BYTES, t.dot(1), t.dot(GROUP)

    def native_matmul(tid, nth, count, x, ldx, w, n, k, y, ldy, accumulate, cursor, experts, expert_bytes, group):
        m, chunk, nb = i64_at(count), chunk_rows(n, nth), k // block
        while m:
            first = chunk * atomic_add(cursor, 1)
            if first >= n:
                break
            for r in range(first, min(first + chunk, n)):
                row, out = w + nb * size * r, y + 4 * r
                if m == 1 or group == 1:
                    for i in range(m):
                        p = row + (expert_bytes * i32_at(experts + 4 * i) if experts else 0)
                        put(out + ldy * i, dot1(p, nb, x + ldx * i)[0], accumulate)
                    continue
                for i in range(0, m, GROUP):
                    v0, v1, v2, v3 = dot4(row, nb, x + ldx * i)
                    put(out + ldy * i, v0, accumulate)
                    if i + 1 < m:
                        put(out + ldy * (i + 1), v1, accumulate)
                    if i + 2 < m:
                        put(out + ldy * (i + 2), v2, accumulate)
                    if i + 3 < m:
                        put(out + ldy * (i + 3), v3, accumulate)

    return native_matmul


def dense(name):
    """Native matmul of F32, F16 or BF16 weights with f32 rows."""
    size, dot = FLOATS[name][0], float_dot(name)

    def dense_matmul(tid, nth, count, x, ldx, w, n, k, y, ldy, accumulate, cursor, experts, expert_bytes):
        m, chunk = i64_at(count), chunk_rows(n, nth)
        while m:
            first = chunk * atomic_add(cursor, 1)
            if first >= n:
                break
            for r in range(first, min(first + chunk, n)):
                for i in range(m):
                    p = w + size * k * r + (expert_bytes * i32_at(experts + 4 * i) if experts else 0)
                    put(y + ldy * i + 4 * r, dot(p, k, x + ldx * i), accumulate)

    return dense_matmul
