"""Phi-3: Llama with query, key and value in one tensor, gate and up in another (older files: apart)."""

from __future__ import annotations

from ..builder import Builder, attention_scale
from ..config import Config

ARCHS = {"phi3": True}


def build(b: Builder, c: Config) -> None:
    n_q, n_k, n_v = c.n_head * c.d_k, c.n_head_kv * c.d_k, c.n_head_kv * c.d_v
    rope = b.rope_table()
    x = b.embed()
    for b.layer in range(c.n_layer):
        p = f"blk.{b.layer}."
        h = b.rmsnorm(x, p + "attn_norm.weight")
        if b.has(p + "attn_qkv.weight"):
            qkv = b.matmul(h, p + "attn_qkv.weight", n_q + n_k + n_v)
            q, k, v = qkv.columns(0, n_q), qkv.columns(n_q, n_k), qkv.columns(n_q + n_k, n_v)
        else:
            q = b.matmul(h, p + "attn_q.weight", n_q)
            k = b.matmul(h, p + "attn_k.weight", n_k)
            v = b.matmul(h, p + "attn_v.weight", n_v)
        b.rope(q, c.n_head, rope, neox=True)
        b.rope(k, c.n_head_kv, rope, neox=True)
        a = b.attention(q, k, v, scale=attention_scale(c))
        b.residual(x, a, p + "attn_output.weight")
        h = b.rmsnorm(x, p + "ffn_norm.weight")
        both = b.matmul(h, p + "ffn_up.weight", 2 * c.n_ff())
        b.residual(x, b.glu(both.columns(0, c.n_ff()), both.columns(c.n_ff(), c.n_ff()), "silu"), p + "ffn_down.weight")
    b.layer = -1
    b.head(x, "output_norm.weight")
