"""Builder methods for attention: rotary tables, the KV cache, attention itself."""

from __future__ import annotations

import dataclasses
import math

from .config import Config, RopeScaling
from .emit import BATCH, CURSOR, Emitter
from .kernels_cpu import layout
from .plan import Buffer, CacheLayer, Rope, Special, Value, View


class AttentionOps(Emitter):
    """What attention layers are made of."""

    def rope_table(self, *, base: float | None = None, scaling: RopeScaling | None = None) -> int:
        """A table of angles by the model's own rope keys, or with another base or scaling; its index for `rope`."""
        c = self.c
        scaling, factors = scaling or c.rope_scaling, None
        if self.has("rope_freqs.weight"):
            factors = "rope_freqs.weight"
        elif self.has("rope_factors_long.weight") and self.has("rope_factors_short.weight"):
            long = self.n_ctx > scaling.original_context
            factors = "rope_factors_long.weight" if long else "rope_factors_short.weight"
        elif scaling.kind == "longrope":
            raise self.gguf.error("tensor rope_factors_long.weight", "is missing; longrope scaling needs it")
        if factors:
            self.vector(factors, c.n_rot // 2)
        self.plan.ropes.append(Rope(c.n_rot, base or c.rope_base, scaling, factors))
        return len(self.plan.ropes) - 1

    def rope(self, x: View, heads: int, index: int, *, neox: bool) -> None:
        """Rotate each of `heads` parts of the rows in place by table `index`. neox: pairs are (i, i + n_rot / 2)."""
        table = self.plan.ropes[index]
        if table.n_rot:
            self._op("rope.neox" if neox else "rope.norm", [x], [x], x.rows, "rope", batch=BATCH, x=x, ldx=x.ld,
                     heads=heads, d=x.n // heads, n_rot=table.n_rot, table=Special("rope", index))  # fmt: skip

    def attention(self, q: View, k: View, v: View, *, scale: float, window: int = 0, cap: float = 0.0) -> View:
        """Write k and v to the cache, attend with q: (rows, n_head * d_v). Each call is a cache layer of its own."""
        c, kv, index = self.c, self.kv_type, len(self.plan.cache)
        self.plan.cache.append(CacheLayer(c.n_head_kv, c.d_k, c.d_v))
        cache: dict[str, Value] = {
            "batch": BATCH, "cache": Special("cache", index), "page_bytes": Special("page_bytes", index),
            "d_k": c.d_k, "d_v": c.d_v,
        }  # fmt: skip
        self._op(f"kv.write[{kv}]", [k, v], [], k.rows, "kv", k=k, v=v, ldk=k.ld, ldv=v.ld, heads=c.n_head_kv,
                 **cache).state = True  # fmt: skip
        y = self._new("attn", c.n_head * c.d_v)
        attend: dict[str, Value] = {
            **cache, "q": q, "ldq": q.ld, "heads": c.n_head, "kv_heads": c.n_head_kv, "window": window,
            "cursor": CURSOR, "scale": scale, "cap": cap,
        }  # fmt: skip
        if self.phase == "prompt":
            attend |= self._scratch(layout.attention_scratch_bytes(c.d_k, c.d_v, c.n_head // c.n_head_kv))
            self._op(f"attn.prompt[{kv}]", [q], [y], "", "attention", y=y, ldy=y.ld, **attend).state = True
            return y
        pieces = (min(window, self.n_ctx) if window else self.n_ctx) // layout.PIECE + 2
        partial = Buffer("pieces", 4 * pieces * c.n_head * (c.d_v + 2))
        parts: dict[str, Value] = {"partial": partial, "ld_partial": partial.row_bytes}
        attend |= self._scratch(layout.decode_scratch_bytes())
        self._op(f"attn.decode[{kv}]", [q], [partial], "", "attention", **parts, **attend).state = True
        self._op("attn.merge", [partial], [y], y.rows, "attention", batch=BATCH, heads=c.n_head, d_v=c.d_v,
                 window=window, y=y, ldy=y.ld, **parts)  # fmt: skip
        return y


def attention_scale(c: Config) -> float:
    """1 / sqrt(d_k), or the file's own `attention.scale`."""
    return c.real("attention.scale", 0.0) or 1 / math.sqrt(c.d_k)


def unscaled(c: Config) -> RopeScaling:
    """The model's rope without its context extension."""
    return dataclasses.replace(c.rope_scaling, kind="none", factor=1.0)
