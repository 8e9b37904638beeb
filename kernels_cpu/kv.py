"""The paged KV cache: page layout, and writing new keys and values into it.

A page holds PAGE tokens of one layer: for each KV head K as (d_k, PAGE), so that one load is the same component of
many keys, then V as (PAGE, d_v).
"""

from __future__ import annotations

from .act import first_row
from .layout import PAGE
from .simd import (
    bf16_to_f32,
    f32_at,
    f32_to_bf16,
    f32_to_half,
    half_to_f32,
    i32_at,
    i64_at,
    inline,
    load,
    splat,
    store,
)

_one = splat("f32", 1)


@inline
def _same(v):
    return v


# (bytes, element kind of loads, widen to f32, narrow from f32)
KINDS = {
    "f32": (4, "f32", _same, _same),
    "f16": (2, "u16", half_to_f32, f32_to_half),
    "bf16": (2, "u16", bf16_to_f32, f32_to_bf16),
}


@inline
def page_of(batch, row, position):
    """Number of the page that holds `position` of the row's sequence."""
    seq = i32_at(i64_at(batch + 40) + 4 * row)
    return i32_at(i64_at(i64_at(batch + 56) + 8 * seq) + 4 * (position // PAGE))


def write(kind):
    """Store the rows' keys (rows, heads * d_k) and values (rows, heads * d_v), f32, at their positions."""
    size, _, _, narrow = KINDS[kind]
    load16 = load("f32", 16)

    def kv_write(tid, nth, batch, k, v, ldk, ldv, cache, page_bytes, heads, d_k, d_v):
        m, positions = i64_at(batch), i64_at(batch + 32)
        for r in range(first_row(m, tid, nth), first_row(m, tid + 1, nth)):
            position = i32_at(positions + 4 * r)
            page = cache + page_bytes * page_of(batch, r, position)
            slot = position % PAGE
            for h in range(heads):
                kp = page + size * PAGE * (d_k + d_v) * h
                vp = kp + size * (PAGE * d_k + d_v * slot)
                for i in range(d_k):
                    store(kp + size * (PAGE * i + slot), narrow(_one(f32_at(k + ldk * r + 4 * (d_k * h + i)))))
                for i in range(0, d_v, 16):
                    store(vp + size * i, narrow(load16(v + ldv * r + 4 * (d_v * h + i))))

    return kv_write
