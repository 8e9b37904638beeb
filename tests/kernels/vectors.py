"""Applying single vector operations to arrays (the kernels of selfcheck.py)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from kernel_calls import Array, run

INTEGERS = ("i8", "u8", "i16", "u16", "i32", "u32", "i64")
WIDTHS = (1, 4, 8, 16, 32)


def dtype(el: str) -> np.dtype[Any]:
    return np.dtype(f"{el[0]}{int(el[1:]) // 8}")


def apply(case: str, level: str, out: tuple[npt.DTypeLike, int], *inputs: Array) -> Array:
    """Results (count, lanes) of a case, for inputs (count, lanes)."""
    kind, lanes = out
    n = len(inputs[0])
    y = np.zeros((n, lanes), kind)
    a, b, c = (*(np.ascontiguousarray(x) for x in inputs), 0, 0)[:3]
    run(f"selfcheck.apply[{case}]", level, a=a, b=b, c=c, y=y, step=y.strides[0], count=n)
    return y


def some_floats(n: int, seed: int = 0) -> Array:
    """float32 (n, 16) of all magnitudes, with zeros, infinities and integers among them."""
    rng = np.random.default_rng(seed)
    v = (rng.standard_normal((n, 16)) * np.exp2(rng.integers(-20, 20, (n, 16)))).astype(np.float32)
    v[0] = [0, -0.0, 1, -1, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, np.inf, -np.inf, 3, -3, 1e-40, -1e-40]
    return v
