"""Qwen3-Next: gated delta nets, gated attention in every fourth layer, experts everywhere."""

from __future__ import annotations

from ..builder import Builder, attention_scale
from ..config import Config
from ..plan import View

ARCHS = ("qwen3next",)


def build(b: Builder, c: Config) -> None:
    interval = c.integer("full_attention_interval", 4, at_least=1)
    rope = b.rope_table()
    x = b.embed()
    for b.layer in range(c.n_layer):
        p = f"blk.{b.layer}."
        h = b.rmsnorm(x, p + "attn_norm.weight")
        if (b.layer + 1) % interval:
            b.residual(x, b.delta_net(h), p + "ssm_out.weight")
        else:
            b.residual(x, attend(b, c, h, p, rope), p + "attn_output.weight")
        h = b.rmsnorm(x, p + "post_attention_norm.weight")
        feed_forward(b, c, h, x, p)
    b.layer = -1
    b.head(x, "output_norm.weight")


def attend(b: Builder, c: Config, h: View, p: str, rope: int) -> View:
    """Each head's queries are followed by the logits of gates on its result."""
    n = c.n_head * c.d_k
    both = b.matmul(h, p + "attn_q.weight", 2 * n)
    q, gate = b.rows("q", n), b.rows("gate", n)
    b.copy_heads(both, q, c.n_head, c.d_k, step_x=2 * c.d_k, step_y=c.d_k)
    b.copy_heads(both.columns(c.d_k, 2 * n - c.d_k), gate, c.n_head, c.d_k, step_x=2 * c.d_k, step_y=c.d_k)
    k = b.matmul(h, p + "attn_k.weight", c.n_head_kv * c.d_k)
    v = b.matmul(h, p + "attn_v.weight", c.n_head_kv * c.d_v)
    b.rmsnorm(q, p + "attn_q_norm.weight", groups=c.n_head, out=q)
    b.rmsnorm(k, p + "attn_k_norm.weight", groups=c.n_head_kv, out=k)
    b.rope(q, c.n_head, rope, neox=True)
    b.rope(k, c.n_head_kv, rope, neox=True)
    return b.glu(gate, b.attention(q, k, v, scale=attention_scale(c)), "sigmoid")


def feed_forward(b: Builder, c: Config, h: View, x: View, p: str) -> None:
    if not b.has(p + "ffn_gate_inp.weight"):
        return b.residual(x, b.ffn(h, "silu"), p + "ffn_down.weight")
    y = b.moe(h, c.integer("expert_feed_forward_length", at_least=1), "silu", normalise=True,
              scale=c.factor("expert_weights_scale"))  # fmt: skip
    if b.has(p + "ffn_up_shexp.weight"):
        b.shared_expert(h, y, c.integer("expert_shared_feed_forward_length", at_least=1))
    b.add(y, x)
