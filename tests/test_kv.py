"""Pages and sequences of the KV cache, and prompts that share them, without a model."""

from __future__ import annotations

import random

import numpy as np
import pytest

from edgert.errors import EdgertError
from edgert.kv import GONE, MARGIN, PAGE, PagePool, Sequence, token_bytes, windows
from edgert.plan import CacheLayer
from edgert.prefix import Prefixes

LAYERS = [CacheLayer(2, 16, 16), CacheLayer(1, 32, 16)]
WINDOW = 3 * PAGE
SLIDING = [CacheLayer(1, 16, 16, WINDOW), CacheLayer(1, 16, 16), CacheLayer(2, 16, 16, WINDOW)]
N_CTX = 64 * PAGE


def tokens(seed: int, n: int) -> list[int]:
    return random.Random(seed).choices(range(50000), k=n)


def write(pool: PagePool, sequence: Sequence, start: int) -> None:
    """Put each token's id into its place in every layer, as a model would."""
    for at in range(start, len(sequence.tokens)):
        for group, own in zip(pool.groups, sequence.pages, strict=True):
            for layer in group._memory:
                if own[at // PAGE] != GONE:
                    slots = layer[own[at // PAGE]].view(np.int32)
                    slots[at % PAGE] = sequence.tokens[at]


def check(pool: PagePool, sequence: Sequence) -> None:
    """What the next token sees is there."""
    for group, own, table in zip(pool.groups, sequence.pages, sequence.tables, strict=True):
        for at in range(max(0, len(sequence.tokens) - group.window + 1) if group.window else 0, len(sequence.tokens)):
            assert own[at // PAGE] == table[at // PAGE] != GONE
            for layer in group._memory:
                assert layer[own[at // PAGE]].view(np.int32)[at % PAGE] == sequence.tokens[at]


def feed(pool: PagePool, sequence: Sequence, ids: list[int], *, prompt: bool = True) -> None:
    start = len(sequence.tokens)
    sequence.extend(ids, prompt=prompt)
    write(pool, sequence, start)
    check(pool, sequence)


def test_token_bytes() -> None:
    assert token_bytes(LAYERS, "f16") == 2 * (2 * 32 + 48)
    assert token_bytes(LAYERS, "f32") == 2 * token_bytes(LAYERS, "bf16")
    assert token_bytes([CacheLayer(3, 64, 96)], "q8_0") == 3 * 5 * 34
    assert token_bytes([CacheLayer(3, 64, 96)], "q4_0") == 3 * 5 * 18
    assert windows(SLIDING) == [WINDOW, 0]
    assert windows([]) == [0]


def test_layers_do_not_overlap() -> None:
    pool = PagePool(LAYERS, "f16", [5])
    assert pool.page_bytes == [PAGE * 2 * 32 * 2, PAGE * 48 * 2]
    assert pool.addresses[1] - pool.addresses[0] == 5 * pool.page_bytes[0]
    assert pool.addresses[0] % 64 == 0
    sliding = PagePool(SLIDING, "f16", [3, 7])
    assert sliding.addresses[1] - sliding.addresses[0] == 3 * sliding.page_bytes[0]
    assert sliding.addresses[2] - sliding.addresses[1] == 7 * sliding.page_bytes[1]
    assert sliding.groups[0].page_bytes == sliding.page_bytes[0] + sliding.page_bytes[2]


def test_pages_come_and_go_with_tokens() -> None:
    pool = PagePool(LAYERS, "f16", [4])
    sequence = Sequence(pool, 4 * PAGE)
    sequence.extend(range(PAGE), prompt=True)
    assert (sequence.n_pages, pool.room(), pool.used) == (1, 3, 1)
    sequence.extend([7], prompt=False)
    assert (sequence.n_pages, pool.room()) == (2, 2)
    assert len(set(sequence.tables[0][:2].tolist())) == 2
    sequence.truncate(PAGE)
    assert (sequence.n_pages, pool.room()) == (1, 3)
    sequence.truncate(0)
    assert (sequence.tokens, pool.room()) == ([], 4)


def test_a_full_cache_is_an_error_and_loses_nothing() -> None:
    pool = PagePool(LAYERS, "f16", [2])
    first, second = Sequence(pool, 8 * PAGE), Sequence(pool, 8 * PAGE)
    first.extend(range(PAGE + 1), prompt=True)
    with pytest.raises(EdgertError, match="all 2 pages"):
        second.extend([1], prompt=True)
    assert second.tokens == []
    first.truncate(0)
    second.extend([1], prompt=True)
    assert pool.room() == 1


def test_pages_outside_the_window_are_given_back() -> None:
    """... and as many tokens as the margin has can still be taken back."""
    pool = PagePool(SLIDING, "f16", [64, 64])
    sequence = Sequence(pool, N_CTX)
    for _ in range(60):
        feed(pool, sequence, tokens(1, 20))
        sequence.slide()
        assert pool.groups[0].n_pages - pool.groups[0].free <= (WINDOW + MARGIN) // PAGE + 2
        n = len(sequence.tokens)
        sequence.truncate(max(1, n - MARGIN))
        check(pool, sequence)
        feed(pool, sequence, tokens(2, n - len(sequence.tokens)))
    assert pool.groups[1].n_pages - pool.groups[1].free == -(-1200 // PAGE)
    sequence.truncate(0)
    assert pool.used == 0


@pytest.mark.parametrize("layers", [LAYERS, SLIDING])
def test_forks_share_full_pages_and_go_their_own_ways(layers: list[CacheLayer]) -> None:
    pool = PagePool(layers, "f16", [64] * len(windows(layers)))
    first = Sequence(pool, N_CTX)
    feed(pool, first, tokens(1, 7 * PAGE + 5))
    first.slide()
    used = pool.used
    forks = [first.fork() for _ in range(3)]
    assert pool.used - used == 3 * len(pool.groups)
    for i, sequence in enumerate([first, *forks]):
        feed(pool, sequence, tokens(10 + i, 2 * PAGE), prompt=False)
    for sequence in [first, *forks]:
        check(pool, sequence)
        sequence.truncate(0)
    assert pool.used == 0


def test_only_prompt_tokens_serve_another_prompt() -> None:
    """Generated tokens went through other kernels, so an answer would depend on what was asked before."""
    pool = PagePool(LAYERS, "f16", [16])
    prefixes = Prefixes(pool)
    ids = tokens(1, 3 * PAGE)
    first = Sequence(pool, N_CTX)
    feed(pool, first, ids[: PAGE + 8])
    prefixes.add(first, last=True)
    feed(pool, first, ids[PAGE + 8 :], prompt=False)
    feed(pool, first, [5] * PAGE)
    prefixes.add(first, last=True)
    first.truncate(0)
    for asked, n in ((ids, PAGE + 8), (ids[: PAGE + 8], PAGE + 7), (ids[: PAGE + 4], PAGE + 3), (ids[:PAGE], PAGE - 1),
                     ([*ids[:9], -1], 9), (ids[1:], 0), (ids[:1], 0)):  # fmt: skip
        other = Sequence(pool, N_CTX)
        assert prefixes.begin(other, asked) == n == len(other.tokens) == other.n_prompt
        check(pool, other)
        other.truncate(0)
    assert pool.used == 0
    assert pool.cached == 2


def test_shared_pages_are_not_written() -> None:
    pool = PagePool(LAYERS, "f16", [16])
    prefixes = Prefixes(pool)
    ids = tokens(3, 2 * PAGE + 9)
    first = Sequence(pool, N_CTX)
    feed(pool, first, ids)
    prefixes.add(first, last=True)
    others = [Sequence(pool, N_CTX) for _ in range(3)]
    for i, other in enumerate(others):
        assert prefixes.begin(other, [*ids, 1]) == len(ids)
        assert [a == b for a, b in zip(other.pages[0], first.pages[0], strict=True)] == [True, True, False]
        feed(pool, other, tokens(i, 50))
    for sequence in [first, *others]:
        check(pool, sequence)


@pytest.mark.parametrize("layers", [LAYERS, SLIDING])
@pytest.mark.parametrize("seed", range(8))
def test_prompts_of_any_history_find_what_is_true(layers: list[CacheLayer], seed: int) -> None:
    """A small pool, many prompts with common beginnings in random order: what is reused is what was computed."""
    choose = random.Random(seed)
    pool = PagePool(layers, "f16", [20, 40][: len(windows(layers))] if len(windows(layers)) > 1 else [40])
    prefixes = Prefixes(pool)
    roots = [tokens(i, 8 * PAGE) for i in range(3)]
    running: list[Sequence] = []
    reused = 0
    for step in range(300):
        root, other = choose.choice(roots), choose.choice(roots)
        ids = root[: choose.randrange(1, len(root))] + other[: choose.randrange(4)] + tokens(step, choose.randrange(40))
        sequence = Sequence(pool, N_CTX)
        reused += prefixes.begin(sequence, ids)
        assert sequence.tokens == ids[: len(sequence.tokens)] != ids
        check(pool, sequence)
        while len(sequence.tokens) < len(ids) and pool.room() > 3:
            feed(pool, sequence, ids[len(sequence.tokens) :][: choose.randrange(1, 70)])
            prefixes.add(sequence, last=len(sequence.tokens) == len(ids))
            sequence.slide()
        running.append(sequence)
        for each in running:
            check(pool, each)
        while running and (len(running) > 3 or pool.room() < 10):
            running.pop(choose.randrange(len(running))).truncate(0)
    for each in running:
        each.truncate(0)
    assert reused > 2000
    assert pool.used == 0
    for group in pool.groups:
        assert sorted([*group._free, *group._idle]) == list(range(group.n_pages))
        assert set(group._idle) == group._cached


def test_idle_pages_are_taken_the_oldest_first() -> None:
    pool = PagePool(LAYERS, "f16", [6])
    prefixes = Prefixes(pool)
    for i in range(3):
        sequence = Sequence(pool, N_CTX)
        feed(pool, sequence, tokens(i, 2 * PAGE))
        prefixes.add(sequence, last=True)
        sequence.truncate(0)
    assert pool.cached == 6
    again = Sequence(pool, N_CTX)
    assert prefixes.begin(again, [*tokens(0, 2 * PAGE), 1]) == 2 * PAGE
    again.truncate(0)
    feed(pool, Sequence(pool, N_CTX), tokens(9, 2 * PAGE))
    found = [prefixes.find([*tokens(i, 2 * PAGE), 1], 2 * PAGE)[2] for i in range(3)]
    assert found == [2 * PAGE, 0, 2 * PAGE]
