"""gpt-oss: experts with biases and a clamped SwiGLU, attention with sinks, every second layer with a window."""

from __future__ import annotations

import math

from ..builder import SOFTMAX_OF_CHOSEN, Builder
from ..config import Config

ARCHS = {"gpt-oss": True}


def build(b: Builder, c: Config) -> None:
    c.integer("attention.sliding_window", at_least=1)
    windows = c.windows(2)
    n_ff = c.integer("expert_feed_forward_length", at_least=1)
    full = b.rope_table()
    local = b.rope_table(base=c.real("rope.freq_base_swa")) if c.has("rope.freq_base_swa") else full
    x = b.embed()
    for b.layer in range(c.n_layer):
        p, window = f"blk.{b.layer}.", windows[b.layer]
        q, k, v = b.qkv(b.rmsnorm(x, p + "attn_norm.weight"))
        b.rope(q, c.n_head, local if window else full, neox=True)
        b.rope(k, c.n_head_kv, local if window else full, neox=True)
        a = b.attention(q, k, v, scale=1 / math.sqrt(c.d_k), window=window, sinks=p + "attn_sinks.weight")
        b.residual(x, a, p + "attn_output.weight")
        h = b.rmsnorm(x, p + "post_attention_norm.weight")
        y = b.moe(h, n_ff, "swiglu_oai", normalise=False, scale=c.factor("expert_weights_scale"),
                  gating=SOFTMAX_OF_CHOSEN)  # fmt: skip
        b.add(y, x)
    b.layer = -1
    b.head(x, "output_norm.weight")
