"""Matmul for generated tokens: native blocks straight from the file, one dot per row and token.

Rows are handed out in chunks by an atomic cursor, so a busy core does less. A result is one dot product whose order
never changes: neither the batch nor the number of threads can alter it.
"""

from __future__ import annotations

import importlib

from . import native
from .dense import FLOATS, float_dot
from .layout import GROUP
from .simd import atomic_add, f32_at, i32_at, i64_at, inline, set_f32


@inline
def put(out, v, accumulate):
    if accumulate:
        v += f32_at(out)
    set_f32(out, v)


@inline
def layout_half(k):
    """Half of layout.native_scratch_bytes."""
    return ((k + 255) // 256) * (256 + 8 * 16)


@inline
def chunk_rows(n, nth):
    """Rows handed out at a time: an eighth of a thread's share, at least 16."""
    return max(16, (n // (8 * nth) + 15) // 16 * 16)


def decode(name):
    """Native matmul of a quant type with q8 rows in groups of `group` (GROUP, or 1 where each row has its own expert).

    count: address of m. experts: 0, or i32 (m,) expert of each row. y: f32 (m, n) with stride ldy. k: at least 256.
    scratch: layout.native_scratch_bytes per thread.
    """
    t = importlib.import_module(f"{__package__}.{name.lower()}")
    block, size = t.BLOCK, t.BYTES
    dot, unpack, group_dot = native.dot(name), native.unpack(name), native.group_dot(name)

    @inline
    def put_group(out, ldy, left, v, accumulate):
        v0, v1, v2, v3 = v
        put(out, v0, accumulate)
        if left > 1:
            put(out + ldy, v1, accumulate)
        if left > 2:
            put(out + 2 * ldy, v2, accumulate)
        if left > 3:
            put(out + 3 * ldy, v3, accumulate)

    def native_matmul(
        tid, nth, count, x, ldx, w, n, k, y, ldy, accumulate, cursor, experts, expert_bytes, group, scratch, ld_scratch
    ):
        m, chunk, row_bytes = i64_at(count), chunk_rows(n, nth), k // block * size
        a = scratch + ld_scratch * tid
        b = a + layout_half(k)
        while m:
            first = chunk * atomic_add(cursor, 1)
            if first >= n:
                break
            end = min(first + chunk, n)
            if m == 1 or group == 1:
                for r in range(first, end):
                    for i in range(m):
                        p = w + row_bytes * r + (expert_bytes * i32_at(experts + 4 * i) if experts else 0)
                        put(y + ldy * i + 4 * r, dot(p, k, x + ldx * i), accumulate)
                continue
            for r in range(first, end, 2):
                unpack(w + row_bytes * r, k, a)
                if r + 1 < end:
                    unpack(w + row_bytes * (r + 1), k, b)
                for i in range(0, m, GROUP):
                    va, vb = group_dot(a, b, k, x + ldx * i)
                    put_group(y + ldy * i + 4 * r, ldy, m - i, va, accumulate)
                    if r + 1 < end:
                        put_group(y + ldy * i + 4 * r + 4, ldy, m - i, vb, accumulate)

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
