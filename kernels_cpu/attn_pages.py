"""Decode attention within one page, for four query heads at a time: their scores, and the values they weigh.

Float kinds are widened in registers. Quantised keys meet queries in int8, as in llama.cpp, by integer dots; the scales
of quantised values go into the weights. While a page's keys (or values) are worked on, memory at `ahead` is fetched.

queries(kind)  (q, d_k, others, out): four heads' queries (the last is repeated, `others` follow the first) as scores
               wants them: f32 (4, d_k), or i8 (4, d_k) and per 32 components f32 (4,) scales, i32 (4,) offsets
scores(kind)   (keys, d_k, queries, s, ahead): products with the PAGE keys -> s (4, PIECE)
weigh(kind)    (values, d_v, s, w, first, last, acc, ahead): acc (4, d_v) += tokens first..last - 1 by s (4, PIECE)
"""

from __future__ import annotations

from .act import quantise32
from .kv import KINDS
from .kv_quant import SCALES
from .layout import KV_QUANTS, KV_TYPES, PAGE, PIECE
from .simd import (
    LANES,
    VNNI256,
    bitcast,
    broadcast_u32,
    concat,
    const,
    dot4_s8s8,
    dot4_u8s8,
    f32_at,
    fma,
    half_to_f32,
    hsum,
    i32_at,
    inline,
    load,
    prefetch,
    set_f32,
    set_i32,
    splat,
    store,
    to_f32,
    to_i8,
    to_i32,
    zeros,
)

WIDE = 2 * LANES  # keys, or components of values, side by side: with four heads as many sums as hide the latency
LINE = 4 * PIECE  # bytes from one head's scores to the next's

_v, _full, _zero, _spread = load("f32", WIDE), splat("f32", WIDE), zeros("f32", WIDE), splat("i32", WIDE)
_halves, _fours = load("u16", WIDE), broadcast_u32("i8", 4 * WIDE)
_signed, _bytes, _unsigned = load("i8", 4 * WIDE), load("u8", 4 * WIDE), bitcast("u8", 4 * WIDE)
_f16v, _ones, _zero8 = load("f32", 16), const("u8", *[1] * 32), zeros("i32", 8)


@inline
def fetch(p, size):
    """Ask for `size` bytes; size is a constant."""
    prefetch(p)
    if size > 64:
        prefetch(p + 64)


def queries(kind):
    @inline
    def floats(q, d, others, out):
        for j in range(4):
            src, to = q + 4 * d * min(j, others), out + 4 * d * j
            for i in range(0, d - 15, 16):
                store(to + 4 * i, _f16v(src + 4 * i))
            for i in range(d - d % 16, d):
                set_f32(to + 4 * i, f32_at(src + 4 * i))

    offset = -8 if kind == "q4_0" else -128 if VNNI256 else 0

    @inline
    def integers(q, d, others, out):
        for j in range(4):
            for b in range(d // 32):
                v, scale = quantise32(q + 4 * (d * min(j, others) + 32 * b))
                store(out + d * j + 32 * b, v)
                to = out + 4 * d + 32 * b + 4 * j
                set_f32(to, scale)
                set_i32(to + 16, offset * hsum(dot4_u8s8(_zero8(), _ones(), v)))

    return integers if kind in KV_QUANTS else floats


def scores(kind):
    return _quant_scores(kind) if kind in KV_QUANTS else _float_scores(kind)


def _float_scores(kind):
    size, element, widen, _ = KINDS[kind]
    keys, step = load(element, WIDE), size * WIDE

    @inline
    def op(kp, d, q, s, ahead):
        for t in range(0, PAGE, WIDE):
            a, b, c, e = _zero(), _zero(), _zero(), _zero()
            for i in range(d):
                k, p = widen(keys(kp + size * (PAGE * i + t))), q + 4 * i
                a = fma(k, _full(f32_at(p)), a)
                b = fma(k, _full(f32_at(p + 4 * d)), b)
                c = fma(k, _full(f32_at(p + 8 * d)), c)
                e = fma(k, _full(f32_at(p + 12 * d)), e)
                fetch(ahead, step)
                ahead += step
            _put_scores(s + 4 * t, a, b, c, e)

    return op


@inline
def _put_scores(s, a, b, c, e):
    store(s, a)
    store(s + LINE, b)
    store(s + 2 * LINE, c)
    store(s + 3 * LINE, e)


def _dots(kind):
    """(quants of a block of keys, block of queries, d_k, offsets, ahead) -> i32 sums of WIDE keys by four heads."""
    step = 4 * WIDE * KV_TYPES[kind] // (32 if kind == "q8_0" else 16)

    @inline
    def bytes_by(k, q, d, a, b, c, e):
        if VNNI256:
            u = _unsigned(k) ^ 128
            a, b = dot4_u8s8(a, u, _fours(q)), dot4_u8s8(b, u, _fours(q + d))
            return a, b, dot4_u8s8(c, u, _fours(q + 2 * d)), dot4_u8s8(e, u, _fours(q + 3 * d))
        a, b = dot4_s8s8(a, k, _fours(q)), dot4_s8s8(b, k, _fours(q + d))
        return a, b, dot4_s8s8(c, k, _fours(q + 2 * d)), dot4_s8s8(e, k, _fours(q + 3 * d))

    @inline
    def q8_0(kp, q, d, x, ahead):
        a, b = _spread(i32_at(x)), _spread(i32_at(x + 4))
        c, e = _spread(i32_at(x + 8)), _spread(i32_at(x + 12))
        for j in range(8):
            a, b, c, e = bytes_by(_signed(kp + 4 * PAGE * j), q + 4 * j, d, a, b, c, e)
            fetch(ahead + step * j, step)
        return a, b, c, e

    @inline
    def nibbles_by(u, q, d, a, b, c, e):
        a, b = dot4_u8s8(a, u, _fours(q)), dot4_u8s8(b, u, _fours(q + d))
        return a, b, dot4_u8s8(c, u, _fours(q + 2 * d)), dot4_u8s8(e, u, _fours(q + 3 * d))

    @inline
    def q4_0(kp, q, d, x, ahead):
        a, b = _spread(i32_at(x)), _spread(i32_at(x + 4))
        c, e = _spread(i32_at(x + 8)), _spread(i32_at(x + 12))
        for j in range(4):
            k = _bytes(kp + 4 * PAGE * j)
            a, b, c, e = nibbles_by(k & 15, q + 4 * j, d, a, b, c, e)
            a, b, c, e = nibbles_by(k >> 4, q + 16 + 4 * j, d, a, b, c, e)
            fetch(ahead + step * j, step)
        return a, b, c, e

    return q8_0 if kind == "q8_0" else q4_0


def _quant_scores(kind):
    block, dots = 32 * KV_TYPES[kind], _dots(kind)

    @inline
    def op(kp, d, q, s, ahead):
        for t in range(0, PAGE, WIDE):
            a, b, c, e = _zero(), _zero(), _zero(), _zero()
            for i in range(d // 32):
                at, x = kp + block * i, q + 4 * d + 32 * i
                scale = half_to_f32(_halves(at + 2 * t))
                fetched = ahead + block * i + block * WIDE // PAGE * (t // WIDE)
                ia, ib, ic, ie = dots(at + SCALES + 4 * t, q + 32 * i, d, x + 16, fetched)
                a = fma(to_f32(ia), scale * f32_at(x), a)
                b = fma(to_f32(ib), scale * f32_at(x + 4), b)
                c = fma(to_f32(ic), scale * f32_at(x + 8), c)
                e = fma(to_f32(ie), scale * f32_at(x + 12), e)
            _put_scores(s + 4 * t, a, b, c, e)

    return op


def _unscaled(kind, width):
    """(values of a page, d_v, token, c) -> f32 components c.. of one token, less the scale of quantised ones."""
    if kind not in KV_QUANTS:
        size, element, widen, _ = KINDS[kind]
        part = load(element, width)
        return inline(lambda p, d, t, c: widen(part(p + size * (d * t + c))))
    block, signed, nibbles = 32 * KV_TYPES[kind], load("i8", width), load("u8", min(16, width))

    @inline
    def q8_0(p, d, t, c):
        return to_f32(to_i32(signed(p + block * (c // 32) + SCALES + 32 * t + c % 32)))

    @inline
    def q4_0(p, d, t, c):
        u = nibbles(p + block * (c // 32) + SCALES + 16 * t + c % 16)
        if width == 32:
            return to_f32(to_i32(to_i8(concat(u & 15, u >> 4) - 8)))
        u = u >> 4 if c % 32 >= 16 else u & 15
        return to_f32(to_i32(u) - 8)

    return q8_0 if kind == "q8_0" else q4_0


def _columns(kind, width):
    """(values, d_v, c, four weights of tokens, bytes from one to the next, first, last, acc, ahead): c.. alone."""
    part, step = _unscaled(kind, width), KV_TYPES[kind] * width // PAGE
    v, full = load("f32", width), splat("f32", width)

    @inline
    def op(vp, d, c, w, ld, first, last, acc, ahead):
        p = acc + 4 * c
        a0, a1, a2, a3 = v(p), v(p + 4 * d), v(p + 8 * d), v(p + 12 * d)
        for i in range(first, last):
            x, at = part(vp, d, i, c), w + 4 * i
            a0 = fma(x, full(f32_at(at)), a0)
            a1 = fma(x, full(f32_at(at + ld)), a1)
            a2 = fma(x, full(f32_at(at + 2 * ld)), a2)
            a3 = fma(x, full(f32_at(at + 3 * ld)), a3)
            fetch(ahead + step * i, step)
        store(p, a0)
        store(p + 4 * d, a1)
        store(p + 8 * d, a2)
        store(p + 12 * d, a3)

    return op


def weigh(kind):
    columns, sixteen = _columns(kind, WIDE), _columns(kind, min(16, WIDE))
    unit, block, weights, scales = KV_TYPES[kind], 32 * KV_TYPES[kind], load("f32", PAGE), load("u16", PAGE)

    @inline
    def floats(vp, d, s, w, first, last, acc, ahead):
        whole = d // WIDE * WIDE
        for c in range(0, whole, WIDE):
            columns(vp, d, c, s, LINE, first, last, acc, ahead + unit * c)
        if WIDE > 16 and whole < d:
            sixteen(vp, d, whole, s, LINE, first, last, acc, ahead + unit * whole)

    @inline
    def integers(vp, d, s, w, first, last, acc, ahead):
        for b in range(d // 32):
            scale = half_to_f32(scales(vp + block * b))
            for j in range(4):
                store(w + 4 * PAGE * j, weights(s + LINE * j) * scale)
            for c in range(32 * b, 32 * b + 32, WIDE):
                columns(vp, d, c, w, 4 * PAGE, first, last, acc, ahead + unit * c)

    return integers if kind in KV_QUANTS else floats
