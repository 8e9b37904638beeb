"""What the machine can do: the read bandwidth that decode is measured against."""

from __future__ import annotations

from .native import AHEAD
from .simd import hsum, load, prefetch, set_i64, zeros

_v = load("i32", 16)
_zero = zeros("i32", 16)


def read(tid, nth, p, lines, out):
    """Read `lines` cache lines from p, each thread its own stretch, with the prefetch that the matmuls use."""
    a, b = _zero(), _zero()
    for i in range(lines * tid // nth, lines * (tid + 1) // nth - 1, 2):
        prefetch(p + 64 * i + AHEAD)
        prefetch(p + 64 * i + AHEAD + 64)
        a = a + _v(p + 64 * i)
        b = b + _v(p + 64 * i + 64)
    set_i64(out + 64 * tid, hsum(a + b))
