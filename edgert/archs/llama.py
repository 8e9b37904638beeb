"""Llama and the families that differ from it by a norm, a scale, an activation or the layout of rotary pairs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..builder import Builder, attention_scale
from ..config import Config
from ..plan import View


@dataclass(frozen=True)
class Traits:
    neox: bool = False  # rotary pairs are (i, i + n/2), not adjacent
    qk_norm: str = ""  # "head": queries and keys are normed head by head; "row": all heads together
    no_rope_every: int = 0  # every n-th layer has no positions
    scales: bool = False  # multipliers of embeddings, residuals and logits
    unit: str = "silu"  # relu2 has no gate
    ffn_norm: str = "ffn_norm"
    normalise: bool = True  # weights of a token's experts sum to 1


ARCHS = {
    **dict.fromkeys(("llama", "internlm2", "mistral3"), Traits()),
    **dict.fromkeys(("granite", "granitemoe", "minicpm"), Traits(scales=True)),
    **dict.fromkeys(("qwen3", "qwen3moe"), Traits(neox=True, qk_norm="head")),
    "arcee": Traits(unit="relu2"),
    "olmoe": Traits(neox=True, qk_norm="row", normalise=False),
    "qwen2": Traits(neox=True),
    "qwen2moe": Traits(neox=True, normalise=False),
    "seed_oss": Traits(neox=True, ffn_norm="post_attention_norm"),
    "smollm3": Traits(no_rope_every=4),
}


def build(b: Builder, c: Config) -> None:
    t, old = ARCHS[c.arch], c.arch == "minicpm"  # whose first files lack the multipliers
    embedding = c.factor("embedding_scale", 12.0 if old else 1.0) if t.scales else 1.0
    residual = c.factor("residual_scale", 1.4 / math.sqrt(c.n_layer) if old else 1.0) if t.scales else 1.0
    logits = c.factor("logit_scale", 256 / c.n_embd if old else 1.0) if t.scales else 1.0
    # Granite switches its rotary embedding off by declaring it not finetuned.
    rope = b.rope_table() if "granite" not in c.arch or c.flag("rope.scaling.finetuned", True) else None
    x = b.embed(scale=embedding)
    for b.layer in range(c.n_layer):
        use = rope if not t.no_rope_every or (b.layer + 1) % t.no_rope_every else None
        attend(b, c, t, x, f"blk.{b.layer}.", use, residual)
        feed_forward(b, c, t, x, f"blk.{b.layer}.", residual)
    b.layer = -1
    b.head(x, "output_norm.weight", scale=1 / logits)


def attend(b: Builder, c: Config, t: Traits, x: View, p: str, rope: int | None, residual: float) -> None:
    q, k, v = b.qkv(b.rmsnorm(x, p + "attn_norm.weight"))
    if t.qk_norm:
        b.rmsnorm(q, p + "attn_q_norm.weight", groups=c.n_head if t.qk_norm == "head" else 1, out=q)
        b.rmsnorm(k, p + "attn_k_norm.weight", groups=c.n_head_kv if t.qk_norm == "head" else 1, out=k)
    if rope is not None:
        b.rope(q, c.n_head, rope, neox=t.neox)
        b.rope(k, c.n_head_kv, rope, neox=t.neox)
    if c.arch == "mistral3":
        b.scale_by_position(q, c.rope_scaling.original_context, c.real("attention.temperature_scale", 0.0))
    b.residual(x, b.attention(q, k, v, scale=attention_scale(c)), p + "attn_output.weight", residual)


def feed_forward(b: Builder, c: Config, t: Traits, x: View, p: str, residual: float) -> None:
    h = b.rmsnorm(x, f"{p}{t.ffn_norm}.weight")
    if not b.has(p + "ffn_gate_inp.weight"):
        return b.residual(x, b.ffn(h, t.unit, gated=t.unit == "silu"), p + "ffn_down.weight", residual)
    shares = max(1, c.n_expert_used) if c.arch == "qwen2moe" else 1  # where experts have no length of their own
    n_ff = c.integer("expert_feed_forward_length", 0) or c.n_ff(b.layer) // shares
    y = b.moe(h, n_ff, t.unit, normalise=t.normalise, scale=c.factor("expert_weights_scale"))
    if b.has(p + "ffn_up_shexp.weight"):
        b.shared_expert(h, y, c.integer("expert_shared_feed_forward_length", 0) or c.n_ff(b.layer))
    b.add(y, x, residual)
