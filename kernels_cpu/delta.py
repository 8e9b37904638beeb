"""The gated delta rule (Yang et al. 2024): a matrix per head that forgets and corrects what it recalls for a key."""

from __future__ import annotations

import math

import numpy as np

from .act import f32x16, full16
from .norm import sum_squares
from .recur import enter, exp16, sigmoid, softplus
from .simd import f32, f32_at, fma, i32_at, i64_at, store


def net(tid, nth, batch, cache, page_bytes, q, k, v, ldx, ba, ldba, a, bias, y, ldy, heads, k_heads, d_k, d_v,
        eps: f32):  # fmt: skip
    """S *= exp(a softplus(alpha + bias)); S += k (sigmoid(beta) (v - S^T k))^T; y = S^T q / sqrt(d_k).

    q and k, normed to length 1, have k_heads heads of d_k, v and y heads of d_v (a multiple of 16). ba: for each key
    head the betas, then the alphas, of the value heads that share it. a, bias: (heads,).
    """
    seqs, starts, tables, positions = i64_at(batch + 8), i64_at(batch + 64), i64_at(batch + 56), i64_at(batch + 32)
    size, width, shared, n = 64 * d_k, d_v // 16, heads // k_heads, heads * d_v
    for block in range(n // 16 * tid // nth, n // 16 * (tid + 1) // nth):
        head = block // width
        k_head = head // shared
        at_ba = 4 * (2 * shared * k_head + head % shared)
        rate, offset = full16(f32_at(a + 4 * head)), full16(f32_at(bias + 4 * head))
        for s in range(seqs):
            table = i64_at(tables + 8 * s)
            for r in range(i32_at(starts + 4 * s), i32_at(starts + 4 * s + 4)):
                h = enter(table, cache, page_bytes, i32_at(positions + 4 * r), size * block, size)
                beta = sigmoid(full16(f32_at(ba + ldba * r + at_ba)))
                alpha = full16(f32_at(ba + ldba * r + at_ba + 4 * shared))
                decay = exp16(rate * softplus(alpha + offset))
                pq, pk = q + ldx * r + 4 * d_k * k_head, k + ldx * r + 4 * d_k * k_head
                norm_q = np.float32(1) / (max(math.sqrt(sum_squares(pq, d_k)), eps) * math.sqrt(np.float32(d_k)))
                norm_k = np.float32(1) / max(math.sqrt(sum_squares(pk, d_k)), eps)
                recalled = full16(0.0)
                for i in range(d_k):
                    recalled = fma(f32x16(h + 64 * i), full16(f32_at(pk + 4 * i) * norm_k), recalled)
                change = (f32x16(v + ldx * r + 64 * block) - recalled * decay) * beta
                out = full16(0.0)
                for i in range(d_k):
                    new = fma(f32x16(h + 64 * i), decay, change * (f32_at(pk + 4 * i) * norm_k))
                    store(h + 64 * i, new)
                    out = fma(new, full16(f32_at(pq + 4 * i) * norm_q), out)
                store(y + ldy * r + 64 * block, out)
