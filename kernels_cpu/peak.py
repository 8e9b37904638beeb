"""What the arithmetic units can do from registers: the ceilings that matmuls are measured against (see bench.py).

Every round makes eight independent dots of a whole register, enough to hide their latency; one of the two operands is
loaded anew each time, so that the compiler cannot take anything out of the loop.
"""

from __future__ import annotations

from .simd import LANES, dot4_u8s8, f32_at, fma, hsum, load, set_f32, set_i32, zeros

_u8, _i8, _f32 = load("u8", 4 * LANES), load("i8", 4 * LANES), load("f32", LANES)
_i_zero, _f_zero = zeros("i32", LANES), zeros("f32", LANES)


def integers(tid, nth, rounds, data, out):
    """rounds x 8 dots of four u8 x s8 per lane. data: sixteen registers, 64 bytes apart."""
    v0, v1, v2, v3 = _i8(data), _i8(data + 64), _i8(data + 128), _i8(data + 192)
    a0, a1, a2, a3, a4, a5, a6, a7 = (
        _i_zero(), _i_zero(), _i_zero(), _i_zero(), _i_zero(), _i_zero(), _i_zero(), _i_zero()
    )  # fmt: skip
    for i in range(rounds):
        u, w = _u8(data + 64 * (i & 7)), _u8(data + 64 * (i & 7) + 512)
        a0, a1, a2, a3 = dot4_u8s8(a0, u, v0), dot4_u8s8(a1, u, v1), dot4_u8s8(a2, u, v2), dot4_u8s8(a3, u, v3)
        a4, a5, a6, a7 = dot4_u8s8(a4, w, v0), dot4_u8s8(a5, w, v1), dot4_u8s8(a6, w, v2), dot4_u8s8(a7, w, v3)
    set_i32(out + 64 * tid, hsum(a0 + a1 + a2 + a3 + a4 + a5 + a6 + a7))


def floats(tid, nth, rounds, data, out):
    """rounds x 8 multiply-adds of f32 per lane; data as above."""
    v0, v1, v2, v3 = _f32(data), _f32(data + 64), _f32(data + 128), _f32(data + 192)
    a0, a1, a2, a3, a4, a5, a6, a7 = (
        _f_zero(), _f_zero(), _f_zero(), _f_zero(), _f_zero(), _f_zero(), _f_zero(), _f_zero()
    )  # fmt: skip
    for i in range(rounds):
        u, w = _f32(data + 64 * (i & 7)), _f32(data + 64 * (i & 7) + 512)
        a0, a1, a2, a3 = fma(u, v0, a0), fma(u, v1, a1), fma(u, v2, a2), fma(u, v3, a3)
        a4, a5, a6, a7 = fma(w, v0, a4), fma(w, v1, a5), fma(w, v2, a6), fma(w, v3, a7)
    set_f32(out + 64 * tid, hsum(a0 + a1 + a2 + a3 + a4 + a5 + a6 + a7))


def tiles(_):
    """rounds x 4 products of bf16 tiles (16 x 32 by 32 x 16). config: tile configuration; scratch: 8 kB a thread."""
    from . import amx

    load_a0, load_a1, load_b0, load_b1 = (amx.tile_load(t) for t in range(4, 8))
    zero0, zero1, zero2, zero3 = (amx.tile_zero(t) for t in range(4))
    dot0, dot1, dot2, dot3 = (amx.tile_dot(t, 4 + t // 2, 6 + t % 2) for t in range(4))
    store0, configure, release = amx.tile_store(0), amx.configure, amx.release

    def bf16_tiles(tid, nth, rounds, data, out, config, scratch):
        state = scratch + 8192 * tid
        configure(config)
        zero0(state)
        zero1(state)
        zero2(state)
        zero3(state)
        load_a0(state, data, 64)
        load_a1(state, data, 64)
        load_b0(state, data, 64)
        load_b1(state, data, 64)
        for _i in range(rounds):
            dot0(state)
            dot1(state)
            dot2(state)
            dot3(state)
        store0(state, state, 64)
        release()
        set_f32(out + 64 * tid, f32_at(state))

    return bf16_tiles
