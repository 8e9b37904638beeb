"""Prompts and answers longer than the context: an error, or what was explicitly asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import edgert

N_CTX = 128
LONG = [20 + (i * i) % 60 for i in range(300)]
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def model(request: pytest.FixtureRequest, arch_model: Callable[[str], Path]) -> Iterator[edgert.Model]:
    with edgert.load(arch_model(request.param), n_ctx=N_CTX) as loaded:
        yield loaded


def test_the_default_is_an_error(model: edgert.Model) -> None:
    for settings in ({}, {"context": "error"}):
        with pytest.raises(edgert.ContextLengthError, match="300 tokens, the context only 128"):
            model.generate(LONG, **settings)
        with pytest.raises(edgert.ContextLengthError, match="100 prompt tokens and 40 new"):
            model.generate(LONG[:100], max_tokens=40, **settings)
    with pytest.raises(edgert.EdgertError, match="context 'forget' is not one of"):
        model.generate(LONG, context="forget")


def test_the_middle_of_a_prompt_is_left_out(model: edgert.Model) -> None:
    answer = model.generate(LONG, max_tokens=28, context="truncate_middle", **GREEDY)
    assert answer.ids == model.generate(LONG[:50] + LONG[-50:], max_tokens=28, **GREEDY).ids
    assert (answer.usage.prompt_tokens, answer.usage.dropped_tokens) == (100, 200)
    whole = model.generate(LONG[:60], max_tokens=28, context="truncate_middle", **GREEDY)
    assert whole.usage.dropped_tokens == 0
    assert whole.ids == model.generate(LONG[:60], max_tokens=28, **GREEDY).ids
    with pytest.raises(edgert.ContextLengthError):
        model.generate(LONG, max_tokens=N_CTX, context="truncate_middle")


@pytest.mark.parametrize("speculative", [None, "lookup"])
@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_the_oldest_tokens_are_forgotten(arch: str, speculative: str | None,
                                         arch_model: Callable[[str], Path]) -> None:  # fmt: skip
    """Whenever the context is full, the younger half is read again as a prompt."""
    path = arch_model(arch)
    with edgert.load(path, n_ctx=N_CTX) as model, edgert.load(path, n_ctx=512) as wide:
        answer = model.generate(LONG, max_tokens=300, context="shift", speculative=speculative, **GREEDY)
        text, expected, dropped = LONG[204:], list[int](), 204
        while len(expected) < 300:
            text += wide.generate(text, max_tokens=N_CTX + 1 - len(text), prompt_logprobs=0, **GREEDY).ids
            expected += text[len(text) - (33 if not expected else 64) :]
            text, dropped = text[64:], dropped + 64
        assert answer.ids == expected[:300]
        assert (answer.usage.prompt_tokens, answer.usage.dropped_tokens) == (96, dropped - 64)
        short = model.generate(LONG[:20], context="shift", **GREEDY)
        assert len(short.ids) == N_CTX
