"""Conversions of vectors, and the exponential, at every instruction-set level of this host."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_calls import LEVELS, assert_same_bits, compile_all, run
from vectors import INTEGERS, WIDTHS, apply, dtype

KERNELS = [
    *(f"selfcheck.apply[{case}]" for case in ("bf16_to_f32", "f32_to_bf16", "exp2i", "exp")),
    *(f"selfcheck.apply[half_to_f32.{n}]" for n in WIDTHS), *(f"selfcheck.apply[f32_to_half.{n}]" for n in WIDTHS),
    *(f"selfcheck.conversions[{el}]" for el in ("f32", *INTEGERS[:-1])), "selfcheck.at[half_at]",
]  # fmt: skip

pytestmark = pytest.mark.parametrize("level", LEVELS)


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    compile_all(KERNELS)


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
