"""LFM2: gated short convolutions in most layers, attention with normed queries and keys in the others."""

from __future__ import annotations

from ..builder import Builder, attention_scale
from ..config import Config
from ..plan import View

ARCHS = ("lfm2",)


def build(b: Builder, c: Config) -> None:
    rope = b.rope_table()
    x = b.embed()
    for b.layer in range(c.n_layer):
        p = f"blk.{b.layer}."
        h = b.rmsnorm(x, p + "attn_norm.weight")
        if c.attends[b.layer]:
            b.residual(x, attend(b, c, h, p, rope), p + "attn_output.weight")
        else:
            parts = b.matmul(h, p + "shortconv.in_proj.weight", 3 * c.n_embd)
            y = b.short_conv(parts, p + "shortconv.conv.weight", c.n_embd, key="shortconv.l_cache", gated=True)
            b.residual(x, y, p + "shortconv.out_proj.weight")
        h = b.rmsnorm(x, p + "ffn_norm.weight")
        b.residual(x, b.ffn(h, "silu"), p + "ffn_down.weight")
    b.layer = -1
    b.head(x, "token_embd_norm.weight" if b.has("token_embd_norm.weight") else "output_norm.weight")


def attend(b: Builder, c: Config, h: View, p: str, rope: int) -> View:
    q, k, v = b.qkv(h)
    b.rmsnorm(q, p + "attn_q_norm.weight", groups=c.n_head, out=q)
    b.rmsnorm(k, p + "attn_k_norm.weight", groups=c.n_head_kv, out=k)
    b.rope(q, c.n_head, rope, neox=True)
    b.rope(k, c.n_head_kv, rope, neox=True)
    return b.attention(q, k, v, scale=attention_scale(c))
