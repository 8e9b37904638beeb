"""Tile instructions. At the emulated levels they are plain loops over `state`, 1 kB for each of eight tiles."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .simd import LEVEL, bitcast, fma, i32_at, inline, load, splat, store, zeros

_i8, _i64, _void = ir.IntType(8), ir.IntType(64), ir.VoidType()


def _instruction(name, n_tiles, n_addresses):
    """(tile numbers..., addresses or strides...) -> llvm.x86.<name>; tile numbers are constants."""

    def make(*tiles):
        @intrinsic
        def op(_t, args):
            def gen(c, b, s, a):
                values = [b.extract_value(a[0], i) for i in range(n_addresses)]
                if values:
                    values[0] = b.inttoptr(values[0], _i8.as_pointer())
                operands = [ir.Constant(_i8, t) for t in tiles] + values
                full = f"llvm.x86.{name}"
                fn = b.module.globals.get(full) or ir.Function(
                    b.module, ir.FunctionType(_void, [v.type for v in operands]), full
                )
                b.call(fn, operands)
                return c.get_dummy_value()

            return types.void(types.UniTuple(types.int64, max(1, n_addresses))), gen

        return op

    if n_tiles == 0:
        return make()
    return make


if LEVEL.name == "amx":
    _configure, _release = _instruction("ldtilecfg", 0, 1), _instruction("tilerelease", 0, 0)
    _zero, _load = _instruction("tilezero", 1, 0), _instruction("tileloadd64", 1, 2)
    _stream, _store = _instruction("tileloaddt164", 1, 2), _instruction("tilestored64", 1, 2)
    _dot = _instruction("tdpbf16ps", 3, 0)

    def tile_zero(t):
        op = _zero(t)
        return inline(lambda state: op((0,)))

    def tile_load(t):
        op = _load(t)
        return inline(lambda state, p, stride: op((p, stride)))

    def tile_stream(t):
        """A load of what is not wanted again soon: it need not displace what the first-level cache holds."""
        op = _stream(t)
        return inline(lambda state, p, stride: op((p, stride)))

    def tile_store(t):
        op = _store(t)
        return inline(lambda state, p, stride: op((p, stride)))

    def tile_dot(c, a, b):
        op = _dot(c, a, b)
        return inline(lambda state: op((0,)))

    @inline
    def configure(p):
        _configure((p,))

    @inline
    def release():
        _release((0,))

else:
    _v, _zeros = load("f32", 16), zeros("f32", 16)
    _row, _floats = load("i32", 16), bitcast("f32", 16)
    _spread = splat("i32", 16)
    _high = -65536  # the upper of two bf16

    def tile_zero(t):
        @inline
        def op(state):
            for r in range(16):
                store(state + 1024 * t + 64 * r, _zeros())

        return op

    def tile_load(t):
        @inline
        def op(state, p, stride):
            for r in range(16):
                store(state + 1024 * t + 64 * r, _row(p + stride * r))

        return op

    tile_stream = tile_load

    def tile_store(t):
        @inline
        def op(state, p, stride):
            for r in range(16):
                store(p + stride * r, _v(state + 1024 * t + 64 * r))

        return op

    def tile_dot(c, a, b):
        @inline
        def op(state):
            for r in range(16):
                even, odd = _zeros(), _zeros()
                for i in range(16):
                    x, y = i32_at(state + 1024 * a + 64 * r + 4 * i), _row(state + 1024 * b + 64 * i)
                    even = fma(_floats(_spread(x << 16)), _floats(y << 16), even)
                    odd = fma(_floats(_spread(x & _high)), _floats(y & _high), odd)
                out = state + 1024 * c + 64 * r
                store(out, _v(out) + (even + odd))

        return op

    @inline
    def configure(p):
        return

    @inline
    def release():
        return
