"""Builder methods for layers with a state per sequence: convolutions, selective scans, the gated delta rule."""

from __future__ import annotations

import numpy as np

from .emit import bias_of
from .emit_rows import RowOps
from .plan import STATE, CacheLayer, Count, Special, Value, View


class StateOps(RowOps):
    """What recurrent layers are made of. Each call that keeps a state is a cache layer of its own."""

    def _state(self, values: int) -> dict[str, Value]:
        """The fields of a kernel that keeps so many f32 for each sequence."""
        layers = self.plan.cache
        if not any(layer.window == 0 for layer in layers):
            layers.append(CacheLayer(0, 0, 0))  # empty pages, by which prompts that begin alike are found
        index = len(layers)
        layers.append(CacheLayer(0, 0, 0, STATE, 4 * values))
        group = list(dict.fromkeys(layer.window for layer in layers)).index(STATE)
        return {
            "batch": Special("batch", group), "cache": Special("cache", index),
            "page_bytes": Special("page_bytes", index),
        }  # fmt: skip

    def short_conv(self, x: View, name: str, n: int, *, key: str = "ssm.conv_kernel", gated: bool = False) -> View:
        """Causal convolution of n channels with tensor `name` (taps, n), whose taps are counted by `key`.

        gated: x has three parts, b, c, x, and the result is c * conv(b * x); otherwise a SiLU follows.
        """
        c, taps, bias = self.c, self.c.integer(key, at_least=2, at_most=64), bias_of(name)
        if n % 16:
            raise c.error(key.split(".")[0] + ".inner_size", f"gives {n} channels, not a multiple of 16")
        weights = self.floats(name, taps, n).reshape(n, taps).T
        y, form = self._new("conv", n), "gated" if gated else "silu"
        self._op(f"conv.short[{form}]", [x], [y], "", name, x=x, ldx=x.ld,
                 w=self.constant(np.ascontiguousarray(weights)), y=y, ldy=y.ld, n=n, taps=taps,
                 bias=self.vector(bias, n) if self.has(bias) else 0,
                 **self._state((taps - 1) * n)).state = True  # fmt: skip
        return y

    def mamba(self, h: View) -> View:
        """Mamba's mixer of this block, up to its output matrix (Gu & Dao 2023)."""
        c, p = self.c, f"blk.{self.layer}."
        n, states, rank = self._inner(), self._states(), c.integer("ssm.time_step_rank", at_least=1, at_most=1 << 16)
        both = self.matmul(h, p + "ssm_in.weight", 2 * n)
        x, z = self.short_conv(both.columns(0, n), p + "ssm_conv1d.weight", n), both.columns(n, n)
        mixed = self.matmul(x, p + "ssm_x.weight", rank + 2 * states)
        dt, b, cs = mixed.columns(0, rank), mixed.columns(rank, states), mixed.columns(rank + states, states)
        if c.flag("ssm.dt_b_c_rms", False):
            for part in (dt, b, cs):
                self.plain_norm(part)
        steps = self.matmul(self._apart(dt), p + "ssm_dt.weight", n)
        a = self.floats(p + "ssm_a", states, n).reshape(n, states).T
        y = self._new("scan", n)
        self._op("ssm.scan", [x, steps, mixed, both], [y], "", "scan", x=x, ldx=x.ld, dt=steps, lddt=steps.ld,
                 a=self.constant(np.ascontiguousarray(a)), b=b, c=cs, ldbc=mixed.ld, d=self.vector(p + "ssm_d", n), z=z,
                 ldz=z.ld, y=y, ldy=y.ld, n=n, states=states, **self._state(n * states)).state = True  # fmt: skip
        return y

    def mamba2(self, h: View) -> View:
        """Mamba 2's mixer of this block, up to its output matrix (Dao & Gu 2024). Its norm may be absent."""
        c, p = self.c, f"blk.{self.layer}."
        n, states = self._inner(), self._states()
        heads = c.integer("ssm.time_step_rank", at_least=1, at_most=1 << 16)
        groups = c.integer("ssm.group_count", 1, at_least=1, at_most=heads)
        if n % (16 * heads) or heads % groups:
            raise c.error("ssm.time_step_rank", f"{heads} heads in {groups} groups do not fit {n} channels")
        shared = groups * states
        all_ = self.matmul(h, p + "ssm_in.weight", 2 * n + 2 * shared + heads)
        z, dt = all_.columns(0, n), all_.columns(2 * n + 2 * shared, heads)
        mixed = self.short_conv(all_.columns(n, n + 2 * shared), p + "ssm_conv1d.weight", n + 2 * shared)
        x, b, cs = mixed.columns(0, n), mixed.columns(n, shared), mixed.columns(n + shared, shared)
        y = self._new("scan", n)
        self._op("ssm.scan_heads", [mixed, all_], [y], "", "scan", x=x, ldx=x.ld, dt=dt, lddt=dt.ld,
                 bias=self.vector(p + "ssm_dt.bias", heads), a=self.vector(p + "ssm_a", 1, heads), b=b, c=cs,
                 d=self.vector(p + "ssm_d", 1, heads), z=z, ldz=z.ld, y=y, ldy=y.ld, n=n, heads=heads, groups=groups,
                 states=states, **self._state(n * states)).state = True  # fmt: skip
        if self.has(p + "ssm_norm.weight"):
            weights = self.floats(p + "ssm_norm.weight", n // groups, groups).reshape(groups, -1)
            for i, weight in enumerate(weights):
                self.plain_norm(y.columns(n // groups * i, n // groups), self.constant(weight))
        return y

    def delta_net(self, h: View) -> View:
        """The gated delta net of this block, up to its output matrix (Qwen3-Next)."""
        c, p = self.c, f"blk.{self.layer}."
        d, n = self._states(), self._inner()
        heads = c.integer("ssm.time_step_rank", at_least=1, at_most=1 << 16)
        k_heads = c.integer("ssm.group_count", at_least=1, at_most=heads)
        if n != heads * d or d % 16 or heads % k_heads:
            raise c.error(
                "ssm.inner_size", f"{n} is not {heads} heads (for {k_heads} of keys) of {d}, all multiples of 16"
            )
        wide = k_heads * d
        mixed = self.short_conv(
            self.matmul(h, p + "attn_qkv.weight", 2 * wide + n), p + "ssm_conv1d.weight", 2 * wide + n
        )
        z, ba = self.matmul(h, p + "attn_gate.weight", n), self.matmul(h, p + "ssm_ba.weight", 2 * heads)
        y = self._new("delta", n)
        self._op("delta.net", [mixed, ba], [y], "", "delta net", q=mixed.columns(0, wide), k=mixed.columns(wide, wide),
                 v=mixed.columns(2 * wide, n), ldx=mixed.ld, ba=ba, ldba=ba.ld, a=self.vector(p + "ssm_a", heads),
                 bias=self.vector(p + "ssm_dt.bias", heads), y=y, ldy=y.ld, heads=heads, k_heads=k_heads, d_k=d, d_v=d,
                 eps=c.eps("layer_norm_rms_epsilon"), **self._state(n * d)).state = True  # fmt: skip
        return self.glu(z, self.rmsnorm(y, p + "ssm_norm.weight", groups=heads, out=y), "silu")

    def plain_norm(self, x: View, weight: Value = 0) -> None:
        """RMS norm of some columns in place."""
        self._op("norm.rmsnorm", [x], [x], x.rows, "norm", count=Count(x.rows), x=x, ldx=x.ld, w=weight, y=x, ldy=x.ld,
                 n=x.n, groups=1, add_to=0, eps=self.c.eps("layer_norm_rms_epsilon"))  # fmt: skip

    def _apart(self, x: View) -> View:
        """A copy of some columns, for matmuls that read whole vectors."""
        y = self._new("part", x.n)
        self.copy_heads(x, y, 1, x.n, step_x=0, step_y=0)
        return y

    def _inner(self) -> int:
        n = self.c.integer("ssm.inner_size", at_least=16, at_most=1 << 20)
        if n % 16:
            raise self.c.error("ssm.inner_size", f"{n} is not a multiple of 16")
        return n

    def _states(self) -> int:
        return self.c.integer("ssm.state_size", at_least=1, at_most=1 << 16)
