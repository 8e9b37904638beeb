"""Keys and values in blocks of 32 of a head's components: q8_0 and q4_0 as GGUF files have them, laid out by pages.

A block of components 32 b.. holds the PAGE tokens of a page together: PAGE halves d, then the quants. Values are
d * q for q8_0 (|q| <= 127), d * (q - 8) for q4_0 (0..15).
  keys    q8_0 (8 fours, PAGE, 4 bytes): one load is the same four components of many keys, for integer dots;
          q4_0 (4 fours, PAGE, 4 bytes): low nibbles are components 0..15, high nibbles 16..31
  values  q8_0 (PAGE, 32 bytes), q4_0 (PAGE, 16 bytes) with nibbles alike
"""

from __future__ import annotations

import numpy as np

from .act import quantise32
from .layout import KV_TYPES, PAGE
from .simd import (
    bitcast,
    f32_to_half,
    floor,
    half_at,
    half_to_f32,
    hmax,
    inline,
    lane,
    load,
    part,
    set_i32,
    splat,
    store,
    to_f32,
    to_i8,
    to_i32,
    vmin,
    zeros,
)

SCALES = 2 * PAGE  # bytes of a block before its quants

_f16v, _full16, _zero16 = load("f32", 16), splat("f32", 16), zeros("f32", 16)
_one, _halves, _words = splat("f32", 1), load("u16", PAGE), load("i32", PAGE)
_i8x16, _u8x16 = load("i8", 16), load("u8", 16)
_four_words, _low16, _high16 = bitcast("i32", 4), part(0, 16), part(16, 16)
_l0, _l1, _l2, _l3 = (lane(i) for i in range(4))


@inline
def _nibbles(x):
    """32 f32 at x -> (16 bytes, scale): the value of largest magnitude becomes -8 (quantize_row_q4_0)."""
    a, b = _f16v(x), _f16v(x + 64)
    up, down = max(hmax(a), hmax(b)), max(hmax(_zero16() - a), hmax(_zero16() - b))
    d = (up if up > down else -down) / np.float32(-8)
    inverse = np.float32(0)
    if d != 0:
        inverse = np.float32(1) / d
    a = vmin(floor(a * inverse + np.float32(8.5)), _full16(15.0))
    b = vmin(floor(b * inverse + np.float32(8.5)), _full16(15.0))
    return to_i8(a) | (to_i8(b) << 4), d


@inline
def _put_fours(p, v):
    """16 bytes -> four words, those of other tokens between them."""
    w = _four_words(v)
    set_i32(p, _l0(w))
    set_i32(p + 4 * PAGE, _l1(w))
    set_i32(p + 8 * PAGE, _l2(w))
    set_i32(p + 12 * PAGE, _l3(w))


def put(kind):
    """((d,) f32 x 2, place in the page, d_k, d_v, slot) -> one token's keys and values of one head, quantised."""
    block = 32 * KV_TYPES[kind]

    @inline
    def q8_0(k, v, page, d_k, d_v, slot):
        for b in range(d_k // 32):
            to = page + block * b
            q, d = quantise32(k + 128 * b)
            store(to + 2 * slot, f32_to_half(_one(d)))
            _put_fours(to + SCALES + 4 * slot, _low16(q))
            _put_fours(to + SCALES + 16 * PAGE + 4 * slot, _high16(q))
        for b in range(d_v // 32):
            to = page + block * (d_k // 32 + b)
            q, d = quantise32(v + 128 * b)
            store(to + 2 * slot, f32_to_half(_one(d)))
            store(to + SCALES + 32 * slot, q)

    @inline
    def q4_0(k, v, page, d_k, d_v, slot):
        for b in range(d_k // 32):
            to = page + block * b
            q, d = _nibbles(k + 128 * b)
            store(to + 2 * slot, f32_to_half(_one(d)))
            _put_fours(to + SCALES + 4 * slot, q)
        for b in range(d_v // 32):
            to = page + block * (d_k // 32 + b)
            q, d = _nibbles(v + 128 * b)
            store(to + 2 * slot, f32_to_half(_one(d)))
            store(to + SCALES + 16 * slot, q)

    return {"q8_0": q8_0, "q4_0": q4_0}[kind]


def key_row(kind):
    """(keys of a page, i) -> f32 component i of the PAGE keys."""
    block = 32 * KV_TYPES[kind]

    @inline
    def q8_0(p, i):
        at, r = p + block * (i // 32), i % 32
        w = _words(at + SCALES + 4 * PAGE * (r // 4))
        return to_f32((w << (24 - 8 * (r % 4))) >> 24) * half_to_f32(_halves(at))

    @inline
    def q4_0(p, i):
        at, r = p + block * (i // 32), i % 32
        w = _words(at + SCALES + 4 * PAGE * (r % 16 // 4))
        return to_f32(((w >> (8 * (r % 4) + 4 * (r // 16))) & 15) - 8) * half_to_f32(_halves(at))

    return {"q8_0": q8_0, "q4_0": q4_0}[kind]


def value_part(kind):
    """(values of a page, d_v, token, c) -> f32 components c..c + 15 of one token; c: a multiple of 16."""
    block = 32 * KV_TYPES[kind]

    @inline
    def q8_0(p, d_v, t, c):
        at = p + block * (c // 32)
        return to_f32(to_i32(_i8x16(at + SCALES + 32 * t + c % 32))) * half_at(at + 2 * t)

    @inline
    def q4_0(p, d_v, t, c):
        at = p + block * (c // 32)
        v = _u8x16(at + SCALES + 16 * t)
        v = v >> 4 if c % 32 else v & 15
        return to_f32(to_i32(v) - 8) * half_at(at + 2 * t)

    return {"q8_0": q8_0, "q4_0": q4_0}[kind]
