"""Phi-3 and Phi-3.5-MoE: Llama with query, key and value in one tensor, gate and up in another (or apart)."""

from __future__ import annotations

from ..builder import Builder, attention_scale
from ..config import Config

ARCHS = {"phi3": True, "phimoe": True}


def build(b: Builder, c: Config) -> None:
    rope = b.rope_table()
    x = b.embed()
    for b.layer in range(c.n_layer):
        p = f"blk.{b.layer}."
        q, k, v = b.qkv(b.rmsnorm(x, p + "attn_norm.weight"))
        b.rope(q, c.n_head, rope, neox=True)
        b.rope(k, c.n_head_kv, rope, neox=True)
        b.residual(x, b.attention(q, k, v, scale=attention_scale(c)), p + "attn_output.weight")
        h = b.rmsnorm(x, p + "ffn_norm.weight")
        if b.has(p + "ffn_gate_inp.weight"):
            b.add(b.moe(h, c.n_ff(b.layer), "silu", normalise=True, scale=c.factor("expert_weights_scale")), x)
        else:
            b.residual(x, b.ffn(h, "silu"), p + "ffn_down.weight")
    b.layer = -1
    b.head(x, "output_norm.weight")
