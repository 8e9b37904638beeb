"""Pages and sequences of the KV cache, without a model."""

from __future__ import annotations

import pytest

from edgert.errors import EdgertError
from edgert.kv import PAGE, PagePool, Sequence, token_bytes
from edgert.plan import CacheLayer

LAYERS = [CacheLayer(2, 16, 16), CacheLayer(1, 32, 16)]


def test_token_bytes() -> None:
    assert token_bytes(LAYERS, "f16") == 2 * (2 * 32 + 48)
    assert token_bytes(LAYERS, "f32") == 2 * token_bytes(LAYERS, "bf16")


def test_layers_do_not_overlap() -> None:
    pool = PagePool(LAYERS, "f16", 5)
    assert pool.page_bytes == [PAGE * 2 * 32 * 2, PAGE * 48 * 2]
    assert pool.addresses[1] - pool.addresses[0] == 5 * pool.page_bytes[0]
    assert pool.addresses[0] % 64 == 0


def test_pages_come_and_go_with_tokens() -> None:
    pool = PagePool(LAYERS, "f16", 4)
    sequence = Sequence(pool, 4 * PAGE)
    sequence.extend(range(PAGE), prompt=True)
    assert (sequence.n_pages, pool.free) == (1, 3)
    sequence.extend([7], prompt=False)
    assert (sequence.n_pages, pool.free) == (2, 2)
    assert len(set(sequence.table[:2].tolist())) == 2
    sequence.truncate(PAGE)
    assert (sequence.n_pages, pool.free) == (1, 3)
    sequence.truncate(0)
    assert (sequence.tokens, pool.free) == ([], 4)


def test_a_full_cache_is_an_error_and_loses_nothing() -> None:
    pool = PagePool(LAYERS, "f16", 2)
    first, second = Sequence(pool, 8 * PAGE), Sequence(pool, 8 * PAGE)
    first.extend(range(PAGE + 1), prompt=True)
    with pytest.raises(EdgertError, match="all 2 pages"):
        second.extend([1], prompt=True)
    assert second.tokens == []
    first.truncate(0)
    second.extend([1], prompt=True)
    assert pool.free == 1


def test_only_prompt_tokens_serve_another_prompt() -> None:
    """Generated tokens went through other kernels, so an answer would depend on what was asked before."""
    sequence = Sequence(PagePool(LAYERS, "f16", 4), 4 * PAGE)
    sequence.extend([1, 2, 3], prompt=True)
    sequence.extend([4], prompt=False)
    sequence.extend([5], prompt=True)
    assert sequence.common([1, 2, 3, 4, 5]) == 3
    assert sequence.common([1, 2, 9, 4]) == 2
    assert sequence.common([1]) == 1
    assert sequence.common([9]) == 0
    sequence.truncate(2)
    assert sequence.common([1, 2, 3]) == 2
