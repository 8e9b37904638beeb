"""Guessed tokens change nothing but the number of steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import edgert
from edgert.speculative import FIRST, MOST, Lookup

STORY = (
    "The old lighthouse keeper climbed the stairs every evening to light the lamp. His name was Thomas Finch, and he "
    "had kept the light for forty years. Ships from every port in the world had passed by his window."
)
REWRITE = [{"role": "user", "content": f"Repeat this text word for word:\n\n{STORY}"}]


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> Iterator[edgert.Model]:
    with edgert.load(smollm2_path, n_ctx=1024) as loaded:
        yield loaded


def test_lookup_finds_what_came_after_the_same_tokens() -> None:
    lookup = Lookup()
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 2, 3]
    assert lookup.guess(text, 20) == [4, 5, 6, 7][:FIRST]
    assert lookup.guess([*text, 4, 5], 2) == [6, 7]
    lookup.learn(4, 4)
    assert lookup.guess([*text, 4, 5, 6], 20) == [7, 8, 9, 2, 3, 4, 5, 6]
    assert lookup.guess([*text, 4, 5, 6, 11], 20) == []
    for _ in range(9):
        lookup.learn(3, 3)
    assert lookup._n == MOST
    for _ in range(9):
        lookup.learn(MOST, 0)
    assert lookup._n == 1
    assert lookup.guess([*text, 4, 5, 6, 11, 1, 2, 3], 9) == []  # after misses, more must be alike
    assert lookup.guess([*text, 4, 5, 6, 11, 1, 2, 3, 4], 9) == [5]


@pytest.mark.parametrize("settings", [{"temperature": 0}, {"temperature": 0.7, "seed": 4, "repeat_penalty": 1.05}])
def test_a_rewritten_text_takes_fewer_steps(model: edgert.Model, settings: dict[str, Any]) -> None:
    plain = model.chat(REWRITE, max_tokens=80, logprobs=2, **settings)
    before = model.stats()
    guessed = model.chat(REWRITE, max_tokens=80, logprobs=2, speculative="lookup", **settings)
    after = model.stats()
    assert guessed.ids == plain.ids
    assert guessed.text == plain.text
    assert guessed.logprobs == plain.logprobs
    drafted, accepted = after.drafted - before.drafted, after.accepted - before.accepted
    assert drafted >= accepted
    if settings["temperature"] == 0:
        assert accepted > len(plain.ids) // 2
        assert after.steps - before.steps < len(plain.ids) // 2


def test_forms_and_stops_hold_with_guesses(model: edgert.Model) -> None:
    schema = {"type": "array", "items": {"enum": ["lighthouse", "keeper"]}, "minItems": 6, "maxItems": 6}
    for settings in ({"json_schema": schema}, {"stop": "keeper"}, {"max_tokens": 3}, {"max_tokens": 1}):
        given: dict[str, Any] = {"max_tokens": 60, "temperature": 0, **settings}
        plain, guessed = (model.chat(REWRITE, speculative=how, **given) for how in (None, "lookup"))
        assert (guessed.ids, guessed.text, guessed.finish_reason) == (plain.ids, plain.text, plain.finish_reason)


@pytest.mark.parametrize(("arch", "precision"), [("llama", "fast"), ("gemma3", "fast"), ("llama", "exact")])
def test_a_draft_model_changes_nothing(arch: str, precision: str, arch_model: Callable[[str], Path]) -> None:
    """Its guesses are mostly right where it is the same model in another precision; also at the context's end."""
    prompts = [[20 + (i * (3 + k)) % 60 for i in range(30 + 30 * k)] for k in range(3)]
    path = arch_model(arch)
    with edgert.load(path, n_ctx=128, precision=precision) as model, edgert.load(path, n_ctx=128) as draft:
        for settings in ({"temperature": 0}, {"temperature": 0.5, "seed": 9}):
            given: dict[str, Any] = {"ignore_eos": True, **settings}
            plain = [answer.ids for answer in model.generate_many(prompts, **given)]
            assert [len(p) + len(ids) for p, ids in zip(prompts, plain, strict=True)] == [128] * 3
            assert [a.ids for a in model.generate_many(prompts, speculative=draft, **given)] == plain
            assert [model.generate(p, speculative=draft, **given).ids for p in prompts] == plain
        stats = model.stats()
        assert stats.accepted > stats.drafted // 4 > 0
        assert draft.generate([5], max_tokens=1).ids  # its own work is done, the pages are given back
        assert draft.stats().pages_used == 0
        stream = model.submit(prompts[0], speculative=draft, ignore_eos=True)
        draft.close()
        assert len(stream.result().ids) == 128 - 30


def test_draft_models_that_cannot_be(model: edgert.Model, arch_model: Callable[[str], Path]) -> None:
    with edgert.load(arch_model("llama"), n_ctx=64) as other, edgert.load(arch_model("llama"), n_ctx=64) as third:
        for how, error in (("magic", "speculative"), (other, "another vocabulary"), (model, "must be another")):
            with pytest.raises(edgert.EdgertError, match=error):
                model.submit("Hi", speculative=how)
        other.generate([5], max_tokens=1, speculative=third)
        for asks, asked in ((third, other), (other, other)):
            with pytest.raises(edgert.EdgertError, match="must be another"):
                asks.submit([5], speculative=asked)
