"""Builder methods for mixtures of experts."""

from __future__ import annotations

from .emit import SEGMENTS
from .emit_rows import RowOps
from .plan import Buffer, Count, Special, View


class ExpertOps(RowOps):
    """What layers of experts are made of."""

    def moe(self, x: View, n_ff: int, unit: str, *, normalise: bool, scale: float = 1.0) -> View:
        """Mixture of experts of this block: softmax router, `expert_used_count` experts a token (Shazeer et al.)."""
        c, p, tokens = self.c, f"blk.{self.layer}.", Count("tokens")
        logits = self.matmul(x, p + "ffn_gate_inp.weight", c.n_expert, bias=False)
        ids, weights, slot_of = (Buffer(n, 4 * c.n_expert_used) for n in ("experts", "weights", "slot_of"))
        self._op("moe.route", [logits], [ids, weights, logits], x.rows, "route", count=tokens, logits=logits, ids=ids,
                 weights=weights, experts=c.n_expert, used=c.n_expert_used, normalise=int(normalise),
                 factor=scale)  # fmt: skip
        tables = Buffer("slot_tables", 0)
        self._op("moe.group", [ids], [tables, slot_of], "", "group", count=tokens, ids=ids, slot_of=slot_of,
                 used=c.n_expert_used, experts=c.n_expert, align=self._slot_align(p), slots=Count("slots"),
                 segments=SEGMENTS, source=Special("source"), expert_of=Special("expert_of"))  # fmt: skip
        pairs = self._new("pairs", x.n, "slots")
        self._op("moe.gather", [x, tables], [pairs], "slots", "gather", count=Count("slots"), source=Special("source"),
                 x=x, ldx=x.ld, y=pairs, ldy=pairs.ld, n=x.n)  # fmt: skip
        if self.has(p + "ffn_gate_up_exps.weight"):
            both = self._expert(pairs, p + "ffn_gate_up_exps.weight", 2 * n_ff)
            gate, up = both.columns(0, n_ff), both.columns(n_ff, n_ff)
        else:
            gate = self._expert(pairs, p + "ffn_gate_exps.weight", n_ff)
            up = self._expert(pairs, p + "ffn_up_exps.weight", n_ff)
        down = self._expert(self.glu(gate, up, unit), p + "ffn_down_exps.weight", c.n_embd)
        y = self._new("moe", c.n_embd)
        self._op("moe.combine", [down, weights, slot_of], [y], y.rows, "combine", count=tokens, x=down, ldx=down.ld,
                 weights=weights, slot_of=slot_of, used=c.n_expert_used, y=y, ldy=y.ld, n=c.n_embd,
                 accumulate=0)  # fmt: skip
        return y

    def _slot_align(self, p: str) -> int:
        """Slots of one expert start on a tile where a slab matmul reads them, anywhere for native ones."""
        experts = [info for name, info in self.gguf.tensors.items() if name.startswith(p) and "_exps." in name]
        return 1 if all(self._native(i.type.name, i.shape[0]) for i in experts) else self.level.tile

    def _expert(self, x: View, name: str, n: int) -> View:
        self.tensor(name, x.n, n, self.c.n_expert)
        y = self._new(name.split(".")[-2], n, "slots")
        self._matmul(x, name, n, y, experts=self.c.n_expert)
        return y
