"""GPT-2 and what came of it: LayerNorm, biases, feed-forwards without gates, sometimes beside the attention."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..builder import Builder
from ..config import Config
from ..plan import View


@dataclass(frozen=True)
class Traits:
    rope: bool = True  # pairs are (i, i + n/2)
    alibi: float = 0.0  # largest bias of a head
    unit: str = "gelu"
    gated: bool = False


ARCHS = {
    "bloom": Traits(rope=False, alibi=8.0),
    "falcon": Traits(),
    "gpt2": Traits(rope=False),
    "gptneox": Traits(),
    "mpt": Traits(rope=False),
    "nemotron": Traits(unit="relu2"),
    "phi2": Traits(),
    "stablelm": Traits(unit="silu", gated=True),
    "starcoder2": Traits(),
}


def build(b: Builder, c: Config) -> None:
    t = ARCHS[c.arch]
    rope = b.rope_table() if t.rope else None
    alibi = c.real("attention.max_alibi_bias", 0.0) if c.arch == "mpt" else t.alibi
    clamp = c.real("attention.clamp_kqv", 0.0) if c.arch == "mpt" else 0.0
    x = b.embed()
    if b.has("position_embd.weight") if c.arch == "mpt" else c.arch == "gpt2":
        b.add_positions(x)
    if c.arch == "bloom":
        b.layernorm(x, "token_embd_norm.weight", out=x)
    for b.layer in range(c.n_layer):
        p = f"blk.{b.layer}."
        first = b.layernorm(x, p + "attn_norm.weight")
        beside = feed_forward_input(b, c, x, first, p)
        second = p + "attn_norm_2.weight"  # falcon's larger models norm the attention's input apart
        h = b.layernorm(x, second) if c.arch == "falcon" and b.has(second) else first
        q, k, v = b.qkv(h, clamp=clamp)
        qk_norms(b, c, q, k, p)
        if rope is not None:
            b.rope(q, c.n_head, rope, neox=True)
            b.rope(k, c.n_head_kv, rope, neox=True)
        b.residual(x, b.attention(q, k, v, scale=1 / math.sqrt(c.d_k), alibi=alibi), p + "attn_output.weight")
        h = b.layernorm(x, p + "ffn_norm.weight") if beside is None else beside
        b.residual(x, b.ffn(h, t.unit, gated=t.gated), p + "ffn_down.weight")
    b.layer = -1
    b.head(x, "output_norm.weight", layernorm=True)


def feed_forward_input(b: Builder, c: Config, x: View, first: View, p: str) -> View | None:
    """What goes into the feed-forward where it lies beside the attention, None where it follows."""
    if c.arch == "gptneox" and c.flag("use_parallel_residual"):
        return b.layernorm(x, p + "ffn_norm.weight")
    one_norm = c.arch in ("falcon", "phi2") or (c.arch == "stablelm" and not b.has(p + "ffn_norm.weight"))
    return first if one_norm else None


def qk_norms(b: Builder, c: Config, q: View, k: View, p: str) -> None:
    """Larger StableLMs norm each head with weights of its own, some MPTs the whole row."""
    if c.arch not in ("stablelm", "mpt"):
        return
    for x, name, heads in ((q, "attn_q_norm.weight", c.n_head), (k, "attn_k_norm.weight", c.n_head_kv)):
        if b.has(p + name):
            b.layernorm(x, p + name, groups=heads if c.arch == "stablelm" else 1, out=x)
