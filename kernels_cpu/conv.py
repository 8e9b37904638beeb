"""Short causal convolutions along a sequence, channel by channel, over the last K inputs."""

from __future__ import annotations

from .act import f32x16, full16
from .recur import enter, silu
from .simd import fma, i32_at, i64_at, inline, store


@inline
def _step(state, x, w, c, k, taps, acc):
    """acc + w (taps, c) . (the last taps - 1 inputs, x) for 16 channels; the inputs move on by one."""
    for j in range(taps - 1):
        old = f32x16(state + 64 * j)
        acc = fma(f32x16(w + 4 * (c * j + k)), old, acc)
        store(state + 64 * j, f32x16(state + 64 * (j + 1)) if j + 2 < taps else x)
    return fma(f32x16(w + 4 * (c * (taps - 1) + k)), x, acc)


def short(form):
    """ "silu": y = silu(conv(x) + bias). "gated": x is (b, c, x) and y = c * conv(b * x) (LFM2)."""
    gated = form == "gated"

    def convolution(tid, nth, batch, cache, page_bytes, x, ldx, w, bias, y, ldy, n, taps):
        """Rows of n channels (a multiple of 16); w: f32 (taps, n); bias (n,) or 0."""
        seqs, starts, tables, positions = i64_at(batch + 8), i64_at(batch + 64), i64_at(batch + 56), i64_at(batch + 32)
        size = 64 * (taps - 1)
        for block in range(n // 16 * tid // nth, n // 16 * (tid + 1) // nth):
            k = 16 * block
            start = full16(0.0)
            if bias:
                start = f32x16(bias + 4 * k)
            for s in range(seqs):
                table, state = i64_at(tables + 8 * s), 0
                for r in range(i32_at(starts + 4 * s), i32_at(starts + 4 * s + 4)):
                    state = enter(table, cache, page_bytes, i32_at(positions + 4 * r), size * block, size)
                    row = x + ldx * r + 4 * k
                    if gated:
                        v = f32x16(row) * f32x16(row + 8 * n)
                        out = f32x16(row + 4 * n) * _step(state, v, w, n, k, taps, start)
                    else:
                        out = silu(_step(state, f32x16(row), w, n, k, taps, start))
                    store(y + ldy * r + 4 * k, out)

    return convolution
