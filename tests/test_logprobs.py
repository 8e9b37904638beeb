"""Log-probabilities of answers and prompts against the model's logits; seeds with every sampler."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import edgert
from edgert.logprobs import ROWS

TEXT = "The capital of France is Paris, and the capital of Italy is Rome. " * 5
EVERYTHING: dict[str, Any] = {
    "repeat_penalty": 1.1, "presence_penalty": 0.1, "dry_multiplier": 0.8, "top_n_sigma": 3.0, "typical_p": 0.98,
    "xtc_probability": 0.5, "xtc_threshold": 0.05, "dynatemp_range": 0.3, "logit_bias": {260: 1.0},
}  # fmt: skip


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> Iterator[edgert.Model]:
    with edgert.load(smollm2_path, n_ctx=1024) as loaded:
        yield loaded


def log_softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    x = logits.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    return np.asarray(x - np.log(np.exp(x).sum(axis=-1, keepdims=True)))


def check(scores: list[Any], ids: list[int], expected: npt.NDArray[np.float64], n: int) -> None:
    """scores are of ids, and equal rows of log-probabilities within 1e-3."""
    assert [score.token for score in scores] == ids
    for score, row in zip(scores, expected, strict=True):
        assert abs(score.logprob - row[score.token]) < 1e-3
        assert len(score.top) == n
        best = np.sort(row)[::-1][:n]
        np.testing.assert_allclose([p for _, p in score.top], best, atol=1e-3)
        np.testing.assert_allclose([row[token] for token, _ in score.top], best, atol=1e-3)


@pytest.mark.parametrize("n", [0, 5])
def test_prompt(model: edgert.Model, n: int) -> None:
    """Every token but the first, across chunks of rows, whether or not the prompt is cached."""
    ids = model.tokenize(TEXT)
    assert len(ids) > 2 * ROWS
    expected = log_softmax(model.logits(ids))
    plain = model.generate(ids, max_tokens=4, temperature=0)
    for _ in range(2):
        answer = model.generate(ids, max_tokens=4, temperature=0, prompt_logprobs=n)
        scores = answer.prompt_logprobs
        assert scores is not None
        assert scores[0] is None
        check(scores[1:], ids[1:], expected[:-1], n)
        assert answer.ids == plain.ids
        assert answer.logprobs is None
        assert answer.usage.cached_tokens == 0


def test_prompts_in_a_batch(model: edgert.Model) -> None:
    prompts = [model.tokenize(text) for text in ("One two three four", "Paris is", "A")]
    answers = model.generate_many(prompts, max_tokens=3, temperature=0, prompt_logprobs=1, logprobs=1)
    for prompt, answer in zip(prompts, answers, strict=True):
        scores = answer.prompt_logprobs
        assert scores is not None
        check(scores[1:], prompt[1:], log_softmax(model.logits(prompt))[:-1], 1)


def test_answer(smollm2_path: Path) -> None:
    """Of the model's own distribution, whatever bias, penalties, filters, forms and temperature did to it."""
    with edgert.load(smollm2_path, n_ctx=256, precision="exact") as exact:
        ids = exact.tokenize("The capital of France is")
        for settings in (EVERYTHING, {"temperature": 0}, {"regex": " [a-z ]{20,40}"}):
            answer = exact.generate(ids, max_tokens=8, seed=3, logprobs=4, **settings)
            assert answer.logprobs is not None
            rows = log_softmax(exact.logits(ids + answer.ids))[len(ids) - 1 : -1]
            check(answer.logprobs, answer.ids, rows, 4)


def test_an_end_has_no_entry(model: edgert.Model) -> None:
    """One entry per token of the answer: the end-of-turn token is none of them."""
    answer = model.chat([{"role": "user", "content": "Reply with the word yes."}], max_tokens=200, temperature=0,
                        logprobs=0)  # fmt: skip
    assert answer.finish_reason == "stop"
    assert answer.logprobs is not None
    assert [score.token for score in answer.logprobs] == answer.ids


def test_memory_does_not_grow_with_the_prompt(model: edgert.Model) -> None:
    """Scoring 900 tokens holds a few dozen rows of logits, not 900 (which are 177 MB)."""
    ids = (model.tokenize(TEXT) * 20)[:900]
    tracemalloc.start()
    try:
        model.generate(ids, max_tokens=1, temperature=0, prompt_logprobs=1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * ROWS * model.n_vocab * 4


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
@pytest.mark.parametrize("value", [-1, 1.5, True, 513, "5"])
def test_bad_counts(model: edgert.Model, name: str, value: Any) -> None:
    with pytest.raises(edgert.EdgertError, match=f"^{name}: "):
        model.generate("Hello", max_tokens=1, **{name: value})


@pytest.mark.parametrize("settings", [EVERYTHING, {"mirostat": 1}, {"mirostat": 2, "mirostat_tau": 3.0}])
def test_seeds_alone_and_in_a_batch(model: edgert.Model, settings: dict[str, Any]) -> None:
    """The same seed gives the same tokens whatever else runs, with every sampler on."""
    prompts = [f"{city} is a city where" for city in ("Paris", "Rome", "Oslo")]
    together = model.generate_many(prompts, max_tokens=16, seed=9, **settings)
    for prompt, answer in zip(prompts, together, strict=True):
        assert model.generate(prompt, max_tokens=16, seed=9, **settings).ids == answer.ids
    other = model.generate(prompts[0], max_tokens=16, seed=10, **settings)
    assert other.ids != together[0].ids
