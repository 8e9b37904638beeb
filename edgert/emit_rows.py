"""Builder methods that turn rows into rows: embeddings, norms, residuals, gates."""

from __future__ import annotations

from .emit import BATCH, Emitter
from .plan import Count, View, Weight


class RowOps(Emitter):
    """What every layer is made of."""

    def embed(self, scale: float = 1.0) -> View:
        """The residual stream: rows of token_embd.weight, scaled."""
        n, name = self.c.n_embd, "token_embd.weight"
        kind = self.tensor(name, n, self.c.n_vocab).type.name
        x = self._new("x", n)
        self._op(f"embed.lookup[{kind}]", [], [x], x.rows, name, batch=BATCH, w=Weight(name), k=n, y=x, ldy=x.ld,
                 scale=scale, **self._scratch(8 * n + 4096))  # fmt: skip
        return x

    def rmsnorm(self, x: View, name: str, *, groups: int = 1, out: View | None = None, add: bool = False) -> View:
        """Norm of each row, or of each of its `groups` equal parts (heads). out: where to, perhaps x; add: += there."""
        n = x.n // groups
        weight, y = self.vector(name, n), out or self._new("norm", x.n, x.rows)
        self._op("norm.rmsnorm", [x, y] if add else [x], [y], x.rows, name, count=Count(x.rows), x=x, ldx=x.ld,
                 w=weight, y=y, ldy=y.ld, n=n, groups=groups, add_to=int(add), eps=self.c.eps)  # fmt: skip
        return y

    def residual(self, x: View, h: View, name: str, scale: float = 1.0) -> None:
        """x += scale * (W h), W = tensor `name`."""
        if scale == 1:
            self.matmul(h, name, x.n, add_to=x)
        else:
            self.add(self.matmul(h, name, x.n), x, scale)

    def add(self, x: View, y: View, scale: float = 1.0) -> None:
        """y += scale * x, for rows of the same stride."""
        if x.ld != y.ld:
            raise AssertionError("add needs rows of the same stride")
        self._op("act.add", [x, y], [y], y.rows, "add", count=Count(y.rows), x=x, y=y, ld=y.ld, n=y.n, scale=scale)

    def glu(self, gate: View, up: View, unit: str) -> View:
        """unit(gate) * up; unit is "silu", "gelu" or "relu2"."""
        if gate.n % 16:
            raise self.gguf.error(f"{self.c.arch}.feed_forward_length", f"{gate.n} is not a multiple of 16")
        if gate.ld != up.ld:
            raise AssertionError("gate and up need rows of the same stride")
        y = self._new("ffn", gate.n, gate.rows)
        self._op(f"act.gated[{unit}]", [gate, up], [y], gate.rows, unit, count=Count(gate.rows), gate=gate, up=up,
                 ld=gate.ld, y=y, ldy=y.ld, n=gate.n)  # fmt: skip
        return y
