"""Single kernels on numpy arrays: for tests, benchmarks, and trying a kernel by hand. The runtime does not use it."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from . import isa, jit
from .dense_types import FLOAT_TYPES, INTEGER_TYPES, row_bytes
from .layout import (
    GROUP,
    amx_config,
    bf16_tile_bytes,
    f32_tile_bytes,
    native_scratch_bytes,
    q8_row_bytes,
    q8_tile_bytes,
    slab_scratch_bytes,
)
from .team import aligned

F32 = npt.NDArray[np.float32]


def pack(kernel: jit.Kernel, values: dict[str, float]) -> npt.NDArray[np.int64]:
    """The argument struct of a kernel; every field must be given and no other."""
    missing = {name for name, _ in kernel.fields} ^ set(values)
    if missing:
        raise TypeError(f"{kernel.name}: fields {sorted(missing)} missing or unknown")
    slots = np.zeros(max(1, len(kernel.fields)), np.int64)
    for i, (name, kind) in enumerate(kernel.fields):
        if kind == "f32":
            slots[i] = struct.unpack("<i", struct.pack("<f", values[name]))[0]
        else:
            slots[i] = int(values[name])
    return slots


def call(name: str, level: isa.Level, threads: int = 1, **fields: Any) -> None:
    """Run one kernel, its threads one after the other. Arrays may be given for addresses."""
    kernel = jit.load([name], level)[name]
    values = {k: v.ctypes.data if isinstance(v, np.ndarray) else v for k, v in fields.items()}
    args = pack(kernel, values)
    entry = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(kernel.address)
    for tid in range(threads):
        entry(args.ctypes.data, tid, threads)


def matmul(
    type_name: str, w: npt.NDArray[np.uint8], n: int, k: int, x: F32, path: str = "decode", isa_level: str | None = None
) -> F32:
    """Y (m, n) = X (m, k) @ W (n, k)^T for weights in GGUF blocks, by the prompt, decode or exact kernels."""
    level = isa.require(isa_level) if isa_level else isa.choose()
    m = len(x)
    x = np.ascontiguousarray(x, np.float32)
    y, count, cursor = np.zeros((m, n), np.float32), np.array([m]), aligned(8)
    weights = np.zeros(w.nbytes + 64, np.uint8)
    weights[: w.nbytes] = w.reshape(-1)
    common = {"count": count, "w": weights, "n": n, "k": k, "y": y, "ldy": 4 * n, "accumulate": 0, "cursor": cursor}
    if path == "decode" and type_name in FLOAT_TYPES:
        call(f"gemv.dense[{type_name}]", level, x=x, ldx=4 * k, experts=0, expert_bytes=0, **common)
    elif path == "decode" and type_name in INTEGER_TYPES:
        q8 = np.zeros((-(-m // GROUP) * GROUP, q8_row_bytes(k)), np.uint8)
        call("act.quantise_rows", level, count=count, x=x, ldx=4 * k, k=k, out=q8, group=GROUP)
        scratch = aligned(native_scratch_bytes(k), np.uint8)
        single = {"experts": 0, "expert_bytes": 0, "group": GROUP, "scratch": scratch, "ld_scratch": 0}
        call(f"gemv.decode[{type_name}]", level, x=q8, ldx=q8.shape[1], **single, **common)
    else:
        tiles = -(-m // level.tile)
        scratch = aligned(slab_scratch_bytes(k, level.tile), np.uint8)
        slab = {"scratch": scratch, "ld_scratch": 0, "experts": 1, "segments": 0, "expert_bytes": 0}
        if path == "prompt" and level.bf16_tiles and k % 32 == 0:
            packer, size, kernel = "act.pack_pairs", bf16_tile_bytes, "amx.prompt"
            slab["config"] = amx_config()
        elif path == "prompt" and type_name in INTEGER_TYPES:
            packer, size, kernel = "act.quantise_tiles", q8_tile_bytes, "gemm.prompt"
        else:
            packer, size, kernel = "act.pack_tiles", f32_tile_bytes, "gemm.exact"
        packed = aligned(tiles * size(k, level.tile), np.uint8)
        call(packer, level, count=count, x=x, ldx=4 * k, k=k, out=packed)
        call(f"{kernel}[{type_name}]", level, x=packed, **common, **slab)
    return y


def embed(type_name: str, w: npt.NDArray[np.uint8], ids: Any, k: int, isa_level: str | None = None) -> F32:
    """Rows `ids` of W (n, k) as f32."""
    level = isa.require(isa_level) if isa_level else isa.choose()
    tokens = np.asarray(ids, np.int32)
    y, batch = np.zeros((len(tokens), k), np.float32), np.zeros(16, np.int64)
    batch[0], batch[3] = len(tokens), tokens.ctypes.data
    weights = np.zeros(w.nbytes + 64, np.uint8)
    weights[: w.nbytes] = w.reshape(-1)
    scratch = aligned(8 * k + 4096, np.uint8)
    call(f"embed.lookup[{type_name}]", level, batch=batch, w=weights, k=k, y=y, ldy=4 * k, scratch=scratch,
         ld_scratch=0, scale=1.0)
    return y


__all__ = ["call", "embed", "isa", "matmul", "row_bytes"]
