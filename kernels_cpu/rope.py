"""Rotary position embedding (Su et al. 2021) from a table of cosines and sines."""

from __future__ import annotations

from .act import first_row
from .simd import f32_at, i32_at, i64_at, set_f32


def _apply(adjacent):
    def rope(tid, nth, batch, x, ldx, heads, d, n_rot, table):
        """Rotate the first n_rot of each head's d values in place; table: f32 (position, n_rot / 2, 2)."""
        m, positions, half = i64_at(batch), i64_at(batch + 32), n_rot // 2
        for r in range(first_row(m, tid, nth), first_row(m, tid + 1, nth)):
            angles = table + 8 * half * i32_at(positions + 4 * r)
            for h in range(heads):
                p = x + ldx * r + 4 * d * h
                for i in range(half):
                    cos, sin = f32_at(angles + 8 * i), f32_at(angles + 8 * i + 4)
                    if adjacent:
                        a, b = p + 8 * i, p + 8 * i + 4
                    else:
                        a, b = p + 4 * i, p + 4 * (i + half)
                    u, v = f32_at(a), f32_at(b)
                    set_f32(a, u * cos - v * sin)
                    set_f32(b, u * sin + v * cos)

    return rope


norm = _apply(True)  # pairs (2 i, 2 i + 1), as the original
neox = _apply(False)  # pairs (i, i + n_rot / 2)
