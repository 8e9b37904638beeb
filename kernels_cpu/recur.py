"""What kernels with a state per sequence share. States lie in pages, as keys and values do.

A page holds the state after its tokens, or after those of them that there are so far. A kernel goes on from the page of
the token before and leaves the state in the page of each token; where both are one page, it works in place. Each thread
owns blocks of 16 channels of a state: (blocks, rows, 16) f32, over all tokens in order.
"""

from __future__ import annotations

from .act import f32x16, full16
from .layout import PAGE
from .simd import exp, fma, i32_at, inline, store, vabs, vmax

exp16 = exp(16)


@inline
def enter(table, cache, page_bytes, position, at, size):
    """Address of a block of the state (size bytes, `at` bytes from the page's start) for the token at a position.

    At the start of a page it is cleared, or copied from the page before.
    """
    here = cache + page_bytes * i32_at(table + 4 * (position // PAGE)) + at
    if position == 0:
        for i in range(0, size, 64):
            store(here + i, full16(0.0))
    elif position % PAGE == 0:
        before = cache + page_bytes * i32_at(table + 4 * (position // PAGE - 1)) + at
        if before != here:
            for i in range(0, size, 64):
                store(here + i, f32x16(before + i))
    return here


@inline
def silu(x):
    return x / (full16(1.0) + exp16(full16(0.0) - x))


@inline
def sigmoid(x):
    return full16(1.0) / (full16(1.0) + exp16(full16(0.0) - x))


@inline
def softplus(x):
    """log(1 + e^x) = max(x, 0) + log1p(e^-|x|), the logarithm as 2 atanh(u / (2 + u))."""
    u = exp16(full16(0.0) - vabs(x))
    s = u / (full16(2.0) + u)
    q = s * s
    p = fma(q, full16(1 / 15), full16(1 / 13))
    p = fma(q, p, full16(1 / 11))
    p = fma(q, p, full16(1 / 9))
    p = fma(q, p, full16(1 / 7))
    p = fma(q, p, full16(1 / 5))
    p = fma(q, p, full16(1 / 3))
    p = fma(q, p, full16(1.0))
    return fma(s + s, p, vmax(x, full16(0.0)))
