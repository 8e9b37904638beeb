"""What architectures call to emit operations. Views are f32; tensor names are GGUF's own.

A builder is made per phase. In the "prompt" phase matmuls are slab matmuls over tiles of tokens; in the "decode" phase
they read native blocks, one dot per row and token. In exact precision both phases use the f32 slab matmul.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from .config import Config, RopeScaling
from .formats.errors import FormatError
from .formats.gguf import Gguf, TensorInfo
from .kernels_cpu import layout
from .kernels_cpu.dense_types import BLOCKS, FLOAT_TYPES, INTEGER_TYPES
from .kernels_cpu.isa import Level
from .plan import Buffer, CacheLayer, Count, Op, Plan, Rope, Special, Value, View, Weight

BATCH, CURSOR, SEGMENTS = Special("batch"), Special("cursor"), Special("segments")
PLAIN_INTEGERS = ("I8", "I16", "I32", "I64")
PACK = {"q8 rows": "act.quantise_rows", "q8": "act.quantise_tiles", "f32": "act.pack_tiles", "bf16": "act.pack_pairs"}


class Builder:
    """Emits the operations of one phase into `plan`. `layer` is the block being built, -1 outside of blocks."""

    def __init__(self, config: Config, phase: str, precision: str, level: Level, kv_type: str, n_ctx: int) -> None:
        self.c, self.gguf, self.phase, self.level, self.n_ctx = config, config.gguf, phase, level, n_ctx
        self.exact = precision == "exact"
        self.kv_type = "f32" if self.exact else kv_type
        self.plan = Plan(phase, config.n_expert, config.n_expert_used)
        self.layer = -1
        self._prepared: dict[tuple[Buffer, int, str], tuple[int, Buffer]] = {}

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
        if info.type.name not in BLOCKS or info.type.name in PLAIN_INTEGERS:
            raise self.gguf.error(f"tensor {name}", f"has type {info.type.name}, which weights cannot have")
        self.plan.used.add(name)
        return info

    def vector(self, name: str, n: int) -> Weight:
        """The F32 tensor `name` of n values."""
        info = self.tensor(name, n)
        if info.type.name != "F32":
            raise self.gguf.error(f"tensor {name}", f"is {info.type.name}, norms and biases must be F32")
        return Weight(name)

    # ---- rows in, rows out ----

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

    def matmul(self, x: View, name: str, n: int, *, add_to: View | None = None, bias: bool = True) -> View:
        """x @ W^T with W (n, x.n) = tensor `name`, plus its bias where the file has one; added to `add_to` if given."""
        self.tensor(name, x.n, n)
        y = add_to or self._new(name.split(".")[-2], n, x.rows)
        self._matmul(x, name, n, y, accumulate=add_to is not None)
        bias_name = name.removesuffix("weight") + "bias"
        if bias and self.has(bias_name):
            vector = self.vector(bias_name, n)
            self._op("act.add_bias", [y], [y], y.rows, bias_name, count=Count(y.rows), bias=vector, y=y, ld=y.ld, n=n)
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

    # ---- attention ----

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

    # ---- experts ----

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

    def _native(self, kind: str, k: int) -> bool:
        """Whether rows of k weights of this type are multiplied in native blocks."""
        integers = kind in INTEGER_TYPES and k >= layout.NATIVE_K
        return self.phase == "decode" and not self.exact and (integers or kind in FLOAT_TYPES)

    def _expert(self, x: View, name: str, n: int) -> View:
        self.tensor(name, x.n, n, self.c.n_expert)
        y = self._new(name.split(".")[-2], n, "slots")
        self._matmul(x, name, n, y, experts=self.c.n_expert)
        return y

    # ---- logits ----

    def head(self, x: View, norm: str, *, scale: float = 1.0, cap: float = 0.0) -> None:
        """Final norm and logits of the rows that want them: output.weight, or the embeddings when tied."""
        c = self.c
        rows = self._new("out", c.n_embd, "out")
        self._op("act.gather_rows", [x], [rows], "out", "rows", batch=BATCH, x=x, ldx=x.ld, y=rows, n=c.n_embd)
        name = "output.weight" if self.has("output.weight") else "token_embd.weight"
        self.tensor(name, c.n_embd, c.n_vocab)
        self._matmul(self.rmsnorm(rows, norm), name, c.n_vocab, Special("logits")).state = True
        if scale != 1 or cap:
            self._op("act.head_scale", [], [], "", "logits", count=Count("out"), batch=BATCH, n=c.n_vocab, factor=scale,
                     cap=cap).state = True  # fmt: skip

    # ---- matmul, and activations in the form it wants ----

    def _matmul(self, x: View, name: str, n: int, y: View | Special, *, accumulate: bool = False,
                experts: int = 0) -> Op:  # fmt: skip
        info, k = self.gguf.tensors[name], x.n
        kind = info.type.name
        fields: dict[str, Value] = {
            "count": Count(x.rows), "w": Weight(name), "n": n, "k": k, "y": y, "accumulate": int(accumulate),
            "ldy": y.ld if isinstance(y, View) else 4 * n, "cursor": CURSOR,
            "expert_bytes": info.nbytes // experts if experts else 0,
        }  # fmt: skip
        if self._native(kind, k):
            source = x.buffer if kind in FLOAT_TYPES else self._pack(x, "q8 rows", layout.q8_row_bytes(k), 1)
            kernel = "gemv.dense" if kind in FLOAT_TYPES else "gemv.decode"
            fields |= {"x": x if kind in FLOAT_TYPES else source, "ldx": source.row_bytes}
            fields["experts"] = Special("expert_of") if experts else 0
            if kind not in FLOAT_TYPES:
                fields["group"] = 1 if experts else layout.GROUP
                fields |= self._scratch(layout.native_scratch_bytes(k))
        else:
            form = self._tile_form(kind, k)
            size = {"q8": layout.q8_tile_bytes, "f32": layout.f32_tile_bytes, "bf16": layout.bf16_tile_bytes}[form]
            source = self._pack(x, form, size(k, self.level.tile), self.level.tile)
            kernel = {"q8": "gemm.prompt", "f32": "gemm.exact", "bf16": "amx.prompt"}[form]
            fields |= {"x": source, "experts": experts or 1, "segments": SEGMENTS if experts else 0}
            fields |= self._scratch(layout.slab_scratch_bytes(k, self.level.tile))
            if form == "bf16":
                fields["config"] = Special("amx_config")
        writes = [y] if isinstance(y, View) else []
        op = self._op(f"{kernel}[{kind}]", [source, *(writes if accumulate else [])], writes, "", name, **fields)
        op.weight_bytes = info.nbytes
        return op

    def _tile_form(self, kind: str, k: int) -> str:
        """What a slab matmul multiplies: f32 in exact mode, bf16 on AMX, 8-bit integers for types that have them."""
        if not self.exact and self.phase == "prompt" and self.level.bf16_tiles and k % 32 == 0:
            return "bf16"
        return "q8" if kind in INTEGER_TYPES and not self.exact else "f32"

    def _pack(self, x: View, form: str, row_bytes: int, per: int) -> Buffer:
        """x in the form of a matmul's operand; made once for all matmuls of the same rows."""
        version, found = self._prepared.get((x.buffer, x.start, form), (-1, None))
        if found is not None and version == x.buffer.version:
            return found
        y = Buffer(form, row_bytes, x.rows, per)
        fields: dict[str, Value] = {"count": Count(x.rows), "x": x, "ldx": x.ld, "k": x.n, "out": y}
        if form == "q8 rows":
            fields["group"] = 1 if x.rows == "slots" else layout.GROUP
        self._op(PACK[form], [x], [y], x.rows, form, **fields)
        self._prepared[x.buffer, x.start, form] = x.buffer.version, y
        return y

    # ---- bookkeeping ----

    def _new(self, name: str, n: int, rows: str = "tokens") -> View:
        return View(Buffer(name, 4 * n, rows), 0, n)

    def _scratch(self, size: int) -> dict[str, Value]:
        """Scratch fields of a kernel that needs `size` bytes per thread."""
        self.plan.scratch = max(self.plan.scratch, (size + 63) // 64 * 64)
        return {"scratch": Special("scratch"), "ld_scratch": Special("ld_scratch")}

    def _op(self, kernel: str, reads: Sequence[View | Buffer], writes: Sequence[View | Buffer], rows: str,
             label: str, **fields: Value) -> Op:  # fmt: skip
        read, written = ([b.buffer if isinstance(b, View) else b for b in side] for side in (reads, writes))
        for buffer in written:
            buffer.version += 1
        op = Op(kernel, fields, read, written, rows, label, self.layer)
        self.plan.ops.append(op)
        return op


def attention_scale(c: Config) -> float:
    """1 / sqrt(d_k), or the file's own `attention.scale`."""
    return c.real("attention.scale", 0.0) or 1 / math.sqrt(c.d_k)


def unscaled(c: Config) -> RopeScaling:
    """The model's rope without its context extension."""
    return dataclasses.replace(c.rope_scaling, kind="none", factor=1.0)


def check_all_used(gguf: Gguf, plan: Plan) -> None:
    """FormatError for a tensor that the architecture did not use: it might change the result."""
    optional = {"rope_factors_long.weight", "rope_factors_short.weight"}
    for name in gguf.tensors:
        if name not in plan.used and name not in optional:
            raise FormatError(f"{gguf.path}: tensor {name}: not known to the architecture; results would be wrong")
