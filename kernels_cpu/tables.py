"""Constant tables in object code, and lookup in a table of sixteen bytes."""

from __future__ import annotations

import hashlib

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .simd_arithmetic import by_register
from .vec import AVX2, Vec, call_intrinsic, constant

_I8, _I64 = ir.IntType(8), ir.IntType(64)


def table(data: bytes):
    """() -> address of `data`, which becomes part of the kernel's object."""
    name = "edgert_table_" + hashlib.sha256(data).hexdigest()[:16]

    @intrinsic
    def op(_t):
        def gen(c, b, s, a):
            ty = ir.ArrayType(_I8, len(data))
            value = b.module.globals.get(name)
            if value is None:
                value = ir.GlobalVariable(b.module, ty, name)
                value.initializer = ir.Constant(ty, bytearray(data))
                value.linkage, value.global_constant, value.align = "internal", True, 64
            return b.ptrtoint(value, _I64)

        return types.int64(), gen

    return op


def lookup16(values: tuple[int, ...]):
    """(u8 x n, each below 16) -> i8 x n: values[index]. n is a multiple of 32."""

    def shuffled(b, args):
        pattern = ir.Constant(args[0].type, [v & 255 for v in values] * 2)
        return call_intrinsic(b, "llvm.x86.avx2.pshuf.b", args[0].type, [pattern, args[0]])

    def selected(b, args):
        index, ty = args[0], args[0].type
        level = [constant(ty, v & 255) for v in values]
        for bit in range(4):  # lowest bit first: halves the candidates four times
            mask = b.icmp_unsigned("!=", b.and_(index, constant(ty, 1 << bit)), ir.Constant(ty, None))
            level = [b.select(mask, level[i + 1], level[i]) for i in range(0, len(level), 2)]
        return level[0]

    @intrinsic
    def op(_t, index):
        def gen(c, b, s, a):
            return by_register(b, list(a), [32], 32, shuffled if AVX2 else selected)

        return Vec("i8", index.n)(index), gen

    return op
