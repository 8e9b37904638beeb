"""What the attention kernels share: scores, the softmax of a piece, exponentials of numbers.

Attention walks the KV axis in pieces of PIECE tokens whose borders are fixed from position 0, so that a token's result
depends on neither its chunk, nor its neighbours, nor the number of threads. Query heads that share a KV head are
handled together (GQA). `window` > 0: a token sees itself and the window - 1 before it; pages that no query of an item
sees are never read, and their numbers in the block table may be anything. `cap` > 0: cap * tanh(s / cap). `alibi`: 0,
or f32 (heads,) slopes of a penalty on distance (Press et al. 2021). `sinks`: 0, or f32 (heads,) scores that take part
in the softmax without a value.
"""

from __future__ import annotations

import numpy as np

from .layout import PIECE
from .simd import (
    const,
    exp,
    fma,
    hmax,
    hsum,
    inline,
    lane,
    load,
    splat,
    store,
    to_f32,
    vmax,
    where_negative,
    zeros,
)

NOTHING = np.float32(-1e30)  # a score that no key has, finite so that differences of two are 0

_f16v, _full16, _i16, _zero16 = load("f32", 16), splat("f32", 16), splat("i32", 16), zeros("f32", 16)
_iota, _exp16, _lane0 = const("i32", *range(16)), exp(16), lane(0)


@inline
def exp1(x):
    return _lane0(_exp16(_full16(x)))


@inline
def cap_scores(s, scale, cap):
    s = s * scale
    if cap > 0:
        s = (_full16(1.0) - _full16(2.0) / (_exp16(s * (np.float32(2) / cap)) + _full16(1.0))) * cap
    return s


@inline
def softmax_piece(s, first, low, high, scale, cap, slope, m_old):
    """Scores s (PIECE,) of keys first.. in place -> exp(s - m), 0 outside low..high; returns (m, sum).

    high is the query's own position.
    """
    top, total = _full16(m_old), _zero16()
    if cap == 0 and slope == 0 and low <= first and first + PIECE - 1 <= high:
        best = _f16v(s)
        for i in range(16, PIECE, 16):
            best = vmax(best, _f16v(s + 4 * i))
        m = max(m_old, hmax(best) * scale)
        for i in range(0, PIECE, 16):
            p = _exp16(fma(_f16v(s + 4 * i), _full16(scale), _full16(-m)))
            store(s + 4 * i, p)
            total = total + p
        return m, hsum(total)
    for i in range(0, PIECE, 16):
        v = cap_scores(_f16v(s + 4 * i), scale, cap)
        at = _iota() + (first + i)
        if slope != 0:
            v = fma(to_f32(at - high), _full16(slope), v)
        v = where_negative(at - low, _full16(NOTHING), where_negative(_i16(high) - at, _full16(NOTHING), v))
        store(s + 4 * i, v)
        top = vmax(top, v)
    m = hmax(top)
    for i in range(0, PIECE, 16):
        at = _iota() + (first + i)
        p = _exp16(_f16v(s + 4 * i) - m)
        p = where_negative(at - low, _zero16(), where_negative(_i16(high) - at, _zero16(), p))
        store(s + 4 * i, p)
        total = total + p
    return m, hsum(total)
