"""Activation functions, alone (`plain`) and as gates (`gated`)."""

from __future__ import annotations

from .act import f32x16, first_row, full16
from .simd import exp, fma, i64_at, inline, store, vmax, vmin

_exp = exp(16)


@inline
def silu(x):
    return x / (full16(1.0) + _exp(full16(0.0) - x))


@inline
def gelu(x):
    """tanh form: x * sigmoid(2 * sqrt(2/pi) * (x + 0.044715 x^3)) (Hendrycks & Gimpel 2016)."""
    u = x * fma(x * x, full16(0.044715 * 1.5957691216057308), full16(1.5957691216057308))
    return x / (full16(1.0) + _exp(full16(0.0) - u))


@inline
def relu2(x):
    positive = vmax(x, full16(0.0))
    return positive * positive


@inline
def swiglu_oai(gate, up):
    """gpt-oss: gate * sigmoid(1.702 gate) * (up + 1), the gate at most 7, up within +-7."""
    g = vmin(gate, full16(7.0))
    u = vmax(vmin(up, full16(7.0)), full16(-7.0))
    return g / (full16(1.0) + _exp(g * full16(-1.702))) * (u + full16(1.0))


@inline
def sigmoid(x):
    return full16(1.0) / (full16(1.0) + _exp(full16(0.0) - x))


def _times_up(unit):
    @inline
    def function(gate, up):
        return unit(gate) * up

    return function


_UNITS = {"silu": silu, "gelu": gelu, "relu2": relu2}
_GATES = {
    **{name: _times_up(unit) for name, unit in _UNITS.items()},
    "sigmoid": _times_up(sigmoid),
    "swiglu_oai": swiglu_oai,
}


def gated(unit):
    """y = unit(gate) * up, rows of n (multiple of 16), row strides in bytes."""
    function = _GATES[unit]

    def gated_unit(tid, nth, count, gate, up, ld, y, ldy, n):
        m = i64_at(count)
        for r in range(first_row(m, tid, nth), first_row(m, tid + 1, nth)):
            for i in range(0, n, 16):
                store(y + ldy * r + 4 * i, function(f32x16(gate + ld * r + 4 * i), f32x16(up + ld * r + 4 * i)))

    return gated_unit


def plain(unit):
    """y = unit(x), rows of n (multiple of 16)."""
    function = _UNITS[unit]

    def plain_unit(tid, nth, count, x, ldx, y, ldy, n):
        m = i64_at(count)
        for r in range(first_row(m, tid, nth), first_row(m, tid + 1, nth)):
            for i in range(0, n, 16):
                store(y + ldy * r + 4 * i, function(f32x16(x + ldx * r + 4 * i)))

    return plain_unit
