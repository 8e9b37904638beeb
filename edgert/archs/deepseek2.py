"""DeepSeek 2 and 3: keys and values from one small vector a token (DeepSeek-AI 2024), experts behind dense layers."""

from __future__ import annotations

import dataclasses
import math

from ..builder import SIGMOID, SOFTMAX, Builder
from ..config import Config
from ..plan import View

ARCHS = {"deepseek2": True}


def build(b: Builder, c: Config) -> None:
    mla = bool(c.integer("attention.key_length_mla", 0) and c.integer("attention.value_length_mla", 0))
    d_k = c.integer("attention.key_length_mla") if mla else c.d_k
    d_v = c.integer("attention.value_length_mla") if mla else c.d_v
    if not c.n_rot < d_k:
        raise c.error("rope.dimension_count", f"{c.n_rot} leaves nothing of the head's {d_k}")
    s, dense = c.rope_scaling, c.integer("leading_dense_block_count", 0)
    if s.kind not in ("none", "yarn"):
        raise c.error("rope.scaling.type", f"{s.kind!r} is not supported here; known: none, yarn")
    # The file's multiplier is YaRN's "mscale_all_dim" / 10; it goes to the scores, and cancels in the rotary table.
    log = math.log(s.factor)
    stretch = s.attn_factor * (1 + s.log_multiplier * log) * (1 if s.log_multiplier else 1 + 0.1 * log)
    rope = b.rope_table(scaling=dataclasses.replace(s, log_multiplier=1.0) if s.log_multiplier else s)
    x = b.embed()
    for b.layer in range(c.n_layer):
        p = f"blk.{b.layer}."
        h = b.rmsnorm(x, p + "attn_norm.weight")
        a = attend(b, c, h, rope, d_k, d_v, stretch**2 / math.sqrt(d_k), absorbed=mla)
        b.residual(x, a, p + "attn_output.weight")
        h = b.rmsnorm(x, p + "ffn_norm.weight")
        if b.layer < dense:
            b.residual(x, b.ffn(h, "silu"), p + "ffn_down.weight")
        else:
            experts(b, c, h, x)
    b.layer = -1
    b.head(x, "output_norm.weight")


def attend(b: Builder, c: Config, h: View, rope: int, d_k: int, d_v: int, scale: float, *, absorbed: bool) -> View:
    """Either with the small vector itself as key and value of all heads, or with heads made of it (older files)."""
    p, n, rank, nope = f"blk.{b.layer}.", c.n_head, c.integer("attention.kv_lora_rank", at_least=1), d_k - c.n_rot
    if b.has(p + "attn_q_a.weight"):
        q_a = b.matmul(h, p + "attn_q_a.weight", c.integer("attention.q_lora_rank", at_least=1))
        q = b.matmul(b.rmsnorm(q_a, p + "attn_q_a_norm.weight", out=q_a), p + "attn_q_b.weight", n * d_k)
    else:
        q = b.matmul(h, p + "attn_q.weight", n * d_k)
    kv = b.matmul(h, p + "attn_kv_a_mqa.weight", rank + c.n_rot)
    small, turned = kv.columns(0, rank), kv.columns(rank, c.n_rot)
    b.rmsnorm(small, p + "attn_kv_a_norm.weight", out=small)
    b.rope(q.columns(nope, c.n_rot), n, rope, neox=False, step=d_k)
    b.rope(turned, 1, rope, neox=False)
    b.scale_by_position(q, c.integer("attention.temperature_length", 0), c.real("attention.temperature_scale", 0.0))
    if absorbed:
        wide = b.rows("q", n * (rank + c.n_rot))
        b.matmul_heads(q, p + "attn_k_b.weight", rank, n, nope, out=wide)
        b.copy_heads(
            q.columns(nope, c.n_rot), wide.columns(rank, c.n_rot), n, c.n_rot, step_x=d_k, step_y=rank + c.n_rot
        )
        return b.matmul_heads(b.attention(wide, kv, small, scale=scale), p + "attn_v_b.weight", d_v, n, rank)
    both = b.matmul(small, p + "attn_kv_b.weight", n * (nope + d_v))
    k, v = b.rows("k", n * d_k), b.rows("v", n * d_v)
    b.copy_heads(both, k, n, nope, step_x=nope + d_v, step_y=d_k)
    b.copy_heads(turned, k.columns(nope, c.n_rot), n, c.n_rot, step_x=0, step_y=d_k)
    b.copy_heads(both.columns(nope, d_v), v, n, d_v, step_x=nope + d_v, step_y=d_v)
    return b.attention(q, k, v, scale=scale)


def experts(b: Builder, c: Config, h: View, x: View) -> None:
    glm = c.n_layer in (47, 48) and c.n_vocab == 154880  # whose first files lack the key
    gating = c.integer("expert_gating_func", 0) or (SIGMOID if glm else SOFTMAX)
    n_ff = c.integer("expert_feed_forward_length", at_least=1)
    y = b.moe(h, n_ff, "silu", normalise=c.flag("expert_weights_norm", False), scale=c.factor("expert_weights_scale"),
              gating=gating)  # fmt: skip
    b.shared_expert(h, y, n_ff * c.integer("expert_shared_count", at_least=1))
    b.add(y, x)
