"""A linked plan: buffers placed in one arena, argument structs packed, barriers where data flows between threads."""

from __future__ import annotations

import bisect
import math
import struct
import time
from collections.abc import Mapping, Sequence
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
                 arena: npt.NDArray[np.uint8], headers: Sequence[I64],
                 bound: Mapping[tuple[str, int], int]) -> None:  # fmt: skip
        """headers: of the batch, for each group of the cache. bound: addresses and values of the Specials that the
        runtime owns: cache, page_bytes, rope."""
        self.plan, self.sizes = plan, sizes
        self._places, arena_bytes = place(plan, sizes)
        self._arena, self._batch = arena, headers[0]
        scratch_at = arena_bytes
        tables_at = scratch_at + plan.scratch * sizes.threads
        if tables_at + self._tables_bytes() > arena.nbytes:
            raise AssertionError("arena too small")
        base = int(arena.ctypes.data)
        self._cursors = aligned(8 * max(1, len(plan.ops)))
        header = int(headers[0].ctypes.data)
        self._cursor_base = int(self._cursors.ctypes.data)
        self._counts = {"tokens": header + 8 * layout.BATCH_TOKENS, "out": header + 8 * layout.BATCH_OUT}
        self._bound = {**bound, ("logits", 0): 0}
        self._bound |= {("batch", i): int(each.ctypes.data) for i, each in enumerate(headers)}
        self._bound["scratch", 0], self._bound["ld_scratch", 0] = base + scratch_at, plan.scratch
        self._bind_tables(base + tables_at)
        self._gguf, self._base = gguf, base
        self.table, self._args = self._link(kernels)
        self._all, self._body = self._stops(len(plan.ops)), self._stops(plan.n_body)
        self._seconds = [0.0] * len(self._all)  # that each stretch took last
        self._at, self._stretches = 0, self._all

    @staticmethod
    def arena_bytes(plan: Plan, sizes: Sizes) -> int:
        """Bytes of arena that the plan needs."""
        slots = slots_bound(plan, sizes.tokens, sizes.tile)
        return place(plan, sizes)[1] + plan.scratch * sizes.threads + 8 * slots + 8 * plan.experts + 1024

    def _tables_bytes(self) -> int:
        return 8 * slots_bound(self.plan, self.sizes.tokens, self.sizes.tile) + 8 * self.plan.experts + 512

    def _bind_tables(self, at: int) -> None:
        slots = slots_bound(self.plan, self.sizes.tokens, self.sizes.tile)
        self._counts["slots"] = at
        self._bound["segments", 0] = at + 64
        self._bound["source", 0] = at + 128 + (8 * self.plan.experts + 67) // 64 * 64
        self._bound["expert_of", 0] = self._bound["source", 0] + 4 * slots

    def _value(self, value: Value, op_index: int) -> int | float:
        """The number that a field holds: an address, a count or a setting."""
        if isinstance(value, int | float):
            return value
        if isinstance(value, View):
            return self._base + self._places[id(value.buffer)][0] + 4 * value.start
        if isinstance(value, Buffer):
            return self._base + self._places[id(value)][0]
        if isinstance(value, Weight):
            return self._gguf.address(value.name) + value.offset
        if isinstance(value, Count):
            return self._counts[value.of]
        if value.kind == "cursor":
            return self._cursor_base + 64 * op_index
        return self._bound[value.kind, value.index]

    def _link(self, kernels: Mapping[str, Kernel]) -> tuple[I64, I64]:
        """(op table, argument structs one after the other)."""
        ops = self.plan.ops
        self.barriers = barriers(self.plan, self._places)
        table = np.zeros((len(ops), 4), np.int64)
        structs = np.zeros(sum(len(kernels[op.kernel].fields) for op in ops), np.int64)
        base = int(structs.ctypes.data)
        slots: list[int | float] = []
        self._logits_slots: list[int] = []
        for i, op in enumerate(ops):
            kernel = kernels[op.kernel]
            if {name for name, _ in kernel.fields} != op.fields.keys():
                raise AssertionError(f"{op.kernel} takes {kernel.fields}, not {sorted(op.fields)}")
            cursor = self._cursor_base + 64 * i if "cursor" in op.fields else 0
            table[i] = kernel.address, base + 8 * len(slots), cursor, self.barriers[i]
            for name, kind in kernel.fields:
                field = op.fields[name]
                if isinstance(field, Special) and field.kind == "logits":
                    self._logits_slots.append(len(slots))
                value = self._value(field, i)
                slots.append(struct.unpack("<i", struct.pack("<f", value))[0] if kind == "f32" else value)
        structs[:] = slots
        return table, structs

    def _stops(self, end: int) -> list[int]:
        """Ends of the stretches that can run by themselves: wherever all threads wait anyway."""
        return [*(i + 1 for i, waits in enumerate(self.barriers[:end]) if waits and i + 1 < end), end]

    def begin(self, logits: int, *, hidden: bool = False) -> None:
        """Start a run on what the batch holds now. logits: address for the rows that want them. hidden: up to the final
        hidden states only."""
        self._batch[layout.BATCH_LOGITS] = logits
        self._args[self._logits_slots] = logits
        self._at, self._stretches = 0, self._body if hidden else self._all

    def advance(self, team: Team, until: float) -> bool:
        """Go on with the run up to a time (of time.perf_counter), at least by one stretch; whether it has ended.

        A stretch that would end too late, going by the last time, is left for the next call. Other programs may run in
        between, if their arenas are their own.
        """
        stops = self._stretches
        if until == math.inf:
            team.run(self.table, self._at, stops[-1])
            return True
        now = time.perf_counter()
        for i in range(bisect.bisect_right(stops, self._at), len(stops)):
            team.run(self.table, self._at, stops[i])
            self._at = stops[i]
            start, now = now, time.perf_counter()
            self._seconds[i] = now - start
            if now + self._seconds[min(i + 1, len(stops) - 1)] > until:
                break
        return self._at == stops[-1]

    def hidden(self, n: int) -> npt.NDArray[np.float32]:
        """float32 (n, n_embd): final hidden states after a run up to them; they are there until the next run."""
        view = self.plan.hidden
        assert view is not None
        start, size = self._places[id(view.buffer)][0], view.buffer.row_bytes
        rows = self._arena[start : start + n * size].reshape(n, size)[:, 4 * view.start : 4 * (view.start + view.n)]
        return rows.view(np.float32)

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
