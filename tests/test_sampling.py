"""The sampler chain on small logits, against values worked out by hand or by a plain formula."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from edgert.kernels_cpu import isa, jit

from edgert.samplers import Candidates, Top
from edgert.sampling import Sampler, Settings, SettingsError

F32 = npt.NDArray[np.float32]
OFF: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0}


@pytest.fixture(scope="module")
def top() -> jit.Kernel:
    return jit.load(["sample.top"], isa.choose())["sample.top"]


@pytest.fixture
def draws(top: jit.Kernel) -> Callable[..., Counter[int]]:
    """Counts of 4,000 tokens drawn from the same logits."""

    def draw(logits: F32, history: list[int] | None = None, **settings: Any) -> Counter[int]:
        sampler = Sampler(Settings(**{**OFF, "seed": 7, **settings}), len(logits), top)
        return Counter(sampler.choose(logits.copy(), history or []) for _ in range(4000))

    return draw


def logits_of(probabilities: list[float]) -> F32:
    return np.log(np.array(probabilities)).astype(np.float32)


def close(counts: Counter[int], probabilities: dict[int, float]) -> None:
    """Frequencies are the probabilities within five standard deviations."""
    n = sum(counts.values())
    assert set(counts) == set(probabilities)
    for token, p in probabilities.items():
        assert abs(counts[token] / n - p) < 5 * np.sqrt(p * (1 - p) / n) + 1e-9


def test_plain_distribution(draws: Callable[..., Counter[int]]) -> None:
    close(draws(logits_of([0.1, 0.2, 0.3, 0.4])), {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4})


def test_temperature(draws: Callable[..., Counter[int]]) -> None:
    """Half the temperature squares the odds."""
    p = np.array([0.1, 0.2, 0.3, 0.4]) ** 2
    close(draws(logits_of([0.1, 0.2, 0.3, 0.4]), temperature=0.5), dict(enumerate(p / p.sum())))


def test_zero_temperature_is_the_likeliest_and_lowest(top: jit.Kernel) -> None:
    sampler = Sampler(Settings(temperature=0), 4, top)
    assert sampler.choose(np.array([1, 3, 3, 2], np.float32), []) == 1


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"top_k": 2}, {2: 0.3 / 0.7, 3: 0.4 / 0.7}),
        ({"top_k": 1}, {3: 1.0}),
        ({"top_p": 0.5}, {2: 0.3 / 0.7, 3: 0.4 / 0.7}),  # 0.4 is not enough, 0.4 + 0.3 is
        ({"top_p": 0.39}, {3: 1.0}),
        ({"min_p": 0.6}, {2: 0.3 / 0.7, 3: 0.4 / 0.7}),  # at least 0.6 * 0.4
        ({"min_p": 1.0}, {3: 1.0}),
        ({"top_k": 3, "top_p": 0.75}, {2: 0.3 / 0.7, 3: 0.4 / 0.7}),  # of 0.9: 0.444 + 0.333 reach 0.75
        ({"logit_bias": {3: -100.0}}, {0: 1 / 6, 1: 2 / 6, 2: 3 / 6}),
    ],
)
def test_filters(draws: Callable[..., Counter[int]], settings: dict[str, Any], expected: dict[int, float]) -> None:
    close(draws(logits_of([0.1, 0.2, 0.3, 0.4]), **settings), expected)


def test_typical(draws: Callable[..., Counter[int]]) -> None:
    """Tokens nearest the entropy come first: here the second, then the third; the likeliest is not typical."""
    p = [0.6, 0.2, 0.1, 0.05, 0.05]
    entropy = -sum(x * np.log(x) for x in p)
    order = sorted(range(5), key=lambda i: abs(-np.log(p[i]) - entropy))
    assert order[:2] == [1, 0]
    close(draws(logits_of(p), typical_p=0.3), {0: 0.75, 1: 0.25})
    close(draws(logits_of(p), typical_p=0.1), {1: 1.0})


def test_penalties(top: jit.Kernel) -> None:
    """Each penalty by its formula, within the window only."""
    penalties = {"repeat_penalty": 2.0, "frequency_penalty": 0.25, "presence_penalty": 0.5, "penalty_last_n": 3}
    sampler = Sampler(Settings(**{**OFF, **penalties, "temperature": 0}), 4, top)
    logits = np.array([4, -4, 1.5, 0], np.float32)
    assert sampler.choose(logits, [3, 3, 0, 1, 0]) == 2
    np.testing.assert_allclose(logits, [4 / 2 - 2 * 0.25 - 0.5, -4 * 2 - 0.25 - 0.5, 1.5, 0])


def test_seed(draws: Callable[..., Counter[int]], top: jit.Kernel) -> None:
    logits = np.zeros(1000, np.float32)
    runs = []
    for seed in (3, 3, 4):
        sampler = Sampler(Settings(**{**OFF, "seed": seed}), 1000, top)
        runs.append([sampler.choose(logits.copy(), []) for _ in range(20)])
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize("n", [1, 15, 16, 17, 1000])
@pytest.mark.parametrize("k", [1, 3, 40])
def test_candidates_by_kernel_and_by_sorting(top: jit.Kernel, n: int, k: int) -> None:
    """The k largest, lower id first among equals, whichever way they are found."""
    logits = np.random.default_rng(1).integers(-20, 20, n).astype(np.float32)
    ids, values = Candidates(logits, Top(top)).largest(min(k, n))
    order = np.argsort(-logits, kind="stable")[: min(k, n)]
    np.testing.assert_array_equal(ids, order)
    np.testing.assert_array_equal(values, logits[order])


@pytest.mark.parametrize(
    "settings",
    [{"temperature": -1}, {"top_p": 1.5}, {"min_p": float("nan")}, {"top_k": -1}, {"repeat_penalty": 0},
     {"seed": -1}, {"seed": 1.5}, {"top_k": 1.5}, {"penalty_last_n": 0.5}, {"temperature": True},
     {"logit_bias": {"0": 1.0}}, {"logit_bias": [(0, 1.0)]}, {"logit_bias": {9: 1.0}},
     {"logit_bias": {0: float("nan")}}, {"temperature": "hot"}],
)  # fmt: skip
def test_out_of_range(top: jit.Kernel, settings: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        Sampler(Settings(**settings), 4, top)


def test_extremes(top: jit.Kernel) -> None:
    """A tiny temperature is greedy, an infinite bias decides, numpy's numbers are numbers."""
    logits = np.array([1, 3, 2, 0], np.float32)
    assert Sampler(Settings(temperature=1e-310), 4, top).choose(logits.copy(), []) == 1
    assert Sampler(Settings(logit_bias={2: 1e39}), 4, top).choose(logits.copy(), []) == 2
    assert Sampler(Settings(top_k=np.int64(1), temperature=np.float32(0.5)), 4, top).choose(logits.copy(), []) == 1
