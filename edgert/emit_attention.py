"""Builder methods for attention: rotary tables, the KV cache, attention itself."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from .config import Config, RopeScaling
from .emit import AMX_CONFIG, BATCH, CURSOR
from .emit_rows import RowOps
from .errors import EdgertError
from .kernels_cpu import layout
from .plan import STATE, Buffer, CacheLayer, Rope, Special, Value, View


class AttentionOps(RowOps):
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
        if factors and self.tensor(factors, c.n_rot // 2).type.name != "F32":
            raise self.gguf.error(f"tensor {factors}", "is not F32")
        self.plan.ropes.append(Rope(c.n_rot, base or c.rope_base, scaling, factors))
        return len(self.plan.ropes) - 1

    def rope(self, x: View, heads: int, index: int, *, neox: bool, step: int = 0) -> None:
        """Rotate each of `heads` parts of the rows in place by table `index`. neox: pairs are (i, i + n_rot / 2).

        step: values from head to head, where that is not x.n / heads.
        """
        table = self.plan.ropes[index]
        if table.n_rot:
            self._op("rope.neox" if neox else "rope.norm", [x], [x], x.rows, "rope", batch=BATCH, x=x, ldx=x.ld,
                     heads=heads, d=step or x.n // heads, n_rot=table.n_rot, table=Special("rope", index))  # fmt: skip

    def qkv(self, h: View, *, clamp: float = 0.0) -> tuple[View, View, View]:
        """Queries, keys and values of this block, from one tensor or three, with biases where the file has them."""
        c, p = self.c, f"blk.{self.layer}."
        sizes = c.n_head * c.d_k, c.n_head_kv * c.d_k, c.n_head_kv * c.d_v
        if self.has(p + "attn_qkv.weight"):
            both = self.matmul(h, p + "attn_qkv.weight", sum(sizes))
            self.clamp(both, clamp)
            q, k, v = (both.columns(sum(sizes[:i]), n) for i, n in enumerate(sizes))
        else:
            q, k, v = (self.matmul(h, f"{p}attn_{x}.weight", n) for x, n in zip("qkv", sizes, strict=True))
            for x in (q, k, v):
                self.clamp(x, clamp)
        return q, k, v

    def attention(self, q: View, k: View, v: View, *, scale: float, window: int = 0, cap: float = 0.0,
                  alibi: float = 0.0, sinks: str = "") -> View:  # fmt: skip
        """Write k and v to the cache, attend with q: (rows, n_head * d_v). Each call is a cache layer of its own.

        Sizes of heads follow from the views: q has n_head of them, k and v as many as fit. alibi: the largest bias.
        sinks: a tensor of scores, one a head, that take part in the softmax without a value.
        """
        kv, index, n_head = self.kv_type, len(self.plan.cache), self.c.n_head
        d_k = q.n // n_head
        n_kv = k.n // d_k
        d_v = v.n // n_kv
        if d_k % 2 or d_v % 16:
            raise self.c.error("attention.value_length", f"{d_k} and {d_v} are not multiples of 2 and 16")
        if kv in layout.KV_QUANTS and (d_k % 32 or d_v % 32):
            raise EdgertError(
                f"kv_type {kv} needs heads in blocks of 32, and block {self.layer} of this model has keys of {d_k} and "
                f"values of {d_v}: take f16"
            )
        if window == STATE:
            raise self.c.error("attention.sliding_window", f"{STATE} is not supported")
        self.plan.cache.append(CacheLayer(n_kv, d_k, d_v, window))
        group = list(dict.fromkeys(layer.window for layer in self.plan.cache)).index(window)
        cache: dict[str, Value] = {
            "batch": Special("batch", group), "cache": Special("cache", index),
            "page_bytes": Special("page_bytes", index), "d_k": d_k, "d_v": d_v,
        }  # fmt: skip
        self._op(f"kv.write[{kv}]", [k, v], [], k.rows, "kv", k=k, v=v, ldk=k.ld, ldv=v.ld, heads=n_kv,
                 **cache).state = True  # fmt: skip
        y = self._new("attn", n_head * d_v)
        attend: dict[str, Value] = {
            **cache, "q": q, "ldq": q.ld, "heads": n_head, "kv_heads": n_kv, "window": window,
            "cursor": CURSOR, "scale": scale, "cap": cap, "alibi": self._slopes(alibi),
        }  # fmt: skip
        sink: Value = self.vector(sinks, n_head) if sinks else 0
        if self.phase == "prompt":
            name, size = "attn_prompt.prompt", layout.attention_scratch_bytes
            if self.level.bf16_tiles and not self.exact:
                name, size, attend["config"] = "attn_amx.prompt", layout.amx_attention_scratch_bytes, AMX_CONFIG
            attend |= self._scratch(size(d_k, d_v, n_head // n_kv))
            self._op(f"{name}[{kv}]", [q], [y], "", "attention", y=y, ldy=y.ld, sinks=sink, **attend).state = True
            return y
        pieces = (min(window, self.n_ctx) if window else self.n_ctx) // layout.PIECE + 2
        partial = Buffer("pieces", 4 * pieces * n_head * (d_v + 2))
        parts: dict[str, Value] = {"partial": partial, "ld_partial": partial.row_bytes}
        attend |= self._scratch(layout.decode_scratch_bytes(d_k, d_v))
        self._op(f"attn_decode.decode[{kv}]", [q], [partial], "", "attention", **parts, **attend).state = True
        self._op("attn_decode.merge", [partial], [y], y.rows, "attention", batch=BATCH, heads=n_head, d_v=d_v,
                 window=window, sinks=sink, y=y, ldy=y.ld, **parts)  # fmt: skip
        return y

    def _slopes(self, largest: float) -> Value:
        """ALiBi's slopes of all heads (Press et al. 2021), a geometric series; 0 where there is no bias."""
        if largest <= 0:
            return 0
        heads = np.arange(self.c.n_head)
        n = 1 << (self.c.n_head.bit_length() - 1)  # heads beyond a power of two lie between the others
        powers = np.where(heads < n, (heads + 1) / n, (2 * (heads - n) + 1) / (2 * n))
        return self.constant(2.0 ** (-largest * powers))

    def scale_by_position(self, x: View, length: int, factor: float) -> None:
        """x *= 1 + factor * ln(1 + floor(position / length)) (Llama 4's temperature for long contexts)."""
        if factor == 0:
            return
        if length < 1:
            raise self.c.error("attention.temperature_scale", "needs the length after which it applies")
        if self.n_ctx <= length:
            return
        table = 1 + factor * np.log1p(np.arange(self.n_ctx) // length)
        self._op("rows.scale_at", [x], [x], x.rows, "temperature", batch=BATCH, table=self.constant(table), y=x,
                 ldy=x.ld, n=x.n)  # fmt: skip


def attention_scale(c: Config) -> float:
    """1 / sqrt(d_k), or the file's own `attention.scale`."""
    return c.real("attention.scale", 0.0) or 1 / math.sqrt(c.d_k)


def unscaled(c: Config) -> RopeScaling:
    """The model's rope without its context extension."""
    return dataclasses.replace(c.rope_scaling, kind="none", factor=1.0)
