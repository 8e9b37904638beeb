"""Each vector operation against numpy, at every instruction-set level of this host."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from edgert.kernels_cpu import isa
from kernel_calls import LEVELS, Array, assert_same_bits, bits, compile_all, run

INTEGERS = ("i8", "u8", "i16", "u16", "i32", "u32", "i64")
WIDTHS = (1, 4, 8, 16, 32)
DOTS = ("8", "16", "tile")
ONE_BY_ONE = [
    "fma", "abs", "floor", "where_negative", "bf16_to_f32", "f32_to_bf16", "exp2i", "exp", "concat", "shuffle", "pick",
    "part", "lane.i8", "lane.u8", "lane.f32", "lookup16", "bitcast", "transpose.4", "transpose.8", "transpose.16",
    *(f"half_to_f32.{n}" for n in WIDTHS), *(f"f32_to_half.{n}" for n in WIDTHS),
    *(f"dot4_u8s8.{n}" for n in DOTS), *(f"dot4_s8s8.{n}" for n in DOTS),
]  # fmt: skip
KERNELS = [
    *(f"selfcheck.apply[{case}]" for case in ONE_BY_ONE),
    *(f"selfcheck.at[{case}]" for case in ("half_at", "broadcast_u32", "bits")),
    *(f"selfcheck.arithmetic[{el}]" for el in ("f32", *INTEGERS)),
    *(f"selfcheck.bitwise[{el}]" for el in INTEGERS),
    *(f"selfcheck.conversions[{el}]" for el in ("f32", *INTEGERS[:-1])),
    *(f"selfcheck.reductions[{n}]" for n in WIDTHS[1:]),
    "selfcheck.division", "selfcheck.scalars", "selfcheck.count_up",
]  # fmt: skip

pytestmark = pytest.mark.parametrize("level", LEVELS)


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    compile_all(KERNELS)


def dtype(el: str) -> np.dtype[Any]:
    return np.dtype(f"{el[0]}{int(el[1:]) // 8}")


def apply(case: str, level: str, out: tuple[npt.DTypeLike, int], *inputs: Array) -> Array:
    """Results (count, lanes) of a case, for inputs (count, lanes)."""
    kind, lanes = out
    n = len(inputs[0])
    y = np.zeros((n, lanes), kind)
    a, b, c = (*(np.ascontiguousarray(x) for x in inputs), 0, 0)[:3]
    run(f"selfcheck.apply[{case}]", level, a=a, b=b, c=c, y=y, step=y.strides[0], count=n)
    return y


def some_floats(n: int, seed: int = 0) -> Array:
    """float32 (n, 16) of all magnitudes, with zeros, infinities and integers among them."""
    rng = np.random.default_rng(seed)
    v = (rng.standard_normal((n, 16)) * np.exp2(rng.integers(-20, 20, (n, 16)))).astype(np.float32)
    v[0] = [0, -0.0, 1, -1, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, np.inf, -np.inf, 3, -3, 1e-40, -1e-40]
    return v


@pytest.mark.parametrize("n", WIDTHS)
def test_every_half_to_f32(level: str, n: int) -> None:
    """All 65536 halves, subnormal, infinite and nan among them, are exact."""
    halves = np.arange(65536, dtype=np.uint16).reshape(-1, n)
    expected = halves.view(np.float16).astype(np.float32)
    assert_same_bits(apply(f"half_to_f32.{n}", level, (np.float32, n), halves), expected)


@pytest.mark.parametrize("n", WIDTHS)
def test_f32_to_half(level: str, n: int) -> None:
    """Every half's own value, the values between two halves, and their neighbours, round as numpy rounds."""
    halves = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)
    finite = np.sort(halves[np.isfinite(halves)])
    middles = ((finite[1:].astype(np.float64) + finite[:-1]) / 2).astype(np.float32)
    edge = np.array([65519.996, 65520, 65536, 1e38, 2.0**-25, 2.0**-24, 2.0**-26, 1e-45], np.float32)
    values = np.concatenate(
        [halves, middles, np.nextafter(middles, np.float32(1e9)), np.nextafter(middles, np.float32(-1e9)), edge, -edge]
    )
    values = np.resize(values, (len(values) // 32 + 1) * 32).reshape(-1, n)
    with np.errstate(over="ignore"):
        expected = values.astype(np.float16)
    got = apply(f"f32_to_half.{n}", level, (np.uint16, n), values).view(np.float16)
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(got), nan)
    np.testing.assert_array_equal(got.view(np.uint16)[~nan], expected.view(np.uint16)[~nan])


def test_half_at(level: str) -> None:
    halves = np.random.default_rng(1).integers(0, 0x7C00, 500, dtype=np.uint16)
    y = np.zeros(999, np.float32)
    run("selfcheck.at[half_at]", level, a=halves, y=y, step=4, count=999)
    raw = halves.view(np.uint8)
    unaligned = np.stack([raw[:-1], raw[1:]], axis=1).copy().view(np.float16)[:, 0]
    assert_same_bits(y, unaligned.astype(np.float32))


def test_bf16(level: str) -> None:
    """All bfloat16 widen exactly; f32 rounds to the nearest, ties to even."""
    every = np.arange(65536, dtype=np.uint16).reshape(-1, 16)
    wide = (every.astype(np.uint32) << np.uint32(16)).view(np.float32)
    assert_same_bits(apply("bf16_to_f32", level, (np.float32, 16), every), wide)
    finite = every[np.isfinite(wide).all(axis=1)]
    np.testing.assert_array_equal(
        apply("f32_to_bf16", level, (np.uint16, 16), wide[np.isfinite(wide).all(axis=1)]), finite
    )
    for low, up in ((0x7FFF, 0), (0x8000, None), (0x8001, 1), (0xFFFF, 1)):
        between = (finite.astype(np.uint32) << np.uint32(16) | np.uint32(low)).view(np.float32)
        step = (finite & 1) if up is None else np.uint16(up)
        np.testing.assert_array_equal(apply("f32_to_bf16", level, (np.uint16, 16), between), finite + step)


def test_exp(level: str) -> None:
    """Within 2 units in the last place of e^x where that is a normal float; exact at 0; bounded outside."""
    x = np.concatenate([np.linspace(-87.3, 88, 100_000), np.linspace(-1, 1, 20_000), [0, -0.0]]).astype(np.float32)
    x = np.resize(x, (len(x) // 16 + 1) * 16).reshape(-1, 16)
    got = apply("exp", level, (np.float32, 16), x)
    true = np.exp(x.astype(np.float64))
    ulp = np.spacing(true.astype(np.float32)).astype(np.float64)
    assert (np.abs(got - true) / ulp).max() <= 2
    np.testing.assert_array_equal(got[x == 0], 1)
    outside = np.resize(np.array([-1e30, -np.inf, -88, 89, 1e30, np.inf], np.float32), (1, 16))
    y = apply("exp", level, (np.float32, 16), outside)
    assert (y[outside < 0] <= 1.2e-38).all()
    assert (y[outside < 0] >= 0).all()
    np.testing.assert_allclose(y[outside > 0], np.exp(88.0), rtol=1e-6)


def test_exp2i(level: str) -> None:
    n = np.arange(-126, 128 + 2).clip(-126, 127).reshape(-1, 16).astype(np.int32)
    np.testing.assert_array_equal(apply("exp2i", level, (np.float32, 16), n), np.exp2(n.astype(np.float64)))


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


@pytest.mark.parametrize("el", INTEGERS[:-1])
def test_integer_conversions(level: str, el: str) -> None:
    """Integers widen by their own sign or keep their low bits; to f32 they round to the nearest."""
    info, y = np.iinfo(dtype(el)), np.zeros((4, 16), np.float32)
    a = np.random.default_rng(14).integers(info.min, info.max, 16, dtype(el), endpoint=True)
    a[:2] = [info.min, info.max]
    run(f"selfcheck.conversions[{el}]", level, a=a, y=y)
    raw = y.view(np.uint8)
    np.testing.assert_array_equal(raw[0, :16].view(np.int8), a.astype(np.int8))
    np.testing.assert_array_equal(raw[1, :32].view(np.int16), a.astype(np.int16))
    np.testing.assert_array_equal(raw[2].view(np.int32), a.astype(np.int32))
    np.testing.assert_array_equal(y[3], a.astype(np.float32))


def test_f32_to_integers(level: str) -> None:
    """Rounds to the nearest, ties to even."""
    a = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5, -126.5, 127, -127, 0.49999997, 3.7, -3.7, 0, -0.0, 99.5])
    y = np.zeros((4, 16), np.float32)
    run("selfcheck.conversions[f32]", level, a=a.astype(np.float32), y=y)
    raw, expected = y.view(np.uint8), np.rint(a.astype(np.float32))
    np.testing.assert_array_equal(raw[0, :16].view(np.int8), expected)
    np.testing.assert_array_equal(raw[1, :32].view(np.int16), expected)
    np.testing.assert_array_equal(raw[2].view(np.int32), expected)


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
