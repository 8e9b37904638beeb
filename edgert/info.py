"""Facts about the machine and about model files, without running a model."""

from __future__ import annotations

import os
import platform
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from . import kv
from .archs import read_config
from .config import check_vocabulary
from .errors import EdgertError
from .formats.chat_template import chat_template_from_metadata
from .formats.gguf import Gguf
from .formats.tokenizer import load_tokenizer
from .kernels_cpu import isa, jit, team
from .kernels_cpu.dense_types import BLOCKS, FLOAT_TYPES, INTEGER_TYPES
from .program import Program, Sizes
from .runtime import (
    DECODE_ROWS,
    PROMPT_ROWS,
    choose_level,
    default_context,
    default_threads,
    load_kernels,
    make_plan,
)

if TYPE_CHECKING:
    from .kernels_cpu.bench import KernelTime

PROBE_BYTES = 256 << 20


@dataclass(frozen=True)
class ModelInfo:
    """What a file says of itself."""

    path: Path
    metadata: dict[str, Any]  # by GGUF key, arrays as lists
    arch: str
    n_ctx_train: int
    file_bytes: int
    tensors: dict[str, tuple[int, int, int]]  # type -> (tensors, parameters, bytes)
    kv_bytes_per_token: int
    arena_bytes: int
    default_n_ctx: int

    def memory(self, n_ctx: int) -> int:
        """Bytes needed at a context: weights, KV cache, activations."""
        return sum(row[2] for row in self.tensors.values()) + n_ctx * self.kv_bytes_per_token + self.arena_bytes


def inspect(path: str | os.PathLike[str], kv_type: str = "f16") -> ModelInfo:
    """Describe a model file without reading its weights, and the memory that it needs with this kind of KV cache.

    FormatError if it is malformed or not supported.
    """
    with Gguf.open(path) as gguf:
        config = read_config(gguf)
        level, threads = choose_level(), default_threads()[0]
        plans = [make_plan(config, phase, "fast", level, kv_type, 512) for phase in ("prompt", "decode")]
        rows = dict(zip(("prompt", "decode"), (PROMPT_ROWS, DECODE_ROWS), strict=True))
        arena = max(Program.arena_bytes(p, Sizes(rows[p.phase], rows[p.phase], level.tile, threads)) for p in plans)
        tensors, count = {}, Counter(info.type.name for info in gguf.tensors.values())
        for kind, n in count.most_common():
            of_kind = [info for info in gguf.tensors.values() if info.type.name == kind]
            values = sum(int(np.prod(info.shape, dtype=object)) for info in of_kind)
            tensors[kind] = (n, values, sum(info.nbytes for info in of_kind))
        return ModelInfo(
            Path(path), _plain(gguf.metadata), config.arch, config.n_ctx_train,
            sum(s.stat().st_size for s in gguf.shards),
            tensors, kv.token_bytes(plans[0].cache, kv_type), arena, default_context(config, plans[0], kv_type),
        )  # fmt: skip


def bench_kernels(**options: Any) -> Iterator[KernelTime]:
    """Each kernel alone beside its roofline; options as for `kernels_cpu.bench.bench_kernels`."""
    from .kernels_cpu.bench import bench_kernels as run

    options["threads"] = options.get("threads") or default_threads()[0]
    try:
        yield from run(**options)
    except (isa.IsaError, jit.CompileError) as error:
        raise EdgertError(str(error)) from None


def _plain(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata that outlives the open file."""
    return {key: value.tolist() if hasattr(value, "tolist") else value for key, value in metadata.items()}


def verify(path: str | os.PathLike[str]) -> None:
    """Check that a file is whole, well-formed, and a model that edgert can run; no weights are read.

    FormatError says what is wrong.
    """
    with Gguf.open(path) as gguf:
        config = read_config(gguf)
        for phase in ("prompt", "decode"):
            make_plan(config, phase, "fast", choose_level(), "f16", 512)
        tokenizer = load_tokenizer(gguf.metadata)
        check_vocabulary(gguf, config, tokenizer)
        chat_template_from_metadata(gguf.metadata, tokenizer).check()


def system_info() -> dict[str, Any]:
    """The machine as edgert sees it: processor, ISA level, threads, kernel cache, memory."""
    import psutil

    level, forced = choose_level(), os.environ.get("EDGERT_ISA")
    threads, why = default_threads()
    cached = list(jit.cache_dir(level).glob("*.o"))
    return {
        "cpu": {
            "machine": isa.machine(),
            "name": _cpu_name(),
            "features": sorted(isa.host_features()),
        },
        "isa": {
            "level": level.name,
            "why": "set by EDGERT_ISA" if forced else "the highest that processor and system offer",
            "available": list(isa.available()),
        },
        "threads": {"count": threads, "why": f"as many as {why}"},
        "matmul": matmul_paths(level),
        "kernel_cache": {
            "folder": str(jit.cache_dir(level)),
            "kernels": len(cached),
            "bytes": sum(file.stat().st_size for file in cached),
        },
        "memory": {
            "total_gb": psutil.virtual_memory().total / 1e9,
            "available_gb": psutil.virtual_memory().available / 1e9,
            "read_gb_per_s": memory_bandwidth(threads) / 1e9,
        },
    }


def matmul_paths(level: isa.Level) -> dict[str, str]:
    """Which kernels each tensor type takes, for prompts and for generated tokens."""
    integers = f"int8 slab ({'VNNI' if 'vnni' in level.name else 'widening multiply-add'})"
    tiles = "bf16 slab (AMX)" if level.bf16_tiles else None
    others = [name for name in BLOCKS if name not in FLOAT_TYPES and name not in INTEGER_TYPES]
    return {
        "integer types": f"{' '.join(INTEGER_TYPES)}: prompt {tiles or integers}, generation native blocks in int8",
        "float types": f"{' '.join(FLOAT_TYPES)}: prompt {tiles or 'f32 slab'}, generation native rows in f32",
        "other types": f"{' '.join(others)}: prompt {tiles or 'f32 slab'}, generation f32 slab",
    }


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            return next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "")
    except OSError:
        return platform.processor()


def memory_bandwidth(threads: int) -> float:
    """Bytes per second that `threads` threads can read, with software prefetch; best of seven passes."""
    kernels = load_kernels({*team.KERNELS, "probe.read"}, choose_level())
    data = np.ones(PROBE_BYTES, np.uint8)
    sums = team.aligned(8 * threads)
    kernel = kernels["probe.read"]
    args = np.array([data.ctypes.data, PROBE_BYTES // 64, sums.ctypes.data], np.int64)
    program = np.array([[kernel.address, args.ctypes.data, 0, 1]], np.int64)
    crew = team.Team(threads, kernels)
    try:
        times = []
        for _ in range(7):
            start = time.perf_counter()
            crew.run(program, 0, 1)
            times.append(time.perf_counter() - start)
    finally:
        crew.close()
    return PROBE_BYTES / min(times)


__all__ = ["ModelInfo", "inspect", "memory_bandwidth", "system_info", "verify"]
