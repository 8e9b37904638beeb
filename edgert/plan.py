"""A plan: the operations of one phase in order, and what they read and write. `builder` makes it, `program` runs it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .config import RopeScaling

STATE = 2  # the window of states: a token sees what the one before it left


@dataclass(eq=False)
class Buffer:
    """Rows of bytes in the arena, one row (or tile) per `per` tokens. `version` changes when an op writes into it."""

    name: str
    row_bytes: int
    rows: str = "tokens"  # which count bounds the rows: "tokens", "out" (rows that want logits), "slots" (of experts)
    per: int = 1
    version: int = 0


@dataclass(frozen=True)
class View:
    """Columns of a buffer of f32: `n` values from `start` in each row."""

    buffer: Buffer
    start: int
    n: int

    @property
    def ld(self) -> int:
        """Bytes from one row to the next."""
        return self.buffer.row_bytes

    @property
    def rows(self) -> str:
        return self.buffer.rows

    def columns(self, start: int, n: int) -> View:
        return View(self.buffer, self.start + start, n)


@dataclass(frozen=True)
class Weight:
    """Address of a tensor in the mapped file, or `offset` bytes into it."""

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Count:
    """Address of a row count: "tokens", "out" or "slots"."""

    of: str


@dataclass(frozen=True)
class Special:
    """A value known when the plan is linked: "batch", "cursor", "scratch", "cache" of a layer, "rope" table, ..."""

    kind: str
    index: int = 0


Value = int | float | View | Buffer | Weight | Count | Special


@dataclass
class Op:
    """One kernel call. `rows`: whose rows its threads split as act.first_row does ("" for another way)."""

    kernel: str
    fields: dict[str, Value]
    reads: list[Buffer]
    writes: list[Buffer]
    rows: str
    label: str
    layer: int
    weight_bytes: int = 0
    state: bool = False  # touches what is outside the arena: KV cache, logits


@dataclass(frozen=True)
class CacheLayer:
    """Shape of one layer's KV cache, or the bytes of its state (`window` STATE, no heads)."""

    heads: int
    d_k: int
    d_v: int
    window: int = 0  # tokens that a token sees, itself among them; 0: all
    state: int = 0


@dataclass(frozen=True)
class Rope:
    """A table of angles; `factors` is the tensor that divides the frequencies."""

    n_rot: int
    base: float
    scaling: RopeScaling
    factors: str | None


@dataclass
class Plan:
    """What a builder produced."""

    phase: str
    experts: int = 0
    experts_used: int = 0
    ops: list[Op] = field(default_factory=list)
    cache: list[CacheLayer] = field(default_factory=list)
    ropes: list[Rope] = field(default_factory=list)
    constants: list[npt.NDArray[np.float32]] = field(default_factory=list)  # Special("constant", index)
    used: set[str] = field(default_factory=set)  # tensors
    hidden: View | None = None  # the final hidden states of the rows that want logits,
    n_body: int = 0  # after so many ops
    scratch: int = 64  # bytes per thread
