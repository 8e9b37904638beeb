"""Gemma 1, 2 and 3: scaled embeddings, GELU gates; from 2 on norms after attention and feed-forward, and windows."""

from __future__ import annotations

import math

from ..builder import Builder, unscaled
from ..config import Config
from ..plan import View

# layers in a period of windowed layers with one full layer at its end (0: none)
ARCHS = {"gemma": 0, "gemma2": 2, "gemma3": 6}
LARGEST = {"gemma2": 46, "gemma3": 62}  # layers of the 27B models, whose queries are scaled by n_embd / n_head


def build(b: Builder, c: Config) -> None:
    windows = c.windows(ARCHS[c.arch])
    full = local = b.rope_table()
    if c.arch == "gemma3":
        local = b.rope_table(base=c.real("rope.freq_base_swa", 10000.0), scaling=unscaled(c))
    if c.n_embd < c.n_head:
        raise c.error("attention.head_count", f"{c.n_head} is more than the embedding's {c.n_embd}")
    width = c.n_embd // c.n_head if c.n_layer == LARGEST.get(c.arch) else c.d_k
    caps = c.arch == "gemma2"
    cap = c.real("attn_logit_softcapping", 50.0) if caps else 0.0
    x = b.embed(scale=math.sqrt(c.n_embd))
    for b.layer in range(c.n_layer):
        p, near = f"blk.{b.layer}.", windows[b.layer] > 0
        q, k, v = b.qkv(b.rmsnorm(x, p + "attn_norm.weight"))
        if c.arch == "gemma3":
            b.rmsnorm(q, p + "attn_q_norm.weight", groups=c.n_head, out=q)
            b.rmsnorm(k, p + "attn_k_norm.weight", groups=c.n_head_kv, out=k)
        b.rope(q, c.n_head, local if near else full, neox=True)
        b.rope(k, c.n_head_kv, local if near else full, neox=True)
        a = b.attention(q, k, v, scale=1 / math.sqrt(width), window=windows[b.layer], cap=cap)
        join(b, c, x, a, p + "attn_output.weight", p + "post_attention_norm.weight")
        h = b.ffn(b.rmsnorm(x, p + "ffn_norm.weight"), "gelu")
        join(b, c, x, h, p + "ffn_down.weight", p + "post_ffw_norm.weight")
    b.layer = -1
    b.head(x, "output_norm.weight", cap=c.real("final_logit_softcapping", 30.0 if caps else 0.0))


def join(b: Builder, c: Config, x: View, h: View, weight: str, norm: str) -> None:
    """x += W h, through a norm from Gemma 2 on."""
    if c.arch == "gemma":
        b.residual(x, h, weight)
    else:
        b.rmsnorm(b.matmul(h, weight, c.n_embd), norm, out=x, add=True)
