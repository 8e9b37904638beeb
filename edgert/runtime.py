"""From an open file to logits: plans both phases, loads kernels, owns memory, runs batches of rows."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil

from . import archs, kv
from .builder import Builder, check_all_used
from .config import Config
from .errors import EdgertError
from .kernels_cpu import isa, jit, layout, team
from .kernels_cpu.layout import amx_config
from .plan import CacheLayer, Plan
from .program import Program, Sizes, kernel_names
from .rope import RopeTable, inverse_frequencies

F32 = npt.NDArray[np.float32]
Rows = tuple[kv.Sequence, Sequence[int]]  # ids to append to a sequence
Progress = Callable[[str, int, int | None], None]  # (what, done, total)

PROMPT_ROWS, DECODE_ROWS = 512, 32
KV_SHARE = 0.25  # of physical memory, for the default context


def make_plan(config: Config, phase: str, precision: str, level: isa.Level, kv_type: str, n_ctx: int) -> Plan:
    """The operations of one phase. FormatError when the file does not fit its architecture."""
    build = archs.find(config)
    builder = Builder(config, phase, precision, level, kv_type, n_ctx)
    build(builder, config)
    check_all_used(config, builder.plan)
    return builder.plan


def choose_level() -> isa.Level:
    """The ISA level to use; EdgertError if EDGERT_ISA asks for one that cannot be."""
    try:
        return isa.choose()
    except isa.IsaError as error:
        raise EdgertError(str(error)) from None


def load_kernels(names: set[str], level: isa.Level, progress: jit.Progress | None = None) -> dict[str, jit.Kernel]:
    """Kernels, compiled if need be; EdgertError if that fails."""
    try:
        return jit.load(names, level, progress)
    except jit.CompileError as error:
        raise EdgertError(str(error)) from None


def default_threads() -> tuple[int, str]:
    """(count, reason): the least of affinity, CPU quota and physical cores."""
    affinity = team.usable_cpus()
    choices = [(affinity, "processors this process may use")]
    if (quota := _cpu_quota()) is not None:
        choices.append((max(1, int(quota)), "CPU quota of the control group"))
    physical = psutil.cpu_count(logical=False)
    if physical:
        choices.append((physical, "physical cores"))
    return min(choices, key=lambda c: c[0])


def _cpu_quota() -> float | None:
    """CPUs' worth of time that this process's control groups allow it (Linux), None without a limit."""
    root = Path("/sys/fs/cgroup")
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    group = next((line[3:].strip("/") for line in lines if line.startswith("0::")), "")
    quotas = []
    for folder in (root / group, *(root / group).parents):
        if not folder.is_relative_to(root):
            break
        try:
            quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()
            quotas += [] if quota == "max" else [int(quota) / int(period)]
        except (OSError, ValueError):
            continue
    try:  # the older hierarchy
        limit = int((root / "cpu/cpu.cfs_quota_us").read_text(encoding="ascii"))
        period_us = int((root / "cpu/cpu.cfs_period_us").read_text(encoding="ascii"))
        quotas += [limit / period_us] if limit > 0 else []
    except (OSError, ValueError):
        pass
    return min(quotas, default=None)


def default_context(config: Config, plan: Plan, kv_type: str) -> int:
    """The model's own context, or what fits in a quarter of the machine's memory."""
    room = int(psutil.virtual_memory().total * KV_SHARE) // max(1, kv.token_bytes(plan.cache, kv_type))
    return min(config.n_ctx_train, max(512, room // layout.PAGE * layout.PAGE))


class Runtime:
    """A model ready to run. Not thread-safe: one caller at a time."""

    def __init__(self, config: Config, *, threads: int | None, n_ctx: int | None, precision: str, kv_type: str,
                 progress: Progress | None, cache_tokens: int | None = None) -> None:  # fmt: skip
        """cache_tokens: that the KV cache holds, at least the context; None: as many as memory allows."""
        self.gguf, self.config = config.gguf, config
        self.precision = precision
        self.kv_type = "f32" if precision == "exact" else kv_type
        self.level = choose_level()
        self.threads = threads or default_threads()[0]
        probe = make_plan(self.config, "decode", precision, self.level, kv_type, min(512, config.n_ctx_train))
        self._hidden: F32 | None = None  # where the hidden states of a run go
        self.n_ctx = n_ctx or default_context(self.config, probe, self.kv_type)
        needed = self.n_ctx * kv.token_bytes(probe.cache, self.kv_type)
        if needed > psutil.virtual_memory().total:
            raise EdgertError(
                f"a context of {self.n_ctx} tokens needs {needed / 1e9:.1f} GB for its KV cache, this machine has "
                f"{psutil.virtual_memory().total / 1e9:.1f} GB; ask for a smaller one"
            )
        self.plans = {
            phase: make_plan(self.config, phase, precision, self.level, kv_type, self.n_ctx)
            for phase in ("prompt", "decode")
        }
        names = kernel_names(*self.plans.values()) | {*team.KERNELS, "sample.top"}
        report = (lambda done, total, _: progress("compile kernels", done, total)) if progress else None
        self.kernels = load_kernels(names, self.level, report)
        self._team: team.Team | None = team.Team(self.threads, self.kernels)
        try:
            self._allocate(cache_tokens)
        except BaseException:
            self._team.close()
            raise

    def _allocate(self, cache_tokens: int | None) -> None:
        prompt = self.plans["prompt"]
        self.pool = kv.PagePool(prompt.cache, self.kv_type, self._n_pages(prompt.cache, cache_tokens))
        self._ropes = []
        self._amx_config = amx_config()
        bound: dict[tuple[str, int], int] = {("amx_config", 0): int(self._amx_config.ctypes.data)}
        for i, rope in enumerate(prompt.ropes):
            factors = np.frombuffer(self.gguf.data(rope.factors).tobytes(), np.float32) if rope.factors else None
            table = RopeTable(self.n_ctx, *inverse_frequencies(rope.n_rot, rope.base, rope.scaling, factors))
            self._ropes.append(table)
            bound["rope", i] = table.address
        for i, constant in enumerate(prompt.constants):  # the same in both phases
            bound["constant", i] = int(constant.ctypes.data)
        for i, address in enumerate(self.pool.addresses):
            bound["cache", i], bound["page_bytes", i] = address, self.pool.page_bytes[i]
        tile = self.level.tile
        sizes = {
            "prompt": Sizes(min(PROMPT_ROWS, -(-self.n_ctx // tile) * tile), PROMPT_ROWS, tile, self.threads),
            "decode": Sizes(DECODE_ROWS, DECODE_ROWS, tile, self.threads),
        }
        # Each phase has its own arena, so that decode steps can run within a prompt's.
        self._arenas = {p: team.reserve(Program.arena_bytes(self.plans[p], sizes[p])) for p in sizes}
        self._batches = {p: Batch(sizes[p].tokens, len(self.pool.groups)) for p in sizes}
        self.programs = {
            p: Program(self.plans[p], sizes[p], self.kernels, self.gguf, self._arenas[p], self._batches[p].headers,
                       bound) for p in sizes
        }  # fmt: skip
        self._sizes = sizes

    def _n_pages(self, layers: Sequence[CacheLayer], tokens: int | None) -> list[int]:
        """Pages of each group: a context for every row of a decode step if memory allows, at least one and some."""
        context = -(-self.n_ctx // layout.PAGE)
        need, cost = [], 0
        for window in kv.windows(layers):
            if states := sum(la.state for la in layers if la.window == window):
                need.append(kv.STATE_PAGES)
                cost += need[-1] * states
                continue
            seen = min(context, (window + PROMPT_ROWS + kv.MARGIN) // layout.PAGE + 3) if window else context
            need.append(seen)
            cost += seen * layout.PAGE * kv.token_bytes([la for la in layers if la.window == window], self.kv_type)
        contexts = psutil.virtual_memory().total * KV_SHARE / max(1, cost)
        if tokens is not None:
            return [max(n + 1, math.ceil(n * tokens / self.n_ctx)) for n in need]
        pages = [max(n + DECODE_ROWS, int(n * min(DECODE_ROWS, contexts))) for n in need]
        return pages if any(layer.heads for layer in layers) else [min(n, context + (1 << 16)) for n in pages]

    def begin(self, phase: str, rows: Sequence[Rows], want: Sequence[int], out: F32, *, hidden: bool = False) -> None:
        """Start to feed tokens to sequences.

        rows: (sequence, ids to append) each; together at most the phase's rows. want: which of all rows, in order,
        need logits; out: f32 (len(want), n_vocab) that receives them. hidden: f32 (len(want), n_embd), and the final
        hidden states instead.
        """
        if self._team is None:
            raise EdgertError("the model is closed")
        for sequence, ids in rows:
            sequence.extend(ids, prompt=phase == "prompt")
        self._batches[phase].fill(rows, want)
        longest = max(len(sequence.tokens) for sequence, _ in rows)
        for rope in self._ropes:
            rope.fill(longest)
        if phase == "prompt":
            self._hidden = out if hidden else None
        self.programs[phase].begin(int(out.ctypes.data), hidden=hidden)

    def advance(self, phase: str, until: float = math.inf) -> bool:
        """Go on up to a time (of time.perf_counter); whether all is done. The other phase may run in between."""
        if self._team is None:
            raise EdgertError("the model is closed")
        done = self.programs[phase].advance(self._team, until)
        if done and phase == "prompt" and self._hidden is not None:
            self._hidden[:] = self.programs[phase].hidden(len(self._hidden))
            self._hidden = None
        return done

    def max_rows(self, phase: str) -> int:
        return self._sizes[phase].tokens

    def describe(self) -> str:
        """Both programs, readable."""
        parts = []
        for phase, program in self.programs.items():
            parts += [f"{phase} program, {len(program.plan.ops)} ops, {sum(program.barriers)} barriers"]
            parts += program.describe()
        return "\n".join(parts)

    def close(self) -> None:
        """End the threads and give the memory back. Idempotent."""
        if self._team is None:
            return
        self._team.close()
        self._team = None
        self.pool.close()
        del self.programs, self.pool, self._arenas, self._batches, self._ropes
        self.gguf.close()
        gc.collect()


class Batch:
    """The rows of one run, where the kernels read them (layout.BATCH_*): a header for each group of the cache."""

    def __init__(self, rows: int, groups: int) -> None:
        self._i32 = np.zeros((5, rows + 1), np.int32)
        self._tables = np.zeros((groups, rows), np.int64)
        ids, positions, seqs, out, starts = (int(a.ctypes.data) for a in self._i32)
        self.headers = [team.aligned(64) for _ in range(groups)]
        for header, tables in zip(self.headers, self._tables, strict=True):
            header[layout.BATCH_IDS], header[layout.BATCH_POS] = ids, positions
            header[layout.BATCH_SEQ], header[layout.BATCH_OUT_ROWS] = seqs, out
            header[layout.BATCH_STARTS], header[layout.BATCH_TABLES] = starts, tables.ctypes.data

    def fill(self, rows: Sequence[Rows], want: Sequence[int]) -> None:
        """The ids must already be in their sequences."""
        tokens, positions, seqs, out, starts = self._i32
        n = 0
        for s, (sequence, ids) in enumerate(rows):
            end = len(sequence.tokens)
            tokens[n : n + len(ids)] = ids
            positions[n : n + len(ids)] = range(end - len(ids), end)
            seqs[n : n + len(ids)] = s
            for tables, table in zip(self._tables, sequence.tables, strict=True):
                tables[s] = table.ctypes.data
            starts[s] = n
            n += len(ids)
        starts[len(rows)] = n
        out[: len(want)] = want
        for header in self.headers:
            header[layout.BATCH_TOKENS], header[layout.BATCH_SEQS] = n, len(rows)
            header[layout.BATCH_OUT] = len(want)
