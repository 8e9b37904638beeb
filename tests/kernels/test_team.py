"""The thread team: programs of kernels with barriers, cursors that start anew, parking, threads beyond processors."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from edgert.kernels_cpu import api, isa, jit
from edgert.kernels_cpu.team import KERNELS, Team, aligned
from kernel_calls import LEVELS, Array, compile_all, count

ROWS, N = 24, 40

pytestmark = pytest.mark.parametrize("level", LEVELS)


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    compile_all([*KERNELS, "selfcheck.count_up", "act.scale", "moe.gather", "gemv.dense[F32]"])


@pytest.fixture(params=[1, 2, 8], ids=lambda n: f"{n} threads")
def team(request: pytest.FixtureRequest, level: str) -> Iterator[Team]:
    made = Team(request.param, jit.load(KERNELS, isa.BY_NAME[level]))
    yield made
    made.close()


class Program:
    """Ops in the form that `Team.run` takes, and all that they point at."""

    def __init__(self, level: str) -> None:
        self.level, self.kept = level, list[Any]()
        self.ops: list[list[int]] = []

    def add(self, name: str, *, barrier: bool, cursor: Array | None = None, **fields: Array | float) -> None:
        kernel = jit.load([name], isa.BY_NAME[self.level])[name]
        if cursor is not None:
            fields["cursor"] = cursor
        args = api.pack(kernel, {k: v.ctypes.data if isinstance(v, np.ndarray) else v for k, v in fields.items()})
        self.kept += [args, fields]
        self.ops.append([kernel.address, args.ctypes.data, 0 if cursor is None else cursor.ctypes.data, int(barrier)])

    def table(self) -> Array:
        return np.array(self.ops, np.int64)


def test_every_thread_runs_every_op(level: str, team: Team) -> None:
    counter = np.zeros(1, np.int64)
    program = Program(level)
    for barrier in (False, True, False):
        program.add("selfcheck.count_up", barrier=barrier, counter=counter, times=5)
    table = program.table()
    for _ in range(300):
        team.run(table, 0, 3)
    assert counter[0] == 300 * 3 * 5 * team.n
    team.run(table, 1, 2)
    assert counter[0] == (300 * 3 + 1) * 5 * team.n


def test_barriers_and_cursors(level: str, team: Team) -> None:
    """Rows written by one thread are read by another behind a barrier; each run's cursor begins at 0."""
    rng = np.random.default_rng(1)
    x, turned = rng.standard_normal((ROWS, N)).astype(np.float32), np.zeros((ROWS, N), np.float32)
    w, y = rng.standard_normal((100, N)).astype(np.float32), np.zeros((ROWS, 100), np.float32)
    m, source = count(ROWS), np.arange(ROWS, dtype=np.int32)[::-1].copy()
    program = Program(level)
    program.add("act.scale", barrier=True, count=m, y=x, ld=4 * N, n=N, factor=-1.0)
    program.add("moe.gather", barrier=True, count=m, source=source, x=x, ldx=4 * N, y=turned, ldy=4 * N, n=N)
    program.add("gemv.dense[F32]", barrier=False, cursor=aligned(1), count=m, x=turned, ldx=4 * N, w=w, n=100, k=N, y=y,
                ldy=400, accumulate=0, experts=0, expert_bytes=0)  # fmt: skip
    table, sign = program.table(), -1
    before = x.copy()
    for _ in range(100):
        y[:] = np.nan
        team.run(table, 0, 3)
        np.testing.assert_array_equal(turned, sign * before[::-1])
        np.testing.assert_allclose(y, sign * before[::-1] @ w.T, atol=1e-4)
        sign = -sign


def test_wakes_after_parking(level: str, team: Team) -> None:
    """Idle threads give up the processor and still take the next job."""
    counter, program = np.zeros(1, np.int64), Program(level)
    program.add("selfcheck.count_up", barrier=True, counter=counter, times=1)
    table = program.table()
    team.run(table, 0, 1)
    deadline, used = time.monotonic() + 20, 1.0
    while used > 0.02 and time.monotonic() < deadline:
        before = time.process_time()
        time.sleep(0.2)
        used = time.process_time() - before
    assert used <= 0.02
    for _ in range(3):
        team.run(table, 0, 1)
        time.sleep(0.05)
    assert counter[0] == 4 * team.n


def test_close_ends_the_threads(level: str) -> None:
    """At once after a job, while parked, and a second time."""
    before = threading.active_count()
    for pause in (0, 0.2):
        made = Team(4, jit.load(KERNELS, isa.BY_NAME[level]))
        assert threading.active_count() == before + 3
        time.sleep(pause)
        made.close()
        made.close()
        assert threading.active_count() == before
