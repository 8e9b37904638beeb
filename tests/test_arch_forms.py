"""The shapes that real files come in: what converters of two years wrote for one and the same model.

A golden model is rewritten (tensors fused or split, keys left out, older ones used, other types of floats) so that it
stays the same function, and must still give the reference's logits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest

import edgert
from builder import Arrays, Change, Meta, key, load_recipe, rewrite, tensors, write

DATA = Path(__file__).parent / "data" / "archs"
EXACT_ERROR = 1e-4


def logits(name: str, change: Change, path: Path, **options: Any) -> npt.NDArray[np.float32]:
    """The logits of a golden model's tokens after `change` has rewritten its metadata and tensors."""
    rewrite(load_recipe(DATA / f"{name}.json"), change, path / "model.gguf")
    with np.load(DATA / f"{name}.npz") as data, edgert.load(path / "model.gguf", **options) as model:
        return model.logits(data["tokens"].tolist())


def reference(name: str) -> npt.NDArray[np.float32]:
    with np.load(DATA / f"{name}.npz") as data:
        values: npt.NDArray[np.float32] = data["logits"]
        return values


def assert_same_model(name: str, change: Change, path: Path) -> None:
    got = logits(name, change, path, precision="exact")
    np.testing.assert_allclose(got, reference(name), rtol=0, atol=EXACT_ERROR)


def layers(meta: Meta) -> list[str]:
    return [f"blk.{i}." for i in range(meta[key(meta, "block_count")][1])]


def drop(*names: str) -> Change:
    """Leave keys out."""

    def change(meta: Meta, arrays: Arrays) -> None:
        for name in names:
            del meta[key(meta, name)]

    return change


def fuse_qkv(meta: Meta, arrays: Arrays) -> None:
    for p in layers(meta):
        for kind in ("weight", "bias"):
            if f"{p}attn_q.{kind}" in arrays:
                arrays[f"{p}attn_qkv.{kind}"] = np.concatenate([arrays.pop(f"{p}attn_{x}.{kind}") for x in "qkv"])


def split_qkv(meta: Meta, arrays: Arrays) -> None:
    heads, kv = (meta[key(meta, f"attention.{name}")][1] for name in ("head_count", "head_count_kv"))
    borders = np.cumsum([heads, kv]) * meta[key(meta, "attention.key_length")][1]
    for p in layers(meta):
        for kind in ("weight", "bias"):
            if f"{p}attn_qkv.{kind}" in arrays:
                for x, part in zip("qkv", np.split(arrays.pop(f"{p}attn_qkv.{kind}"), borders), strict=True):
                    arrays[f"{p}attn_{x}.{kind}"] = part


def fuse_gate_up(meta: Meta, arrays: Arrays) -> None:
    for p in layers(meta):
        arrays[f"{p}ffn_up.weight"] = np.concatenate([arrays.pop(f"{p}ffn_{x}.weight") for x in ("gate", "up")])


def split_gate_up(meta: Meta, arrays: Arrays) -> None:
    for p in layers(meta):
        arrays[f"{p}ffn_gate.weight"], arrays[f"{p}ffn_up.weight"] = np.split(arrays[f"{p}ffn_up.weight"], 2)


def fuse_experts(meta: Meta, arrays: Arrays) -> None:
    for p in layers(meta):
        parts = [arrays.pop(f"{p}ffn_{x}_exps.weight") for x in ("gate", "up")]
        arrays[f"{p}ffn_gate_up_exps.weight"] = np.concatenate(parts, axis=1)


def split_experts(meta: Meta, arrays: Arrays) -> None:
    for p in layers(meta):
        if f"{p}ffn_gate_up_exps.weight" in arrays:
            both = np.split(arrays.pop(f"{p}ffn_gate_up_exps.weight"), 2, axis=1)
            arrays[f"{p}ffn_gate_exps.weight"], arrays[f"{p}ffn_up_exps.weight"] = both


def heads_from_one_tensor(meta: Meta, arrays: Arrays) -> None:
    """DeepSeek 2 as files of 2024 have it: keys and values of all heads are made from the small vector."""
    n, d_k, d_v = 2, 192, 128
    for name in ("key_length_mla", "value_length_mla"):
        del meta[key(meta, f"attention.{name}")]
    sizes = {"head_count_kv": n, "key_length": d_k, "value_length": d_v}
    meta |= {key(meta, f"attention.{name}"): ["u32", value] for name, value in sizes.items()}
    for p in layers(meta):
        k, v = (arrays.pop(f"{p}attn_{x}_b.weight") for x in "kv")  # (heads, rank, nope), (heads, d_v, rank)
        arrays[f"{p}attn_kv_b.weight"] = np.concatenate([k.transpose(0, 2, 1), v], axis=1).reshape(-1, k.shape[1])


def add_tied_output(meta: Meta, arrays: Arrays) -> None:
    arrays["output.weight"] = arrays["token_embd.weight"].copy()


def widths_by_layer(meta: Meta, arrays: Arrays) -> None:
    name = key(meta, "feed_forward_length")
    meta[name] = ["[u32]", [meta[name][1]] * meta[key(meta, "block_count")][1]]


def gate_as_matrix(meta: Meta, arrays: Arrays) -> None:
    for p in layers(meta):
        arrays[f"{p}ffn_gate_inp_shexp.weight"] = arrays[f"{p}ffn_gate_inp_shexp.weight"].reshape(1, -1)


def older_linear_scaling(meta: Meta, arrays: Arrays) -> None:
    del meta[key(meta, "rope.scaling.type")], meta[key(meta, "rope.scaling.factor")]
    meta[key(meta, "rope.scale_linear")] = ["f32", 2.0]


def norms_in_f16(meta: Meta, arrays: Arrays) -> None:
    """Norms of values that F16 can hold."""
    for name, values in arrays.items():
        if "norm" in name:
            arrays[name] = np.ones(values.shape, np.float16) if name.endswith("weight") else values


def norms_in_f32(meta: Meta, arrays: Arrays) -> None:
    norms_in_f16(meta, arrays)
    for name, values in arrays.items():
        if "norm" in name:
            arrays[name] = values.astype(np.float32)


FORMS: list[tuple[str, Change]] = [
    *((name, fuse_qkv) for name in ("llama", "llama-linear-bias", "qwen2", "gemma3", "stablelm", "olmo2", "glm4")),
    *((name, split_qkv) for name in ("phi3", "gpt2", "gptneox", "falcon", "bloom", "mpt")),
    *((name, fuse_gate_up) for name in ("llama", "qwen3", "stablelm", "gemma2")),
    *((name, split_gate_up) for name in ("phi3", "glm4")),
    *((name, fuse_experts) for name in ("llama-moe", "qwen2moe", "phimoe")),
    ("deepseek2", split_experts),
    ("deepseek2", heads_from_one_tensor),
    *((name, add_tied_output) for name in ("gpt2", "gemma3", "granite", "command-r")),
    ("llama", widths_by_layer),
    ("qwen2moe", gate_as_matrix),
    ("llama-linear-bias", older_linear_scaling),
    *(
        (name, drop("attention.key_length", "attention.value_length", "vocab_size"))
        for name in ("llama", "gpt2", "phi2")
    ),
    *((name, drop("rope.freq_base", "rope.dimension_count")) for name in ("llama", "starcoder2", "falcon", "olmo2")),
    *((name, drop("attention.head_count_kv")) for name in ("gpt2", "olmoe", "bloom")),
    ("qwen2moe", drop("feed_forward_length")),
]


@pytest.mark.parametrize(("name", "change"), FORMS, ids=lambda x: x if isinstance(x, str) else x.__name__)
def test_same_model(name: str, change: Change, tmp_path: Path) -> None:
    assert_same_model(name, change, tmp_path)


@pytest.mark.parametrize("name", ["llama", "bloom", "phimoe"])
def test_norms_in_16_bits(name: str, tmp_path: Path) -> None:
    """Norms need not be float32."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    half, full = (logits(name, c, tmp_path / f) for c, f in ((norms_in_f16, "a"), (norms_in_f32, "b")))
    np.testing.assert_array_equal(half, full)


def test_minicpm_without_multipliers(tmp_path: Path) -> None:
    """Its first files lack them: 12 for embeddings, 1.4 / sqrt(layers), and n_embd / 256 for logits."""

    def spelt_out(meta: Meta, arrays: Arrays) -> None:
        values = {"embedding_scale": 12.0, "residual_scale": 1.4 / np.sqrt(2), "logit_scale": 1.0}
        meta |= {key(meta, name): ["f32", float(value)] for name, value in values.items()}

    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    without = drop("embedding_scale", "residual_scale", "logit_scale")
    got, expected = logits("minicpm", without, tmp_path / "a"), logits("minicpm", spelt_out, tmp_path / "b")
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_scales_beside_weights(tmp_path: Path) -> None:
    """NVFP4 files scale products of weights, and of each expert: weights divided by it give the same model."""

    def scaled(meta: Meta, arrays: Arrays) -> None:
        for name in [n for n in arrays if n.endswith(("_exps.weight", "attn_q.weight", "attn_output.weight"))]:
            stem, n = name.removesuffix("weight"), arrays[name].shape[0] if "_exps" in name else 1
            scales = np.exp2(np.arange(1, n + 1, dtype=np.float32))  # exact in F16
            arrays[stem + "scale"] = scales
            arrays[stem + "input_scale"] = np.ones(n, np.float32)
            parts = scales.reshape(-1, *[1] * (arrays[name].ndim - 1)) if n > 1 else scales[0]
            arrays[name] = (arrays[name].astype(np.float32) / parts).astype(np.float16)

    assert_same_model("llama-moe", scaled, tmp_path)


def test_experts_in_mxfp4(tmp_path: Path) -> None:
    """gpt-oss as published, its experts in MXFP4, against the same weights widened to F32."""
    recipe = load_recipe(DATA / "gpt-oss.json")
    arrays, blocks, kinds = dict(tensors(recipe)), {}, {}
    for name in [n for n in arrays if n.endswith("_exps.weight")]:
        kinds[name] = gguf.GGMLQuantizationType.MXFP4
        blocks[name] = gguf.quants.quantize(arrays[name].astype(np.float32), kinds[name])
        arrays[name] = gguf.quants.dequantize(blocks[name], kinds[name])
    wide = write(recipe["meta"], arrays, tmp_path / "wide.gguf")
    packed = write(recipe["meta"], arrays | blocks, tmp_path / "packed.gguf", kinds)
    with np.load(DATA / "gpt-oss.npz") as data:
        tokens = data["tokens"].tolist()
    with edgert.load(wide, precision="exact") as model:
        expected = model.logits(tokens)
    with edgert.load(packed, precision="exact") as model:
        np.testing.assert_allclose(model.logits(tokens), expected, rtol=0, atol=EXACT_ERROR)
    with edgert.load(packed) as model:
        for path in ("prompt", "decode"):
            error = np.sum((model.logits(tokens, path=path) - expected) ** 2.0) / np.sum(expected**2.0)
            assert error <= 2e-3, path
