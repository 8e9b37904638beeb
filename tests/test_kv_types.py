"""Kinds of KV cache on a real model: how far quantised ones move the logits, and what must move nothing at all."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import edgert
from builder import Arrays, Meta, load_recipe, rewrite
from kl_of_level import mean_kl

DATA = Path(__file__).parent / "data"
GOLDENS = json.loads((DATA / "real" / "smollm2-greedy.json").read_text())
PROMPTS = [golden["prompt_ids"] for golden in GOLDENS]
KL = 1e-3  # that q8_0 may add to the divergence from exact logits, of which 3e-3 is there with f16
QUANTS = ("q8_0", "q4_0")


@pytest.fixture(scope="module")
def tokens() -> list[int]:
    with np.load(DATA / "real" / "smollm2-eval512.npz") as data:
        return [int(token) for token in data["tokens"][:128]]


@pytest.fixture(scope="module", params=QUANTS)
def quantised(request: pytest.FixtureRequest, smollm2_path: Path) -> Iterator[edgert.Model]:
    with edgert.load(smollm2_path, n_ctx=512, kv_type=request.param) as model:
        yield model


def test_q8_0_is_close_to_f16(smollm2_path: Path, tokens: list[int]) -> None:
    """Divergence from exact logits on both paths; greedy text is the reference's as long as that is sure of it."""
    kl = {}
    with edgert.load(smollm2_path, n_ctx=512, precision="exact") as model:
        exact = model.logits(tokens)
    for kind in ("f16", "q8_0"):
        with edgert.load(smollm2_path, n_ctx=512, kv_type=kind) as model:
            kl[kind] = {path: mean_kl(exact, model.logits(tokens, path=path)) for path in ("prompt", "decode")}
            answers = model.generate_many(PROMPTS, max_tokens=48, temperature=0)
    print(kl)
    assert all(kl["q8_0"][path] <= kl["f16"][path] + KL for path in kl["f16"])
    for golden, answer in zip(GOLDENS, answers, strict=True):
        sure = next((i for i, margin in enumerate(golden["top1_top2_margin"]) if margin < 1.0), 48)
        assert answer.ids[:sure] == golden["output_ids"][:sure]


def test_chunks_and_neighbours_change_no_bit(quantised: edgert.Model, tokens: list[int]) -> None:
    for path in ("prompt", "decode"):
        whole = quantised.logits(tokens, path=path)
        np.testing.assert_array_equal(quantised.logits(tokens, path=path, chunk=37), whole, err_msg=path)
    together = quantised.generate_many(PROMPTS, max_tokens=12, temperature=0)
    for prompt, answer in zip(PROMPTS[:3], together, strict=False):
        assert quantised.generate(prompt, max_tokens=12, temperature=0).ids == answer.ids


def test_threads_change_no_bit(smollm2_path: Path, tokens: list[int]) -> None:
    for kind in QUANTS:
        rows = []
        for threads in (1, 2):
            with edgert.load(smollm2_path, n_ctx=512, kv_type=kind, threads=threads) as model:
                rows.append([model.logits(tokens[:70], path=path) for path in ("prompt", "decode")])
        np.testing.assert_array_equal(rows[0], rows[1], err_msg=kind)


def test_memory(smollm2_path: Path) -> None:
    """Blocks of 32 take 34 and 18 bytes: of 30 layers with 3 heads of 64 for keys and for values."""
    assert edgert.inspect(smollm2_path).kv_bytes_per_token == 30 * 3 * 128 * 2
    assert edgert.inspect(smollm2_path, kv_type="q8_0").kv_bytes_per_token == 30 * 3 * 4 * 34
    assert edgert.inspect(smollm2_path, kv_type="q4_0").kv_bytes_per_token == 30 * 3 * 4 * 18


def heads_of_16(meta: Meta, arrays: Arrays) -> None:
    """Four times the heads, each of a quarter of the size."""
    for name, value in (("head_count", 16), ("head_count_kv", 8), ("key_length", 16), ("value_length", 16)):
        meta[f"llama.attention.{name}"][1] = value
    meta["llama.rope.dimension_count"][1] = 16
    del arrays["rope_freqs.weight"]


def test_mistakes(smollm2_path: Path, tmp_path: Path) -> None:
    with pytest.raises(edgert.EdgertError, match="kv_type 'q8' is not one of f16, bf16, f32, q8_0, q4_0"):
        edgert.load(smollm2_path, kv_type="q8")
    path = rewrite(load_recipe(DATA / "archs" / "llama.json"), heads_of_16, tmp_path / "model.gguf")
    problem = "kv_type q4_0 needs heads in blocks of 32, and block 0 of this model has keys of 16 and values of 16"
    with pytest.raises(edgert.EdgertError, match=re.escape(problem)):
        edgert.load(path, kv_type="q4_0")
