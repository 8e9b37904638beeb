"""Rows of any type as f32: the decoder behind embedding lookup and exact mode, and the dots of the float types."""

from __future__ import annotations

import importlib

from .dense_types import INTEGER_TYPES
from .simd import (
    bf16_to_f32,
    f32_at,
    fma,
    half_to_f32,
    hsum,
    inline,
    lane,
    load,
    set_f32,
    splat,
    store,
    to_f32,
    zeros,
)

_f32x16, _u16x16, _u16x1, _f32x1 = load("f32", 16), load("u16", 16), load("u16", 1), load("f32", 1)
_zero, _full, _first = zeros("f32", 16), splat("f32", 16), lane(0)


@inline
def _same(v):
    return v


# (bytes, sixteen values, one value, widening)
FLOATS = {
    "F32": (4, _f32x16, _f32x1, _same),
    "F16": (2, _u16x16, _u16x1, half_to_f32),
    "BF16": (2, _u16x16, _u16x1, bf16_to_f32),
}


def _float_row(name):
    size, load16, load1, widen = FLOATS[name]

    @inline
    def row_bytes(k):
        return size * k

    @inline
    def row(w, k, out, scratch):
        for i in range(0, k - 15, 16):
            store(out + 4 * i, widen(load16(w + size * i)))
        for i in range(k - k % 16, k):
            set_f32(out + 4 * i, _first(widen(load1(w + size * i))))

    return row_bytes, row


def _integer_row(name):
    """d * (q - offset), or d * q - m: two roundings, as the reference dequantisation does it."""
    t = importlib.import_module(f"{__package__}.{name.lower()}")
    block, size, sub, offset, has_min, row_u8 = t.BLOCK, t.BYTES, t.SUB, t.OFFSET, t.HAS_MIN, t.row_u8
    load_q = load("i8" if t.SIGNED else "u8", 16)

    @inline
    def row_bytes(k):
        return k // block * size

    @inline
    def row(w, k, out, scratch):
        s = scratch + k
        m = s + 4 * (k // sub)
        row_u8(w, k // block, scratch, s, m)
        for i in range(0, k, 16):
            b = 4 * (i // sub)
            v = (to_f32(load_q(scratch + i)) - offset) * f32_at(s + b)
            if has_min:
                v = v - _full(f32_at(m + b))
            store(out + 4 * i, v)

    return row_bytes, row


def row_f32(name):
    """(row_bytes(k), row(w, k, out, scratch)) of a type; scratch holds 4 k bytes."""
    if name in FLOATS:
        return _float_row(name)
    if name in INTEGER_TYPES:
        return _integer_row(name)
    t = importlib.import_module(f"{__package__}.{name.lower()}")
    block, size, blocks_f32 = t.BLOCK, t.BYTES, t.row_f32

    @inline
    def row_bytes(k):
        return k // block * size

    @inline
    def row(w, k, out, scratch):
        blocks_f32(w, k // block, out)

    return row_bytes, row


def float_dot(name):
    """dot(w, k, x) of a float row with an f32 row."""
    size, load16, load1, widen = FLOATS[name]

    @inline
    def dot(w, k, x):
        a, b = _zero(), _zero()
        for i in range(0, k - 31, 32):
            a = fma(widen(load16(w + size * i)), _f32x16(x + 4 * i), a)
            b = fma(widen(load16(w + size * (i + 16))), _f32x16(x + 4 * i + 64), b)
        total = hsum(a + b)
        for i in range(k - k % 32, k):
            total += _first(widen(load1(w + size * i))) * f32_at(x + 4 * i)
        return total

    return dot
