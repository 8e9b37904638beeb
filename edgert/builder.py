"""What architectures call to emit operations. Views are f32; tensor names are GGUF's own.

The methods live in `emit` (tensors, matmuls), `emit_rows` (embeddings, norms, gates), `emit_attention`,
`emit_experts` and `emit_states`.
"""

from __future__ import annotations

from .config import Config
from .emit import BATCH
from .emit_attention import AttentionOps, attention_scale, unscaled
from .emit_experts import SIGMOID, SOFTMAX, SOFTMAX_OF_CHOSEN, ExpertOps
from .emit_states import StateOps
from .formats.errors import FormatError
from .plan import Count, Plan, Special, View

__all__ = [
    "SIGMOID", "SOFTMAX", "SOFTMAX_OF_CHOSEN", "Builder", "attention_scale", "check_all_used", "unscaled",
]  # fmt: skip


class Builder(AttentionOps, ExpertOps, StateOps):
    """Emits the operations of one phase into `plan`. `layer` is the block being built, -1 outside of blocks."""

    def head(self, x: View, norm: str, *, scale: float = 1.0, cap: float = 0.0, layernorm: bool = False) -> None:
        """Final norm and logits of the rows that want them: output.weight, or the embeddings when tied."""
        c, logits = self.c, Special("logits")
        rows = self._new("out", c.n_embd, "out")
        self._op("act.gather_rows", [x], [rows], "out", "rows", batch=BATCH, x=x, ldx=x.ld, y=rows, n=c.n_embd)
        name = "output.weight" if self.has("output.weight") else "token_embd.weight"
        self.tensor(name, c.n_embd, c.n_vocab)
        h = self.layernorm(rows, norm) if layernorm else self.rmsnorm(rows, norm)
        self.plan.hidden, self.plan.n_body = h, len(self.plan.ops)
        self._matmul(h, name, c.n_vocab, logits).state = True
        if self.has("output.bias"):
            bias = self.vector("output.bias", c.n_vocab)
            self._op("act.add_bias", [], [], "", "output.bias", count=Count("out"), bias=bias, y=logits,
                     ld=4 * c.n_vocab, n=c.n_vocab).state = True  # fmt: skip
        if (factor := self.scale_of("output.weight")) is not None:
            scale *= float(factor[0])
        if scale != 1 or cap:
            self._op("act.head_scale", [], [], "", "logits", count=Count("out"), batch=BATCH, n=c.n_vocab, factor=scale,
                     cap=cap).state = True  # fmt: skip


def check_all_used(c: Config, plan: Plan) -> None:
    """FormatError for a tensor or a key that the architecture did not use: it might change the result."""
    optional = {"rope_factors_long.weight", "rope_factors_short.weight"}
    for name in c.gguf.tensors:
        if name not in plan.used and name not in optional:
            raise FormatError(f"{c.gguf.path}: tensor {name}: not known to {c.arch} models; results would be wrong")
    c.check_all_read()
