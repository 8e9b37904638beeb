"""Beam search against one in NumPy on the model's own logits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import edgert

PROMPT = [20 + (i * i) % 60 for i in range(45)]


def reference(model: edgert.Model, beams: int, steps: int) -> list[tuple[list[int], float]]:
    """(ids, sum of log-probabilities) of the beams, the best first; generated tokens on their own path."""
    found: list[tuple[list[int], float]] = [([], 0.0)]
    for _ in range(steps):
        choices = []
        for ids, total in found:
            logits = model.logits([*PROMPT, *ids])[-1].astype(np.float64)
            logprobs = logits - np.logaddexp.reduce(logits)
            choices += [([*ids, t], total + logprobs[t]) for t in np.argsort(-logprobs)[: 2 * beams].tolist()]
        found = sorted(choices, key=lambda c: -c[1])[:beams]
    return found


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_beams_are_those_of_the_reference(arch: str, arch_model: Callable[[str], Path]) -> None:
    """In float32, where both paths agree; also beside other answers, and in a cache with little room."""
    with edgert.load(arch_model(arch), n_ctx=128, precision="exact", cache_tokens=600) as model:
        expected = reference(model, 4, 6)
        for busy in (False, True):
            others = [model.submit(PROMPT[i:], max_tokens=60, ignore_eos=True) for i in range(8)] if busy else []
            beams = model.beam_search(PROMPT, beams=4, max_tokens=6, ignore_eos=True)
            assert [beam.ids for beam in beams] == [ids for ids, _ in expected]
            np.testing.assert_allclose([b.logprob for b in beams], [total for _, total in expected], atol=2e-3)
            np.testing.assert_allclose([b.score for b in beams], [total / 6 for _, total in expected], atol=1e-3)
            assert {beam.finish_reason for beam in beams} == {"length"}
            for other in others:
                other.result()
        assert model.stats().pages_used == 0
        for settings in ({"beams": 1}, {"beams": 2.0}, {"max_tokens": 0}, {"beams": 16, "max_tokens": 80}):
            with pytest.raises(edgert.EdgertError):
                model.beam_search(PROMPT, **settings)  # type: ignore[arg-type]


def test_beams_end(smollm2_path: Path) -> None:
    with edgert.load(smollm2_path, n_ctx=512) as model:
        _, ids = model.chat_prompt([{"role": "user", "content": "Answer with one word: what colour is the sky?"}])
        beams = model.beam_search(ids, beams=3, max_tokens=30)
        assert len(beams) == 3
        assert "stop" in {beam.finish_reason for beam in beams}
        assert [beam.score for beam in beams] == sorted((beam.score for beam in beams), reverse=True)
        assert all(not set(beam.ids) & model.tokenizer.eog_ids for beam in beams)
