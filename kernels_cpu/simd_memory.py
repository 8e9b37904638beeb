"""Memory: vectors and scalars in and out, prefetch, atomics, calls through addresses."""

from __future__ import annotations

import functools

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .vec import F32, I32, I64, X86, Vec, call_intrinsic, pointer


@functools.cache
def load(el, n):
    """(address) -> Vec(el, n), unaligned."""

    @intrinsic
    def op(_t, p):
        def gen(c, b, s, a):
            v = b.load(pointer(b, a[0], s.return_type.ll))
            v.align = 1
            return v

        return Vec(el, n)(types.int64), gen

    return op


@functools.cache
def strided(el, n, stride):
    """(address) -> Vec(el, n) of elements `stride` bytes apart."""

    @intrinsic
    def op(_t, p):
        def gen(c, b, s, a):
            ty = s.return_type.ll
            v = ir.Constant(ty, ir.Undefined)
            for i in range(n):
                element = b.load(pointer(b, b.add(a[0], I64(i * stride)), ty.element))
                element.align = 1
                v = b.insert_element(v, element, I32(i))
            return v

        return Vec(el, n)(types.int64), gen

    return op


@intrinsic
def store(_t, p, v):
    """store(address, vector), unaligned."""

    def gen(c, b, s, a):
        b.store(a[1], pointer(b, a[0], a[1].type)).align = 1
        return c.get_dummy_value()

    return types.void(types.int64, v), gen


def scalar_load(ll, out, convert=lambda b, v: v):
    @intrinsic
    def op(_t, p):
        def gen(c, b, s, a):
            v = b.load(pointer(b, a[0], ll))
            v.align = 1
            return convert(b, v)

        return out(types.int64), gen

    return op


u8_at = scalar_load(ir.IntType(8), types.int64, lambda b, v: b.zext(v, I64))
i8_at = scalar_load(ir.IntType(8), types.int64, lambda b, v: b.sext(v, I64))
u16_at = scalar_load(ir.IntType(16), types.int64, lambda b, v: b.zext(v, I64))
i16_at = scalar_load(ir.IntType(16), types.int64, lambda b, v: b.sext(v, I64))
i32_at = scalar_load(I32, types.int64, lambda b, v: b.sext(v, I64))
u32_at = scalar_load(I32, types.int64, lambda b, v: b.zext(v, I64))
i64_at = scalar_load(I64, types.int64)
f32_at = scalar_load(F32, types.float32)


def _scalar_store(ll, arg, convert=lambda b, v: v):
    @intrinsic
    def op(_t, p, v):
        def gen(c, b, s, a):
            b.store(convert(b, a[1]), pointer(b, a[0], ll)).align = 1
            return c.get_dummy_value()

        return types.void(types.int64, arg), gen

    return op


set_f32 = _scalar_store(F32, types.float32)
set_i64 = _scalar_store(I64, types.int64)
set_i32 = _scalar_store(I32, types.int64, lambda b, v: b.trunc(v, I32))
set_i8 = _scalar_store(ir.IntType(8), types.int64, lambda b, v: b.trunc(v, ir.IntType(8)))


@intrinsic
def prefetch(_t, p):
    """Ask for the cache line at an address; never faults."""

    def gen(c, b, s, a):
        ptr = pointer(b, a[0], ir.IntType(8))
        call_intrinsic(b, "llvm.prefetch.p0", ir.VoidType(), [ptr, I32(0), I32(3), I32(1)])
        return c.get_dummy_value()

    return types.void(types.int64), gen


@intrinsic
def atomic_add(_t, p, v):
    """Fetch and add on an aligned int64."""

    def gen(c, b, s, a):
        return b.atomic_rmw("add", pointer(b, a[0], I64), a[1], "acq_rel")

    return types.int64(types.int64, types.int64), gen


@intrinsic
def atomic_load(_t, p):
    return types.int64(types.int64), lambda c, b, s, a: b.load_atomic(pointer(b, a[0], I64), "acquire", 8)


@intrinsic
def atomic_store(_t, p, v):
    def gen(c, b, s, a):
        b.store_atomic(a[1], pointer(b, a[0], I64), "release", 8)
        return c.get_dummy_value()

    return types.void(types.int64, types.int64), gen


@intrinsic
def pause(_t):
    """Tell the core that this is a spin loop."""

    def gen(c, b, s, a):
        if X86:
            call_intrinsic(b, "llvm.x86.sse2.pause", ir.VoidType(), [])
        else:
            call_intrinsic(b, "llvm.aarch64.hint", ir.VoidType(), [I32(1)])
        return c.get_dummy_value()

    return types.void(), gen


@functools.cache
def call(n_args):
    """(function address, n int64 arguments...) -> None: calls a C function of int64 arguments."""

    @intrinsic
    def op(_t, fn, args):
        def gen(c, b, s, a):
            values = [b.extract_value(a[1], i) for i in range(n_args)]
            ty = ir.FunctionType(ir.VoidType(), [I64] * n_args)
            b.call(b.inttoptr(a[0], ty.as_pointer()), values)
            return c.get_dummy_value()

        return types.void(types.int64, types.UniTuple(types.int64, n_args)), gen

    return op
