"""The vector type of `simd`, the level that is compiled for, and helpers that build LLVM code."""

from __future__ import annotations

import os

from llvmlite import ir
from numba import njit, types
from numba.extending import models, register_model

from . import isa

LEVEL = isa.BY_NAME[os.environ.get("EDGERT_COMPILE_LEVEL", "generic")]
X86 = isa.machine() == "x86_64"
LANES = LEVEL.lanes  # f32 lanes of one register at this level
TILE = LEVEL.tile  # tokens that the slab matmul handles at once
HAS_F16 = not X86 or LEVEL.name != "generic"  # native half <-> float conversion
HAS_BF16 = "avx512bf16" in LEVEL.extra  # native rounding to bfloat16
VNNI512 = LEVEL.lanes == 16
VNNI256 = VNNI512 or LEVEL.name == "avxvnni"
AVX2 = X86 and LEVEL.name != "generic"

f32 = types.float32  # annotates the float fields of a kernel's argument struct
inline = njit(forceinline=True, nogil=True, error_model="numpy")

I32, I64, F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()
LL = {
    "i8": ir.IntType(8),
    "u8": ir.IntType(8),
    "i16": ir.IntType(16),
    "u16": ir.IntType(16),
    "i32": I32,
    "u32": I32,
    "i64": I64,
    "f32": F32,
}
SCALAR = {
    "i8": types.int64,
    "u8": types.int64,
    "i16": types.int64,
    "u16": types.int64,
    "i32": types.int64,
    "u32": types.int64,
    "i64": types.int64,
    "f32": types.float32,
}


class BFloatType(ir.Type):
    """LLVM's bfloat, which llvmlite lacks."""

    def __str__(self):
        return "bfloat"

    def __eq__(self, other):
        return isinstance(other, BFloatType)

    def __hash__(self):
        return hash(BFloatType)


class Vec(types.Type):
    """Numba type of `n` lanes of `el`."""

    def __init__(self, el, n):
        self.el, self.n = el, n
        super().__init__(name=f"{el}x{n}")

    @property
    def ll(self):
        return ir.VectorType(LL[self.el], self.n)


@register_model(Vec)
class _VecModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, fe_type.ll)


def call_intrinsic(b, name, ret, args):
    fn = b.module.globals.get(name) or ir.Function(b.module, ir.FunctionType(ret, [a.type for a in args]), name)
    return b.call(fn, args)


def pointer(b, address, ty):
    return b.inttoptr(address, ty.as_pointer())


def constant(ty, value):
    return ir.Constant(ty, [value] * ty.count if isinstance(ty, ir.VectorType) else value)


def mask(indices):
    return ir.Constant(ir.VectorType(I32, len(indices)), list(indices))


def shuffled(b, x, y, indices):
    return b.shuffle_vector(x, y, mask(indices))


def splatted(b, scalar, n):
    ty = ir.VectorType(scalar.type, n)
    one = b.insert_element(ir.Constant(ty, ir.Undefined), scalar, I32(0))
    return shuffled(b, one, one, [0] * n)


def sliced(b, v, start, n):
    return shuffled(b, v, v, range(start, start + n))


def joined(b, parts):
    while len(parts) > 1:
        w = parts[0].type.count
        parts = [shuffled(b, parts[i], parts[i + 1], range(2 * w)) for i in range(0, len(parts), 2)]
    return parts[0]
