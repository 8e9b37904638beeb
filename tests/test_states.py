"""Recurrent models: states are shared, kept, forked and saved as keys and values are, and change no answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgert
from edgert import kv
from edgert.plan import STATE, CacheLayer

GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "max_tokens": 12}
PROMPT = [20 + (i * i) % 60 for i in range(150)]
MODELS = ["mamba", "mamba2", "lfm2", "qwen3next", "falcon-h1", "granitehybrid"]


def fresh(path: Path, prompt: list[int], **settings: Any) -> list[int]:
    """The answer of a model that has seen nothing else."""
    with edgert.load(path, n_ctx=256) as model:
        return model.generate(prompt, **{**GREEDY, **settings}).ids


@pytest.mark.parametrize("name", MODELS)
def test_a_second_turn_goes_on_from_the_first(name: str, arch_model: Callable[[str], Path]) -> None:
    """The same answer as from scratch, with the whole first prompt from the cache, twice and beside others."""
    path = arch_model(name)
    with edgert.load(path, n_ctx=256) as model:
        first = model.generate(PROMPT, **GREEDY).ids
        prompt = [*PROMPT, *first, 7, 8, 9]
        second = model.generate(prompt, **GREEDY)
        assert second.usage.cached_tokens == len(PROMPT)
        other = model.generate([*PROMPT[:140], 3, 4, 5], **GREEDY)  # leaves the prompt inside of a page
        assert other.usage.cached_tokens == 128
        together = model.generate_many([PROMPT, prompt, PROMPT], **GREEDY)
    assert first == fresh(path, PROMPT)
    assert second.ids == fresh(path, prompt)
    assert other.ids == fresh(path, [*PROMPT[:140], 3, 4, 5])
    assert [answer.ids for answer in together] == [first, second.ids, first]


@pytest.mark.parametrize("name", ["mamba", "qwen3next"])
def test_a_session_resumes(name: str, arch_model: Callable[[str], Path], tmp_path: Path) -> None:
    path = arch_model(name)
    with edgert.load(path, n_ctx=256) as model:
        model.save_session(tmp_path / "session", PROMPT)
    with edgert.load(path, n_ctx=256) as model:
        assert model.load_session(tmp_path / "session") == PROMPT
        answer = model.generate([*PROMPT, 5], **GREEDY)
        assert answer.usage.cached_tokens == len(PROMPT)
    assert answer.ids == fresh(path, [*PROMPT, 5])


def test_guesses_are_refused(arch_model: Callable[[str], Path]) -> None:
    with (
        edgert.load(arch_model("mamba2"), n_ctx=64) as model,
        pytest.raises(edgert.EdgertError, match="mamba2 models cannot take guessed tokens back"),
    ):
        model.generate([1, 2, 3], speculative="lookup", **GREEDY)


def pool(states: int = 12) -> kv.PagePool:
    return kv.PagePool([CacheLayer(1, 16, 16), CacheLayer(0, 0, 0, STATE, 256)], "f16", [64, states])


def states(sequence: kv.Sequence) -> list[int]:
    """Numbers of the pages that have a state."""
    return [i for i, page in enumerate(sequence.pages[1]) if page != kv.GONE]


def test_a_state_moves_on_and_leaves_one_behind_per_chunk() -> None:
    """A prompt keeps the state at the last full page of each chunk; generated tokens keep none."""
    sequence = kv.Sequence(pool(), 1024)
    sequence.extend(range(5 * kv.PAGE + 3), prompt=True)
    assert states(sequence) == [4, 5]
    np.testing.assert_array_equal(sequence.tables[1][:5], sequence.tables[1][0])
    assert sequence.tables[1][5] != sequence.tables[1][4]
    for _ in range(3 * kv.PAGE):
        sequence.extend([1], prompt=False)
    assert states(sequence) == [4, 8]
    sequence.truncate(6 * kv.PAGE)  # the next state before that is all there is
    assert len(sequence.tokens) == 5 * kv.PAGE
    sequence.truncate(4)
    assert sequence.tokens == []
    assert sequence.n_pages == 0


def test_what_others_use_is_copied_before_tokens_come() -> None:
    space = pool()
    sequence = kv.Sequence(space, 1024)
    sequence.extend(range(kv.PAGE + 3), prompt=True)
    other = sequence.fork()
    assert other.pages[1][-1] != sequence.pages[1][-1]
    assert other.pages[1][0] == sequence.pages[1][0]
    space.groups[1].cache(sequence.pages[1][-1])
    kept = sequence.pages[1][-1]
    space.groups[1].write(kept, memoryview(bytes(range(256))))
    sequence.extend([1], prompt=False)
    assert sequence.pages[1][-1] != kept
    assert space.groups[1].read(sequence.pages[1][-1]) == space.groups[1].read(kept) == bytes(range(256))


def test_no_states_left_is_an_error_that_takes_nothing() -> None:
    space = pool(states=2)
    first, second = kv.Sequence(space, 1024), kv.Sequence(space, 1024)
    first.extend(range(40), prompt=True)
    with pytest.raises(edgert.EdgertError, match="full"):
        second.extend([1], prompt=True)
    assert second.n_pages == 0
