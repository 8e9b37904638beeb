"""Mamba 2 beside attention: Falcon-H1 has both in every layer, Granite's hybrids one or the other, and multipliers."""

from __future__ import annotations

from ..builder import Builder, attention_scale
from ..config import Config
from ..plan import View

ARCHS = ("falcon-h1", "granitehybrid")


def build(b: Builder, c: Config) -> None:
    granite = c.arch == "granitehybrid"
    scale = c.factor("residual_scale") if granite else 1.0
    rope = b.rope_table() if not granite or c.flag("rope.scaling.finetuned", True) else None
    x = b.embed(scale=c.factor("embedding_scale") if granite else 1.0)
    for b.layer in range(c.n_layer):
        p = f"blk.{b.layer}."
        h = b.rmsnorm(x, p + "attn_norm.weight")
        if not granite or not c.attends[b.layer]:
            b.residual(x, b.mamba2(h), p + "ssm_out.weight", scale)
        if c.attends[b.layer]:
            b.residual(x, attend(b, c, h, rope), p + "attn_output.weight", scale)
        feed_forward(b, c, x, p, scale)
    b.layer = -1
    name = "output_norm.weight" if b.has("output_norm.weight") else "final_layernorm.weight"
    b.head(x, name, scale=1 / c.factor("logit_scale") if granite else 1.0)


def attend(b: Builder, c: Config, h: View, rope: int | None) -> View:
    q, k, v = b.qkv(h)
    if rope is not None:
        b.rope(q, c.n_head, rope, neox=c.arch == "falcon-h1")
        b.rope(k, c.n_head_kv, rope, neox=c.arch == "falcon-h1")
    return b.attention(q, k, v, scale=attention_scale(c))


def feed_forward(b: Builder, c: Config, x: View, p: str, scale: float) -> None:
    h = b.rmsnorm(x, p + "ffn_norm" if b.has(p + "ffn_norm") else p + "ffn_norm.weight")
    if not b.has(p + "ffn_gate_inp.weight"):
        return b.residual(x, b.ffn(h, "silu"), p + "ffn_down.weight", scale)
    y = b.moe(h, c.integer("expert_feed_forward_length", 0) or c.n_ff(b.layer), "silu", normalise=True,
              scale=c.factor("expert_weights_scale"))  # fmt: skip
    if b.has(p + "ffn_up_shexp.weight"):
        b.shared_expert(h, y, c.integer("expert_shared_feed_forward_length", at_least=1))
    b.add(y, x, scale)
