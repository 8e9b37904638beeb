"""The plan: architectures emit operations here; `program.Program` lays them out in memory and runs them.

A builder is made per phase. In the "prompt" phase matmuls are slab matmuls over tiles of tokens; in the "decode" phase
they read native blocks, one dot per row and token. In exact precision both phases use the f32 slab matmul.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from .config import Config, RopeScaling
from .formats.errors import FormatError
from .formats.gguf import Gguf, TensorInfo
from .kernels_cpu import layout
from .kernels_cpu.dense_types import BLOCKS, FLOAT_TYPES, INTEGER_TYPES
from .kernels_cpu.isa import Level


@dataclass(eq=False)
class Buffer:
    """Rows of bytes in the arena, one row (or tile) per `per` tokens. `version` changes when an op writes into it."""

    name: str
    row_bytes: int
    rows: str = "tokens"  # "tokens", "out", "slots" or "pairs": which count bounds the rows
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
        return self.buffer.row_bytes

    def columns(self, start: int, n: int) -> View:
        return View(self.buffer, self.start + start, n)


@dataclass(frozen=True)
class Weight:
    """A tensor's place in the file, bound to an address when the program is linked."""

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Count:
    """Address of a row count: "tokens", "out" or "slots"."""

    of: str


@dataclass(frozen=True)
class Special:
    """Addresses known at link time: "batch", "cursor", "scratch", "zero", ("cache", layer), ("rope", index)..."""

    kind: str
    index: int = 0


Value = int | float | View | Buffer | Weight | Count | Special


@dataclass
class Op:
    kernel: str
    fields: dict[str, Value]
    reads: list[Buffer]
    writes: list[Buffer]
    rows: str  # whose rows are split over threads as in act.first_row: "tokens", "out", "slots", or "" for another way
    label: str = ""
    weight_bytes: int = 0
    state: bool = False  # touches the KV cache
    layer: int = -1


@dataclass
class CacheLayer:
    heads: int
    d_k: int
    d_v: int


@dataclass
class Rope:
    n_rot: int
    base: float
    scaling: RopeScaling
    factors: str | None  # tensor that divides the frequencies


@dataclass
class Plan:
    """What a builder produced."""

    phase: str
    ops: list[Op] = field(default_factory=list)
    cache: list[CacheLayer] = field(default_factory=list)
    ropes: list[Rope] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    scratch: int = 64
    experts_used: int = 0
    experts: int = 0


class Builder:
    """Emits operations. Views are f32 unless said otherwise; tensor names are GGUF's own."""

    def __init__(self, config: Config, phase: str, precision: str, level: Level, kv_type: str, n_ctx: int) -> None:
        self.c, self.gguf, self.phase, self.level, self.n_ctx = config, config.gguf, phase, level, n_ctx
        self.exact = precision == "exact"
        self.kv_type = "f32" if self.exact else kv_type
        self.plan = Plan(phase, experts=config.n_expert, experts_used=config.n_expert_used)
        self.layer = -1
        self._quantised: dict[tuple[int, int, str], Buffer] = {}

    # ---- tensors ----

    def has(self, name: str) -> bool:
        return name in self.gguf.tensors

    def tensor(self, name: str, *shape: int) -> TensorInfo:
        """The tensor `name` of exactly `shape` (GGUF order), or FormatError."""
        info = self.gguf.tensors.get(name)
        if info is None:
            raise self.gguf.error(f"tensor {name}", f"is missing; {self.c.arch} models have it")
        if tuple(info.shape) != shape:
            raise self.gguf.error(f"tensor {name}", f"has shape {tuple(info.shape)}, must be {shape}")
        self.plan.used.add(name)
        return info

    def vector(self, name: str, n: int) -> Weight:
        info = self.tensor(name, n)
        if info.type.name != "F32":
            raise self.gguf.error(f"tensor {name}", f"is {info.type.name}, norms and biases must be F32")
        return Weight(name)

    # ---- operations ----

    def embed(self, scale: float = 1.0) -> View:
        """The residual stream: rows of token_embd.weight."""
        n, name = self.c.n_embd, "token_embd.weight"
        info = self.tensor(name, n, self.c.n_vocab)
        kind = self._type(info)
        x = self._new("x", n)
        self._scratch(8 * n + 4096)
        self._op(
            f"embed.lookup[{kind}]",
            [],
            [x.buffer],
            "tokens",
            name,
            batch=Special("batch"),
            w=Weight(name),
            k=n,
            y=x,
            ldy=x.ld,
            scratch=Special("scratch"),
            ld_scratch=Special("ld_scratch"),
            scale=scale,
        )
        return x

    def rmsnorm(self, x: View, name: str, *, groups: int = 1, out: View | None = None, add: bool = False) -> View:
        """Norm of each row, or of each of `groups` equal parts of it (heads). `out=x` works in place."""
        n = x.n // groups
        weight = self.vector(name, n)
        y = out or self._new("norm", x.n, x.buffer.rows)
        self._op(
            "norm.rmsnorm",
            [x.buffer],
            [y.buffer],
            x.buffer.rows,
            name,
            count=Count(x.buffer.rows),
            x=x,
            ldx=x.ld,
            w=weight,
            y=y,
            ldy=y.ld,
            n=n,
            groups=groups,
            add_to=int(add),
            eps=self.c.eps,
        )
        return y

    def matmul(self, x: View, name: str, n: int, *, add_to: View | None = None, bias: bool = True) -> View:
        """x @ W^T, W (n, x.n) = tensor `name`, plus `name`'s bias where the file has one; added to `add_to` if given."""
        info = self.tensor(name, x.n, n)
        y = add_to or self._new(name.rsplit(".", 2)[-2], n, x.buffer.rows)
        self._matmul(x, name, info, n, y, accumulate=add_to is not None)
        bias_name = name.removesuffix("weight") + "bias"
        if bias and self.has(bias_name):
            self._op(
                "act.add_bias",
                [y.buffer],
                [y.buffer],
                y.buffer.rows,
                bias_name,
                count=Count(y.buffer.rows),
                bias=self.vector(bias_name, n),
                y=y,
                ld=y.ld,
                n=n,
            )
        return y

    def _matmul(self, x: View, name: str, info: TensorInfo, n: int, y: View | Special, *, accumulate: bool = False,
                experts: int = 0) -> None:  # fmt: skip
        kind, k = self._type(info), x.n
        per_expert = info.nbytes // experts if experts else 0
        writes = [y.buffer] if isinstance(y, View) else []
        ld = y.ld if isinstance(y, View) else 4 * n
        common: dict[str, Value] = {
            "count": Count(x.buffer.rows), "w": Weight(name), "n": n, "k": k, "y": y, "ldy": ld,
            "accumulate": int(accumulate), "cursor": Special("cursor"), "expert_bytes": per_expert,
        }  # fmt: skip
        reads = [x.buffer, *writes] if accumulate else [x.buffer]
        if self.phase == "decode" and not self.exact and (kind in FLOAT_TYPES or kind in INTEGER_TYPES):
            source = x if kind in FLOAT_TYPES else self._q8_rows(x)
            kernel = f"gemv.dense[{kind}]" if kind in FLOAT_TYPES else f"gemv.decode[{kind}]"
            buffer = source.buffer if isinstance(source, View) else source
            common |= {"x": source, "ldx": buffer.row_bytes, "experts": Special("expert_of") if experts else 0}
            self._op(kernel, [buffer, *reads[1:]], writes, "", name, info.nbytes, **common)
            return
        form = self._tile_form(kind, k)
        tiles = self._tiles(x, form)
        self._scratch(layout.slab_scratch_bytes(k, self.level.tile))
        common |= {
            "x": tiles, "scratch": Special("scratch"), "ld_scratch": Special("ld_scratch"),
            "experts": experts or 1, "segments": Special("segments") if experts else 0,
        }  # fmt: skip
        if form == "bf16":
            common["config"] = Special("amx_config")
        kernel = {"q8": "gemm.prompt", "f32": "gemm.exact", "bf16": "amx.prompt"}[form] + f"[{kind}]"
        self._op(kernel, [tiles, *reads[1:]], writes, "", name, info.nbytes, **common)

    def rope(self, x: View, heads: int, index: int, *, neox: bool) -> None:
        """Rotate each of `heads` parts of the rows in place by table `index` (see `rope_table`)."""
        rope = self.plan.ropes[index]
        if not rope.n_rot:
            return
        self._op(
            "rope.neox" if neox else "rope.norm",
            [x.buffer],
            [x.buffer],
            "tokens",
            "rope",
            batch=Special("batch"),
            x=x,
            ldx=x.ld,
            heads=heads,
            d=x.n // heads,
            n_rot=rope.n_rot,
            table=Special("rope", index),
        )

    def rope_table(self, *, base: float | None = None, scaling: RopeScaling | None = None) -> int:
        """A table of angles from the model's own rope keys, or with another base or scaling; returns its index."""
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

    def attention(self, q: View, k: View, v: View, *, scale: float, window: int = 0, cap: float = 0.0) -> View:
        """Write k and v to the cache, attend with q; (rows, heads * d_v). One call is one cache layer."""
        c, kv = self.c, self.kv_type
        index = len(self.plan.cache)
        self.plan.cache.append(CacheLayer(c.n_head_kv, c.d_k, c.d_v))
        cache: dict[str, Value] = {
            "batch": Special("batch"), "cache": Special("cache", index), "page_bytes": Special("page_bytes", index),
            "d_k": c.d_k, "d_v": c.d_v,
        }  # fmt: skip
        self._op(
            f"kv.write[{kv}]",
            [k.buffer, v.buffer],
            [],
            "tokens",
            "kv",
            k=k,
            v=v,
            ldk=k.ld,
            ldv=v.ld,
            heads=c.n_head_kv,
            **cache,
        )
        self.plan.ops[-1].state = True
        y = self._new("attn", c.n_head * c.d_v)
        common: dict[str, Value] = {
            **cache, "q": q, "ldq": q.ld, "heads": c.n_head, "kv_heads": c.n_head_kv, "window": window,
            "scratch": Special("scratch"), "ld_scratch": Special("ld_scratch"), "cursor": Special("cursor"),
            "scale": scale, "cap": cap,
        }  # fmt: skip
        if self.phase == "decode":
            pieces = (window or self.n_ctx) // layout.PIECE + 2
            partial = self._raw("pieces", 4 * pieces * c.n_head * (c.d_v + 2))
            self._scratch(layout.decode_scratch_bytes())
            self._op(
                f"attn.decode[{kv}]",
                [q.buffer],
                [partial],
                "",
                "attention",
                partial=partial,
                ld_partial=partial.row_bytes,
                **common,
            )
            self.plan.ops[-1].state = True
            self._op(
                "attn.merge",
                [partial],
                [y.buffer],
                "tokens",
                "attention",
                batch=Special("batch"),
                partial=partial,
                ld_partial=partial.row_bytes,
                heads=c.n_head,
                d_v=c.d_v,
                window=window,
                y=y,
                ldy=y.ld,
            )
        else:
            self._scratch(layout.attention_scratch_bytes(c.d_k, c.d_v, c.n_head // c.n_head_kv))
            self._op(f"attn.prompt[{kv}]", [q.buffer], [y.buffer], "", "attention", y=y, ldy=y.ld, **common)
            self.plan.ops[-1].state = True
        return y

    def glu(self, gate: View, up: View, unit: str) -> View:
        """unit(gate) * up; unit is "silu", "gelu" or "relu2"."""
        if gate.n % 16:
            raise self.gguf.error(f"{self.c.arch}.feed_forward_length", f"{gate.n} is not a multiple of 16")
        y = self._new("ffn", gate.n, gate.buffer.rows)
        if gate.ld != up.ld:
            raise AssertionError("gate and up rows differ")
        self._op(
            f"act.gated[{unit}]",
            [gate.buffer, up.buffer],
            [y.buffer],
            gate.buffer.rows,
            unit,
            count=Count(gate.buffer.rows),
            gate=gate,
            up=up,
            ld=gate.ld,
            y=y,
            ldy=y.ld,
            n=gate.n,
        )
        return y

    def add(self, x: View, y: View, scale: float = 1.0) -> None:
        """y += scale * x."""
        self._op(
            "act.add",
            [x.buffer, y.buffer],
            [y.buffer],
            y.buffer.rows,
            "add",
            count=Count(y.buffer.rows),
            x=x,
            y=y,
            ld=y.ld,
            n=y.n,
            scale=scale,
        )
        if x.ld != y.ld:
            raise AssertionError("add needs rows of the same stride")

    def residual(self, x: View, h: View, name: str, scale: float = 1.0) -> None:
        """x += scale * (W h), W = tensor `name`."""
        if scale == 1:
            self.matmul(h, name, x.n, add_to=x)
        else:
            self.add(self.matmul(h, name, x.n), x, scale)

    def moe(self, x: View, layer: int, n_ff: int, unit: str, *, normalise: bool, scale: float = 1.0) -> View:
        """Mixture of experts of block `layer`: softmax router, `expert_used_count` experts a token."""
        c, p = self.c, f"blk.{layer}."
        used, experts = c.n_expert_used, c.n_expert
        logits = self.matmul(x, p + "ffn_gate_inp.weight", experts, bias=False)
        ids, weights = self._raw("expert_ids", 4 * used), self._raw("expert_weights", 4 * used)
        slot_of = self._raw("slot_of", 4 * used)
        tokens = Count("tokens")
        self._op(
            "moe.route",
            [logits.buffer],
            [ids, weights, logits.buffer],
            "tokens",
            "route",
            count=tokens,
            logits=logits,
            experts=experts,
            used=used,
            ids=ids,
            weights=weights,
            normalise=int(normalise),
            factor=scale,
        )
        tables = self._raw("slot_tables", 0, "slots")
        native = all(
            info.type.name in FLOAT_TYPES or info.type.name in INTEGER_TYPES
            for name, info in self.gguf.tensors.items()
            if name.startswith(p) and "_exps." in name
        )
        slab = self.phase == "prompt" or self.exact or not native
        self._op(
            "moe.group",
            [ids],
            [tables, slot_of],
            "",
            "group",
            count=tokens,
            ids=ids,
            used=used,
            experts=experts,
            align=self.level.tile if slab else 1,
            slots=Count("slots"),
            segments=Special("segments"),
            source=Special("source"),
            expert_of=Special("expert_of"),
            slot_of=slot_of,
        )
        pairs = self._new("pairs", x.n, "slots")
        self._op(
            "moe.gather",
            [x.buffer, tables],
            [pairs.buffer],
            "slots",
            "gather",
            count=Count("slots"),
            source=Special("source"),
            x=x,
            ldx=x.ld,
            y=pairs,
            ldy=pairs.ld,
            n=x.n,
        )
        if self.has(p + "ffn_gate_up_exps.weight"):
            both = self._expert(pairs, p + "ffn_gate_up_exps.weight", 2 * n_ff)
            gate, up = both.columns(0, n_ff), both.columns(n_ff, n_ff)
        else:
            gate = self._expert(pairs, p + "ffn_gate_exps.weight", n_ff)
            up = self._expert(pairs, p + "ffn_up_exps.weight", n_ff)
        down = self._expert(self.glu(gate, up, unit), p + "ffn_down_exps.weight", c.n_embd)
        y = self._new("moe", c.n_embd)
        self._op(
            "moe.combine",
            [down.buffer, weights, slot_of],
            [y.buffer],
            "tokens",
            "combine",
            count=tokens,
            x=down,
            ldx=down.ld,
            weights=weights,
            slot_of=slot_of,
            used=used,
            y=y,
            ldy=y.ld,
            n=c.n_embd,
            accumulate=0,
        )
        return y

    def _expert(self, x: View, name: str, n: int) -> View:
        info = self.tensor(name, x.n, n, self.c.n_expert)
        y = self._new(name.split(".")[-2], n, "slots")
        self._matmul(x, name, info, n, y, experts=self.c.n_expert)
        return y

    def head(self, x: View, norm: str, *, scale: float = 1.0, cap: float = 0.0) -> None:
        """Final norm and logits of the rows that want them: output.weight, or the embeddings when tied."""
        c = self.c
        rows = self._new("out", c.n_embd, "out")
        self._op(
            "act.gather_rows",
            [x.buffer],
            [rows.buffer],
            "out",
            "rows",
            batch=Special("batch"),
            x=x,
            ldx=x.ld,
            y=rows,
            n=c.n_embd,
        )
        h = self.rmsnorm(rows, norm)
        name = "output.weight" if self.has("output.weight") else "token_embd.weight"
        info = self.tensor(name, c.n_embd, c.n_vocab)
        self._matmul(h, name, info, c.n_vocab, Special("logits"))
        if scale != 1 or cap:
            self._op(
                "act.head_scale",
                [],
                [],
                "",
                "logits",
                count=Count("out"),
                batch=Special("batch"),
                n=c.n_vocab,
                factor=scale,
                cap=cap,
            )
            self.plan.ops[-1].state = self.plan.ops[-2].state = True

    # ---- activations in the form a matmul wants ----

    def _q8_rows(self, x: View) -> Buffer:
        return self._prepared(x, "q8 rows", layout.q8_row_bytes(x.n), 1)

    def _tile_form(self, kind: str, k: int) -> str:
        """What a slab matmul multiplies: f32 in exact mode, bf16 on AMX, 8-bit integers for types that have them."""
        if not self.exact and self.phase == "prompt" and self.level.bf16_tiles and k % 32 == 0:
            return "bf16"
        return "q8" if kind in INTEGER_TYPES and not self.exact else "f32"

    def _tiles(self, x: View, form: str) -> Buffer:
        sizes = {"q8": layout.q8_tile_bytes, "f32": layout.f32_tile_bytes, "bf16": layout.bf16_tile_bytes}
        size = sizes[form]
        return self._prepared(x, form, size(x.n, self.level.tile), self.level.tile)

    def _prepared(self, x: View, form: str, row_bytes: int, per: int) -> Buffer:
        key = (id(x.buffer), x.start, form)
        stamp = x.buffer.version
        found = self._quantised.get(key)
        if found and found.version == stamp:
            return found
        y = self._raw(form, row_bytes, x.buffer.rows, per)
        fields: dict[str, Value] = {"count": Count(x.buffer.rows), "x": x, "ldx": x.ld, "k": x.n, "out": y}
        if form == "q8 rows":
            fields["ld_out"] = row_bytes
        kernel = {"q8 rows": "act.quantise_rows", "q8": "act.quantise_tiles", "f32": "act.pack_tiles",
            "bf16": "act.pack_pairs"}[form]
        self._op(kernel, [x.buffer], [y], x.buffer.rows, form, **fields)
        y.version = stamp
        self._quantised[key] = y
        return y

    # ---- bookkeeping ----

    def _type(self, info: TensorInfo) -> str:
        kind = info.type.name
        if kind not in BLOCKS:
            raise self.gguf.error(f"tensor {info.name}", f"has type {kind}, which has no kernels")
        return kind

    def _new(self, name: str, n: int, rows: str = "tokens") -> View:
        return View(self._raw(name, 4 * n, rows), 0, n)

    def _raw(self, name: str, row_bytes: int, rows: str = "tokens", per: int = 1) -> Buffer:
        return Buffer(name, (row_bytes + 63) // 64 * 64 if per == 1 and row_bytes % 4 else row_bytes, rows, per)

    def _scratch(self, size: int) -> None:
        self.plan.scratch = max(self.plan.scratch, (size + 63) // 64 * 64)

    def _op(self, kernel: str, reads: Sequence[Buffer], writes: Sequence[Buffer], rows: str, label: str,
            weight_bytes: int = 0, **fields: Value) -> None:  # fmt: skip
        for buffer in writes:
            buffer.version += 1
        self.plan.ops.append(Op(kernel, fields, list(reads), list(writes), rows, label, weight_bytes,
                                layer=self.layer))  # fmt: skip


def attention_scale(c: Config) -> float:
    """1 / sqrt(d_k), or the file's own `attention.scale`."""
    return c.float("attention.scale", 0.0) or 1 / math.sqrt(c.d_k)


def unscaled(c: Config) -> RopeScaling:
    return dataclasses.replace(c.rope_scaling, kind="none", factor=1.0)


def check_all_used(gguf: Gguf, plan: Plan) -> None:
    """FormatError for a tensor that the architecture did not use: it might change the result."""
    optional = {"rope_factors_long.weight", "rope_factors_short.weight"}
    for name in gguf.tensors:
        if name not in plan.used and name not in optional:
            raise FormatError(
                f"{gguf.path}: tensor {name}: the architecture has no use for it, so its result would be wrong"
            )
