"""DeepSeek 2 and 3 beyond their golden, against NumPy in float64: V2 Lite's queries, stretched positions, groups."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import edgert
from builder import Arrays, Meta, key, load_recipe, rewrite, settings
from reference_model import F64, attention, rms, rope, silu, widened, yarn

DATA = Path(__file__).parent / "data" / "archs"
EPS = 1e-5
EXACT_ERROR = 1e-4


def deepseek2(a: dict[str, F64], tokens: list[int], *, groups_used: int, factor: float, log_multiplier: float) -> F64:
    """Keys and values of all heads made from the small vector; experts by sigmoid, bias and groups of two."""
    n, d_k, d_v, rank, n_rot = 2, 192, 128, 512, 64
    nope, t = d_k - n_rot, len(tokens)
    frequencies = yarn(n_rot, factor, 64)
    scale = (1 + log_multiplier * math.log(factor)) ** 2 / math.sqrt(d_k)
    x = a["token_embd.weight"][tokens]
    for i in range(2):
        p = f"blk.{i}."
        h = rms(x, a[p + "attn_norm.weight"], EPS)
        q = (h @ a[p + "attn_q.weight"].T).reshape(t, n, d_k)
        kv = h @ a[p + "attn_kv_a_mqa.weight"].T
        small = rms(kv[:, :rank], a[p + "attn_kv_a_norm.weight"], EPS)
        turned = rope(kv[:, None, rank:], frequencies, False)
        q = np.concatenate([q[..., :nope], rope(q[..., nope:], frequencies, False)], axis=2)
        k = np.einsum("tr,hrn->thn", small, a[p + "attn_k_b.weight"])
        k = np.concatenate([k, np.repeat(turned, n, axis=1)], axis=2)
        v = np.einsum("tr,hvr->thv", small, a[p + "attn_v_b.weight"])
        x = x + attention(q, k, v, scale).reshape(t, n * d_v) @ a[p + "attn_output.weight"].T
        h = rms(x, a[p + "ffn_norm.weight"], EPS)

        def ffn(h: F64, gate: F64, up: F64, down: F64) -> F64:
            result: F64 = (silu(h @ gate.T) * (h @ up.T)) @ down.T
            return result

        if i == 0:
            x = x + ffn(h, *(a[f"{p}ffn_{name}.weight"] for name in ("gate", "up", "down")))
            continue
        y = ffn(h, *(a[f"{p}ffn_{name}_shexp.weight"] for name in ("gate", "up", "down")))
        chances = 1 / (1 + np.exp(-(h @ a[p + "ffn_gate_inp.weight"].T)))
        for row in range(t):
            score = (chances[row] + a[p + "exp_probs_b.bias"]).reshape(2, 2)
            score[np.argsort(-score.sum(axis=1))[groups_used:]] = -np.inf
            chosen = np.argsort(-score.reshape(-1))[:2]
            for e in chosen:
                gate, up = np.split(a[p + "ffn_gate_up_exps.weight"][e], 2)
                share = chances[row, e] / chances[row, chosen].sum() * 2.5
                y[row] += share * ffn(h[row : row + 1], gate, up, a[p + "ffn_down_exps.weight"][e])[0]
        x = x + y
    result: F64 = rms(x, a["output_norm.weight"], EPS) @ a["output.weight"].T
    return result


@pytest.mark.parametrize("groups_used", [1, 2])
def test_deepseek2_lite(groups_used: int, tmp_path: Path) -> None:
    """Queries without a small vector, stretched positions, experts in groups."""
    kept: dict[str, F64] = {}

    def change(meta: Meta, a: Arrays) -> None:
        settings(rope__scaling__type="yarn", rope__scaling__factor=4.0,
                 rope__scaling__original_context_length=64, rope__scaling__yarn_log_multiplier=0.0707,
                 expert_group_count=2, expert_group_used_count=groups_used)(meta, a)  # fmt: skip
        del meta[key(meta, "attention.q_lora_rank")]
        for i in range(2):
            b = a.pop(f"blk.{i}.attn_q_b.weight")
            del a[f"blk.{i}.attn_q_a_norm.weight"], a[f"blk.{i}.attn_q_a.weight"]
            a[f"blk.{i}.attn_q.weight"] = np.ascontiguousarray(b[:, :128])
        kept.update(widened(a))

    path = rewrite(load_recipe(DATA / "deepseek2.json"), change, tmp_path / "model.gguf")
    with np.load(DATA / "deepseek2.npz") as data:
        tokens = data["tokens"].tolist()
    expected = deepseek2(kept, tokens, groups_used=groups_used, factor=4.0, log_multiplier=0.0707)
    with edgert.load(path, precision="exact") as model:
        np.testing.assert_allclose(model.logits(tokens), expected, rtol=0, atol=EXACT_ERROR)
