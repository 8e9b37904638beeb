"""Families that norm what attention and feed-forward put out: OLMo 2 and 3, EXAONE 4, GLM 4."""

from __future__ import annotations

from dataclasses import dataclass

from ..builder import Builder, attention_scale, unscaled
from ..config import Config


@dataclass(frozen=True)
class Traits:
    neox: bool = True
    pre_norm: bool = False  # norms before attention and feed-forward, too
    qk_norm: str = ""  # "head": queries and keys are normed head by head; "row": all heads together
    far_rope: bool = True  # layers without a window have positions even where others have one


ARCHS = {
    "exaone4": Traits(qk_norm="head", far_rope=False),
    "glm4": Traits(neox=False, pre_norm=True),
    "olmo2": Traits(qk_norm="row"),
}


def build(b: Builder, c: Config) -> None:
    t = ARCHS[c.arch]
    windows = [0] * c.n_layer
    if c.arch == "olmo2" or (c.arch == "exaone4" and c.n_layer == 64):  # of EXAONE 4, the 32B model has windows
        windows = c.windows(4, 4096 if c.arch == "exaone4" else 0)
    far = b.rope_table()
    # OLMo 3 does not stretch the positions of windowed layers.
    near = b.rope_table(scaling=unscaled(c)) if c.arch == "olmo2" and any(windows) else far
    x = b.embed()
    for b.layer in range(c.n_layer):
        p, window = f"blk.{b.layer}.", windows[b.layer]
        q, k, v = b.qkv(b.rmsnorm(x, p + "attn_norm.weight") if t.pre_norm else x)
        for part, name, heads in ((q, "attn_q_norm.weight", c.n_head), (k, "attn_k_norm.weight", c.n_head_kv)):
            if t.qk_norm:
                b.rmsnorm(part, p + name, groups=heads if t.qk_norm == "head" else 1, out=part)
            if window or t.far_rope or not any(windows):
                b.rope(part, heads, near if window else far, neox=t.neox)
        a = b.attention(q, k, v, scale=attention_scale(c), window=window)
        b.rmsnorm(b.matmul(a, p + "attn_output.weight", c.n_embd), p + "post_attention_norm.weight", out=x, add=True)
        h = b.ffn(b.rmsnorm(x, p + "ffn_norm.weight") if t.pre_norm else x, "silu")
        b.rmsnorm(b.matmul(h, p + "ffn_down.weight", c.n_embd), p + "post_ffw_norm.weight", out=x, add=True)
    b.layer = -1
    b.head(x, "output_norm.weight")
