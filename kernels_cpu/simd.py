"""SIMD vectors as first-class Numba values, and the scalar memory access that goes with them.

A vector is typed by element and lane count (`Vec("i8", 64)`) and may be wider than a register: LLVM splits it.
Addresses are int64. `load("u8", 16)` and its relatives build an operation once, at import; kernels then read
like arithmetic. Only the process that compiles kernels imports this module.
"""

from __future__ import annotations

import functools
import operator
import os

from llvmlite import ir
from numba import njit, types
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model

from . import isa

LEVEL = isa.BY_NAME[os.environ.get("EDGERT_COMPILE_LEVEL", "generic")]
X86 = isa.machine() == "x86_64"
LANES = LEVEL.lanes  # f32 lanes of one register at this level
TILE = LEVEL.tile  # tokens that the slab matmul handles at once
HAS_F16 = not X86 or LEVEL.name != "generic"  # native half <-> float conversion
VNNI512 = LEVEL.lanes == 16
VNNI256 = VNNI512 or LEVEL.name == "avxvnni"
AVX2 = X86 and LEVEL.name != "generic"

f32 = types.float32  # annotates the float fields of a kernel's argument struct
inline = njit(forceinline=True, nogil=True, error_model="numpy")

_I32, _I64, _F32, _F64 = ir.IntType(32), ir.IntType(64), ir.FloatType(), ir.DoubleType()
_LL = {"i8": ir.IntType(8), "u8": ir.IntType(8), "i16": ir.IntType(16), "u16": ir.IntType(16),
       "i32": _I32, "u32": _I32, "i64": _I64, "f32": _F32}
_SCALAR = {"i8": types.int64, "u8": types.int64, "i16": types.int64, "u16": types.int64,
           "i32": types.int64, "u32": types.int64, "i64": types.int64, "f32": types.float32}


class Vec(types.Type):
    """Numba type of `n` lanes of `el`."""

    def __init__(self, el, n):
        self.el, self.n = el, n
        super().__init__(name=f"{el}x{n}")

    @property
    def ll(self):
        return ir.VectorType(_LL[self.el], self.n)


@register_model(Vec)
class _VecModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, fe_type.ll)


def _call(b, name, ret, args):
    fn = b.module.globals.get(name) or ir.Function(b.module, ir.FunctionType(ret, [a.type for a in args]), name)
    return b.call(fn, args)


def _ptr(b, address, ty):
    return b.inttoptr(address, ty.as_pointer())


def _const(ty, value):
    return ir.Constant(ty, [value] * ty.count if isinstance(ty, ir.VectorType) else value)


def _mask(indices):
    return ir.Constant(ir.VectorType(_I32, len(indices)), list(indices))


def _shuffle(b, x, y, indices):
    return b.shuffle_vector(x, y, _mask(indices))


def _splat(b, scalar, n):
    ty = ir.VectorType(scalar.type, n)
    one = b.insert_element(ir.Constant(ty, ir.Undefined), scalar, _I32(0))
    return _shuffle(b, one, one, [0] * n)


def _part(b, v, start, n):
    return _shuffle(b, v, v, range(start, start + n))


def _join(b, parts):
    while len(parts) > 1:
        w = parts[0].type.count
        parts = [_shuffle(b, parts[i], parts[i + 1], range(2 * w)) for i in range(0, len(parts), 2)]
    return parts[0]


# ---- memory -------------------------------------------------------------------------------------------------


@functools.cache
def load(el, n):
    """(address) -> Vec(el, n), unaligned."""

    @intrinsic
    def op(_t, p):
        def gen(c, b, s, a):
            v = b.load(_ptr(b, a[0], s.return_type.ll))
            v.align = 1
            return v

        return Vec(el, n)(types.int64), gen

    return op


@intrinsic
def store(_t, p, v):
    """store(address, vector), unaligned."""

    def gen(c, b, s, a):
        b.store(a[1], _ptr(b, a[0], a[1].type)).align = 1
        return c.get_dummy_value()

    return types.void(types.int64, v), gen


def _scalar_load(ll, out, convert=lambda b, v: v):
    @intrinsic
    def op(_t, p):
        def gen(c, b, s, a):
            v = b.load(_ptr(b, a[0], ll))
            v.align = 1
            return convert(b, v)

        return out(types.int64), gen

    return op


u8_at = _scalar_load(ir.IntType(8), types.int64, lambda b, v: b.zext(v, _I64))
i8_at = _scalar_load(ir.IntType(8), types.int64, lambda b, v: b.sext(v, _I64))
u16_at = _scalar_load(ir.IntType(16), types.int64, lambda b, v: b.zext(v, _I64))
i16_at = _scalar_load(ir.IntType(16), types.int64, lambda b, v: b.sext(v, _I64))
i32_at = _scalar_load(_I32, types.int64, lambda b, v: b.sext(v, _I64))
u32_at = _scalar_load(_I32, types.int64, lambda b, v: b.zext(v, _I64))
i64_at = _scalar_load(_I64, types.int64)
f32_at = _scalar_load(_F32, types.float32)


def _scalar_store(ll, arg, convert=lambda b, v: v):
    @intrinsic
    def op(_t, p, v):
        def gen(c, b, s, a):
            b.store(convert(b, a[1]), _ptr(b, a[0], ll)).align = 1
            return c.get_dummy_value()

        return types.void(types.int64, arg), gen

    return op


set_f32 = _scalar_store(_F32, types.float32)
set_i64 = _scalar_store(_I64, types.int64)
set_i32 = _scalar_store(_I32, types.int64, lambda b, v: b.trunc(v, _I32))
set_i8 = _scalar_store(ir.IntType(8), types.int64, lambda b, v: b.trunc(v, ir.IntType(8)))


@intrinsic
def prefetch(_t, p):
    """Ask for the cache line at an address; never faults."""

    def gen(c, b, s, a):
        ptr = _ptr(b, a[0], ir.IntType(8))
        _call(b, "llvm.prefetch.p0", ir.VoidType(), [ptr, _I32(0), _I32(3), _I32(1)])
        return c.get_dummy_value()

    return types.void(types.int64), gen


@intrinsic
def atomic_add(_t, p, v):
    """Fetch and add on an aligned int64."""

    def gen(c, b, s, a):
        return b.atomic_rmw("add", _ptr(b, a[0], _I64), a[1], "acq_rel")

    return types.int64(types.int64, types.int64), gen


@intrinsic
def atomic_load(_t, p):
    return types.int64(types.int64), lambda c, b, s, a: b.load_atomic(_ptr(b, a[0], _I64), "acquire", 8)


@intrinsic
def atomic_store(_t, p, v):
    def gen(c, b, s, a):
        b.store_atomic(a[1], _ptr(b, a[0], _I64), "release", 8)
        return c.get_dummy_value()

    return types.void(types.int64, types.int64), gen


@intrinsic
def pause(_t):
    """Tell the core that this is a spin loop."""

    def gen(c, b, s, a):
        if X86:
            _call(b, "llvm.x86.sse2.pause", ir.VoidType(), [])
        else:
            _call(b, "llvm.aarch64.hint", ir.VoidType(), [_I32(1)])
        return c.get_dummy_value()

    return types.void(), gen


@functools.cache
def call(n_args):
    """(function address, n int64 arguments...) -> None: calls a C function of int64 arguments."""

    @intrinsic
    def op(_t, fn, args):
        def gen(c, b, s, a):
            values = [b.extract_value(a[1], i) for i in range(n_args)]
            ty = ir.FunctionType(ir.VoidType(), [_I64] * n_args)
            b.call(b.inttoptr(a[0], ty.as_pointer()), values)
            return c.get_dummy_value()

        return types.void(types.int64, types.UniTuple(types.int64, n_args)), gen

    return op


# ---- building and taking apart ------------------------------------------------------------------------------


@functools.cache
def splat(el, n):
    """(scalar) -> all lanes equal."""

    @intrinsic
    def op(_t, x):
        def gen(c, b, s, a):
            v = c.cast(b, a[0], s.args[0], _SCALAR[el])
            return _splat(b, v if el in ("f32", "i64") else b.trunc(v, _LL[el]), n)

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
            v = b.load(_ptr(b, a[0], _I32))
            v.align = 1
            return b.bitcast(_splat(b, v, n * (8 if el[1:] == "8" else 16) // 32), s.return_type.ll)

        return Vec(el, n)(types.int64), gen

    return op


@functools.cache
def shuffle(*indices):
    """(a, b) -> lanes picked from a and b concatenated, fixed at compile time."""

    @intrinsic
    def op(_t, x, y):
        return Vec(x.el, len(indices))(x, x), lambda c, b, s, a: _shuffle(b, a[0], a[1], indices)

    return op


@functools.cache
def pick(*indices):
    """(a) -> lanes of a, fixed at compile time."""

    @intrinsic
    def op(_t, x):
        return Vec(x.el, len(indices))(x), lambda c, b, s, a: _shuffle(b, a[0], a[0], indices)

    return op


@functools.cache
def part(start, n):
    """(a) -> lanes start .. start+n-1."""
    return pick(*range(start, start + n))


@intrinsic
def concat(_t, x, y):
    return Vec(x.el, 2 * x.n)(x, x), lambda c, b, s, a: _shuffle(b, a[0], a[1], range(2 * s.args[0].n))


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
            v = b.extract_element(a[0], _I32(i))
            el = s.args[0].el
            return v if el in ("f32", "i64") else (b.zext if el[0] == "u" else b.sext)(v, _I64)

        return _SCALAR[x.el](x), gen

    return op


# ---- conversion ---------------------------------------------------------------------------------------------


@functools.cache
def convert(el):
    """(a) -> same lanes as `el`: integers widen by their own sign or truncate, f32 to integer rounds to even."""

    @intrinsic
    def op(_t, x):
        def gen(c, b, s, a):
            src, ty, v = s.args[0].el, s.return_type.ll, a[0]
            if src == "f32":
                v = _call(b, f"llvm.rint.v{s.args[0].n}f32", v.type, [v])
                return b.fptosi(v, ty)
            if el == "f32":
                return b.uitofp(v, ty) if src[0] == "u" else b.sitofp(v, ty)
            wide, narrow = _LL[el].width, _LL[src].width
            if wide == narrow:
                return v
            return b.trunc(v, ty) if wide < narrow else (b.zext if src[0] == "u" else b.sext)(v, ty)

        return Vec(el, x.n)(x), gen

    return op


to_f32, to_i32, to_i16, to_i8 = convert("f32"), convert("i32"), convert("i16"), convert("i8")


def _half_to_f32(b, bits, n):
    """u16 lanes holding IEEE halves -> f32 lanes, exact for every half including subnormal, inf and nan."""
    if HAS_F16:
        return b.fpext(b.bitcast(bits, ir.VectorType(ir.HalfType(), n)), ir.VectorType(_F32, n))
    i, f = ir.VectorType(_I32, n), ir.VectorType(_F32, n)
    h = b.zext(bits, i)
    magnitude = b.shl(b.and_(h, _const(i, 0x7FFF)), _const(i, 13))
    scaled = b.bitcast(b.fmul(b.bitcast(magnitude, f), _const(f, 2.0**112)), i)
    special = b.icmp_unsigned(">=", b.and_(h, _const(i, 0x7FFF)), _const(i, 0x7C00))
    value = b.select(special, b.or_(magnitude, _const(i, 0x7F800000)), scaled)
    return b.bitcast(b.or_(value, b.shl(b.and_(h, _const(i, 0x8000)), _const(i, 16))), f)


def _f32_to_half(b, v, n):
    """f32 lanes -> u16 lanes holding IEEE halves, rounded to nearest even."""
    if HAS_F16:
        return b.bitcast(b.fptrunc(v, ir.VectorType(ir.HalfType(), n)), ir.VectorType(ir.IntType(16), n))
    i, f = ir.VectorType(_I32, n), ir.VectorType(_F32, n)
    u = b.bitcast(v, i)
    sign = b.and_(b.lshr(u, _const(i, 16)), _const(i, 0x8000))
    mag = b.and_(u, _const(i, 0x7FFFFFFF))
    odd = b.and_(b.lshr(mag, _const(i, 13)), _const(i, 1))
    normal = b.lshr(b.add(b.sub(mag, _const(i, 112 << 23)), b.add(odd, _const(i, 0xFFF))), _const(i, 13))
    # Subnormal halves: adding 0.5 lines the mantissa up so that the FPU itself rounds to even.
    small = b.sub(b.bitcast(b.fadd(b.bitcast(mag, f), _const(f, 0.5)), i), _const(i, 0x3F000000))
    half = b.select(b.icmp_unsigned("<", mag, _const(i, 113 << 23)), small, normal)
    half = b.select(b.icmp_unsigned(">=", mag, _const(i, 0x477FF000)), _const(i, 0x7C00), half)
    half = b.select(b.icmp_unsigned(">", mag, _const(i, 0x7F800000)), _const(i, 0x7E00), half)
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
        wide = b.zext(a[0], ir.VectorType(_I32, s.args[0].n))
        return b.bitcast(b.shl(wide, _const(wide.type, 16)), s.return_type.ll)

    return Vec("f32", x.n)(x), gen


@intrinsic
def f32_to_bf16(_t, x):
    """f32 lanes -> u16 lanes holding bfloat16, rounded to nearest even (nan not kept apart)."""

    def gen(c, b, s, a):
        u = b.bitcast(a[0], ir.VectorType(_I32, s.args[0].n))
        odd = b.and_(b.lshr(u, _const(u.type, 16)), _const(u.type, 1))
        u = b.add(u, b.add(odd, _const(u.type, 0x7FFF)))
        return b.trunc(b.lshr(u, _const(u.type, 16)), s.return_type.ll)

    return Vec("u16", x.n)(x), gen


@intrinsic
def half_at(_t, p):
    """f32 value of the IEEE half at an address."""

    def gen(c, b, s, a):
        v = b.load(_ptr(b, a[0], ir.VectorType(ir.IntType(16), 1)))
        v.align = 1
        return b.extract_element(_half_to_f32(b, v, 1), _I32(0))

    return types.float32(types.int64), gen


# ---- arithmetic ---------------------------------------------------------------------------------------------


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
        x = c.cast(b, a[1], s.args[1], _SCALAR[v.el])
        x = x if v.el in ("f32", "i64") else b.trunc(x, _LL[v.el])
        return emit(b, a[0], _splat(b, x, v.n), v.el)

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
        return _call(b, f"llvm.fma.v{s.return_type.n}f32", s.return_type.ll, list(a))

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
    return x(x), lambda c, b, s, a: _call(b, f"llvm.fabs.v{s.return_type.n}f32", a[0].type, [a[0]])


@intrinsic
def floor(_t, x):
    return x(x), lambda c, b, s, a: _call(b, f"llvm.floor.v{s.return_type.n}f32", a[0].type, [a[0]])


def _reduce(combine):
    @intrinsic
    def op(_t, x):
        def gen(c, b, s, a):
            v, n = a[0], s.args[0].n
            while n > 1:  # halves in a fixed order, so that every level and thread count agrees
                n //= 2
                v = combine(b, _part(b, v, 0, n), _part(b, v, n, n), s.args[0].el)
            v = b.extract_element(v, _I32(0))
            return v if s.args[0].el == "f32" else b.sext(v, _I64)

        return _SCALAR[x.el](x), gen

    return op


hsum = _reduce(lambda b, x, y, e: b.fadd(x, y) if e == "f32" else b.add(x, y))
hmax = _reduce(lambda b, x, y, e: b.select(b.fcmp_ordered(">", x, y), x, y))


def _native(b, args, widths, piece, emit):
    """Apply `emit` to register-sized pieces of the args and join the results."""
    n = args[0].type.count // widths[0]
    if n == 0:
        raise TypeError("vector narrower than the instruction")
    parts = []
    for i in range(n):
        parts.append(emit(b, [_part(b, a, i * w, w) for a, w in zip(args, widths, strict=True)]))
    return _join(b, parts)


def _dot4_register(b, args):
    """One register: i32 acc + four-byte dot of u8 and s8. VNNI instruction, or maddubs + maddwd."""
    acc, u, v = args
    lanes = acc.type.count
    if VNNI256:
        return _call(b, f"llvm.x86.avx512.vpdpbusd.{lanes * 32}", acc.type, [acc, u, v])
    if AVX2 and lanes == 8:
        pairs = _call(b, "llvm.x86.avx2.pmadd.ub.sw", ir.VectorType(ir.IntType(16), 16), [u, v])
        ones = _const(pairs.type, 1)
        return b.add(acc, _call(b, "llvm.x86.avx2.pmadd.wd", acc.type, [pairs, ones]))
    wide = ir.VectorType(_I32, 4 * lanes)
    product = b.mul(b.zext(u, wide), b.sext(v, wide))
    for i in range(4):
        acc = b.add(acc, _shuffle(b, product, product, range(i, 4 * lanes, 4)))
    return acc


@intrinsic
def dot4_u8s8(_t, acc, u, v):
    """acc (i32 x n) + dot of each four u8 x s8 bytes (4n lanes).

    At `avx2` pairs are added in 16 bits: u must stay below 129 when |v| <= 127 (checked by the quant types'
    own ranges; use `dot4_s8s8` for full-range weights).
    """

    def gen(c, b, s, a):
        lanes = min(s.return_type.n, 16 if VNNI512 else 8 if X86 and AVX2 else 4)
        return _native(b, list(a), [lanes, 4 * lanes, 4 * lanes], lanes, _dot4_register)

    return acc(acc, u, v), gen


def _maddubs(b, args):
    return _call(b, "llvm.x86.avx2.pmadd.ub.sw", ir.VectorType(ir.IntType(16), 16), args)


def _maddwd_ones(b, args):
    ty = ir.VectorType(_I32, 8)
    return _call(b, "llvm.x86.avx2.pmadd.wd", ty, [args[0], _const(args[0].type, 1)])


@intrinsic
def dot2_u8s8(_t, u, v):
    """Dot of each two u8 x s8 bytes in i16, saturating; only at AVX2 levels."""

    def gen(c, b, s, a):
        return _native(b, list(a), [32, 32], 16, _maddubs)

    return Vec("i16", u.n // 2)(u, v), gen


@intrinsic
def add_pairs(_t, x):
    """i16 x 2n -> i32 x n: sums of neighbours; only at AVX2 levels."""

    def gen(c, b, s, a):
        return _native(b, list(a), [16], 8, _maddwd_ones)

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
            flipped = _call(b, "llvm.x86.avx2.psign.b", v.type, [v, u])
        else:
            flipped = b.select(negative, b.sub(zero, v), v)
        return _dot4_register(b, [acc, magnitude, flipped])

    def gen(c, b, s, a):
        lanes = min(s.return_type.n, 16 if VNNI512 else 8 if X86 and AVX2 else 4)
        return _native(b, list(a), [lanes, 4 * lanes, 4 * lanes], lanes, one)

    return acc(acc, x, y), gen


@intrinsic
def exp2i(_t, x):
    """i32 lanes n in -126..127 -> f32 lanes 2**n."""

    def gen(c, b, s, a):
        return b.bitcast(b.shl(b.add(a[0], _const(a[0].type, 127)), _const(a[0].type, 23)), s.return_type.ll)

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
        cur = [_part(b, a[0], i * n, n) for i in range(n)]
        step = 1
        while step < n:
            low = [n + (i ^ step) if i & step else i for i in range(n)]
            high = [n + i if i & step else i | step for i in range(n)]
            for i in range(n):
                if not i & step:
                    x, y = cur[i], cur[i | step]
                    cur[i], cur[i | step] = _shuffle(b, x, y, low), _shuffle(b, x, y, high)
            step *= 2
        return _join(b, cur)

    return rows(rows), gen


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
            word = b.load(_ptr(b, a[0], ir.IntType(n)))
            word.align = 1
            ty = s.return_type.ll
            return b.select(b.bitcast(word, ir.VectorType(ir.IntType(1), n)), _const(ty, value), _const(ty, 0))

        return Vec("u8", n)(types.int64), gen

    return op
