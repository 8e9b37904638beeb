"""Clamps, gates, pieces of heads, scales and embeddings by position against numpy, at every level."""

from __future__ import annotations

import numpy as np
import pytest
from edgert.kernels_cpu.team import aligned
from kernel_calls import LEVELS, Array, batch, compile_all, count, run

SIZES = (1, 16, 17, 48)
POSITIONS = np.array([0, 5, 5, 1, 9], np.int32)

pytestmark = [pytest.mark.parametrize("level", LEVELS), pytest.mark.parametrize("threads", [1, 3])]


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    compile_all(["rows.clamp", "rows.gate", "rows.copy_heads", "rows.scale_at"])
    compile_all([f"embed.positions[{kind}]" for kind in ("F32", "F16")])


def normal(m: int, n: int, seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal((m, n)).astype(np.float32)


@pytest.mark.parametrize("n", SIZES)
def test_clamp(level: str, threads: int, n: int) -> None:
    """The first n columns; what lies beyond stays."""
    y = normal(5, n + 3, 1)
    expected = np.concatenate([np.clip(y[:, :n], -0.5, 0.5), y[:, n:]], axis=1)
    run("rows.clamp", level, threads, count=count(5), y=y, ld=y.strides[0], n=n, limit=0.5)
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("n", SIZES)
def test_gate(level: str, threads: int, n: int) -> None:
    """A row that wants nothing and one that wants all."""
    x, w, y = normal(5, 37, 2), normal(1, 37, 3), normal(5, n, 4)
    x[0], x[1] = 100 * w, -100 * w
    factor = 0.5 * (1 + np.tanh(x.astype(np.float64) @ w[0] / 2))
    expected = y * factor[:, None]
    run("rows.gate", level, threads, count=count(5), x=x, ldx=x.strides[0], w=w, k=37, y=y, ldy=y.strides[0], n=n)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("again", [False, True])
def test_copy_heads(level: str, threads: int, n: int, again: bool) -> None:
    """Three heads of three, or one head three times, into places with room between them."""
    x, y = normal(5, 3 * (n + 2), 5), normal(5, 3 * (n + 5), 6)
    source = x.reshape(5, 3, n + 2)[:, : 1 if again else 3, :n]
    expected = y.reshape(5, 3, n + 5).copy()
    expected[:, :, :n] = source
    run("rows.copy_heads", level, threads, count=count(5), x=x, ldx=x.strides[0], step_x=0 if again else 4 * (n + 2),
        y=y, ldy=y.strides[0], step_y=4 * (n + 5), heads=3, n=n)  # fmt: skip
    np.testing.assert_array_equal(y.reshape(5, 3, n + 5), expected)


def test_scale_at(level: str, threads: int) -> None:
    y, table = normal(5, 21, 7), normal(1, 10, 8)[0]
    header, _kept = batch(TOKENS=5, POS=POSITIONS)
    expected = y * table[POSITIONS][:, None]
    run("rows.scale_at", level, threads, batch=header, table=table, y=y, ldy=y.strides[0], n=21)
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("kind", ["F32", "F16"])
def test_positions(level: str, threads: int, kind: str) -> None:
    """Rows of the table are added by position."""
    y, w = normal(5, 48, 9), normal(10, 48, 10).astype(np.float32 if kind == "F32" else np.float16)
    expected = y + w[POSITIONS].astype(np.float32)
    header, _kept = batch(TOKENS=5, POS=POSITIONS)
    scratch = aligned(threads * 8192, np.uint8)
    run(f"embed.positions[{kind}]", level, threads, batch=header, w=w, k=48, y=y, ldy=y.strides[0], scratch=scratch,
        ld_scratch=8192)  # fmt: skip
    np.testing.assert_array_equal(y, expected)
