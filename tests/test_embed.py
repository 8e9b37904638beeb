"""Embeddings against the model's own logits: hidden states times the output matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import edgert

TEXTS = [[5, 9, 33], [7], [20 + i % 50 for i in range(700)], [11, 12, 13, 14]]


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def loaded(request: pytest.FixtureRequest, arch_model: Callable[[str], Path]) -> Iterator[tuple[edgert.Model, Any]]:
    """A model and its output matrix, float32 (n_vocab, n_embd)."""
    path = arch_model(request.param)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    output = tensors.get("output.weight", tensors["token_embd.weight"])
    with edgert.load(path, n_ctx=1024, precision="exact") as model:
        yield model, gguf.quants.dequantize(output.data, output.tensor_type)


def test_hidden_states_give_the_logits(loaded: tuple[edgert.Model, Any]) -> None:
    model, output = loaded
    for ids, rows in zip(TEXTS, model.embed(TEXTS, pooling="none", normalize=False), strict=True):
        assert rows.dtype == np.float32
        np.testing.assert_allclose(rows @ output.T, model.logits(ids), atol=2e-4, rtol=1e-4)


def test_pooling(loaded: tuple[edgert.Model, Any]) -> None:
    model, _ = loaded
    rows = model.embed(TEXTS, pooling="none", normalize=False)
    for pooling, expected in (
        ("mean", [r.mean(axis=0) for r in rows]), ("cls", [r[0] for r in rows]), ("last", [r[-1] for r in rows]),
    ):  # fmt: skip
        plain = model.embed(TEXTS, pooling=pooling, normalize=False)
        assert plain.shape == (len(TEXTS), rows[0].shape[1])
        np.testing.assert_allclose(plain, np.stack(expected), atol=1e-5)
        unit = model.embed(TEXTS, pooling=pooling)
        np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-5)
        np.testing.assert_allclose(unit, plain / np.linalg.norm(plain, axis=1, keepdims=True), atol=1e-5)


def test_neighbours_do_not_matter(loaded: tuple[edgert.Model, Any]) -> None:
    """Alone, together, beside answers, and after prompts that begin alike."""
    model, _ = loaded
    together = model.embed(TEXTS, pooling="last")
    running = model.submit(TEXTS[2][:100], max_tokens=500, ignore_eos=True)
    for i, ids in enumerate(TEXTS):
        model.generate(ids, max_tokens=1)
        np.testing.assert_array_equal(model.embed([ids], pooling="last")[0], together[i])
    running.close()


def test_bad_input(loaded: tuple[edgert.Model, Any]) -> None:
    model, _ = loaded
    assert model.embed([]).shape[0] == 0
    with pytest.raises(edgert.EdgertError, match="pooling 'max'"):
        model.embed(TEXTS, pooling="max")
    with pytest.raises(edgert.ContextLengthError, match=r"1025 tokens, the context only 1024$"):
        model.embed([[5] * 1025])
    with pytest.raises(edgert.EdgertError, match="no tokens"):
        model.embed([[]])
    assert model.embed([[5] * 1024]).shape[0] == 1
