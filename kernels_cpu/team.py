"""The thread team: made once per process and size, woken per program, parked on a real wait when idle.

A worker sits in compiled code (no interpreter lock), spins briefly for the next job, then returns to Python and
sleeps on a condition. Memory block, int64 slots in cache lines of their own:

    0 job number | 8 barrier count | 16 barrier generation | 24 program, 25 start, 26 stop, 27 quit
    | 32 tries before parking | 40 spins before yielding | 48 address of sched_yield | 56 last job the caller joined
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from . import jit

JOB, PROGRAM, START, STOP, QUIT, PATIENCE, SPINS, YIELD, JOINED = 0, 24, 25, 26, 27, 32, 40, 48, 56
KERNELS = ("loop.work", "loop.lead")
_Entry = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


def usable_cpus() -> int:
    """Processors this process may run on (affinity), at least 1."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def _yield_address() -> int:
    if sys.platform == "win32":
        function: Any = ctypes.WinDLL("kernel32").SwitchToThread
    else:
        function = ctypes.CDLL(None).sched_yield
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def reserve(size: int) -> npt.NDArray[np.uint8]:
    """Zeroed bytes on a page border that take memory only where they are touched (numpy would ask for huge pages)."""
    return np.frombuffer(mmap.mmap(-1, max(1, size)), np.uint8)


def aligned(count: int, dtype: npt.DTypeLike = np.int64) -> npt.NDArray[Any]:
    """A zeroed array on a 64-byte border."""
    dtype = np.dtype(dtype)
    raw = np.zeros(count * dtype.itemsize + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + count * dtype.itemsize].view(dtype)


class Team:
    """`n` threads, the caller's among them. `run` is for one caller at a time."""

    def __init__(self, n: int, kernels: dict[str, jit.Kernel]) -> None:
        self.n = n
        self._block = aligned(64)
        self._base = self._block.ctypes.data
        # Spinning while another thread waits for the core only delays it.
        self._block[SPINS] = 2000 if n <= usable_cpus() else 0
        self._block[PATIENCE] = 20000 if n <= usable_cpus() else 50
        self._block[YIELD] = _yield_address()
        self._lead, self._work = (_Entry(kernels[name].address) for name in ("loop.lead", "loop.work"))
        self._lead_args = np.array([self._base], np.int64)
        self._idle = threading.Condition()
        self._parked = 0
        self._threads = [threading.Thread(target=self._serve, args=(i,), daemon=True) for i in range(1, n)]
        for thread in self._threads:
            thread.start()

    def _serve(self, tid: int) -> None:
        seen = np.zeros(1, np.int64)
        args = np.array([self._base, seen.ctypes.data], np.int64)
        while not self._block[QUIT]:
            self._work(args.ctypes.data, tid, self.n)
            with self._idle:
                self._parked += 1
                while self._block[JOB] == seen[0] and not self._block[QUIT]:
                    self._idle.wait()
                self._parked -= 1

    def run(self, program: npt.NDArray[np.int64], start: int, stop: int) -> None:
        """Run ops start..stop of a program (n_ops, 4) on all threads; returns when every thread is done."""
        block = self._block
        block[PROGRAM], block[START], block[STOP] = program.ctypes.data, start, stop
        try:
            with self._idle:
                block[JOB] += 1
                if self._parked:
                    self._idle.notify_all()
            self._lead(self._lead_args.ctypes.data, 0, self.n)
        finally:
            # Ctrl-C may come between the two: the workers have begun and must not wait for this thread for ever.
            if block[JOINED] != block[JOB]:
                self._lead(self._lead_args.ctypes.data, 0, self.n)

    def close(self) -> None:
        """End the worker threads. Idempotent."""
        with self._idle:
            self._block[QUIT] = 1
            self._block[JOB] += 1
            self._idle.notify_all()
        for thread in self._threads:
            thread.join()
        self._threads = []
