"""Random models: every shape runs, types are those of llama.cpp's mixes, weights have the spread that was asked for."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from edgert.formats.gguf import Gguf
from mixes import MIXES, Mix, types
from random_blocks import weights
from shapes import SHAPES, tensors
from synth import main, synthesise

import edgert
from quant_blocks import FLOATS, dequantize


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_runs_with_finite_logits(name: str, tmp_path: Path) -> None:
    shape = SHAPES[name]
    shape = dataclasses.replace(shape, experts=min(shape.experts, 4), experts_used=min(shape.experts_used, 2))
    path = synthesise(shape, Mix("Q4_K_M"), tmp_path / "m.gguf", layers=1, n_vocab=512)
    edgert.verify(path)
    with edgert.load(path, n_ctx=64) as model:
        logits = model.logits([5, 300, 511, 7])
        assert np.isfinite(logits).all()
        assert 0.1 < logits.std() < 10
        assert len(model.generate([9, 400], max_tokens=3, ignore_eos=True).ids) == 3


def test_q4_k_m_of_llama_has_the_types_that_llama_cpp_gives_it() -> None:
    shape, mix = SHAPES["llama-3.2-1b"], Mix("Q4_K_M")
    kinds = {name: mix.type_of(name, dims, shape.layers, tied=True) for name, dims in tensors(shape)}
    more = [i for i in range(16) if kinds[f"blk.{i}.ffn_down.weight"] == "Q6_K"]
    assert more == [0, 1, 4, 7, 10, 13, 14, 15]
    assert [i for i in range(16) if kinds[f"blk.{i}.attn_v.weight"] == "Q6_K"] == more
    assert kinds["token_embd.weight"] == "Q6_K"
    assert Counter(kinds.values()) == {"Q4_K": 16 * 5 + 8 * 2, "Q6_K": 8 * 2 + 1, "F32": 16 * 2 + 2}


def test_rows_that_are_no_multiple_of_256_fall_back_as_in_llama_cpp() -> None:
    mix = Mix("Q4_K_M")
    assert mix.type_of("blk.5.attn_q.weight", (1152, 1024), 26, tied=True) == "Q5_0"
    assert mix.type_of("blk.0.attn_v.weight", (1152, 256), 26, tied=True) == "Q8_0"
    assert mix.type_of("blk.0.ffn_down.weight", (6912, 1152), 26, tied=True) == "Q6_K"
    assert Mix("IQ2_XXS").type_of("blk.0.attn_q.weight", (1152, 1024), 26, tied=True) == "IQ4_NL"
    with pytest.raises(ValueError, match="rows of 80 values cannot be Q8_0"):
        Mix("Q8_0").type_of("blk.0.attn_q.weight", (80, 16), 1, tied=True)


def test_exceptions_and_pure_models() -> None:
    mix = Mix("Q4_0,attn_v=Q8_0,output=F16")
    assert mix.type_of("blk.3.attn_v.weight", (256, 256), 8, tied=False) == "Q8_0"
    assert mix.type_of("output.weight", (256, 512), 8, tied=False) == "F16"
    assert mix.type_of("token_embd.weight", (256, 512), 8, tied=False) == "Q4_0"
    assert mix.type_of("token_embd.weight", (256, 512), 8, tied=True) == "Q6_K"
    assert Mix("Q4_0", pure=True).type_of("token_embd.weight", (256, 512), 8, tied=True) == "Q4_0"
    with pytest.raises(ValueError, match="'Q9_K' is neither a type nor a mix"):
        Mix("Q4_0,attn_v=Q9_K")


@pytest.mark.parametrize("name", types())
def test_weights_have_the_spread_that_was_asked_for(name: str) -> None:
    pieces = list(weights(np.random.default_rng(1), name, 1 << 16, 0.02))
    values = dequantize(name, np.concatenate(pieces).reshape(16, -1))
    assert values.size == 1 << 16
    assert np.isfinite(values).all()
    # Powers of two are all that floats and the FP4 types have for a scale.
    assert 0.02 / 1.5 < values.std() < 0.02 * 1.5
    # A type's quants need not be symmetric (Q2_K, IQ4_NL), but no type may push all sums one way.
    assert abs(values.mean()) < 0.2 * values.std()
    assert name not in FLOATS or len(np.unique(values)) > 1000


def test_the_same_seed_gives_the_same_file(tmp_path: Path) -> None:
    shape = dataclasses.replace(SHAPES["qwen3-0.6b"], n_ff=256, n_embd=256, heads=2, heads_kv=1)
    files = [
        synthesise(shape, Mix("Q5_K_M"), tmp_path / f"{i}.gguf", seed=seed, layers=1, n_vocab=300).read_bytes()
        for i, seed in enumerate((3, 3, 4))
    ]
    assert files[0] == files[1]
    assert files[0] != files[2]
    assert len(files[0]) == len(files[2])


def test_command_with_a_real_vocabulary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.gguf"
    assert main(["qwen3-0.6b", "Q8_0", str(path), "--layers", "1"]) == 0
    with Gguf.open(path) as file:
        assert {info.type.name for info in file.tensors.values()} == {"Q8_0", "F32"}
        assert file.metadata["qwen3.block_count"] == 1
    assert edgert.load_tokenizer(path).n_vocab == 151936
    assert main(["qwen3-0.6b", "Q7_K", str(path)]) == 1
    assert capsys.readouterr().err.startswith("synth: 'Q7_K': 'Q7_K' is neither a type nor a mix; known are ")
    assert not list(tmp_path.glob("*.partial"))


def test_every_mix_is_made_of_types() -> None:
    for name in MIXES:
        for layer in range(8):
            for part in ("attn_v", "ffn_down", "attn_output", "attn_q"):
                assert Mix(name).type_of(f"blk.{layer}.{part}.weight", (256, 256), 8, tied=True) in types()
