"""Models that are half known are refused by name, never run wrong: each mutated golden gives one line that says why."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import edgert
from builder import Arrays, Change, Meta, key, load_recipe, rewrite

DATA = Path(__file__).parent / "data" / "archs"


def with_key(name: str, kind: str, value: object) -> Change:
    def change(meta: Meta, arrays: Arrays) -> None:
        meta[key(meta, name)] = [kind, value]

    return change


def without(*names: str) -> Change:
    """Neither keys nor tensors of these names."""

    def change(meta: Meta, arrays: Arrays) -> None:
        for name in names:
            if meta.pop(key(meta, name), None) is None:
                del arrays[name]

    return change


def with_tensor(name: str, *shape: int) -> Change:
    def change(meta: Meta, arrays: Arrays) -> None:
        arrays[name] = np.ones(shape, np.float32)

    return change


def other_architecture(meta: Meta, arrays: Arrays) -> None:
    old = meta["general.architecture"][1]
    for name in [n for n in meta if n.startswith(f"{old}.")]:
        meta[name.replace(old, "llama9", 1)] = meta.pop(name)
    meta["general.architecture"] = ["str", "llama9"]


CASES: list[tuple[str, Change, str]] = [
    ("llama", other_architecture, "'llama9' is not supported; supported are arcee, bloom, "),
    # rotary embeddings
    ("llama", with_key("rope.scaling.type", "str", "dynamic"), "rope.scaling.type: 'dynamic' is not supported"),
    ("glm4", with_key("rope.dimension_sections", "[i32]", [8, 12, 12, 0]), "rope.dimension_sections: is not supported"),
    ("phi3", without("rope_factors_long.weight", "rope_factors_short.weight"), ""),  # optional without longrope
    ("gpt-oss", with_key("rope.scaling.yarn_attn_factor", "f32", 0.5), "yarn_attn_factor: is not supported"),
    ("deepseek2", with_key("rope.scaling.type", "str", "linear"), "rope.scaling.type: 'linear' is not supported here"),
    ("deepseek2", with_key("attention.temperature_scale", "f32", 0.1), "temperature_scale: needs the length"),
    # units, scales, caps, masks
    ("llama", with_key("hidden_activation", "str", "gelu"), "hidden_activation: is not supported in llama models"),
    ("llama", with_key("attn_logit_softcapping", "f32", 50.0), "attn_logit_softcapping: is not supported"),
    ("llama", with_key("final_logit_softcapping", "f32", 30.0), "final_logit_softcapping: is not supported"),
    ("qwen3", with_key("logit_scale", "f32", 0.5), "logit_scale: is not supported in qwen3 models"),
    ("llama", with_key("residual_scale", "f32", 0.5), "residual_scale: is not supported"),
    ("llama", with_key("embedding_scale", "f32", 12.0), "embedding_scale: is not supported"),
    ("llama", with_key("attention.clamp_kqv", "f32", 8.0), "attention.clamp_kqv: is not supported"),
    ("falcon", with_key("attention.max_alibi_bias", "f32", 8.0), "attention.max_alibi_bias: is not supported"),
    ("falcon", with_key("attention.scale", "f32", 0.25), "attention.scale: is not supported"),
    ("qwen3", with_key("attention.causal", "bool", False), "attention.causal: is not supported"),
    ("exaone4", with_key("nextn_predict_layers", "u32", 1), "nextn_predict_layers: is not supported"),
    # experts
    ("deepseek2", with_key("expert_gating_func", "u32", 7), "expert_gating_func: 7 is not supported; known: 1 softmax"),
    ("qwen3moe", with_key("expert_gating_func", "u32", 2), "expert_gating_func: is not supported in qwen3moe models"),
    ("deepseek2", with_key("expert_group_count", "u32", 3), "expert_group_count: 3 of 3 groups do not fit 4 experts"),
    ("deepseek2", with_key("expert_used_count", "u32", 9), "expert_used_count: 9 of 4 experts"),
    ("llama-moe", with_key("expert_count", "u32", 0), "expert"),
    # tensors that would change the result
    ("llama", with_tensor("blk.0.attn_sinks.weight", 4), "tensor blk.0.attn_sinks.weight: not known to llama models"),
    ("llama", with_tensor("blk.1.attn_q_norm.weight", 64), "tensor blk.1.attn_q_norm.weight: not known to llama"),
    ("llama", with_tensor("blk.0.post_attention_norm.weight", 256), "blk.0.post_attention_norm.weight: not known"),
    ("mpt", with_tensor("blk.0.ffn_act.scales", 256), "tensor blk.0.ffn_act.scales: not known to mpt models"),
    ("llama", with_tensor("position_embd.weight", 256, 256), "tensor position_embd.weight: not known"),
    ("arcee", with_tensor("blk.0.ffn_gate.weight", 256, 256), "tensor blk.0.ffn_gate.weight: not known to arcee"),
    ("llama", with_tensor("blk.2.attn_norm.weight", 256), "tensor blk.2.attn_norm.weight: not known"),
    ("gemma3", with_tensor("altup_proj.weight", 256, 256), "tensor altup_proj.weight: not known to gemma3 models"),
    # states
    ("mamba", without("blk.1.ssm_d"), "tensor blk.1.ssm_d: is missing; mamba models have it"),
    ("mamba2", with_tensor("blk.0.ssm_x.weight", 4, 4), "tensor blk.0.ssm_x.weight: not known to mamba2 models"),
    ("mamba2", with_key("ssm.time_step_rank", "u32", 3), "ssm.time_step_rank: 3 heads in 2 groups do not fit 512"),
    ("lfm2", without("blk.1.shortconv.conv.weight"), "tensor blk.1.shortconv.conv.weight: is missing"),
    ("lfm2", with_key("shortconv.l_cache", "u32", 4), "tensor blk.1.shortconv.conv.weight: has shape (3, 256)"),
    ("qwen3next", without("blk.0.ssm_ba.weight"), "tensor blk.0.ssm_ba.weight: is missing"),
    ("qwen3next", with_key("ssm.inner_size", "u32", 272), "ssm.inner_size: 272 is not 2 heads"),
    ("falcon-h1", without("blk.0.ssm_dt.bias"), "tensor blk.0.ssm_dt.bias: is missing"),
    ("granitehybrid", with_tensor("blk.0.ssm_d", 2), "tensor blk.0.ssm_d: not known to granitehybrid models"),
    # what must be there
    ("gpt-oss", without("blk.1.attn_sinks.weight"), "tensor blk.1.attn_sinks.weight: is missing; gpt-oss models have"),
    ("olmo2", without("blk.0.attn_k_norm.weight"), "tensor blk.0.attn_k_norm.weight: is missing"),
    ("gptneox", without("use_parallel_residual"), "gptneox.use_parallel_residual: is missing"),
    ("gpt2", without("attention.layer_norm_epsilon"), "gpt2.attention.layer_norm_epsilon: is missing"),
    ("llama", without("attention.layer_norm_rms_epsilon"), "llama.attention.layer_norm_rms_epsilon: is missing"),
    ("cohere2", without("attention.sliding_window"), "cohere2.attention.sliding_window: is missing"),
    ("command-r", without("logit_scale"), "command-r.logit_scale: is missing"),
    ("deepseek2", without("attention.kv_lora_rank"), "deepseek2.attention.kv_lora_rank: is missing"),
    ("gpt-oss", without("attention.sliding_window"), "gpt-oss.attention.sliding_window: is missing"),
]


@pytest.mark.parametrize(("name", "change", "problem"), CASES, ids=[f"{n}-{i}" for i, (n, _, _) in enumerate(CASES)])
def test_refused_by_name(name: str, change: Change, problem: str, tmp_path: Path) -> None:
    path = rewrite(load_recipe(DATA / f"{name}.json"), change, tmp_path / "model.gguf")
    if not problem:
        edgert.load(path).close()
        return
    with pytest.raises(edgert.FormatError, match=re.escape(problem)) as error:
        edgert.load(path)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)


def test_no_context_beyond_learned_positions(tmp_path: Path) -> None:
    """Beyond the table of positions there is nothing to read."""
    path = rewrite(load_recipe(DATA / "gpt2.json"), lambda meta, arrays: None, tmp_path / "model.gguf")
    with pytest.raises(edgert.FormatError, match="256 positions were learned"):
        edgert.load(path, n_ctx=257)
