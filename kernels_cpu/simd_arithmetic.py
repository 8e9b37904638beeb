"""Arithmetic: operators, fma, reductions, integer dots, exponential, transposition."""

from __future__ import annotations

import functools
import operator

from llvmlite import ir
from numba import types
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin

from .simd_lanes import splat, to_i32
from .vec import (
    AVX2,
    I32,
    I64,
    LL,
    SCALAR,
    VNNI256,
    VNNI512,
    X86,
    Vec,
    call_intrinsic,
    constant,
    inline,
    joined,
    shuffled,
    sliced,
    splatted,
)


def _operator(op, emit):
    @infer_global(op)
    class _Template(AbstractTemplate):
        def generic(self, args, kws):
            if kws or len(args) != 2 or not isinstance(args[0], Vec):
                return None
            if args[0] == args[1] or isinstance(args[1], (types.Integer, types.Float)):
                return signature(args[0], *args)
            return None

    @lower_builtin(op, Vec, Vec)
    def _vector(c, b, s, a):
        return emit(b, a[0], a[1], s.return_type.el)

    def _scalar(c, b, s, a):
        v = s.return_type
        x = c.cast(b, a[1], s.args[1], SCALAR[v.el])
        x = x if v.el in ("f32", "i64") else b.trunc(x, LL[v.el])
        return emit(b, a[0], splatted(b, x, v.n), v.el)

    lower_builtin(op, Vec, types.Integer)(_scalar)
    lower_builtin(op, Vec, types.Float)(_scalar)


_operator(operator.and_, lambda b, x, y, e: b.and_(x, y))
_operator(operator.or_, lambda b, x, y, e: b.or_(x, y))
_operator(operator.xor, lambda b, x, y, e: b.xor(x, y))
_operator(operator.lshift, lambda b, x, y, e: b.shl(x, y))
_operator(operator.rshift, lambda b, x, y, e: b.lshr(x, y) if e[0] == "u" else b.ashr(x, y))
_operator(operator.add, lambda b, x, y, e: b.fadd(x, y) if e == "f32" else b.add(x, y))
_operator(operator.sub, lambda b, x, y, e: b.fsub(x, y) if e == "f32" else b.sub(x, y))
_operator(operator.mul, lambda b, x, y, e: b.fmul(x, y) if e == "f32" else b.mul(x, y))
_operator(operator.truediv, lambda b, x, y, e: b.fdiv(x, y))


@intrinsic
def fma(_t, x, y, z):
    """x * y + z. Fused where the level has it; two roundings at `generic` on x86, which has no FMA."""

    def gen(c, b, s, a):
        if X86 and not AVX2:
            return b.fadd(b.fmul(a[0], a[1]), a[2])
        return call_intrinsic(b, f"llvm.fma.v{s.return_type.n}f32", s.return_type.ll, list(a))

    return x(x, x, x), gen


def _minmax(cmp):
    @intrinsic
    def op(_t, x, y):
        def gen(c, b, s, a):
            el = s.return_type.el
            if el == "f32":
                test = b.fcmp_ordered(cmp, a[0], a[1])
            else:
                test = (b.icmp_unsigned if el[0] == "u" else b.icmp_signed)(cmp, a[0], a[1])
            return b.select(test, a[0], a[1])

        return x(x, x), gen

    return op


vmin, vmax = _minmax("<"), _minmax(">")


@intrinsic
def where_negative(_t, m, x, y):
    """Lanes of x where the i32 lanes of m are negative, else of y."""

    def gen(c, b, s, a):
        return b.select(b.icmp_signed("<", a[0], ir.Constant(a[0].type, None)), a[1], a[2])

    return x(m, x, x), gen


@intrinsic
def vabs(_t, x):
    return x(x), lambda c, b, s, a: call_intrinsic(b, f"llvm.fabs.v{s.return_type.n}f32", a[0].type, [a[0]])


@intrinsic
def floor(_t, x):
    return x(x), lambda c, b, s, a: call_intrinsic(b, f"llvm.floor.v{s.return_type.n}f32", a[0].type, [a[0]])


def _reduce(combine):
    @intrinsic
    def op(_t, x):
        def gen(c, b, s, a):
            v, n = a[0], s.args[0].n
            while n > 1:  # halves in a fixed order, so that every level and thread count agrees
                n //= 2
                v = combine(b, sliced(b, v, 0, n), sliced(b, v, n, n), s.args[0].el)
            v = b.extract_element(v, I32(0))
            return v if s.args[0].el == "f32" else b.sext(v, I64)

        return SCALAR[x.el](x), gen

    return op


hsum = _reduce(lambda b, x, y, e: b.fadd(x, y) if e == "f32" else b.add(x, y))
hmax = _reduce(lambda b, x, y, e: b.select(b.fcmp_ordered(">", x, y), x, y))


def by_register(b, args, widths, piece, emit):
    """Apply `emit` to register-sized pieces of the args and join the results."""
    n = args[0].type.count // widths[0]
    if n == 0:
        raise TypeError("vector narrower than the instruction")
    parts = []
    for i in range(n):
        parts.append(emit(b, [sliced(b, a, i * w, w) for a, w in zip(args, widths, strict=True)]))
    return joined(b, parts)


def _dot4_register(b, args):
    """One register: i32 acc + four-byte dot of u8 and s8. VNNI instruction, or maddubs + maddwd."""
    acc, u, v = args
    lanes = acc.type.count
    if VNNI256:
        return call_intrinsic(b, f"llvm.x86.avx512.vpdpbusd.{lanes * 32}", acc.type, [acc, u, v])
    if AVX2 and lanes == 8:
        pairs = call_intrinsic(b, "llvm.x86.avx2.pmadd.ub.sw", ir.VectorType(ir.IntType(16), 16), [u, v])
        ones = constant(pairs.type, 1)
        return b.add(acc, call_intrinsic(b, "llvm.x86.avx2.pmadd.wd", acc.type, [pairs, ones]))
    wide = ir.VectorType(I32, 4 * lanes)
    product = b.mul(b.zext(u, wide), b.sext(v, wide))
    for i in range(4):
        acc = b.add(acc, shuffled(b, product, product, range(i, 4 * lanes, 4)))
    return acc


@intrinsic
def dot4_u8s8(_t, acc, u, v):
    """acc (i32 x n) + dot of each four u8 x s8 bytes (4n lanes).

    At `avx2` pairs are added in 16 bits: u must stay below 129 when |v| <= 127 (checked by the quant types'
    own ranges; use `dot4_s8s8` for full-range weights).
    """

    def gen(c, b, s, a):
        lanes = min(s.return_type.n, 16 if VNNI512 else 8 if X86 and AVX2 else 4)
        return by_register(b, list(a), [lanes, 4 * lanes, 4 * lanes], lanes, _dot4_register)

    return acc(acc, u, v), gen


def _maddubs(b, args):
    return call_intrinsic(b, "llvm.x86.avx2.pmadd.ub.sw", ir.VectorType(ir.IntType(16), 16), args)


def _maddwd_ones(b, args):
    ty = ir.VectorType(I32, 8)
    return call_intrinsic(b, "llvm.x86.avx2.pmadd.wd", ty, [args[0], constant(args[0].type, 1)])


@intrinsic
def dot2_u8s8(_t, u, v):
    """Dot of each two u8 x s8 bytes in i16, saturating; only at AVX2 levels."""

    def gen(c, b, s, a):
        return by_register(b, list(a), [32, 32], 16, _maddubs)

    return Vec("i16", u.n // 2)(u, v), gen


@intrinsic
def add_pairs(_t, x):
    """i16 x 2n -> i32 x n: sums of neighbours; only at AVX2 levels."""

    def gen(c, b, s, a):
        return by_register(b, list(a), [16], 8, _maddwd_ones)

    return Vec("i32", x.n // 2)(x), gen


@intrinsic
def dot4_s8s8(_t, acc, x, y):
    """acc (i32 x n) + dot of each four s8 x s8 bytes; y must not hold -128."""

    def one(b, args):
        acc, u, v = args
        n = u.type.count
        zero = ir.Constant(u.type, None)
        negative = b.icmp_signed("<", u, zero)
        magnitude = b.select(negative, b.sub(zero, u), u)  # |-128| = 128 as u8: 128 * 127 * 2 fits in 16 bits
        if AVX2 and n == 32:
            flipped = call_intrinsic(b, "llvm.x86.avx2.psign.b", v.type, [v, u])
        else:
            flipped = b.select(negative, b.sub(zero, v), v)
        return _dot4_register(b, [acc, magnitude, flipped])

    def gen(c, b, s, a):
        lanes = min(s.return_type.n, 16 if VNNI512 else 8 if X86 and AVX2 else 4)
        return by_register(b, list(a), [lanes, 4 * lanes, 4 * lanes], lanes, one)

    return acc(acc, x, y), gen


@intrinsic
def exp2i(_t, x):
    """i32 lanes n in -126..127 -> f32 lanes 2**n."""

    def gen(c, b, s, a):
        return b.bitcast(b.shl(b.add(a[0], constant(a[0].type, 127)), constant(a[0].type, 23)), s.return_type.ll)

    return Vec("f32", x.n)(x), gen


@functools.cache
def exp(n):
    """(f32 x n) -> e**x, within 2 ulp; below -87.3 it is 2**-126, above 88 it saturates at e**88.

    Range reduction by ln 2 in two parts and a degree-6 polynomial (Cephes expf).
    """
    full = splat("f32", n)

    @inline
    def op(x):
        x = vmax(vmin(x, full(88.0)), full(-87.33654))
        k = floor(fma(x, full(1.44269504088896341), full(0.5)))
        r = fma(k, full(-0.693359375), x)
        r = fma(k, full(2.12194440e-4), r)
        y = full(1.9875691500e-4)
        y = fma(y, r, full(1.3981999507e-3))
        y = fma(y, r, full(8.3334519073e-3))
        y = fma(y, r, full(4.1665795894e-2))
        y = fma(y, r, full(1.6666665459e-1))
        y = fma(y, r, full(5.0000001201e-1))
        y = fma(y, r * r, r) + full(1.0)
        return y * exp2i(to_i32(k))

    return op


@intrinsic
def transpose(_t, rows):
    """n rows of n f32 lanes concatenated (n*n lanes) -> transposed, by log2(n) butterfly steps."""

    def gen(c, b, s, a):
        n = int(s.args[0].n ** 0.5)
        cur = [sliced(b, a[0], i * n, n) for i in range(n)]
        step = 1
        while step < n:
            low = [n + (i ^ step) if i & step else i for i in range(n)]
            high = [n + i if i & step else i | step for i in range(n)]
            for i in range(n):
                if not i & step:
                    x, y = cur[i], cur[i | step]
                    cur[i], cur[i | step] = shuffled(b, x, y, low), shuffled(b, x, y, high)
            step *= 2
        return joined(b, cur)

    return rows(rows), gen
