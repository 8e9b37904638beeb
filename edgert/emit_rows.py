"""Builder methods that turn rows into rows: embeddings, norms, residuals, gates."""

from __future__ import annotations

from .emit import BATCH, Emitter, bias_of
from .plan import Count, View, Weight


class RowOps(Emitter):
    """What every layer is made of."""

    # ---- embeddings ----

    def embed(self, scale: float = 1.0) -> View:
        """The residual stream: rows of token_embd.weight, scaled."""
        n, name = self.c.n_embd, "token_embd.weight"
        kind = self.tensor(name, n, self.c.n_vocab).type.name
        x = self._new("x", n)
        self._op(f"embed.lookup[{kind}]", [], [x], x.rows, name, batch=BATCH, w=Weight(name), k=n, y=x, ldy=x.ld,
                 scale=scale, **self._scratch(8 * n + 4096))  # fmt: skip
        return x

    def add_positions(self, x: View) -> None:
        """x += learned positions: rows of position_embd.weight, which bounds the context."""
        name, c = "position_embd.weight", self.c
        kind = self.tensor(name, x.n, c.n_ctx_train).type.name
        if self.n_ctx > c.n_ctx_train:
            raise c.error("context_length", f"{c.n_ctx_train} positions were learned; ask for no larger context")
        self._op(f"embed.positions[{kind}]", [x], [x], x.rows, name, batch=BATCH, w=Weight(name), k=x.n, y=x, ldy=x.ld,
                 **self._scratch(12 * x.n + 4096))  # fmt: skip

    # ---- norms ----

    def rmsnorm(self, x: View, name: str, *, groups: int = 1, out: View | None = None, add: bool = False) -> View:
        """Norm of each row, or of each of its `groups` equal parts (heads). out: where to, perhaps x; add: += there.

        A bias of that name is added where the file has one.
        """
        n = x.n // groups
        weight, y = self.vector(name, n), out or self._new("norm", x.n, x.rows)
        self._op("norm.rmsnorm", [x, y] if add else [x], [y], x.rows, name, count=Count(x.rows), x=x, ldx=x.ld,
                 w=weight, y=y, ldy=y.ld, n=n, groups=groups, add_to=int(add),
                 eps=self.c.eps("layer_norm_rms_epsilon"))  # fmt: skip
        self.add_bias(y, bias_of(name))
        return y

    def layernorm(self, x: View, name: str, *, groups: int = 1, out: View | None = None) -> View:
        """Norm of each row, with a bias where the file has one; of `groups` parts (heads) with weights of their own."""
        n, bias = x.n // groups, bias_of(name)
        weight = self.vector(name, n, groups) if groups > 1 else self.vector(name, n)
        y = out or self._new("norm", x.n, x.rows)
        self._op("norm.layernorm", [x], [y], x.rows, name, count=Count(x.rows), x=x, ldx=x.ld, w=weight,
                 bias=self.vector(bias, n) if self.has(bias) else 0, y=y, ldy=y.ld, n=n, groups=groups,
                 w_step=4 * n if groups > 1 else 0, eps=self.c.eps("layer_norm_epsilon"))  # fmt: skip
        return y

    # ---- sums, clamps, scales ----

    def residual(self, x: View, h: View, name: str, scale: float = 1.0) -> None:
        """x += scale * (W h), W = tensor `name`."""
        if scale == 1:
            self.matmul(h, name, x.n, add_to=x)
        else:
            self.add(self.matmul(h, name, x.n), x, scale)

    def clamp(self, y: View, limit: float) -> None:
        """y within +-limit; 0: no limit."""
        if limit > 0:
            self._op("rows.clamp", [y], [y], y.rows, "clamp", count=Count(y.rows), y=y, ld=y.ld, n=y.n, limit=limit)

    def rows(self, name: str, n: int) -> View:
        """Rows of n values that other operations fill."""
        return self._new(name, n)

    def copy_heads(self, x: View, y: View, heads: int, n: int, *, step_x: int, step_y: int) -> None:
        """The first n of each head of x -> y; steps are in values from head to head (0: the same head again)."""
        self._op("rows.copy_heads", [x], [y], y.rows, "heads", count=Count(y.rows), x=x, ldx=x.ld, step_x=4 * step_x,
                 y=y, ldy=y.ld, step_y=4 * step_y, heads=heads, n=n)  # fmt: skip

    # ---- feed-forward ----

    def glu(self, gate: View, up: View, unit: str) -> View:
        """unit(gate) * up; unit is "silu", "gelu", "relu2" or "swiglu_oai"."""
        self._check_width(gate)
        if gate.ld != up.ld:
            raise AssertionError("gate and up need rows of the same stride")
        y = self._new("ffn", gate.n, gate.rows)
        self._op(f"unit.gated[{unit}]", [gate, up], [y], gate.rows, unit, count=Count(gate.rows), gate=gate, up=up,
                 ld=gate.ld, y=y, ldy=y.ld, n=gate.n)  # fmt: skip
        return y

    def unit(self, x: View, unit: str) -> View:
        """unit(x) in place."""
        self._check_width(x)
        self._op(f"unit.plain[{unit}]", [x], [x], x.rows, unit, count=Count(x.rows), x=x, ldx=x.ld, y=x, ldy=x.ld,
                 n=x.n)  # fmt: skip
        return x

    def ffn(self, h: View, unit: str, *, gated: bool = True, n_ff: int = 0, suffix: str = "") -> View:
        """The hidden rows of this block's feed-forward; gate and up may lie in one tensor, ffn_up, gate first."""
        n, p = n_ff or self.c.n_ff(self.layer), f"blk.{self.layer}."
        gate, up = f"{p}ffn_gate{suffix}.weight", f"{p}ffn_up{suffix}.weight"
        if not gated:
            return self.unit(self.matmul(h, up, n), unit)
        if self.has(gate):
            return self.glu(self.matmul(h, gate, n), self.matmul(h, up, n), unit)
        both = self.matmul(h, up, 2 * n)
        return self.glu(both.columns(0, n), both.columns(n, n), unit)

    def _check_width(self, x: View) -> None:
        if x.n % 16:
            raise self.c.error("feed_forward_length", f"{x.n} is not a multiple of 16")
