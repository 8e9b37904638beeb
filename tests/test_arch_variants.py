"""Variants of architectures that no golden shows, against NumPy in float64: larger siblings, older files, long texts.

The reference itself is held to the goldens first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import edgert
from builder import Arrays, Change, Meta, key, load_recipe, rewrite, settings, tensors
from reference_model import F64, Model, gelu, layer, plain, rms, rope, widened, yarn

DATA = Path(__file__).parent / "data" / "archs"
EPS = 1e-5
EXACT_ERROR = 1e-4
Make = Callable[[dict[str, F64]], Model]


def tokens_and_logits(name: str) -> tuple[list[int], F64]:
    with np.load(DATA / f"{name}.npz") as data:
        return data["tokens"].tolist(), data["logits"].astype(np.float64)


def layernorm(arrays: dict[str, F64]) -> Callable[[F64, str], F64]:
    return lambda x, name: layer(x, arrays[f"{name}.weight"], EPS, arrays.get(f"{name}.bias", 0.0))


def rmsnorm(arrays: dict[str, F64]) -> Callable[[F64, str], F64]:
    return lambda x, name: rms(x, arrays[f"{name}.weight"], EPS)


def by_head(norm: Callable[[F64, F64, float], F64], arrays: dict[str, F64]) -> Callable[[F64, str], F64]:
    """Norm of each head, by weights for all or one row of weights each."""

    def apply(x: F64, name: str) -> F64:
        weight = arrays[f"{name}.weight"]
        heads = x.reshape(len(x), -1, weight.shape[-1])
        result: F64 = norm(heads, weight, EPS).reshape(x.shape)
        return result

    return apply


def neox(n_rot: int) -> Callable[[F64, int], F64]:
    return lambda x, i: rope(x, plain(n_rot), True)


def still(x: F64, i: int) -> F64:
    return x


# ---- models: how the reference puts them together ----


def stablelm(a: dict[str, F64]) -> Model:
    large = "blk.0.ffn_norm.weight" not in a
    return Model(
        a, 2, 4, 2, layernorm(a), neox(32), qk_norm=by_head(layer, a) if large else Model.qk_norm, beside=large
    )


def mpt(a: dict[str, F64]) -> Model:
    return Model(a, 2, 4, 4, layernorm(a), still, gelu, qk_norm=layernorm(a), positions=True)


def command_r(a: dict[str, F64]) -> Model:
    qk = by_head(layer, a) if "blk.0.attn_q_norm.weight" in a else Model.qk_norm
    turn = lambda x, i: rope(x, plain(64), False)  # noqa: E731
    return Model(a, 2, 4, 2, layernorm(a), turn, qk_norm=qk, beside=True, scales=(1.0, 1.0, 0.25))


def gptneox_in_sequence(a: dict[str, F64]) -> Model:
    return Model(a, 2, 4, 4, layernorm(a), neox(32), gelu)


def falcon_7b(a: dict[str, F64]) -> Model:
    return Model(a, 2, 4, 2, layernorm(a), neox(64), gelu, beside=True)


def olmo2(a: dict[str, F64]) -> Model:
    return Model(a, 2, 4, 2, rmsnorm(a), neox(64), qk_norm=rmsnorm(a), pre_norm=False, post_norm=True)


def olmo3(a: dict[str, F64]) -> Model:
    """The first layer has a window of 8, the other stretched positions."""
    model = olmo2(a)
    stretched, magnitude = yarn(64, 4.0, 64), 1 + 0.1 * math.log(4)
    model.windows = [8, 0]
    model.turn = lambda x, i: rope(x, stretched, True, magnitude) if i else rope(x, plain(64), True)
    return model


def exaone4_32b(a: dict[str, F64]) -> Model:
    """Every fourth of the 64 layers has neither a window nor positions."""
    windows = [0 if i % 4 == 3 else 8 for i in range(64)]
    frequencies = plain(32) / a["rope_freqs.weight"][:16]
    turn = lambda x, i: rope(x, frequencies, True) if windows[i] else x  # noqa: E731
    return Model(
        a, 64, 2, 1, rmsnorm(a), turn, qk_norm=by_head(rms, a), pre_norm=False, post_norm=True, windows=windows
    )


def mistral3(a: dict[str, F64]) -> Model:
    """Stretched positions without a change of magnitude, and queries that grow by the logarithm of eights of tokens."""
    frequencies = yarn(64, 4.0, 8)
    growth = (1 + 0.25 * np.log1p(np.arange(32) // 8))[:, None, None]
    turn = lambda x, i: rope(x, frequencies, False)  # noqa: E731
    return Model(a, 2, 4, 2, rmsnorm(a), turn, temperature=lambda q: q * growth)


def phi3_long(a: dict[str, F64]) -> Model:
    frequencies = plain(64) / a["rope_factors_long.weight"]
    return Model(a, 2, 4, 2, rmsnorm(a), lambda x, i: rope(x, frequencies, True, 1.19))


def granite_without_rope(a: dict[str, F64]) -> Model:
    return Model(a, 2, 4, 2, rmsnorm(a), still, scales=(12.0, 0.22, 1 / 6), score_scale=0.0625)


# ---- rewriting goldens into variants ----


def random(shape: tuple[int, ...], seed: int, around: float = 1.0) -> F64:
    return (around + 0.1 * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def large_stablelm(meta: Meta, a: Arrays) -> None:
    for i in range(2):
        del a[f"blk.{i}.ffn_norm.weight"], a[f"blk.{i}.ffn_norm.bias"]
        a[f"blk.{i}.attn_q_norm.weight"], a[f"blk.{i}.attn_k_norm.weight"] = random((4, 64), i), random((2, 64), 9 + i)


def small_mpt(meta: Meta, a: Arrays) -> None:
    del meta[key(meta, "attention.max_alibi_bias")], meta[key(meta, "attention.clamp_kqv")]
    a["position_embd.weight"] = random((256, 256), 1, 0.0).astype(np.float16)
    for i in range(2):
        for x in "qk":
            a[f"blk.{i}.attn_{x}_norm.weight"], a[f"blk.{i}.attn_{x}_norm.bias"] = (
                random((256,), i),
                random((256,), 5, 0),
            )


def command_r_plus(meta: Meta, a: Arrays) -> None:
    for i in range(2):
        a[f"blk.{i}.attn_q_norm.weight"], a[f"blk.{i}.attn_k_norm.weight"] = random((4, 64), i), random((2, 64), 9 + i)


def in_sequence(meta: Meta, a: Arrays) -> None:
    meta[key(meta, "use_parallel_residual")] = ["bool", False]


def one_norm(meta: Meta, a: Arrays) -> None:
    for name in [n for n in a if "attn_norm_2" in n]:
        del a[name]


STRETCHED = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0}
long_olmo = settings(**STRETCHED, rope__scaling__original_context_length=64, attention__sliding_window=8,
                     attention__sliding_window_pattern=2)  # fmt: skip
ministral = settings(**STRETCHED, rope__scaling__original_context_length=8, rope__scaling__yarn_log_multiplier=1.0,
                     attention__temperature_scale=0.25)  # fmt: skip
phi_beyond = settings(rope__scaling__original_context_length=64, rope__scaling__attn_factor=1.19)


def many_layers(meta: Meta, a: Arrays) -> None:
    """64 layers of 64 values, two heads of 32."""
    settings(block_count=64, embedding_length=64, feed_forward_length=64, attention__head_count=2,
             attention__head_count_kv=1, attention__key_length=32, attention__value_length=32, rope__dimension_count=32,
             attention__sliding_window=8)(meta, a)  # fmt: skip
    a["rope_freqs.weight"] = a["rope_freqs.weight"][:16]
    shapes = {"attn_q": (64, 64), "attn_k": (32, 64), "attn_v": (32, 64), "attn_output": (64, 64),
              "ffn_gate": (64, 64), "ffn_up": (64, 64), "ffn_down": (64, 64)}  # fmt: skip
    norms = {"attn_q_norm": 32, "attn_k_norm": 32, "post_attention_norm": 64, "post_ffw_norm": 64}
    for name in [n for n in a if n.startswith("blk.")]:
        del a[name]
    a["token_embd.weight"], a["output_norm.weight"] = random((128, 64), 1, 0.0).astype(np.float16), random((64,), 2)
    for i in range(64):
        for name, shape in shapes.items():
            a[f"blk.{i}.{name}.weight"] = random(shape, hash((i, *shape, len(name))) % 2**32, 0.0).astype(np.float16)
        for name, n in norms.items():
            a[f"blk.{i}.{name}.weight"] = random((n,), i)


def unchanged(meta: Meta, a: Arrays) -> None:
    pass


VARIANTS: list[tuple[str, Change, Make]] = [
    ("stablelm", large_stablelm, stablelm),
    ("mpt", small_mpt, mpt),
    ("command-r", command_r_plus, command_r),
    ("gptneox", in_sequence, gptneox_in_sequence),
    ("falcon", one_norm, falcon_7b),
    ("olmo2", long_olmo, olmo3),
    ("exaone4", many_layers, exaone4_32b),
    ("mistral3", ministral, mistral3),
    ("phi3", phi_beyond, phi3_long),
    ("granite", settings(rope__scaling__finetuned=False), granite_without_rope),
]


@pytest.mark.parametrize(("name", "make"), [("stablelm", stablelm), ("command-r", command_r), ("olmo2", olmo2)])
def test_reference(name: str, make: Make) -> None:
    """The float64 models give the goldens' logits."""
    tokens, expected = tokens_and_logits(name)
    arrays = widened(dict(tensors(load_recipe(DATA / f"{name}.json"))))
    np.testing.assert_allclose(make(arrays).logits(tokens), expected, rtol=0, atol=5e-5)


@pytest.mark.parametrize(("name", "change", "make"), VARIANTS, ids=[make.__name__ for _, _, make in VARIANTS])
def test_variant(name: str, change: Change, make: Make, tmp_path: Path) -> None:
    kept: dict[str, F64] = {}

    def keep(meta: Meta, arrays: Arrays) -> None:
        change(meta, arrays)
        kept.update(widened(arrays))

    path = rewrite(load_recipe(DATA / f"{name}.json"), keep, tmp_path / "model.gguf")
    tokens, golden = tokens_and_logits(name)
    expected = make(kept).logits(tokens)
    assert np.abs(expected - golden).max() > 0.01  # the change is one that shows
    with edgert.load(path, precision="exact") as model:
        for chunk in (None, 7):
            np.testing.assert_allclose(model.logits(tokens, chunk=chunk), expected, rtol=0, atol=EXACT_ERROR)
