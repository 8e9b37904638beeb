"""Calling single kernels from tests, at every instruction-set level of this host."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from edgert.kernels_cpu import api, isa, jit, layout

Array = npt.NDArray[Any]

LEVELS = isa.available()


def compile_all(names: Iterable[str]) -> None:
    """Compile kernels for every level together, which takes a fraction of the time of one by one."""
    for level in LEVELS:
        jit.load(names, isa.BY_NAME[level])


def run(name: str, level: str, threads: int = 1, **fields: Any) -> None:
    """Run a kernel on arrays and numbers; `threads` calls, one after the other."""
    api.call(name, isa.BY_NAME[level], threads, **fields)


def count(n: int) -> Array:
    """A row count as kernels read it."""
    return np.array([n], np.int64)


def bits(values: Array) -> Array:
    """The bits of float32 values, to compare them exactly."""
    return np.ascontiguousarray(values, np.float32).view(np.uint32)


def assert_same_bits(got: Array, expected: Array, **message: Any) -> None:
    """Equal bit for bit, except that any nan equals any nan."""
    where = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(got), where, **message)
    np.testing.assert_array_equal(bits(got)[~where], bits(expected)[~where], **message)


def run_together(name: str, level: str, threads: int, **fields: Any) -> None:
    """Run a kernel on real threads that start at once and share the cursor, as the thread team does."""
    kernel = jit.load([name], isa.BY_NAME[level])[name]
    args = api.pack(kernel, {k: v.ctypes.data if isinstance(v, np.ndarray) else v for k, v in fields.items()})
    entry = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(kernel.address)
    start = threading.Barrier(threads)

    def work(tid: int) -> None:
        start.wait()
        entry(args.ctypes.data, tid, threads)

    team = [threading.Thread(target=work, args=(tid,)) for tid in range(threads)]
    for thread in team:
        thread.start()
    for thread in team:
        thread.join()


def batch(**slots: Array | int) -> tuple[Array, list[Array]]:
    """The batch header with these slots (layout.BATCH_...), and the arrays it points at, to be kept alive."""
    header, kept = np.zeros(layout.BATCH_SLOTS, np.int64), []
    for name, value in slots.items():
        at = getattr(layout, f"BATCH_{name}")
        if isinstance(value, np.ndarray):
            kept.append(value)
            header[at] = value.ctypes.data
        else:
            header[at] = value
    return header, kept
