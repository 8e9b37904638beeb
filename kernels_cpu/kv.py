"""The paged KV cache: page layout, writing new keys and values into it, and reading them as f32.

A page holds PAGE tokens of one layer: for each KV head K, then V, KV_TYPES[kind] bytes for each component. In float
kinds K is (d_k, PAGE), so that one load is the same component of many keys, and V (PAGE, d_v); kv_quant has the others.
"""

from __future__ import annotations

from . import kv_quant
from .act import first_row
from .layout import KV_QUANTS, KV_TYPES, PAGE
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

_one, _f16v = splat("f32", 1), load("f32", 16)


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


def put(kind):
    """((d,) f32 x 2, place in the page, d_k, d_v, slot): store one token's keys and values of one head."""
    if kind in KV_QUANTS:
        return kv_quant.put(kind)
    size, _, _, narrow = KINDS[kind]

    @inline
    def op(k, v, page, d_k, d_v, slot):
        to = page + size * (PAGE * d_k + d_v * slot)
        for i in range(d_k):
            store(page + size * (PAGE * i + slot), narrow(_one(f32_at(k + 4 * i))))
        for i in range(0, d_v, 16):
            store(to + size * i, narrow(_f16v(v + 4 * i)))

    return op


def key_row(kind):
    """(keys of a page, i) -> f32 component i of the PAGE keys."""
    if kind in KV_QUANTS:
        return kv_quant.key_row(kind)
    size, element, widen, _ = KINDS[kind]
    row = load(element, PAGE)
    return inline(lambda p, i: widen(row(p + size * PAGE * i)))


def value_part(kind):
    """(values of a page, d_v, token, c) -> f32 components c..c + 15 of one token."""
    if kind in KV_QUANTS:
        return kv_quant.value_part(kind)
    size, element, widen, _ = KINDS[kind]
    load16 = load(element, 16)
    return inline(lambda p, d_v, t, c: widen(load16(p + size * (d_v * t + c))))


def write(kind):
    """Store the rows' keys (rows, heads * d_k) and values (rows, heads * d_v), f32, at their positions."""
    unit, put_token = KV_TYPES[kind], put(kind)

    def kv_write(tid, nth, batch, k, v, ldk, ldv, cache, page_bytes, heads, d_k, d_v):
        m, positions = i64_at(batch), i64_at(batch + 32)
        for r in range(first_row(m, tid, nth), first_row(m, tid + 1, nth)):
            position = i32_at(positions + 4 * r)
            page = cache + page_bytes * page_of(batch, r, position)
            for h in range(heads):
                to = page + unit * (d_k + d_v) * h
                put_token(k + ldk * r + 4 * d_k * h, v + ldv * r + 4 * d_v * h, to, d_k, d_v, position % PAGE)

    return kv_write
