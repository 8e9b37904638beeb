"""Mamba and Mamba 2: nothing but selective state spaces, and so no keys, values or positions."""

from __future__ import annotations

from ..builder import Builder
from ..config import Config

ARCHS = ("mamba", "mamba2")


def build(b: Builder, c: Config) -> None:
    x = b.embed()
    for b.layer in range(c.n_layer):
        p = f"blk.{b.layer}."
        h = b.rmsnorm(x, p + "attn_norm.weight")
        b.residual(x, b.mamba(h) if c.arch == "mamba" else b.mamba2(h), p + "ssm_out.weight")
    b.layer = -1
    b.head(x, "output_norm.weight")
