"""Llama and the families that differ from it by a norm, a bias, a scale or the layout of rotary pairs."""

from __future__ import annotations

from dataclasses import dataclass

from ..builder import Builder, attention_scale
from ..config import Config
from ..plan import View


@dataclass(frozen=True)
class Traits:
    neox: bool = False  # rotary pairs are (i, i + n/2), not adjacent
    qk_norm: bool = False
    no_rope_every: int = 0  # every n-th layer has no positions
    scales: bool = False  # granite's multipliers


ARCHS = {
    "llama": Traits(),
    "qwen2": Traits(neox=True),
    "qwen3": Traits(neox=True, qk_norm=True),
    "qwen3moe": Traits(neox=True, qk_norm=True),
    "smollm3": Traits(no_rope_every=4),
    "granite": Traits(scales=True),
}


def build(b: Builder, c: Config) -> None:
    t = ARCHS[c.arch]
    residual = c.factor("residual_scale") if t.scales else 1.0
    # Granite switches its rotary embedding off by declaring it not finetuned.
    rope = b.rope_table() if not t.scales or c.flag("rope.scaling.finetuned", True) else None
    x = b.embed(scale=c.factor("embedding_scale") if t.scales else 1.0)
    for b.layer in range(c.n_layer):
        use = rope if not t.no_rope_every or (b.layer + 1) % t.no_rope_every else None
        attend(b, c, t, x, f"blk.{b.layer}.", use, residual)
        feed_forward(b, c, x, f"blk.{b.layer}.", residual)
    b.layer = -1
    b.head(x, "output_norm.weight", scale=1 / c.factor("logit_scale") if t.scales else 1.0)


def attend(b: Builder, c: Config, t: Traits, x: View, p: str, rope: int | None, residual: float) -> None:
    h = b.rmsnorm(x, p + "attn_norm.weight")
    q = b.matmul(h, p + "attn_q.weight", c.n_head * c.d_k)
    k = b.matmul(h, p + "attn_k.weight", c.n_head_kv * c.d_k)
    v = b.matmul(h, p + "attn_v.weight", c.n_head_kv * c.d_v)
    if t.qk_norm:
        b.rmsnorm(q, p + "attn_q_norm.weight", groups=c.n_head, out=q)
        b.rmsnorm(k, p + "attn_k_norm.weight", groups=c.n_head_kv, out=k)
    if rope is not None:
        b.rope(q, c.n_head, rope, neox=t.neox)
        b.rope(k, c.n_head_kv, rope, neox=t.neox)
    a = b.attention(q, k, v, scale=attention_scale(c))
    b.residual(x, a, p + "attn_output.weight", residual)


def feed_forward(b: Builder, c: Config, x: View, p: str, residual: float) -> None:
    h = b.rmsnorm(x, p + "ffn_norm.weight")
    if c.n_expert and b.has(p + "ffn_gate_inp.weight"):
        n_ff = c.integer("expert_feed_forward_length", c.integer("feed_forward_length", 0), at_least=1)
        y = b.moe(h, n_ff, "silu", normalise=True, scale=c.factor("expert_weights_scale"))
        b.add(y, x, residual)
        return
    gate = b.matmul(h, p + "ffn_gate.weight", c.n_ff())
    up = b.matmul(h, p + "ffn_up.weight", c.n_ff())
    b.residual(x, b.glu(gate, up, "silu"), p + "ffn_down.weight", residual)
