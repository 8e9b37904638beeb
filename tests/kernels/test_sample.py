"""Selection of the largest logits, at every level."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_calls import LEVELS, Array, compile_all, run

pytestmark = pytest.mark.parametrize("level", LEVELS)


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    compile_all(["sample.top"])


def top(level: str, logits: Array, k: int) -> tuple[Array, Array]:
    ids, values = np.full(k, -1, np.int32), np.full(k, np.nan, np.float32)
    run("sample.top", level, 2, logits=logits, n=len(logits), k=k, ids=ids, values=values)
    return ids, values


@pytest.mark.parametrize("n", [1, 15, 16, 17, 1000, 4099])
@pytest.mark.parametrize("ties", [False, True])
def test_top(level: str, n: int, ties: bool) -> None:
    """Largest first; the lower id first among equals."""
    logits = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    if ties:
        logits = np.round(logits)
    order = np.argsort(-logits, kind="stable")
    for k in {0, 1, min(n, 7), min(n, 40)}:
        ids, values = top(level, logits, k)
        np.testing.assert_array_equal(ids, order[:k])
        np.testing.assert_array_equal(values, logits[order[:k]])


def test_infinite_and_nan(level: str) -> None:
    """A nan counts as minus infinity and is never preferred; all of them rising is the slowest order."""
    logits = np.arange(64, dtype=np.float32)
    logits[[3, 40]], logits[[5, 63]] = np.nan, [np.inf, -np.inf]
    ids, values = top(level, logits, 5)
    assert ids.tolist() == [5, 62, 61, 60, 59]
    assert values.tolist() == [np.inf, 62, 61, 60, 59]
