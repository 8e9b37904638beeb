"""Norms, rotary embedding, activations and quantisation of rows against numpy in float64, at every level.

Kernels get rows with a stride wider than the row; what lies between the rows must stay as it was.
"""

from __future__ import annotations

import numpy as np
import pytest
from edgert.kernels_cpu import isa, layout
from kernel_calls import LEVELS, Array, batch, compile_all, count, run

UNITS = ("silu", "gelu", "relu2")
GATES = (*UNITS, "swiglu_oai")
KERNELS = [
    "norm.rmsnorm", "norm.layernorm", "rope.norm", "rope.neox", "act.add", "act.add_bias", "act.scale",
    "act.head_scale", "act.gather_rows", "act.quantise_rows", "act.quantise_tiles", "act.pack_tiles",
    *(f"unit.gated[{unit}]" for unit in GATES), *(f"unit.plain[{unit}]" for unit in UNITS),
]  # fmt: skip
SIZES = (1, 15, 16, 17, 64, 200)
GAP = np.float32(12345)

pytestmark = pytest.mark.parametrize("level", LEVELS)


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    compile_all(KERNELS)


@pytest.fixture(params=[1, 2, 3, 9], ids=lambda n: f"{n} threads")
def threads(request: pytest.FixtureRequest) -> int:
    n: int = request.param
    return n


def rows(m: int, n: int, seed: int, scale: float = 1.0) -> Array:
    """float32 (m, n) with three more columns of GAP behind each row, as a view of the wider array."""
    wide = np.full((m, n + 3), GAP, np.float32)
    wide[:, :n] = np.random.default_rng(seed).standard_normal((m, n)) * scale
    return wide[:, :n]


def assert_gap(x: Array) -> None:
    assert x.base is not None
    assert (x.base[:, x.shape[1] :] == GAP).all()


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(("weighted", "add_to"), [(True, False), (False, False), (True, True)])
def test_rmsnorm(level: str, threads: int, n: int, weighted: bool, add_to: bool) -> None:
    """Five rows of three heads each."""
    x, y, w = rows(5, 3 * n, 1, 30), rows(5, 3 * n, 2), rows(1, n, 3)
    heads, before = x.reshape(5, 3, n).astype(np.float64), y.astype(np.float64)
    expected = heads / np.sqrt(np.mean(heads**2, axis=2, keepdims=True) + 1e-3) * (w[0] if weighted else 1)
    expected = expected.reshape(5, -1) + (before if add_to else 0)
    run("norm.rmsnorm", level, threads, count=count(5), x=x, ldx=x.strides[0], w=w if weighted else 0, y=y,
        ldy=y.strides[0], n=n, groups=3, add_to=int(add_to), eps=1e-3)  # fmt: skip
    np.testing.assert_allclose(y, expected, rtol=2e-6, atol=1e-6)
    assert_gap(y)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(("weighted", "biased"), [(True, True), (True, False), (False, False)])
def test_layernorm(level: str, threads: int, n: int, weighted: bool, biased: bool) -> None:
    """In place; a mean far from zero must not cost precision."""
    x, w, b = rows(5, 2 * n, 4), rows(1, n, 5), rows(1, n, 6)
    x += 50
    heads = x.reshape(5, 2, n).astype(np.float64)
    centred = heads - heads.mean(axis=2, keepdims=True)
    expected = centred / np.sqrt(np.mean(centred**2, axis=2, keepdims=True) + 1e-5)
    expected = expected * (w[0] if weighted else 1) + (b[0] if biased else 0)
    run("norm.layernorm", level, threads, count=count(5), x=x, ldx=x.strides[0], w=w if weighted else 0,
        bias=b if biased else 0, y=x, ldy=x.strides[0], n=n, groups=2, w_step=0, eps=1e-5)  # fmt: skip
    np.testing.assert_allclose(x, expected.reshape(5, -1), rtol=1e-4, atol=1e-4)
    assert_gap(x)


@pytest.mark.parametrize("n", [15, 48])
def test_layernorm_of_heads(level: str, threads: int, n: int) -> None:
    """Heads with weights of their own."""
    x, y, w = rows(5, 3 * n, 19), rows(5, 3 * n, 20), np.random.default_rng(21).random((3, n)).astype(np.float32)
    heads = x.reshape(5, 3, n).astype(np.float64)
    centred = heads - heads.mean(axis=2, keepdims=True)
    expected = centred / np.sqrt(np.mean(centred**2, axis=2, keepdims=True) + 1e-5) * w
    run("norm.layernorm", level, threads, count=count(5), x=x, ldx=x.strides[0], w=w, bias=0, y=y, ldy=y.strides[0],
        n=n, groups=3, w_step=4 * n, eps=1e-5)  # fmt: skip
    np.testing.assert_allclose(y, expected.reshape(5, -1), rtol=1e-5, atol=1e-5)
    assert_gap(y)


@pytest.mark.parametrize("pairs", ["norm", "neox"])
@pytest.mark.parametrize(("d", "n_rot"), [(64, 64), (10, 6), (2, 2)])
def test_rope(level: str, threads: int, pairs: str, d: int, n_rot: int) -> None:
    """A pair turns by its angle as a complex number; what is beyond n_rot stays."""
    heads, m = 3, 7
    x, positions = rows(m, heads * d, 7), np.array([0, 5, 5, 1, 99, 2, 3], np.int32)
    angles = positions.max() * np.random.default_rng(8).random((100, n_rot // 2))
    table = np.stack([np.cos(angles), np.sin(angles)], axis=2).astype(np.float32)
    expected = x.reshape(m, heads, d).astype(np.float64)
    first, second = (
        (slice(0, n_rot, 2), slice(1, n_rot, 2))
        if pairs == "norm"
        else (slice(0, n_rot // 2), slice(n_rot // 2, n_rot))
    )
    turned = (expected[..., first] + 1j * expected[..., second]) * np.exp(1j * angles[positions])[:, None]
    expected[..., first], expected[..., second] = turned.real, turned.imag
    header, _kept = batch(TOKENS=m, POS=positions)
    run(f"rope.{pairs}", level, threads, batch=header, x=x, ldx=x.strides[0], heads=heads, d=d, n_rot=n_rot,
        table=table)  # fmt: skip
    np.testing.assert_allclose(x, expected.reshape(m, -1), atol=1e-6)
    assert_gap(x)


def unit_of(name: str, x: Array) -> Array:
    x = x.astype(np.float64)
    if name == "silu":
        y: Array = 0.5 * x * (1 + np.tanh(x / 2))
    elif name == "gelu":
        y = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    else:
        y = np.maximum(x, 0) ** 2
    return y


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("n", [16, 48])
def test_units(level: str, threads: int, unit: str, n: int) -> None:
    """Alone and as a gate; large values saturate, none gives a nan."""
    gate, up, y = rows(6, n, 9, 4), rows(6, n, 10), rows(6, n, 11)
    gate[0, :6] = [0, -0.0, 1e4, -1e4, 100, -100]
    expected = unit_of(unit, gate)
    run(f"unit.plain[{unit}]", level, threads, count=count(6), x=gate, ldx=gate.strides[0], y=y, ldy=y.strides[0], n=n)
    np.testing.assert_allclose(y, expected, rtol=2e-6, atol=1e-6)
    run(f"unit.gated[{unit}]", level, threads, count=count(6), gate=gate, up=up, ld=gate.strides[0], y=y,
        ldy=y.strides[0], n=n)  # fmt: skip
    np.testing.assert_allclose(y, expected * up.astype(np.float64), rtol=2e-6, atol=1e-6)
    assert_gap(y)


def test_swiglu_oai(level: str, threads: int) -> None:
    """Clamped on both sides where up is, only from above where the gate is."""
    gate, up, y = rows(6, 32, 22, 6), rows(6, 32, 23, 6), rows(6, 32, 24)
    gate[0, :4], up[1, :2] = [1e4, -1e4, 7, -7], [1e4, -1e4]
    run("unit.gated[swiglu_oai]", level, threads, count=count(6), gate=gate, up=up, ld=gate.strides[0], y=y,
        ldy=y.strides[0], n=32)  # fmt: skip
    g, u = np.minimum(gate.astype(np.float64), 7), np.clip(up.astype(np.float64), -7, 7)
    np.testing.assert_allclose(y, g * 0.5 * (1 + np.tanh(1.702 * g / 2)) * (u + 1), rtol=4e-6, atol=1e-6)
    assert_gap(y)


@pytest.mark.parametrize("n", SIZES)
def test_sums_and_scaling(level: str, threads: int, n: int) -> None:
    x, y, bias = rows(5, n, 12), rows(5, n, 13), rows(1, n, 14)
    before = y.astype(np.float64)
    run("act.add", level, threads, count=count(5), x=x, y=y, ld=y.strides[0], n=n, scale=0.37)
    np.testing.assert_allclose(y, before + 0.37 * x.astype(np.float64), rtol=1e-6, atol=1e-6)
    before = y.copy()
    run("act.add_bias", level, threads, count=count(5), bias=bias, y=y, ld=y.strides[0], n=n)
    np.testing.assert_array_equal(y, before + bias)
    before = y.copy()
    run("act.scale", level, threads, count=count(5), y=y, ld=y.strides[0], n=n, factor=0.3)
    np.testing.assert_array_equal(y, before * np.float32(0.3))
    assert_gap(y)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("cap", [0.0, 30.0])
def test_head_scale(level: str, threads: int, n: int, cap: float) -> None:
    """Threads share the columns of each row; the last of an odd number are not forgotten."""
    logits = np.random.default_rng(15).standard_normal((3, n)).astype(np.float32) * 100
    expected = logits.astype(np.float64) * 0.5
    if cap:
        expected = cap * np.tanh(expected / cap)
    header, _kept = batch(OUT=3, LOGITS=logits)
    run("act.head_scale", level, threads, count=count(3), batch=header, n=n, factor=0.5, cap=cap)
    np.testing.assert_allclose(logits, expected, rtol=2e-6, atol=1e-5)


def test_gather_rows(level: str, threads: int) -> None:
    x, wanted, y = rows(6, 21, 16), np.array([5, 0, 3], np.int32), np.zeros((3, 21), np.float32)
    header, _kept = batch(OUT=3, OUT_ROWS=wanted)
    run("act.gather_rows", level, threads, batch=header, x=x, ldx=x.strides[0], y=y, n=21)
    np.testing.assert_array_equal(y, x[wanted])


def quantised(x: Array) -> tuple[Array, Array]:
    """q8 of rows (m, k): i8 (m, k) and scales (m, k / 32); the largest of 32 is 127, ties round to even."""
    blocks = x.reshape(len(x), -1, 32)
    d = np.abs(blocks).max(axis=2) / np.float32(127)
    with np.errstate(divide="ignore"):
        inverse = np.where(d > 0, np.float32(1) / d, np.float32(0)).astype(np.float32)
    return np.rint(blocks * inverse[..., None]).astype(np.int8).reshape(x.shape), d


def rows_to_quantise(m: int, k: int) -> Array:
    """Rows with a block of zeros, one of equal values, one tiny and one huge."""
    x = rows(m, k, 17)
    x[0, :32], x[1, :32], x[2, :32], x[3, :32] = 0, -3, x[2, :32] * 1e-30, x[3, :32] * 1e30
    return x


def runs_of_256(k: int) -> tuple[list[int], Array]:
    """First column of each 256 that native kernels take, and which of its runs of 32 are counted there."""
    starts = list(range(0, k - 255, 256)) + ([k - 256] if k % 256 else [])
    counted = np.ones((len(starts), 8), bool)
    if k % 256:
        counted[-1, : 8 - k % 256 // 32] = False
    return starts, counted


@pytest.mark.parametrize("k", [256, 288, 416, 512])
@pytest.mark.parametrize(("m", "group", "wide"), [(1, 4, 1), (5, 4, 4), (5, 1, 1)])
def test_quantise_rows(level: str, threads: int, k: int, m: int, group: int, wide: int) -> None:
    """Each 256 of k, of a row alone (in both orders) or of a group side by side; to the bit. The last 256 overlap."""
    x = rows_to_quantise(5, k)[:m] if m > 1 else rows_to_quantise(5, k)[4:]
    q, d = quantised(x)
    starts, counted = runs_of_256(k)
    out = np.full((-(-m // wide), len(starts), layout.SUPER * wide), 0xEE, np.uint8)
    run("act.quantise_rows", level, threads, count=count(m), x=x, ldx=x.strides[0], k=k, out=out, group=group)
    floats = out[..., 256 * wide :].copy().view(np.float32)
    for r in range(m):
        g, t = divmod(r, wide)
        for s, start in enumerate(starts):
            runs = q[r, start : start + 256].reshape(8, 4, 8)
            scales = d[r, start // 32 : start // 32 + 8] * counted[s]
            halves = runs.reshape(8, 2, 16).astype(np.int32).sum(axis=2).astype(np.float32)
            codes, f = out[g, s, : 256 * wide].view(np.int8), floats[g, s]
            if wide == 1:
                got_codes, got_scales = codes.reshape(4, 8, 8), f[:8]
            else:
                got_codes = codes.reshape(4, 4, wide, 2, 8)[:, :, t].reshape(4, 8, 8)
                got_scales = f[: 8 * wide].reshape(4, wide, 2)[:, t].reshape(8)
            np.testing.assert_array_equal(got_codes, runs.swapaxes(0, 1))
            sums32, sums16 = scales * halves.sum(axis=1), (scales[:, None] * halves).reshape(-1)
            got = got_scales, f[8 * wide : 16 * wide].reshape(wide, 8)[t], f[16 * wide :].reshape(wide, 16)[t]
            for part, expected in zip(got, (scales, sums32, sums16), strict=True):
                np.testing.assert_array_equal(part, expected)


@pytest.mark.parametrize("k", [32, 96, 256])
def test_quantise_tiles(level: str, threads: int, k: int) -> None:
    """The same numbers as in rows, tokens in the lanes; lanes without a token stay as they were."""
    tile = isa.BY_NAME[level].tile
    m = tile + 5
    x = rows_to_quantise(m, k)
    q, d = quantised(x)
    out = np.full((2, layout.q8_tile_bytes(k, tile)), 0xEE, np.uint8)
    run("act.quantise_tiles", level, threads, count=count(m), x=x, ldx=x.strides[0], k=k, out=out)
    at, end = tile * k, tile * (k + k // 8)
    codes = out[:, :at].view(np.int8).reshape(2, k // 4, tile, 4).transpose(0, 2, 1, 3).reshape(2 * tile, k)
    scales = out[:, at:end].copy().view(np.float32).reshape(2, k // 32, tile).transpose(0, 2, 1).reshape(2 * tile, -1)
    sums = out[:, end:].copy().view(np.int32).reshape(2, k // 16, tile).transpose(0, 2, 1).reshape(2 * tile, -1)
    np.testing.assert_array_equal(codes[:m], q)
    np.testing.assert_array_equal(scales[:m], d)
    np.testing.assert_array_equal(sums[:m], q.astype(np.int32).reshape(m, -1, 16).sum(axis=2))
    assert (codes[m:].view(np.uint8) == 0xEE).all()


@pytest.mark.parametrize("k", [1, 7, 96])
def test_pack_tiles(level: str, threads: int, k: int) -> None:
    tile = isa.BY_NAME[level].tile
    x, out = rows(tile + 5, k, 18), np.full((2, k, tile), GAP, np.float32)
    run("act.pack_tiles", level, threads, count=count(tile + 5), x=x, ldx=x.strides[0], k=k, out=out)
    tokens = out.transpose(0, 2, 1).reshape(2 * tile, k)
    np.testing.assert_array_equal(tokens[: tile + 5], x)
    assert (tokens[tile + 5 :] == GAP).all()
