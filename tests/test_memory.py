"""A cache that is too small for all: answers stay the same whatever is set aside, shared or computed again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import edgert

GREEDY = {"temperature": 0, "ignore_eos": True}


def conversations(n: int, length: int) -> list[list[int]]:
    """Prompts of tokens that the tiny models know; the first half of each is common to all."""
    return [[20 + (i * i + (k if i >= length // 2 else 0) * 7) % 60 for i in range(length + k)] for k in range(n)]


@pytest.mark.parametrize("precision", ["fast", "exact"])
@pytest.mark.parametrize("preempt", ["recompute", "swap"])
@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_a_cache_for_three_serves_eight(arch: str, preempt: str, precision: str,
                                        arch_model: Callable[[str], Path]) -> None:  # fmt: skip
    """Every conversation gets two turns; answers, also sampled ones and log-probabilities, are those with room."""
    prompts = conversations(8, 60)
    settings: list[dict[str, Any]] = [{**GREEDY, "max_tokens": 60}] * 7
    settings.append({"temperature": 1.0, "seed": 3, "ignore_eos": True, "max_tokens": 60, "prompt_logprobs": 2})

    def talk(model: edgert.Model) -> list[tuple[list[int], Any]]:
        first = [model.submit(p, **s) for p, s in zip(prompts, settings, strict=True)]
        answers = [request.result() for request in first]
        longer = [[*p, *a.ids, 9, 10] for p, a in zip(prompts, answers, strict=True)]
        second = [model.submit(p, **{**s, "max_tokens": 40}) for p, s in zip(longer, settings, strict=True)]
        answers += [request.result() for request in second]
        return [(answer.ids, answer.prompt_logprobs) for answer in answers]

    with edgert.load(arch_model(arch), n_ctx=256, precision=precision) as roomy:
        expected = talk(roomy)
        assert roomy.stats().preemptions == 0
    with edgert.load(arch_model(arch), n_ctx=256, precision=precision, cache_tokens=3 * 130, preempt=preempt) as tight:
        assert talk(tight) == expected
        stats = tight.stats()
        assert stats.preemptions > 0
        assert stats.pages_used == 0


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_reuse_changes_no_answer(arch: str, arch_model: Callable[[str], Path]) -> None:
    """Whatever was asked before, and in whatever order."""
    prompts = [p[:n] for p in conversations(4, 200) for n in (40, 64, 65, 130, 200)]
    with edgert.load(arch_model(arch), n_ctx=256) as model:
        cold = [model.generate(p, max_tokens=20, prompt_logprobs=0, **GREEDY).ids for p in prompts]
        warm = [model.generate(p, max_tokens=20, **GREEDY) for p in reversed(prompts)]
        assert [answer.ids for answer in reversed(warm)] == cold
        assert sum(answer.usage.cached_tokens for answer in warm) > sum(map(len, prompts)) // 2
        assert model.stats().prefix_hits > 15


def test_prompts_that_begin_alike_are_read_once(arch_model: Callable[[str], Path]) -> None:
    """Asked at the same time, all but the first wait for its pages."""
    prompts = [[*conversations(1, 150)[0], 30 + i] for i in range(10)]
    with edgert.load(arch_model("llama"), n_ctx=256) as model:
        answers = model.generate_many(prompts, max_tokens=8, **GREEDY)
        assert [answer.usage.cached_tokens for answer in answers] == [0] + [150] * 9
        assert model.stats().prompt_tokens == 151 + 9
        assert [a.ids for a in answers] == [
            model.generate(p, max_tokens=8, prompt_logprobs=0, **GREEDY).ids for p in prompts
        ]


def test_several_answers_read_their_prompt_once(arch_model: Callable[[str], Path]) -> None:
    """... and are those of their seeds alone."""
    (prompt,) = conversations(1, 150)
    settings: dict[str, Any] = {"max_tokens": 20, "temperature": 1.0, "ignore_eos": True}
    with edgert.load(arch_model("llama"), n_ctx=256) as model:
        answers = model.generate_n(prompt, 5, seed=7, **settings)
        assert [answer.usage.cached_tokens for answer in answers] == [0] + [149] * 4
        alone = [model.generate(prompt, seed=7 + i, prompt_logprobs=0, **settings).ids for i in range(5)]
        assert [answer.ids for answer in answers] == alone
        assert len({tuple(ids) for ids in alone}) == 5
        for n in (0, True, "2"):
            with pytest.raises(edgert.EdgertError, match="n: "):
                model.generate_n(prompt, n)  # type: ignore[arg-type]
