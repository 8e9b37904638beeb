"""The core of the builder: tensors of the file, matmuls, and the ops and buffers they become.

A builder is made per phase. In the "prompt" phase matmuls are slab matmuls over tiles of tokens; in the "decode" phase
they read native blocks, one dot per row and token. In exact precision both phases use the f32 slab matmul.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .config import Config
from .formats.gguf import TensorInfo
from .kernels_cpu import layout
from .kernels_cpu.dense_types import BLOCKS, FLOAT_TYPES, INTEGER_TYPES
from .kernels_cpu.isa import Level
from .plan import Buffer, Count, Op, Plan, Special, Value, View, Weight

BATCH, CURSOR, SEGMENTS = Special("batch"), Special("cursor"), Special("segments")
EXPERT_OF, AMX_CONFIG = Special("expert_of"), Special("amx_config")
PLAIN_INTEGERS = ("I8", "I16", "I32", "I64")
PACK = {"q8 rows": "act.quantise_rows", "q8": "act.quantise_tiles", "f32": "act.pack_tiles", "bf16": "act.pack_pairs"}


class Emitter:
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
        """The tensor `name` of `shape` (GGUF order; dimensions of 1 at the end do not count), or FormatError."""
        info = self.gguf.tensors.get(name)
        if info is None:
            raise self.gguf.error(f"tensor {name}", f"is missing; {self.c.arch} models have it")
        if trimmed(info.shape) != trimmed(shape):
            raise self.gguf.error(f"tensor {name}", f"has shape {tuple(info.shape)}, must be {shape}")
        if info.type.name not in BLOCKS or info.type.name in PLAIN_INTEGERS:
            raise self.gguf.error(f"tensor {name}", f"has type {info.type.name}, which weights cannot have")
        self.plan.used.add(name)
        return info

    def vector(self, name: str, *shape: int) -> Weight | Special:
        """The tensor `name` of float32 values, widened if the file has it in 16 bits: norms, biases, scales."""
        if self.tensor(name, *shape).type.name == "F32":
            return Weight(name)
        return self.constant(self.floats(name, *shape))

    def floats(self, name: str, *shape: int) -> npt.NDArray[np.float32]:
        """The values of a tensor that `vector` takes, flat."""
        info, data = self.tensor(name, *shape), self.gguf.data(name).tobytes()
        if info.type.name == "BF16":
            return (np.frombuffer(data, np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
        if info.type.name not in ("F32", "F16"):
            raise self.gguf.error(f"tensor {name}", f"is {info.type.name}; norms, biases and scales must be floats")
        return np.frombuffer(data, np.float32 if info.type.name == "F32" else np.float16).astype(np.float32)

    def constant(self, values: npt.NDArray[np.floating]) -> Special:
        """A table of float32 that kernels can read."""
        table = values.astype(np.float32)
        for i, known in enumerate(self.plan.constants):
            if np.array_equal(known, table):
                return Special("constant", i)
        self.plan.constants.append(table)
        return Special("constant", len(self.plan.constants) - 1)

    def scale_of(self, name: str, n: int = 1) -> npt.NDArray[np.float32] | None:
        """What the products of a weight (or of each of n experts) are scaled by, where the file says: NVFP4."""
        stem = name.removesuffix("weight")
        if self.has(stem + "input_scale"):  # for hardware that quantises activations with it
            self.plan.used.add(stem + "input_scale")
        return self.floats(stem + "scale", n) if self.has(stem + "scale") else None

    # ---- matmul, and activations in the form it wants ----

    def matmul(self, x: View, name: str, n: int, *, add_to: View | None = None, out: View | None = None) -> View:
        """x @ W^T with W (n, x.n) = tensor `name`, plus its bias where the file has one; added to `add_to` if given."""
        self.tensor(name, x.n, n)
        scale = self.scale_of(name)
        y = add_to if add_to and scale is None else out or self._new(name.split(".")[-2], n, x.rows)
        self._matmul(x, name, n, y, accumulate=y is add_to)
        if scale is not None and add_to is None:
            self.scale(y, float(scale[0]))
        elif scale is not None and add_to is not None:
            self.add(y, add_to, float(scale[0]))
            y = add_to
        self.add_bias(y, bias_of(name))
        return y

    def matmul_heads(self, x: View, name: str, n: int, heads: int, k: int, *, out: View | None = None) -> View:
        """The first k of each of `heads` parts of x by a matrix of its own: tensor `name` (k, n, heads).

        Each result fills the first n of a part of `out`, if given.
        """
        self.tensor(name, k, n, heads)
        y = out or self._new(name.split(".")[-2], n * heads, x.rows)
        for h in range(heads):
            part, result = x.columns(x.n // heads * h, k), y.columns(y.n // heads * h, n)
            self._matmul(part, name, n, result, part_of=(h, heads))
        return y

    def scale(self, y: View, factor: float) -> None:
        """y *= factor."""
        self._op("act.scale", [y], [y], y.rows, "scale", count=Count(y.rows), y=y, ld=y.ld, n=y.n, factor=factor)

    def add(self, x: View, y: View, scale: float = 1.0) -> None:
        """y += scale * x, for rows of the same stride."""
        if x.ld != y.ld:
            raise AssertionError("add needs rows of the same stride")
        self._op("act.add", [x, y], [y], y.rows, "add", count=Count(y.rows), x=x, y=y, ld=y.ld, n=y.n, scale=scale)

    def add_bias(self, y: View, name: str) -> None:
        """y += the vector `name`, if the file has it."""
        if self.has(name):
            self._op("act.add_bias", [y], [y], y.rows, name, count=Count(y.rows), bias=self.vector(name, y.n), y=y,
                     ld=y.ld, n=y.n)  # fmt: skip

    def _native(self, kind: str, k: int) -> bool:
        """Whether rows of k weights of this type are multiplied in native blocks."""
        integers = kind in INTEGER_TYPES and k >= layout.NATIVE_K
        return self.phase == "decode" and not self.exact and (integers or kind in FLOAT_TYPES)

    def _matmul(self, x: View, name: str, n: int, y: View | Special, *, accumulate: bool = False,
                experts: int = 0, part_of: tuple[int, int] = (0, 1)) -> Op:  # fmt: skip
        info, k, (part, parts) = self.gguf.tensors[name], x.n, part_of
        kind = info.type.name
        fields: dict[str, Value] = {
            "count": Count(x.rows), "w": Weight(name, info.nbytes // parts * part), "n": n, "k": k, "y": y,
            "accumulate": int(accumulate), "ldy": y.ld if isinstance(y, View) else 4 * n, "cursor": CURSOR,
            "expert_bytes": info.nbytes // experts if experts else 0,
        }  # fmt: skip
        if self._native(kind, k):
            source = x.buffer if kind in FLOAT_TYPES else self._pack(x, "q8 rows", layout.q8_row_bytes(k), 1)
            kernel = "gemv.dense" if kind in FLOAT_TYPES else "gemv.decode"
            fields |= {"x": x if kind in FLOAT_TYPES else source, "ldx": source.row_bytes}
            fields["experts"] = EXPERT_OF if experts else 0
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
                fields["config"] = AMX_CONFIG
        writes = [y] if isinstance(y, View) else []
        op = self._op(f"{kernel}[{kind}]", [source, *(writes if accumulate else [])], writes, "", name, **fields)
        op.weight_bytes = info.nbytes // parts
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


def bias_of(name: str) -> str:
    """The name of the bias that belongs to a weight."""
    return name.removesuffix("weight") + "bias"


def trimmed(shape: Sequence[int]) -> tuple[int, ...]:
    """A shape without the dimensions of 1 at its end, which some converters write and others do not."""
    n = len(shape)
    while n and shape[n - 1] == 1:
        n -= 1
    return tuple(shape[:n])
