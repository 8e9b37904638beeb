"""Kernels that apply vector operations to arrays, so that each operation can be checked on its own.

`apply[case]` walks over arrays of vectors with one operation. Operations that are cheap to compile are bundled:
`arithmetic`, `conversions`, `reductions`.
"""

from __future__ import annotations

from . import simd
from .simd import (
    TILE,
    atomic_add,
    concat,
    convert,
    f32_at,
    hmax,
    hsum,
    i8_at,
    i16_at,
    i32_at,
    i64_at,
    inline,
    load,
    set_f32,
    set_i8,
    set_i32,
    set_i64,
    splat,
    store,
    u8_at,
    u16_at,
    u32_at,
    vmax,
    vmin,
)
from .tables import lookup16

SIZES = {"i8": 1, "u8": 1, "i16": 2, "u16": 2, "i32": 4, "u32": 4, "i64": 8, "f32": 4}
SIXTEEN = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def _alone(el, scalar_of):
    """An operation that gives a scalar, as one that gives a vector of one."""
    one = splat(el, 1)

    @inline
    def op(x):
        return one(scalar_of(x))

    return op


@inline
def _swapped(x, y):
    return concat(y, x)


def _cases():
    """name: (input vectors as (element, lanes), operation)."""
    f32, u16, i32, i8 = ("f32", 16), ("u16", 16), ("i32", 16), ("i8", 16)
    cases = {
        "fma": ((f32, f32, f32), simd.fma),
        "abs": ((f32,), simd.vabs),
        "floor": ((f32,), simd.floor),
        "where_negative": ((i32, f32, f32), simd.where_negative),
        "bf16_to_f32": ((u16,), simd.bf16_to_f32),
        "f32_to_bf16": ((f32,), simd.f32_to_bf16),
        "exp2i": ((i32,), simd.exp2i),
        "exp": ((f32,), simd.exp(16)),
        "concat": ((f32, f32), _swapped),
        "shuffle": ((f32, f32), simd.shuffle(31, 0, 16, 15, 7, 7, 24, 1)),
        "pick": ((i8,), simd.pick(15, 0, 3, 3, 8, 9, 10, 1)),
        "part": ((i8,), simd.part(4, 8)),
        "lane.i8": ((i8,), _alone("i64", simd.lane(5))),
        "lane.u8": ((("u8", 16),), _alone("i64", simd.lane(15))),
        "lane.f32": ((f32,), _alone("f32", simd.lane(0))),
        "lookup16": ((("u8", 64),), lookup16(SIXTEEN)),
        "bitcast": ((("u8", 32),), simd.bitcast("i32", 8)),
    }
    for n in (1, 4, 8, 16, 32):
        cases[f"half_to_f32.{n}"] = ((("u16", n),), simd.half_to_f32)
        cases[f"f32_to_half.{n}"] = ((("f32", n),), simd.f32_to_half)
    for n in (4, 8, 16):
        cases[f"transpose.{n}"] = ((("f32", n * n),), simd.transpose)
    for name, n in {"8": 8, "16": 16, "tile": TILE}.items():
        acc, unsigned, signed = ("i32", n), ("u8", 4 * n), ("i8", 4 * n)
        cases[f"dot4_u8s8.{name}"] = ((acc, unsigned, signed), simd.dot4_u8s8)
        cases[f"dot4_s8s8.{name}"] = ((acc, signed, signed), simd.dot4_s8s8)
    return cases


CASES = _cases()


def apply(name):
    """y (count vectors) = operation of vectors of a, b and c, as many of them as the case has inputs."""
    inputs, op = CASES[name]
    loads = [load(el, n) for el, n in inputs] * 3
    load_a, load_b, load_c = loads[0], loads[1], loads[2]
    steps = [SIZES[el] * n for el, n in inputs] * 3
    step_a, step_b, step_c = steps[0], steps[1], steps[2]

    def one(tid, nth, a, b, c, y, step, count):
        for i in range(count):
            store(y + step * i, op(load_a(a + step_a * i)))

    def two(tid, nth, a, b, c, y, step, count):
        for i in range(count):
            store(y + step * i, op(load_a(a + step_a * i), load_b(b + step_b * i)))

    def three(tid, nth, a, b, c, y, step, count):
        for i in range(count):
            store(y + step * i, op(load_a(a + step_a * i), load_b(b + step_b * i), load_c(c + step_c * i)))

    return (one, two, three)[len(inputs) - 1]


def arithmetic(el):
    """y (8, 16) = a + b, a - b, a * b, min, max, a + 3, a - 3, a * 3 of vectors of 16."""
    load16, step = load(el, 16), 16 * SIZES[el]

    def operators(tid, nth, a, b, y):
        u, v = load16(a), load16(b)
        store(y, u + v)
        store(y + step, u - v)
        store(y + 2 * step, u * v)
        store(y + 3 * step, vmin(u, v))
        store(y + 4 * step, vmax(u, v))
        store(y + 5 * step, u + 3)
        store(y + 6 * step, u - 3)
        store(y + 7 * step, u * 3)

    return operators


def bitwise(el):
    """y (8, 16) = a & b, a | b, a ^ b, a << c, a >> c, a << 3, a >> 3, a & 15 of vectors of 16."""
    load16, step = load(el, 16), 16 * SIZES[el]

    def operators(tid, nth, a, b, c, y):
        u, v, n = load16(a), load16(b), load16(c)
        store(y, u & v)
        store(y + step, u | v)
        store(y + 2 * step, u ^ v)
        store(y + 3 * step, u << n)
        store(y + 4 * step, u >> n)
        store(y + 5 * step, u << 3)
        store(y + 6 * step, u >> 3)
        store(y + 7 * step, u & 15)

    return operators


_f32x16 = load("f32", 16)


def division(tid, nth, a, b, y):
    """y (2, 16) f32 = a / b, a / 3 of vectors of 16."""
    u = _f32x16(a)
    store(y, u / _f32x16(b))
    store(y + 64, u / 3.0)


def conversions(el):
    """y (4 vectors, 64 bytes apart) = sixteen values of a as i8, i16, i32, f32."""
    load16 = load(el, 16)
    to_i8, to_i16, to_i32, to_f32 = convert("i8"), convert("i16"), convert("i32"), convert("f32")
    from_f32 = el == "f32"

    def convert_all(tid, nth, a, y):
        v = load16(a)
        store(y, to_i8(v))
        store(y + 64, to_i16(v))
        store(y + 128, to_i32(v))
        if not from_f32:
            store(y + 192, to_f32(v))

    return convert_all


def reductions(lanes):
    """f32 sum and maximum of a (lanes,), i64 sum of b (lanes,) i32."""
    load_f32, load_i32 = load("f32", int(lanes)), load("i32", int(lanes))

    def reduce(tid, nth, a, b, floats, integers):
        set_f32(floats, hsum(load_f32(a)))
        set_f32(floats + 4, hmax(load_f32(a)))
        set_i64(integers, hsum(load_i32(b)))

    return reduce


AT = {"half_at": _alone("f32", simd.half_at), "broadcast_u32": simd.broadcast_u32("i8", 32), "bits": simd.bits(32, 16)}


def at(name):
    """y (count vectors) = what an operation that reads memory makes of a, a + 1, a + 2 ..."""
    op = AT[name]

    def each(tid, nth, a, y, step, count):
        for i in range(count):
            store(y + step * i, op(a + i))

    return each


def scalars(tid, nth, a, value, integers, floats, stored):
    """Every scalar read at address a -> integers i64 (7,), floats f32 (1,); `value` -> i8, i32, i64 at `stored`."""
    set_i64(integers, u8_at(a))
    set_i64(integers + 8, i8_at(a))
    set_i64(integers + 16, u16_at(a))
    set_i64(integers + 24, i16_at(a))
    set_i64(integers + 32, i32_at(a))
    set_i64(integers + 40, u32_at(a))
    set_i64(integers + 48, i64_at(a))
    set_f32(floats, f32_at(a))
    set_i8(stored, value)
    set_i32(stored + 8, value)
    set_i64(stored + 16, value)


def count_up(tid, nth, counter, times):
    """Adds 1 to `counter` that often, atomically."""
    for _ in range(times):
        atomic_add(counter, 1)
