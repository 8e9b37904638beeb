"""Matmul for generated tokens: native blocks straight from the file, one dot per row and token.

Rows are handed out in chunks by an atomic cursor, so a busy core does less. A result is one dot product whose order
never changes: neither the batch nor the number of threads can alter it.
"""

from __future__ import annotations

import importlib

from . import layout, native
from .dense import FLOATS, float_dot
from .layout import GROUP
from .native import ROWS
from .simd import atomic_add, f32_at, i32_at, i64_at, inline, set_f32


@inline
def put(out, v, accumulate):
    if accumulate:
        v += f32_at(out)
    set_f32(out, v)


native_row_bytes = inline(layout.native_row_bytes)


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

    @inline
    def put_rows(out, ldy, rows, left, v, accumulate):
        put_group(out, ldy, left, v[0], accumulate)
        if rows > 1:
            put_group(out + 4, ldy, left, v[1], accumulate)
        if ROWS == 4:
            if rows > 2:
                put_group(out + 8, ldy, left, v[2], accumulate)
            if rows > 3:
                put_group(out + 12, ldy, left, v[3], accumulate)

    def native_matmul(
        tid, nth, count, x, ldx, w, n, k, y, ldy, accumulate, cursor, experts, expert_bytes, group, scratch, ld_scratch
    ):
        m, chunk, row_bytes = i64_at(count), chunk_rows(n, nth), k // block * size
        q, stride = scratch + ld_scratch * tid, native_row_bytes(k)
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
            for r in range(first, end, ROWS):
                left, p = min(end - r, ROWS), w + row_bytes * r
                ahead = p + ROWS * row_bytes
                for j in range(left):
                    unpack(p + row_bytes * j, k, q + stride * j, ahead + row_bytes // 2 * j)
                ahead += ROWS * row_bytes // 2
                for i in range(0, m, GROUP):
                    v = group_dot(q, stride, k, x + ldx * i, ahead)
                    put_rows(y + ldy * i + 4 * r, ldy, left, m - i, v, accumulate)

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
