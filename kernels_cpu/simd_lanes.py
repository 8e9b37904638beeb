"""Lanes: building vectors, taking them apart, converting between element types."""

from __future__ import annotations

import functools

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .vec import (
    F32,
    HAS_BF16,
    HAS_F16,
    I32,
    I64,
    LL,
    SCALAR,
    BFloatType,
    Vec,
    call_intrinsic,
    constant,
    pointer,
    shuffled,
    sliced,
    splatted,
)


@functools.cache
def splat(el, n):
    """(scalar) -> all lanes equal."""

    @intrinsic
    def op(_t, x):
        def gen(c, b, s, a):
            v = c.cast(b, a[0], s.args[0], SCALAR[el])
            return splatted(b, v if el in ("f32", "i64") else b.trunc(v, LL[el]), n)

        return Vec(el, n)(x), gen

    return op


@functools.cache
def zeros(el, n):
    """() -> zero vector."""

    @intrinsic
    def op(_t):
        return Vec(el, n)(), lambda c, b, s, a: ir.Constant(s.return_type.ll, None)

    return op


@functools.cache
def broadcast_u32(el, n):
    """(address) -> Vec(el, n) repeating the four bytes at the address."""

    @intrinsic
    def op(_t, p):
        def gen(c, b, s, a):
            v = b.load(pointer(b, a[0], I32))
            v.align = 1
            return b.bitcast(splatted(b, v, n * (8 if el[1:] == "8" else 16) // 32), s.return_type.ll)

        return Vec(el, n)(types.int64), gen

    return op


@functools.cache
def shuffle(*indices):
    """(a, b) -> lanes picked from a and b concatenated, fixed at compile time."""

    @intrinsic
    def op(_t, x, y):
        return Vec(x.el, len(indices))(x, x), lambda c, b, s, a: shuffled(b, a[0], a[1], indices)

    return op


@functools.cache
def pick(*indices):
    """(a) -> lanes of a, fixed at compile time."""

    @intrinsic
    def op(_t, x):
        return Vec(x.el, len(indices))(x), lambda c, b, s, a: shuffled(b, a[0], a[0], indices)

    return op


@functools.cache
def part(start, n):
    """(a) -> lanes start .. start+n-1."""
    return pick(*range(start, start + n))


@intrinsic
def concat(_t, x, y):
    return Vec(x.el, 2 * x.n)(x, x), lambda c, b, s, a: shuffled(b, a[0], a[1], range(2 * s.args[0].n))


@functools.cache
def bitcast(el, n):
    @intrinsic
    def op(_t, x):
        return Vec(el, n)(x), lambda c, b, s, a: b.bitcast(a[0], s.return_type.ll)

    return op


@functools.cache
def lane(i):
    """(a) -> scalar in lane i."""

    @intrinsic
    def op(_t, x):
        def gen(c, b, s, a):
            v = b.extract_element(a[0], I32(i))
            el = s.args[0].el
            return v if el in ("f32", "i64") else (b.zext if el[0] == "u" else b.sext)(v, I64)

        return SCALAR[x.el](x), gen

    return op


@intrinsic
def from_words(_t, words):
    """(tuple of n int64) -> u8 x 8 n: their bytes one after the other."""

    def gen(c, b, s, a):
        n = s.args[0].count
        v = ir.Constant(ir.VectorType(I64, n), ir.Undefined)
        for i in range(n):
            v = b.insert_element(v, b.extract_value(a[0], i), I32(i))
        return b.bitcast(v, s.return_type.ll)

    return Vec("u8", 8 * words.count)(words), gen


@functools.cache
def const(el, *values):
    """() -> the given lanes."""

    @intrinsic
    def op(_t):
        return Vec(el, len(values))(), lambda c, b, s, a: ir.Constant(s.return_type.ll, list(values))

    return op


@functools.cache
def bits(n, value):
    """(address of n bits) -> u8 x n: `value` where the bit is set (lowest bit first), else 0."""

    @intrinsic
    def op(_t, p):
        def gen(c, b, s, a):
            word = b.load(pointer(b, a[0], ir.IntType(n)))
            word.align = 1
            ty = s.return_type.ll
            return b.select(b.bitcast(word, ir.VectorType(ir.IntType(1), n)), constant(ty, value), constant(ty, 0))

        return Vec("u8", n)(types.int64), gen

    return op


@functools.cache
def spread_bits(value):
    """(u8 x n) -> u8 x 8 n: `value` where the bit is set, else 0; the lowest bit of a byte first."""

    @intrinsic
    def op(_t, x):
        def gen(c, b, s, a):
            n = 8 * s.args[0].n
            mask = b.bitcast(a[0], ir.VectorType(ir.IntType(1), n))
            ty = s.return_type.ll
            return b.select(mask, constant(ty, value), constant(ty, 0))

        return Vec("u8", 8 * x.n)(x), gen

    return op


@functools.cache
def convert(el):
    """(a) -> same lanes as `el`: integers widen by their own sign or truncate, f32 to integer rounds to even."""

    @intrinsic
    def op(_t, x):
        def gen(c, b, s, a):
            src, ty, v = s.args[0].el, s.return_type.ll, a[0]
            if src == "f32":
                v = call_intrinsic(b, f"llvm.rint.v{s.args[0].n}f32", v.type, [v])
                return b.fptosi(v, ty)
            if el == "f32":
                return b.uitofp(v, ty) if src[0] == "u" else b.sitofp(v, ty)
            wide, narrow = LL[el].width, LL[src].width
            if wide == narrow:
                return v
            return b.trunc(v, ty) if wide < narrow else (b.zext if src[0] == "u" else b.sext)(v, ty)

        return Vec(el, x.n)(x), gen

    return op


to_f32, to_i32, to_i16, to_i8 = convert("f32"), convert("i32"), convert("i16"), convert("i8")


def _half_to_f32(b, bits, n):
    """u16 lanes holding IEEE halves -> f32 lanes, exact for every half including subnormal, inf and nan."""
    if HAS_F16:
        return b.fpext(b.bitcast(bits, ir.VectorType(ir.HalfType(), n)), ir.VectorType(F32, n))
    i, f = ir.VectorType(I32, n), ir.VectorType(F32, n)
    h = b.zext(bits, i)
    magnitude = b.shl(b.and_(h, constant(i, 0x7FFF)), constant(i, 13))
    scaled = b.bitcast(b.fmul(b.bitcast(magnitude, f), constant(f, 2.0**112)), i)
    special = b.icmp_unsigned(">=", b.and_(h, constant(i, 0x7FFF)), constant(i, 0x7C00))
    value = b.select(special, b.or_(magnitude, constant(i, 0x7F800000)), scaled)
    return b.bitcast(b.or_(value, b.shl(b.and_(h, constant(i, 0x8000)), constant(i, 16))), f)


def _f32_to_half(b, v, n):
    """f32 lanes -> u16 lanes holding IEEE halves, rounded to nearest even."""
    if HAS_F16:
        return b.bitcast(b.fptrunc(v, ir.VectorType(ir.HalfType(), n)), ir.VectorType(ir.IntType(16), n))
    i, f = ir.VectorType(I32, n), ir.VectorType(F32, n)
    u = b.bitcast(v, i)
    sign = b.and_(b.lshr(u, constant(i, 16)), constant(i, 0x8000))
    mag = b.and_(u, constant(i, 0x7FFFFFFF))
    odd = b.and_(b.lshr(mag, constant(i, 13)), constant(i, 1))
    normal = b.lshr(b.add(b.sub(mag, constant(i, 112 << 23)), b.add(odd, constant(i, 0xFFF))), constant(i, 13))
    # Subnormal halves: adding 0.5 lines the mantissa up so that the FPU itself rounds to even.
    small = b.sub(b.bitcast(b.fadd(b.bitcast(mag, f), constant(f, 0.5)), i), constant(i, 0x3F000000))
    half = b.select(b.icmp_unsigned("<", mag, constant(i, 113 << 23)), small, normal)
    half = b.select(b.icmp_unsigned(">=", mag, constant(i, 0x477FF000)), constant(i, 0x7C00), half)
    half = b.select(b.icmp_unsigned(">", mag, constant(i, 0x7F800000)), constant(i, 0x7E00), half)
    return b.trunc(b.or_(half, sign), ir.VectorType(ir.IntType(16), n))


@intrinsic
def half_to_f32(_t, x):
    """u16 lanes -> f32 lanes."""
    return Vec("f32", x.n)(x), lambda c, b, s, a: _half_to_f32(b, a[0], s.args[0].n)


@intrinsic
def f32_to_half(_t, x):
    """f32 lanes -> u16 lanes."""
    return Vec("u16", x.n)(x), lambda c, b, s, a: _f32_to_half(b, a[0], s.args[0].n)


@intrinsic
def bf16_to_f32(_t, x):
    """u16 lanes holding bfloat16 -> f32 lanes."""

    def gen(c, b, s, a):
        wide = b.zext(a[0], ir.VectorType(I32, s.args[0].n))
        return b.bitcast(b.shl(wide, constant(wide.type, 16)), s.return_type.ll)

    return Vec("f32", x.n)(x), gen


def _f32_to_bf16(b, v, n):
    u = b.bitcast(v, ir.VectorType(I32, n))
    odd = b.and_(b.lshr(u, constant(u.type, 16)), constant(u.type, 1))
    u = b.add(u, b.add(odd, constant(u.type, 0x7FFF)))
    return b.trunc(b.lshr(u, constant(u.type, 16)), ir.VectorType(ir.IntType(16), n))


@intrinsic
def f32_to_bf16(_t, x):
    """f32 lanes -> u16 lanes holding bfloat16, rounded to nearest even (nan not kept apart)."""
    return Vec("u16", x.n)(x), lambda c, b, s, a: _f32_to_bf16(b, a[0], s.args[0].n)


@intrinsic
def tile_bf16(_t, x):
    """32 f32 lanes -> u16 lanes holding bfloat16 for tiles, rounded to nearest even; subnormal numbers may become 0.

    Tiles take subnormal numbers for 0 as well, and the instruction that AMX processors have does.
    """

    def gen(c, b, s, a):
        if not HAS_BF16:
            return _f32_to_bf16(b, a[0], 32)
        ty, halves = ir.VectorType(BFloatType(), 32), [sliced(b, a[0], 16, 16), sliced(b, a[0], 0, 16)]
        return b.bitcast(call_intrinsic(b, "llvm.x86.avx512bf16.cvtne2ps2bf16.512", ty, halves), s.return_type.ll)

    return Vec("u16", 32)(x), gen


@intrinsic
def lookup32(_t, table, index):
    """(u16 x 32, u16 x 32) -> table[index modulo 32], lane by lane; only at AVX-512 levels."""

    def gen(c, b, s, a):
        return call_intrinsic(b, "llvm.x86.avx512.permvar.hi.512", a[0].type, list(a))

    return table(table, index), gen


@intrinsic
def half_at(_t, p):
    """f32 value of the IEEE half at an address."""

    def gen(c, b, s, a):
        v = b.load(pointer(b, a[0], ir.VectorType(ir.IntType(16), 1)))
        v.align = 1
        return b.extract_element(_half_to_f32(b, v, 1), I32(0))

    return types.float32(types.int64), gen
