"""Cohere's Command R and R7B: one LayerNorm without bias, attention and feed-forward side by side, scaled logits."""

from __future__ import annotations

import math

from ..builder import Builder
from ..config import Config

ARCHS = {"command-r": False, "cohere2": True}  # whether layers have windows, with positions in those layers only


def build(b: Builder, c: Config) -> None:
    windows = c.windows(4) if ARCHS[c.arch] else []
    if windows:
        c.integer("attention.sliding_window", at_least=1)
    rope = b.rope_table()
    x = b.embed()
    for b.layer in range(c.n_layer):
        p, window = f"blk.{b.layer}.", windows[b.layer] if windows else 0
        h = b.layernorm(x, p + "attn_norm.weight")
        q, k, v = b.qkv(h)
        for part, name, heads in ((q, "attn_q_norm.weight", c.n_head), (k, "attn_k_norm.weight", c.n_head_kv)):
            if not windows and b.has(p + name):  # Command R+
                b.layernorm(part, p + name, groups=heads, out=part)
            if window or not windows:
                b.rope(part, heads, rope, neox=False)
        a = b.attention(q, k, v, scale=1 / math.sqrt(c.d_k), window=window)
        b.residual(x, a, p + "attn_output.weight")
        b.residual(x, b.ffn(h, "silu"), p + "ffn_down.weight")
    b.layer = -1
    b.head(x, "output_norm.weight", scale=c.real("logit_scale") or 1.0, layernorm=True)
