"""A linked plan: buffers placed in one arena, argument structs packed, barriers where data flows between threads."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .formats.gguf import Gguf
from .kernels_cpu import layout
from .kernels_cpu.jit import Kernel
from .kernels_cpu.team import Team, aligned
from .plan import Buffer, Count, Op, Plan, Special, Value, View, Weight

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Sizes:
    """Most rows of one run."""

    tokens: int
    out: int
    tile: int
    threads: int


def slots_bound(plan: Plan, tokens: int, tile: int) -> int:
    """Most slots that `tokens` rows can need: every pair, and padding of every expert in use."""
    pairs = tokens * plan.experts_used
    return pairs + min(plan.experts, pairs) * (tile - 1)


def max_rows(plan: Plan, buffer: Buffer, sizes: Sizes) -> int:
    slots = slots_bound(plan, sizes.tokens, sizes.tile)
    rows = {"tokens": sizes.tokens, "out": sizes.out, "slots": slots}[buffer.rows]
    return -(-rows // buffer.per)


def place(plan: Plan, sizes: Sizes) -> tuple[dict[int, tuple[int, int]], int]:
    """Buffer id -> (offset, bytes) in the arena, and the arena's size. A buffer's bytes are free after its last use."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    buffers: dict[int, Buffer] = {}
    for i, op in enumerate(plan.ops):
        for buffer in (*op.reads, *op.writes):
            buffers[id(buffer)] = buffer
            first.setdefault(id(buffer), i)
            last[id(buffer)] = i
    ends: dict[int, list[int]] = {}
    for key, i in last.items():
        ends.setdefault(i, []).append(key)
    places: dict[int, tuple[int, int]] = {}
    free: dict[int, list[int]] = {}
    top = 0
    starts: dict[int, list[int]] = {}
    for key, i in first.items():
        starts.setdefault(i, []).append(key)
    for i in range(len(plan.ops)):
        for key in starts.get(i, []):
            size = buffers[key].row_bytes * max_rows(plan, buffers[key], sizes)
            size = (size + 64 + 63) // 64 * 64  # kernels may read one vector past a row
            if free.get(size):
                places[key] = (free[size].pop(), size)
            else:
                places[key] = (top, size)
                top += size
        for key in ends.get(i, []):
            offset, size = places[key]
            free.setdefault(size, []).append(offset)
    return places, top


Split = tuple[str, int, int] | None  # rows of which count, their bytes, tokens a row; None: any thread, any row


def _split(op: Op, buffer: Buffer) -> Split:
    """How an op's threads share a buffer: by the op's own rows, where the buffer has such rows."""
    return (buffer.rows, buffer.row_bytes, buffer.per) if op.rows == buffer.rows else None


def _clash(now: Mapping[int, Split], before: Mapping[int, Split]) -> bool:
    """Whether a thread may touch what another thread touched: unless both share the same rows out alike."""
    return any(key in before and (split is None or before[key] != split) for key, split in now.items())


def barriers(plan: Plan, places: Mapping[int, tuple[int, int]]) -> list[bool]:
    """For each op, whether all threads must wait after it: when a later op touches what another thread wrote or reads.

    Ops that split the same rows over threads alike need no barrier between them.
    """
    after = [False] * len(plan.ops)
    written: dict[int, Split] = {}  # by arena offset
    read: dict[int, Split] = {}
    state = False
    for i, op in enumerate(plan.ops):
        reads = {places[id(b)][0]: _split(op, b) for b in op.reads}
        writes = {places[id(b)][0]: _split(op, b) for b in op.writes}
        if _clash(reads, written) or _clash(writes, written) or _clash(writes, read) or (state and op.state):
            after[i - 1] = True
            written, read, state = {}, {}, False
        for seen, new in ((read, reads), (written, writes)):
            for key, split in new.items():
                seen[key] = split if seen.get(key, split) == split else None
        state = state or op.state
    if after:
        after[-1] = True
    return after


class Program:
    """A plan bound to memory and to loaded kernels."""

    def __init__(self, plan: Plan, sizes: Sizes, kernels: Mapping[str, Kernel], gguf: Gguf,
                 arena: npt.NDArray[np.uint8], batch: I64, bound: Mapping[tuple[str, int], int]) -> None:  # fmt: skip
        """`bound`: addresses and values of the Specials that the runtime owns: cache, page_bytes, rope."""
        self.plan, self.sizes = plan, sizes
        self._places, arena_bytes = place(plan, sizes)
        self._arena, self._batch = arena, batch
        scratch_at = arena_bytes
        tables_at = scratch_at + plan.scratch * sizes.threads
        if tables_at + self._tables_bytes() > arena.nbytes:
            raise AssertionError("arena too small")
        self._keep = [arena, batch]
        base = int(arena.ctypes.data)
        self._cursors = aligned(8 * max(1, len(plan.ops)))
        self._bound = dict(bound)
        self._bound["scratch", 0], self._bound["ld_scratch", 0] = base + scratch_at, plan.scratch
        self._bind_tables(base + tables_at)
        self._gguf, self._base = gguf, base
        self.table, self._args = self._link(kernels)
        self.stops = self._slices()

    @staticmethod
    def arena_bytes(plan: Plan, sizes: Sizes) -> int:
        """Bytes of arena that the plan needs."""
        slots = slots_bound(plan, sizes.tokens, sizes.tile)
        return place(plan, sizes)[1] + plan.scratch * sizes.threads + 8 * slots + 8 * plan.experts + 1024

    def _tables_bytes(self) -> int:
        return 8 * slots_bound(self.plan, self.sizes.tokens, self.sizes.tile) + 8 * self.plan.experts + 512

    def _bind_tables(self, at: int) -> None:
        slots = slots_bound(self.plan, self.sizes.tokens, self.sizes.tile)
        self._bound["slots", 0] = at
        self._bound["segments", 0] = at + 64
        self._bound["source", 0] = at + 128 + (8 * self.plan.experts + 67) // 64 * 64
        self._bound["expert_of", 0] = self._bound["source", 0] + 4 * slots

    def _address(self, value: Value, op_index: int) -> int | float:
        batch = int(self._batch.ctypes.data)
        match value:
            case View():
                return self._base + self._places[id(value.buffer)][0] + 4 * value.start
            case Buffer():
                return self._base + self._places[id(value)][0]
            case Weight():
                return int(self._gguf.data(value.name).ctypes.data)
            case Count(of="slots"):
                return self._bound["slots", 0]
            case Count(of=of):
                return batch + 8 * {"tokens": layout.BATCH_TOKENS, "out": layout.BATCH_OUT}[of]
            case Special(kind="batch"):
                return batch
            case Special(kind="cursor"):
                return int(self._cursors.ctypes.data) + 64 * op_index
            case Special(kind="logits"):
                return 0
            case Special(kind=kind, index=index):
                return self._bound[kind, index]
            case _:
                return value

    def _link(self, kernels: Mapping[str, Kernel]) -> tuple[I64, list[I64]]:
        ops = self.plan.ops
        table = np.zeros((len(ops), 4), np.int64)
        self.barriers = barriers(self.plan, self._places)
        structs: list[I64] = []
        self._logits_slots: list[tuple[I64, int]] = []
        for i, op in enumerate(ops):
            kernel = kernels[op.kernel]
            if {name for name, _ in kernel.fields} != set(op.fields):
                raise AssertionError(f"{op.kernel} takes {kernel.fields}, not {sorted(op.fields)}")
            args = np.zeros(len(kernel.fields), np.int64)
            for j, (name, kind) in enumerate(kernel.fields):
                value = self._address(op.fields[name], i)
                if kind == "f32":
                    value = struct.unpack("<i", struct.pack("<f", value))[0]
                args[j] = value
                if op.fields[name] == Special("logits"):
                    self._logits_slots.append((args, j))
            table[i] = kernel.address, args.ctypes.data, 0, self.barriers[i]
            if any(v == Special("cursor") for v in op.fields.values()):
                table[i, 2] = self._address(Special("cursor"), i)
            structs.append(args)
        return table, structs

    def _slices(self) -> list[int]:
        """Ends of the stretches that run without returning to Python: a layer each, so that Ctrl-C is seen."""
        stops = []
        for i, op in enumerate(self.plan.ops[:-1]):
            if self.barriers[i] and self.plan.ops[i + 1].layer != op.layer:
                stops.append(i + 1)
        return [*stops, len(self.plan.ops)]

    def run(self, team: Team, logits: int, *, sliced: bool) -> None:
        """Run once on the batch. `logits`: address for the rows that want them. Sliced: KeyboardInterrupt can occur
        between layers."""
        self._batch[layout.BATCH_LOGITS] = logits
        for args, j in self._logits_slots:
            args[j] = logits
        start = 0
        for stop in self.stops if sliced else self.stops[-1:]:
            team.run(self.table, start, stop)
            start = stop

    def describe(self) -> list[str]:
        """One line per op: kernel, what it works on, weight bytes, barrier."""
        lines = []
        for i, op in enumerate(self.plan.ops):
            size = f"{op.weight_bytes / 1e6:9.2f} MB" if op.weight_bytes else " " * 12
            lines.append(
                f"{i:4d}  {op.kernel:<24} {op.label:<28} {size}  {'barrier' if self.barriers[i] else ''}".rstrip()
            )
        return lines


def kernel_names(*plans: Plan) -> set[str]:
    return {op.kernel for plan in plans for op in plan.ops}


__all__ = ["Op", "Program", "Sizes", "kernel_names"]
