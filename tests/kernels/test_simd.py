"""Each vector operation against numpy, at every instruction-set level of this host."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from edgert.kernels_cpu import isa
from kernel_calls import LEVELS, Array, assert_same_bits, bits, compile_all, run
from vectors import INTEGERS, WIDTHS, apply, dtype, some_floats

DOTS = ("8", "16", "tile")
ONE_BY_ONE = [
    "fma", "abs", "floor", "where_negative", "concat", "shuffle", "pick", "part", "lane.i8", "lane.u8", "lane.f32",
    "lookup16", "bitcast", "transpose.4", "transpose.8", "transpose.16",
    *(f"dot4_u8s8.{n}" for n in DOTS), *(f"dot4_s8s8.{n}" for n in DOTS),
]  # fmt: skip
KERNELS = [
    *(f"selfcheck.apply[{case}]" for case in ONE_BY_ONE),
    *(f"selfcheck.at[{case}]" for case in ("broadcast_u32", "bits")),
    *(f"selfcheck.arithmetic[{el}]" for el in ("f32", *INTEGERS)),
    *(f"selfcheck.bitwise[{el}]" for el in INTEGERS),
    *(f"selfcheck.reductions[{n}]" for n in WIDTHS[1:]),
    "selfcheck.division", "selfcheck.scalars", "selfcheck.count_up",
]  # fmt: skip

pytestmark = pytest.mark.parametrize("level", LEVELS)


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    compile_all(KERNELS)


def dot4(acc: Array, u: Array, v: Array) -> Array:
    products = u.astype(np.int64) * v.astype(np.int64)
    total: Array = (acc + products.reshape(*acc.shape, 4).sum(axis=-1)).astype(np.int32)
    return total


def lanes_of(width: str, level: str) -> int:
    return isa.BY_NAME[level].tile if width == "tile" else int(width)


def extremes(low: int, high: int, lanes: int) -> Array:
    """(16, 4 lanes): each row repeats one pattern of the two."""
    rows = [[(low, high)[i >> bit & 1] for bit in range(4)] for i in range(16)]
    return np.tile(np.array(rows), lanes)


@pytest.mark.parametrize("width", DOTS)
def test_dot4_u8s8(level: str, width: str) -> None:
    """Exact over the promised range: u up to 128 where pairs are added in 16 bits, else up to 255."""
    lanes, rng = lanes_of(width, level), np.random.default_rng(2)
    top = 128 if level == "avx2" else 255
    acc = rng.integers(-(2**24), 2**24, (272, lanes), dtype=np.int32)
    u, v = rng.integers(0, top + 1, (272, 4 * lanes)), rng.integers(-128, 128, (272, 4 * lanes))
    u[:256] = np.repeat(extremes(0, top, lanes), 16, axis=0)
    v[:256] = np.tile(extremes(-128, 127, lanes), (16, 1))
    u, v = u.astype(np.uint8), v.astype(np.int8)
    np.testing.assert_array_equal(apply(f"dot4_u8s8.{width}", level, (np.int32, lanes), acc, u, v), dot4(acc, u, v))


@pytest.mark.parametrize("width", DOTS)
def test_dot4_s8s8(level: str, width: str) -> None:
    """Exact for every x from -128 and every y from -127."""
    lanes, rng = lanes_of(width, level), np.random.default_rng(3)
    acc = rng.integers(-(2**24), 2**24, (272, lanes), dtype=np.int32)
    x, y = rng.integers(-128, 128, (272, 4 * lanes)), rng.integers(-127, 128, (272, 4 * lanes))
    x[:256] = np.repeat(extremes(-128, 127, lanes), 16, axis=0)
    y[:256] = np.tile(extremes(-127, 127, lanes), (16, 1))
    x, y = x.astype(np.int8), y.astype(np.int8)
    np.testing.assert_array_equal(apply(f"dot4_s8s8.{width}", level, (np.int32, lanes), acc, x, y), dot4(acc, x, y))


@pytest.mark.parametrize("n", [4, 8, 16])
def test_transpose(level: str, n: int) -> None:
    x = np.arange(3 * n * n, dtype=np.float32).reshape(3, n, n)
    y = apply(f"transpose.{n}", level, (np.float32, n * n), x)
    np.testing.assert_array_equal(y.reshape(3, n, n), x.transpose(0, 2, 1))


@pytest.mark.parametrize("n", WIDTHS[1:])
def test_reductions(level: str, n: int) -> None:
    """Sums pair the halves of the vector, so their bits are the same at every level."""
    rng = np.random.default_rng(n)
    for _ in range(20):
        a = rng.standard_normal(n).astype(np.float32)
        b = rng.integers(-(2**26), 2**26, n, dtype=np.int32)
        floats, integers = np.zeros(2, np.float32), np.zeros(1, np.int64)
        run(f"selfcheck.reductions[{n}]", level, a=a, b=b, floats=floats, integers=integers)
        halves = a
        while len(halves) > 1:
            halves = halves[: len(halves) // 2] + halves[len(halves) // 2 :]
        assert (floats[0], floats[1], integers[0]) == (halves[0], a.max(), b.sum())


@pytest.mark.parametrize("el", INTEGERS)
def test_integer_arithmetic(level: str, el: str) -> None:
    """Wraps around as numpy does."""
    info, rng = np.iinfo(dtype(el)), np.random.default_rng(5)
    a, b = rng.integers(info.min, info.max, (2, 16), dtype(el), endpoint=True)
    a[:4], b[:4] = [info.min, info.max, info.max, info.min], [info.max, info.max, info.min, 1]
    y, three = np.zeros((8, 16), dtype(el)), dtype(el).type(3)
    run(f"selfcheck.arithmetic[{el}]", level, a=a, b=b, y=y)
    expected = [a + b, a - b, a * b, np.minimum(a, b), np.maximum(a, b), a + three, a - three, a * three]
    np.testing.assert_array_equal(y, np.array(expected))


@pytest.mark.parametrize("el", INTEGERS)
def test_bitwise(level: str, el: str) -> None:
    """Right shifts keep the sign of signed lanes."""
    info, rng = np.iinfo(dtype(el)), np.random.default_rng(6)
    a, b = rng.integers(info.min, info.max, (2, 16), dtype(el), endpoint=True)
    a[:2] = [info.min, info.max]
    c = (np.arange(16) % info.bits).astype(dtype(el))
    y, three, fifteen = np.zeros((8, 16), dtype(el)), dtype(el).type(3), dtype(el).type(15)
    run(f"selfcheck.bitwise[{el}]", level, a=a, b=b, c=c, y=y)
    np.testing.assert_array_equal(y, [a & b, a | b, a ^ b, a << c, a >> c, a << three, a >> three, a & fifteen])


def test_float_arithmetic(level: str) -> None:
    """Each operation rounds once, as IEEE 754 asks; min and max give the second where the two do not compare."""
    values, others = some_floats(40, 7), some_floats(40, 8)[::-1]
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        for a, b in zip(values, others, strict=True):
            y, q = np.zeros((8, 16), np.float32), np.zeros((2, 16), np.float32)
            run("selfcheck.arithmetic[f32]", level, a=a, b=b.copy(), y=y)
            run("selfcheck.division", level, a=a, b=b.copy(), y=q)
            low, high = np.where(a < b, a, b), np.where(a > b, a, b)
            three = np.float32(3)
            expected = np.array([a + b, a - b, a * b, low, high, a + three, a - three, a * three, a / b, a / three])
            assert_same_bits(np.concatenate([y, q]), expected)


def test_fma(level: str) -> None:
    """One rounding at the levels that have it; two at `generic` on x86."""
    rng = np.random.default_rng(9)
    a, b = rng.standard_normal((2, 200, 16)).astype(np.float32)
    c = (-a * b).astype(np.float32)
    fused = (a.astype(np.float64) * b + c).astype(np.float32)  # a * b is exact in float64, and so is the difference
    twice = a * b + c
    expected = twice if level == "generic" and isa.machine() == "x86_64" else fused
    assert_same_bits(apply("fma", level, (np.float32, 16), a, b, c), expected)
    assert not np.array_equal(fused, twice)


def test_abs_and_floor(level: str) -> None:
    a = some_floats(50)
    assert_same_bits(apply("abs", level, (np.float32, 16), a), np.abs(a))
    assert_same_bits(apply("floor", level, (np.float32, 16), a), np.floor(a))


def test_where_negative(level: str) -> None:
    m = np.random.default_rng(10).integers(-2, 2, (30, 16), dtype=np.int32)
    m[0, :2] = [-(2**31), 2**31 - 1]
    x, y = some_floats(30, 11), some_floats(30, 12)
    x[1], y[2] = np.nan, np.nan
    assert_same_bits(apply("where_negative", level, (np.float32, 16), m, x, y), np.where(m < 0, x, y))


def test_moving_lanes(level: str) -> None:
    """concat (in reverse), shuffle of two, pick, part, single lanes and bitcast."""
    a = np.arange(32, dtype=np.float32).reshape(2, 16)
    b = a + 100
    both = np.concatenate([a, b], axis=1)
    np.testing.assert_array_equal(apply("concat", level, (np.float32, 32), a, b), np.concatenate([b, a], axis=1))
    np.testing.assert_array_equal(apply("shuffle", level, (np.float32, 8), a, b), both[:, [31, 0, 16, 15, 7, 7, 24, 1]])
    i8 = np.arange(-100, -68, dtype=np.int8).reshape(2, 16)
    np.testing.assert_array_equal(apply("pick", level, (np.int8, 8), i8), i8[:, [15, 0, 3, 3, 8, 9, 10, 1]])
    np.testing.assert_array_equal(apply("part", level, (np.int8, 8), i8), i8[:, 4:12])
    np.testing.assert_array_equal(apply("lane.i8", level, (np.int64, 1), i8), i8[:, 5:6])
    np.testing.assert_array_equal(apply("lane.u8", level, (np.int64, 1), i8.view(np.uint8)), i8.view(np.uint8)[:, 15:])
    np.testing.assert_array_equal(apply("lane.f32", level, (np.float32, 1), a), a[:, :1])
    raw = np.random.default_rng(13).integers(0, 256, (3, 32), dtype=np.uint8)
    np.testing.assert_array_equal(apply("bitcast", level, (np.int32, 8), raw), raw.view(np.int32))


def test_lookup16(level: str) -> None:
    values = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
    index = np.random.default_rng(15).integers(0, 16, (20, 64), dtype=np.uint8)
    np.testing.assert_array_equal(apply("lookup16", level, (np.int8, 64), index), values[index])


def test_reading_vectors_from_any_address(level: str) -> None:
    """broadcast_u32 repeats four bytes; bits spreads 32 bits, lowest first, as 16 or 0."""
    raw = np.random.default_rng(16).integers(0, 256, 104, dtype=np.uint8)
    y = np.zeros((100, 32), np.uint8)
    run("selfcheck.at[broadcast_u32]", level, a=raw, y=y, step=32, count=100)
    windows = np.lib.stride_tricks.sliding_window_view(raw, 4)[:100]
    np.testing.assert_array_equal(y, np.tile(windows, 8))
    run("selfcheck.at[bits]", level, a=raw, y=y, step=32, count=100)
    np.testing.assert_array_equal(y, 16 * np.unpackbits(windows, axis=1, bitorder="little"))


def test_scalars(level: str) -> None:
    """Every scalar read extends by its own sign; writes keep the low bits and touch nothing else."""
    raw = np.array([0, 0x81, 0xF2, 0x83, 0xF4, 0x85, 0x86, 0x87, 0xF8], np.uint8)
    integers, floats, stored = np.zeros(7, np.int64), np.zeros(1, np.float32), np.full(24, 0xEE, np.uint8)
    value = -0x123456789ABCDEF
    run("selfcheck.scalars", level, a=raw[1:], value=value, integers=integers, floats=floats, stored=stored)
    at = raw[1:].tobytes()
    signed = [int.from_bytes(at[:n], "little", signed=s) for n, s in
              ((1, False), (1, True), (2, False), (2, True), (4, True), (4, False), (8, True))]  # fmt: skip
    assert integers.tolist() == signed
    np.testing.assert_array_equal(bits(floats), np.frombuffer(at[:4], np.uint32))
    written = value.to_bytes(8, "little", signed=True)
    assert stored.tobytes() == written[:1] + b"\xee" * 7 + written[:4] + b"\xee" * 4 + written


def test_atomic_add(level: str) -> None:
    """No addition of four threads at once is lost."""
    counter = np.zeros(1, np.int64)

    def count_up() -> None:
        run("selfcheck.count_up", level, counter=counter, times=200_000)

    threads = [threading.Thread(target=count_up) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter[0] == 800_000
