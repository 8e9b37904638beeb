"""Weights as bf16 tile operands: each block's 32 weights make one line of 64 bytes, LINE bytes from line to line.

A type of few quants gets a table of all its values for a run of weights, rounded once, and one permutation looks up
32 weights; others are converted, multiplied and rounded. Both give bf16(s * (q - OFFSET)) or bf16(s * q - m) with the
roundings of the reference dequantisation.
"""

from __future__ import annotations

import importlib

from .dense import row_f32
from .simd import (
    bitcast,
    const,
    convert,
    half_at,
    inline,
    load,
    lookup32,
    part,
    pick,
    splat,
    store,
    tile_bf16,
    to_f32,
)

LINE = 2048

_u8x32, _i8x32, _f32x32 = load("u8", 32), load("i8", 32), load("f32", 32)
_words, _full32 = convert("u16"), splat("f32", 32)
_first32, _second32, _signed = part(0, 32), part(32, 32), bitcast("i8", 64)


def _table_32(t):
    """Types of 32 weights a block with up to 32 different quants."""
    quants, offset, has_min, size = t.quants, t.OFFSET, t.HAS_MIN, t.QMAX + 1
    levels = const("f32", *[float(i % size - offset) for i in range(32)])

    @inline
    def block(p, out):
        v = levels() * _full32(half_at(p))
        if has_min:
            v = v + _full32(half_at(p + 2))
        store(out, lookup32(tile_bf16(v), _words(quants(p))))

    return block


def _q8_0(t):
    @inline
    def block(p, out):
        store(out, tile_bf16(to_f32(_i8x32(p + 2)) * _full32(half_at(p))))

    return block


def _q4_k(t):
    """A table serves the two runs of 32 weights in a chunk of nibbles."""
    scales, levels = t.scales256, const("f32", *[float(i % 16) for i in range(32)])
    spread = [pick(*[2 * j] * 16, *[2 * j + 1] * 16) for j in range(4)]

    def chunk(j):
        both = spread[j]

        @inline
        def op(p, s, m, out):
            table, q = tile_bf16(levels() * both(s) - both(m)), _words(_u8x32(p + 16 + 32 * j))
            store(out + 2 * LINE * j, lookup32(table, q & 15))
            store(out + 2 * LINE * j + LINE, lookup32(table, (q >> 4) | 16))

        return op

    c0, c1, c2, c3 = (chunk(j) for j in range(4))

    @inline
    def block(p, out):
        s, m = scales(p)
        c0(p, s, m, out)
        c1(p, s, m, out)
        c2(p, s, m, out)
        c3(p, s, m, out)

    return block


def _q5_k(t):
    """A table of 32 values for each run; the lookup ignores index bits above the fifth."""
    scales, levels = t.scales256, const("f32", *[float(i) for i in range(32)])

    def chunk(j):
        low, high = pick(*[2 * j] * 32), pick(*[2 * j + 1] * 32)

        @inline
        def op(p, s, m, h, out):
            q = _words(_u8x32(p + 48 + 32 * j))
            table = tile_bf16(levels() * low(s) - low(m))
            store(out + 2 * LINE * j, lookup32(table, (q & 15) | ((h >> (2 * j)) << 4)))
            table = tile_bf16(levels() * high(s) - high(m))
            store(out + 2 * LINE * j + LINE, lookup32(table, (q >> 4) | ((h >> (2 * j + 1)) << 4)))

        return op

    c0, c1, c2, c3 = (chunk(j) for j in range(4))

    @inline
    def block(p, out):
        s, m = scales(p)
        h = _words(_u8x32(p + 16))
        c0(p, s, m, h, out)
        c1(p, s, m, h, out)
        c2(p, s, m, h, out)
        c3(p, s, m, h, out)

    return block


def _few_k(t):
    """K types with 16 weights a scale and 4 or 8 different quants: a table serves 128 or 64 weights."""
    scales, quants, has_min, size = t.scales256, t.quants, t.HAS_MIN, t.QMAX + 1
    per = 32 // size  # scales of one table
    levels = const("f32", *[float(i % size - t.OFFSET) for i in range(32)])

    def chunk(j):
        which = pick(*[4 * j // per * per + i // size for i in range(32)])
        first = const("u16", *[size * ((4 * j + i // 16) % per) for i in range(32)])
        second = const("u16", *[size * ((4 * j + 2 + i // 16) % per) for i in range(32)])

        @inline
        def op(p, s, m, out):
            v = levels() * which(s)
            if has_min:
                v = v - which(m)
            table, q = tile_bf16(v), quants(p, j)
            store(out + 2 * LINE * j, lookup32(table, _words(_first32(q)) + first()))
            store(out + 2 * LINE * j + LINE, lookup32(table, _words(_second32(q)) + second()))

        return op

    c0, c1, c2, c3 = (chunk(j) for j in range(4))

    @inline
    def block(p, out):
        s, m = scales(p)
        c0(p, s, m, out)
        c1(p, s, m, out)
        c2(p, s, m, out)
        c3(p, s, m, out)

    return block


def _q6_k(t):
    scales, quants = t.scales256, t.quants

    def chunk(j):
        first, second = (pick(*[4 * j + i] * 16, *[4 * j + i + 1] * 16) for i in (0, 2))

        @inline
        def op(p, s, out):
            q = _signed(quants(p, j) - 32)
            store(out + 2 * LINE * j, tile_bf16(to_f32(_first32(q)) * first(s)))
            store(out + 2 * LINE * j + LINE, tile_bf16(to_f32(_second32(q)) * second(s)))

        return op

    c0, c1, c2, c3 = (chunk(j) for j in range(4))

    @inline
    def block(p, out):
        s, _ = scales(p)
        c0(p, s, out)
        c1(p, s, out)
        c2(p, s, out)
        c3(p, s, out)

    return block


_DIRECT = {
    "Q4_0": _table_32, "Q4_1": _table_32, "Q5_0": _table_32, "Q5_1": _table_32, "Q8_0": _q8_0,
    "Q2_K": _few_k, "Q3_K": _few_k, "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k,
}  # fmt: skip


def row_bf16(name):
    """(row_bytes(k), row(w, k, out, scratch)) of a type: k weights, a multiple of 32, as lines at out."""
    row_bytes, decode_row = row_f32(name)
    if name in _DIRECT:
        t = importlib.import_module(f"{__package__}.{name.lower()}")
        weights, size, block = t.BLOCK, t.BYTES, _DIRECT[name](t)

        @inline
        def direct(w, k, out, scratch):
            for i in range(k // weights):
                block(w + size * i, out + LINE // 32 * weights * i)

        return row_bytes, direct

    @inline
    def row(w, k, out, scratch):
        decode_row(w, k, scratch, scratch + 4 * k)
        for i in range(k // 32):
            store(out + LINE * i, tile_bf16(_f32x32(scratch + 128 * i)))

    return row_bytes, row


__all__ = ["LINE", "row_bf16"]
