"""The slab matmul on AMX: bf16 weights decoded row by row are the A operand as they are, packed tokens the B operand.

Four C tiles of 16 x 16 f32 hold 32 rows by 32 tokens and accumulate over all of k, so there is no scale epilogue and
less rounding than with integers. At the level `amx-emulated` the tile instructions are plain loops over `state`.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .dense import row_f32
from .gemm import slab_kernel
from .layout import AMX_SLAB
from .simd import LANES, LEVEL, TILE, bf16_to_f32, f32_at, f32_to_bf16, inline, load, set_f32, splat, store, zeros

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
    _store = _instruction("tilestored64", 1, 2)
    _dot = _instruction("tdpbf16ps", 3, 0)

    def tile_zero(t):
        op = _zero(t)
        return inline(lambda state: op((0,)))

    def tile_load(t):
        op = _load(t)
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
    _v, _u16, _full, _zeros = load("f32", 16), load("u16", 1), splat("f32", 16), zeros("f32", 16)
    _row = load("i32", 16)

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

    def tile_store(t):
        @inline
        def op(state, p, stride):
            for r in range(16):
                store(p + stride * r, _v(state + 1024 * t + 64 * r))

        return op

    def tile_dot(c, a, b):
        from .simd import lane

        first = lane(0)

        @inline
        def op(state):
            for r in range(16):
                for n in range(16):
                    out = state + 1024 * c + 64 * r + 4 * n
                    total = f32_at(out)
                    for k in range(32):
                        x = first(bf16_to_f32(_u16(state + 1024 * a + 64 * r + 2 * k)))
                        y = first(bf16_to_f32(_u16(state + 1024 * b + 64 * (k // 2) + 4 * n + 2 * (k % 2))))
                        total += x * y
                    set_f32(out, total)

        return op

    @inline
    def configure(p):
        return

    @inline
    def release():
        return


_zero0, _zero1, _zero2, _zero3 = (tile_zero(t) for t in range(4))
_load_a0, _load_a1, _load_b0, _load_b1 = (tile_load(t) for t in range(4, 8))
_store0, _store1, _store2, _store3 = (tile_store(t) for t in range(4))
_dot0, _dot1, _dot2, _dot3 = tile_dot(0, 4, 6), tile_dot(1, 4, 7), tile_dot(2, 5, 6), tile_dot(3, 5, 7)


@inline
def multiply_rows(xt, w, k, c, row, state):
    """32 rows of bf16 weights (stride 2 k bytes) by one tile of 32 tokens -> c[token half][slab row][16]."""
    a, stride = w + 2 * k * row, 2 * k
    _zero0(state)
    _zero1(state)
    _zero2(state)
    _zero3(state)
    for b in range(k // 32):
        _load_a0(state, a + 64 * b, stride)
        _load_b0(state, xt + 2048 * b, 64)
        _dot0(state)
        _load_b1(state, xt + 2048 * b + 1024, 64)
        _dot1(state)
        _load_a1(state, a + 64 * b + 16 * stride, stride)
        _dot2(state)
        _dot3(state)
    out = c + 4 * LANES * row
    _store0(state, out, 64)
    _store1(state, out + 64 * AMX_SLAB, 64)
    _store2(state, out + 1024, 64)
    _store3(state, out + 64 * AMX_SLAB + 1024, 64)


_f32x16 = load("f32", 16)


def prompt(name):
    """Slab matmul of any type with bf16 tiles of tokens. config: address of the 64-byte tile configuration."""
    row_bytes, decode_row = row_f32(name)

    @inline
    def tile_bytes(k):
        return TILE * 2 * k

    @inline
    def decode(w, rows, k, slab):
        row = slab + 2 * AMX_SLAB * k
        for r in range(rows):
            decode_row(w + row_bytes(k) * r, k, row, row + 4 * k)
            for i in range(0, k, 16):
                store(slab + 2 * k * r + 2 * i, f32_to_bf16(_f32x16(row + 4 * i)))

    @inline
    def multiply(xt, slab, k, c, r):
        multiply_rows(xt, slab, k, c, r, slab + 2 * AMX_SLAB * k)

    kernel = inline(slab_kernel(row_bytes, tile_bytes, decode, multiply, slab_rows=AMX_SLAB, step=32))

    def amx_matmul(
        tid, nth, count, x, w, n, k, y, ldy, accumulate, scratch, ld_scratch, cursor, experts, segments, expert_bytes,
        config,
    ):  # fmt: skip
        configure(config)
        kernel(
            tid, nth, count, x, w, n, k, y, ldy, accumulate, scratch, ld_scratch, cursor, experts, segments,
            expert_bytes,
        )  # fmt: skip
        release()

    return amx_matmul


