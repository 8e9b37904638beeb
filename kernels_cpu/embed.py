"""Embedding lookup from any type: tokens, learned positions."""

from __future__ import annotations

from .act import first_row
from .dense import row_f32
from .simd import f32, f32_at, i32_at, i64_at, set_f32


def lookup(name):
    """y (tokens, k) = scale * rows of w (n, k) named by the batch's token ids."""
    row_bytes, decode_row = row_f32(name)

    def embedding(tid, nth, batch, w, k, y, ldy, scratch, ld_scratch, scale: f32):
        m, ids = i64_at(batch), i64_at(batch + 24)
        for r in range(first_row(m, tid, nth), first_row(m, tid + 1, nth)):
            out = y + ldy * r
            decode_row(w + row_bytes(k) * i32_at(ids + 4 * r), k, out, scratch + ld_scratch * tid)
            if scale != 1:
                for i in range(k):
                    set_f32(out + 4 * i, f32_at(out + 4 * i) * scale)

    return embedding


def positions(name):
    """y (tokens, k) += rows of w (n_ctx, k) named by the tokens' positions."""
    row_bytes, decode_row = row_f32(name)

    def add_positions(tid, nth, batch, w, k, y, ldy, scratch, ld_scratch):
        m, where, row = i64_at(batch), i64_at(batch + 32), scratch + ld_scratch * tid
        for r in range(first_row(m, tid, nth), first_row(m, tid + 1, nth)):
            out = y + ldy * r
            decode_row(w + row_bytes(k) * i32_at(where + 4 * r), k, row, row + 4 * k)
            for i in range(k):
                set_f32(out + 4 * i, f32_at(out + 4 * i) + f32_at(row + 4 * i))

    return add_positions
