"""Single matmul kernels on the clock, each beside its roofline: bytes over read bandwidth, operations over peak.

Weights are blocks of one repeated byte: a kernel's time does not depend on its numbers. No Numba here.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from . import isa, jit, layout, team
from .api import pack
from .dense_types import BLOCKS, FLOAT_TYPES, INTEGER_TYPES, row_bytes

ROWS = (1, 4, 16, 512)
TYPES = ("Q4_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "F16")
NATIVE_ROWS = 32  # up to here rows are taken to be generated tokens, above to be a prompt's
K = 2048  # weights in a row
COLD_BYTES = 256 << 20  # weights that no cache holds
BYTE = 0x2C  # a small, normal number in every float format: no time goes into denormals or nans

U8 = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class KernelTime:
    """One kernel at one number of rows. share: of the roofline, which `bound` names."""

    kernel: str
    level: str
    rows: int
    threads: int
    seconds: float  # of one pass over `weights` bytes
    gb_per_s: float
    gflop_per_s: float
    bound: str  # "memory" or "arithmetic"
    share: float


@dataclass(frozen=True)
class Roof:
    """Ceilings of a level and a number of threads, measured. peak: operations per second by kind of arithmetic."""

    bandwidth: float  # bytes per second
    peak: dict[str, float]  # "integers", "floats", "tiles"


def bench_kernels(
    types: Sequence[str] = TYPES,
    rows: Sequence[int] = ROWS,
    levels: Sequence[str] | None = None,
    threads: int | None = None,
    repeat: int = 5,
    cold_bytes: int = COLD_BYTES,
) -> Iterator[KernelTime]:
    """Time the matmul of each type for each number of rows, one after the other.

    types: names of weight types. levels: default: the level in use. threads: default: processors this process may use.
    repeat: passes, of which the median counts. cold_bytes: weights that a pass over few rows reads. ValueError for a
    type without kernels, IsaError for a level that this processor lacks.
    """
    if unknown := [name for name in types if name not in BLOCKS]:
        raise ValueError(f"types: {unknown[0]!r} has no kernels; known are {', '.join(sorted(BLOCKS))}")
    if min(rows, default=1) < 1 or repeat < 1:
        raise ValueError("rows and repeat must be at least 1")
    threads = threads or team.usable_cpus()
    for level in [isa.require(name) for name in levels] if levels else [isa.choose()]:
        cases = [Case(name, m, level, threads, cold_bytes) for name in types for m in rows]
        kernels = jit.load({*team.KERNELS, *ceilings(level), *(case.kernel for case in cases)}, level)
        crew = team.Team(threads, kernels)
        try:
            roof = measure_roof(crew, kernels, level, cold_bytes)
            for case in cases:
                yield case.measure(crew, kernels[case.kernel], roof, repeat)
        finally:
            crew.close()


class Case:
    """One row of the table: the kernel that the runtime takes for a type, a number of rows and a level."""

    def __init__(self, name: str, m: int, level: isa.Level, threads: int, cold_bytes: int) -> None:
        self.name, self.m, self.level, self.threads = name, m, level, threads
        few = m <= NATIVE_ROWS
        self.native = few and name in (*FLOAT_TYPES, *INTEGER_TYPES)
        if self.native:
            self.kernel = f"gemv.{'dense' if name in FLOAT_TYPES else 'decode'}[{name}]"
            self.units = "floats" if name in FLOAT_TYPES else "integers"
        elif level.bf16_tiles and not few:
            self.kernel, self.units = f"amx.prompt[{name}]", "tiles"
        elif name in INTEGER_TYPES and not few:
            self.kernel, self.units = f"gemm.prompt[{name}]", "integers"
        else:
            self.kernel, self.units = f"gemm.exact[{name}]", "floats"
        # Few rows: matrices that together fill `cold_bytes`. Many rows: one matrix, each part of it read once.
        self.n = 4096 if few else 2048
        self.matrix_bytes = self.n * row_bytes(name, K)
        self.matrices = max(1, cold_bytes // self.matrix_bytes) if few else 1

    def measure(self, crew: team.Team, kernel: jit.Kernel, roof: Roof, repeat: int) -> KernelTime:
        """Median time of passes over all matrices, after one that warms up."""
        weights = filled(self.matrices * self.matrix_bytes + 64)
        cursor, y, count = team.aligned(8), np.zeros((self.m, self.n), np.float32), np.array([self.m])
        common = {"count": count, "n": self.n, "k": K, "y": y, "ldy": 4 * self.n, "accumulate": 0, "cursor": cursor}
        common |= self._native_operands() if self.native else self._slab_operands()
        addresses = {name: v.ctypes.data if isinstance(v, np.ndarray) else v for name, v in common.items()}
        structs = [
            pack(kernel, {**addresses, "w": weights.ctypes.data + self.matrix_bytes * i}) for i in range(self.matrices)
        ]
        program = [(kernel, struct, cursor) for struct in structs]
        seconds = statistics.median(timed(crew, program, repeat))
        size, flop = self.matrices * self.matrix_bytes, 2 * self.m * self.n * K * self.matrices
        memory, arithmetic = size / roof.bandwidth, flop / roof.peak[self.units]
        return KernelTime(
            self.kernel, self.level.name, self.m, self.threads, seconds, size / seconds / 1e9, flop / seconds / 1e9,
            "memory" if memory >= arithmetic else "arithmetic", max(memory, arithmetic) / seconds,
        )  # fmt: skip

    def _native_operands(self) -> dict[str, Any]:
        if self.name in FLOAT_TYPES:
            return {"x": filled(self.m * 4 * K), "ldx": 4 * K, "experts": 0, "expert_bytes": 0}
        size = layout.q8_row_bytes(K)
        x = filled(-(-self.m // layout.GROUP) * layout.GROUP * size)
        scratch = layout.native_scratch_bytes(K)
        return {
            "x": x, "ldx": size, "experts": 0, "expert_bytes": 0, "group": layout.GROUP,
            "scratch": team.aligned(scratch * self.threads, np.uint8), "ld_scratch": scratch,
        }  # fmt: skip

    def _slab_operands(self) -> dict[str, Any]:
        tile = self.level.tile
        size = {"tiles": layout.bf16_tile_bytes, "integers": layout.q8_tile_bytes, "floats": layout.f32_tile_bytes}
        scratch = -(-layout.slab_scratch_bytes(K, tile) // 64) * 64
        operands = {
            "x": filled(-(-self.m // tile) * size[self.units](K, tile)), "experts": 1, "segments": 0,
            "expert_bytes": 0, "scratch": team.aligned(scratch * self.threads, np.uint8), "ld_scratch": scratch,
        }  # fmt: skip
        if self.units == "tiles":
            operands["config"] = aligned_copy(layout.amx_config())
        return operands


# ---- the roof ----


def ceilings(level: isa.Level) -> list[str]:
    """Kernels that measure the roof."""
    return ["probe.read", "peak.integers", "peak.floats", *(["peak.tiles[bf16]"] if level.bf16_tiles else [])]


def measure_roof(crew: team.Team, kernels: dict[str, jit.Kernel], level: isa.Level, cold_bytes: int) -> Roof:
    """Best of seven: what one core is disturbed in, the hardware still can."""
    sums, cursor, data = team.aligned(8 * crew.n), team.aligned(8), filled(2048)
    memory = filled(cold_bytes)
    out = sums.ctypes.data
    read = pack(kernels["probe.read"], {"p": memory.ctypes.data, "lines": cold_bytes // 64, "out": out})
    bandwidth = cold_bytes / min(timed(crew, [(kernels["probe.read"], read, cursor)], 7))
    peak = {}
    for kind, per_round in (("integers", 8 * level.lanes * 8), ("floats", 8 * level.lanes * 2), ("tiles", 4 * 16384)):
        kernel = kernels.get({"tiles": "peak.tiles[bf16]"}.get(kind, f"peak.{kind}"))
        if kernel is None:
            continue
        rounds = 100 if kind == "tiles" and level.name.startswith(isa.EMULATED.name) else 100_000
        values = {"rounds": rounds, "data": data.ctypes.data, "out": out}
        if kind == "tiles":
            config, scratch = aligned_copy(layout.amx_config()), team.aligned(1024 * crew.n)
            values |= {"config": config.ctypes.data, "scratch": scratch.ctypes.data}
        peak[kind] = crew.n * rounds * per_round / min(timed(crew, [(kernel, pack(kernel, values), cursor)], 7))
    return Roof(bandwidth, peak)


# ---- running ----


def timed(crew: team.Team, ops: list[tuple[jit.Kernel, Any, Any]], repeat: int) -> list[float]:
    """Seconds of each of `repeat` runs of a program, but for a first one. ops: (kernel, arguments, cursor)."""
    program = np.array([[k.address, args.ctypes.data, cursor.ctypes.data, 1] for k, args, cursor in ops], np.int64)
    times = []
    for _ in range(repeat + 1):
        start = time.perf_counter()
        crew.run(program, 0, len(program))
        times.append(time.perf_counter() - start)
    return times[1:]


def filled(size: int) -> U8:
    """`size` bytes of BYTE on a 64-byte border, in memory of their own."""
    array: U8 = team.aligned(size, np.uint8)
    array[:] = BYTE
    return array


def aligned_copy(array: U8) -> U8:
    copy: U8 = team.aligned(array.size, np.uint8)
    copy[:] = array
    return copy


__all__ = ["KernelTime", "bench_kernels"]
