"""Many callers at once, for seconds here; EDGERT_HAMMER_SECONDS makes it longer (120, or 1800 for the memory)."""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

import edgert

SECONDS = float(os.environ.get("EDGERT_HAMMER_SECONDS", "4"))
WORDS = ["the", "river", "ran", "under", "old", "stone", "bridges", "and", "into", "green", "valleys", "years", "ago"]


def text(choose: random.Random, words: int) -> str:
    return " ".join(choose.choices(WORDS, k=words))


@pytest.mark.parametrize("precision", ["fast", "exact"])
def test_32_requests_get_what_each_gets_alone(smollm2_path: Path, precision: str) -> None:
    """Mixed lengths, submitted together from threads, greedy and sampled, some of them with common beginnings."""
    long = 900 if SECONDS > 60 else 120
    n = 32 if precision == "fast" or SECONDS > 60 else 6
    choose = random.Random(1)
    start = text(choose, 60)
    prompts = [(start if i % 3 == 0 else "") + text(choose, choose.choice([1, 5, 30, long])) for i in range(n)]
    settings: list[dict[str, Any]] = [{"temperature": 0} if i % 2 else {"seed": i} for i in range(n)]
    with edgert.load(smollm2_path, n_ctx=2048, precision=precision) as model:
        together: dict[int, list[int]] = {}

        def ask(i: int) -> None:
            together[i] = model.generate(prompts[i], max_tokens=12, **settings[i]).ids

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(n)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stats = model.stats()
        assert stats.pages_used == 0
        for i in range(n):
            alone = model.generate(prompts[i], max_tokens=12, prompt_logprobs=0 if i % 4 == 0 else None, **settings[i])
            assert together[i] == alone.ids, i


def test_hammer(smollm2_path: Path) -> None:
    """16 threads that generate, embed, tokenize, chat, cancel and close: no error but the one after close, no page
    lost, no memory that grows."""
    model = edgert.load(smollm2_path, n_ctx=512, cache_tokens=3000, preempt="swap")
    stop, failures, closed = threading.Event(), list[BaseException](), threading.Event()
    greedy: dict[str, Any] = {"temperature": 0, "max_tokens": 8}
    expected = model.generate(WORDS[0] * 3, **greedy).ids

    def work(seed: int) -> None:
        choose = random.Random(seed)
        try:
            while not stop.is_set():
                step(choose)
        except edgert.EdgertError as error:
            if not closed.is_set() or "the model is closed" not in str(error):
                failures.append(error)
        except BaseException as error:
            failures.append(error)

    def step(choose: random.Random) -> None:
        kind = choose.randrange(8)
        if kind == 0:
            assert model.generate(WORDS[0] * 3, **greedy).ids == expected
        elif kind == 1:
            request = model.submit(text(choose, choose.randrange(1, 300)), max_tokens=40)
            for _, _ in zip(request, range(choose.randrange(5)), strict=False):
                pass
            request.cancel()
            assert request.result(timeout=100).finish_reason in ("cancelled", "stop", "length")
        elif kind == 2:
            assert model.embed([text(choose, 20), text(choose, 100)]).shape[0] == 2
        elif kind == 3:
            assert model.detokenize(model.tokenize("a river")) == "a river"
        elif kind == 4:
            model.chat([{"role": "user", "content": text(choose, 30)}], max_tokens=10, speculative="lookup")
        elif kind == 5:
            model.generate(text(choose, 10), max_tokens=10, choices=["yes", "no"])
        elif kind == 6:
            model.logits(model.tokenize(text(choose, 5)))
        else:
            next(model.submit(text(choose, 10), max_tokens=30, ignore_eos=True))  # and forgotten

    threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    sizes, ends = [], time.monotonic() + SECONDS
    while time.monotonic() < ends:
        time.sleep(SECONDS / 40)
        sizes.append(psutil.Process().memory_info().rss)
    if SECONDS >= 120:  # every page of the cache has been used by then
        third = len(sizes) // 3
        assert sum(sizes[-third:]) / third - sum(sizes[third : 2 * third]) / third < 10e6, sizes
    stop.set()
    for thread in threads:
        thread.join()
    while model.stats().running or model.stats().waiting:  # forgotten requests end by themselves
        time.sleep(0.01)
    assert not failures
    assert model.stats().pages_used == 0
    stop.clear()
    threads = [threading.Thread(target=work, args=(100 + i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    closed.set()
    model.close()
    for thread in threads:
        thread.join(100)
        assert not thread.is_alive()
    assert not failures
