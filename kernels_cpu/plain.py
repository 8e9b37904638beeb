"""Decoders of the types that are plain numbers: one number is a block, rounded to f32 where it does not fit."""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types

from .simd import i8_at, i16_at, i32_at, i64_at, inline, set_f32
from .simd_memory import scalar_load

f64_at = scalar_load(ir.DoubleType(), types.float64)


def row_of(size, number_at):
    """row_f32 of a type of `size` bytes that `number_at` reads."""

    @inline
    def row_f32(w, nb, out):
        for i in range(nb):
            set_f32(out + 4 * i, np.float32(number_at(w + size * i)))

    return row_f32


ROWS = {"F64": row_of(8, f64_at), "I8": row_of(1, i8_at), "I16": row_of(2, i16_at), "I32": row_of(4, i32_at),
        "I64": row_of(8, i64_at)}  # fmt: skip
