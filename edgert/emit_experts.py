"""Builder methods for mixtures of experts."""

from __future__ import annotations

from .emit import EXPERT_OF, SEGMENTS, bias_of
from .emit_rows import RowOps
from .plan import Buffer, Count, Special, View

SOFTMAX, SIGMOID, SOFTMAX_OF_CHOSEN = 1, 2, 3  # gating, as GGUF numbers it


class ExpertOps(RowOps):
    """What layers of experts are made of."""

    def moe(self, x: View, n_ff: int, unit: str, *, normalise: bool, scale: float = 1.0, gating: int = SOFTMAX) -> View:
        """Mixture of experts of this block: `expert_used_count` experts a token (Shazeer et al. 2017).

        normalise: weights of a token sum to 1. gating: how GGUF numbers what makes weights of the router's logits.
        """
        c, p, tokens = self.c, f"blk.{self.layer}.", Count("tokens")
        ids, weights, slot_of = (Buffer(n, 4 * c.n_expert_used) for n in ("experts", "weights", "slot_of"))
        self._route(x, p, ids, weights, normalise, scale, gating)
        tables = Buffer("slot_tables", 0)
        self._op("moe.group", [ids], [tables, slot_of], "", "group", count=tokens, ids=ids, slot_of=slot_of,
                 used=c.n_expert_used, experts=c.n_expert, align=self._slot_align(p), slots=Count("slots"),
                 segments=SEGMENTS, source=Special("source"), expert_of=EXPERT_OF)  # fmt: skip
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

    def shared_expert(self, x: View, y: View, n_ff: int) -> None:
        """y += the expert that all tokens go through, behind a gate where the file has one."""
        p = f"blk.{self.layer}."
        hidden = self.ffn(x, "silu", n_ff=n_ff, suffix="_shexp")
        gate = p + "ffn_gate_inp_shexp.weight"
        if not self.has(gate):
            self.residual(y, hidden, p + "ffn_down_shexp.weight")
            return
        out = self.matmul(hidden, p + "ffn_down_shexp.weight", y.n)
        self._op("rows.gate", [x, out], [out], out.rows, gate, count=Count(out.rows), x=x, ldx=x.ld,
                 w=self.vector(gate, x.n), k=x.n, y=out, ldy=out.ld, n=out.n)  # fmt: skip
        self.add(out, y)

    def _route(self, x: View, p: str, ids: Buffer, weights: Buffer, normalise: bool, scale: float, gating: int) -> None:
        c = self.c
        if gating not in (SOFTMAX, SIGMOID, SOFTMAX_OF_CHOSEN):
            raise c.error("expert_gating_func", f"{gating} is not supported; known: 1 softmax, 2 sigmoid, 3 of chosen")
        groups = c.integer("expert_group_count", 0) or 1
        used = c.integer("expert_group_used_count", 0) or groups
        if c.n_expert % groups or used > groups or (used < groups and c.n_expert_used > c.n_expert // groups * used):
            raise c.error("expert_group_count", f"{used} of {groups} groups do not fit {c.n_expert} experts")
        if used < groups and c.n_expert // groups < 2:
            raise c.error("expert_group_count", f"{groups} groups of {c.n_expert} experts have only one each")
        logits = View(Buffer("router", 8 * c.n_expert), 0, c.n_expert)  # the kernel works in the second half
        self.matmul(x, p + "ffn_gate_inp.weight", c.n_expert, out=logits)
        bias = p + "exp_probs_b.bias"
        self._op("moe.route", [logits], [ids, weights, logits], x.rows, "route", count=Count(x.rows), logits=logits,
                 ldl=logits.ld, experts=c.n_expert, used=c.n_expert_used, groups=groups, groups_used=used,
                 bias=self.vector(bias, c.n_expert) if self.has(bias) else 0, gating=gating, ids=ids, weights=weights,
                 normalise=int(normalise), factor=scale)  # fmt: skip

    def _slot_align(self, p: str) -> int:
        """Slots of one expert start on a tile where a slab matmul reads them, anywhere for native ones."""
        experts = (t for n, t in self.gguf.tensors.items() if n.startswith(p) and n.endswith("_exps.weight"))
        return 1 if all(self._native(t.type.name, t.shape[0]) for t in experts) else self.level.tile

    def _expert(self, x: View, name: str, n: int) -> View:
        self.tensor(name, x.n, n, self.c.n_expert)
        y = self._new(name.split(".")[-2], n, "slots")
        self._matmul(x, name, n, y, experts=self.c.n_expert)
        scales, bias = self.scale_of(name, self.c.n_expert), bias_of(name)
        if scales is not None:
            self._op("moe.scale", [y], [y], "slots", "scale", count=Count("slots"), scales=self.constant(scales),
                     expert_of=EXPERT_OF, y=y, ld=y.ld, n=n)  # fmt: skip
        if self.has(bias):
            self._op("moe.add_bias", [y], [y], "slots", bias, count=Count("slots"),
                     bias=self.vector(bias, n, self.c.n_expert), expert_of=EXPERT_OF, y=y, ld=y.ld, n=n)  # fmt: skip
        return y
