"""Mixture of experts: routing, grouping by expert, matmuls per expert and the weighted sum, at every level."""

from __future__ import annotations

import numpy as np
import pytest
from edgert.kernels_cpu import isa
from experts import expert_matmul, grouped, some_ids
from kernel_calls import LEVELS, Array, compile_all, count, run

from quant_blocks import dequantize, random_weights

TYPES = ("Q4_0", "Q6_K")
KERNELS = [
    "moe.route", "moe.group", "moe.gather", "moe.combine", "moe.add_bias", "moe.scale",
    "act.quantise_rows", "act.quantise_tiles", "act.pack_tiles",
    *(f"{kernel}[{name}]" for kernel in ("gemm.prompt", "gemm.exact", "gemv.decode") for name in TYPES),
]  # fmt: skip

pytestmark = pytest.mark.parametrize("level", LEVELS)


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    compile_all(KERNELS)


def route(level: str, logits: Array, used: int, bias: Array | None = None, threads: int = 2,
          **how: float) -> tuple[Array, Array]:  # fmt: skip
    """Chosen experts and their weights, (rows, used)."""
    m, experts = logits.shape
    ids, weights = np.full((m, used), -1, np.int32), np.zeros((m, used), np.float32)
    room = np.concatenate([logits, np.full_like(logits, np.nan)], axis=1)
    settings = {"groups": 1, "groups_used": 1, "gating": 1, "normalise": 0, "factor": 1.0} | how
    run("moe.route", level, threads, count=count(m), logits=room, ldl=room.strides[0], experts=experts, used=used,
        bias=0 if bias is None else bias, ids=ids, weights=weights, **settings)  # fmt: skip
    return ids, weights


def softmax(logits: Array) -> Array:
    wide = logits.astype(np.float64)
    p = np.exp(wide - wide.max(axis=1, keepdims=True))
    result: Array = p / p.sum(axis=1, keepdims=True)
    return result


@pytest.mark.parametrize("normalise", [1, 0])
@pytest.mark.parametrize(("experts", "used"), [(8, 2), (60, 8), (4, 4), (1, 1)])
def test_route(level: str, experts: int, used: int, normalise: int) -> None:
    """The largest of a softmax, best first, the lower expert first among equals."""
    logits = np.random.default_rng(1).standard_normal((13, experts)).astype(np.float32) * 3
    logits[3] = 1
    logits[4] *= 1e4
    ids, weights = route(level, logits, used, normalise=normalise, factor=2.5)
    p = softmax(logits)
    expected = np.argsort(-p, axis=1, kind="stable")[:, :used]
    chosen = np.take_along_axis(p, expected, axis=1)
    if normalise:
        chosen /= chosen.sum(axis=1, keepdims=True)
    ordinary = np.arange(13) != 4  # row 4's smaller probabilities are all nothing, in any order
    np.testing.assert_array_equal(ids[ordinary], expected[ordinary])
    np.testing.assert_array_equal(ids[:, 0], expected[:, 0])
    np.testing.assert_allclose(weights, 2.5 * chosen, rtol=2e-6, atol=1e-30)


@pytest.mark.parametrize("normalise", [1, 0])
@pytest.mark.parametrize(("groups", "groups_used"), [(1, 1), (4, 2), (4, 1), (8, 7)])
def test_route_by_sigmoid_bias_and_groups(level: str, groups: int, groups_used: int, normalise: int) -> None:
    """A bias chooses and does not weigh; a group counts for its two best."""
    rng = np.random.default_rng(7)
    logits, bias = rng.standard_normal((11, 24)).astype(np.float32), rng.standard_normal(24).astype(np.float32)
    logits[2] = -120  # weights of next to nothing are not blown up
    ids, weights = route(level, logits, 3, bias, groups=groups, groups_used=groups_used, gating=2,
                         normalise=normalise, factor=0.5)  # fmt: skip
    p = 1 / (1 + np.exp(-logits.astype(np.float64)))
    score = (p + bias).reshape(11, groups, -1)
    kept = np.argsort(-np.sort(score, axis=2)[:, :, -2:].sum(axis=2), axis=1, kind="stable")[:, :groups_used]
    for row in range(11):
        score[row, np.setdiff1d(np.arange(groups), kept[row])] = -np.inf
    expected = np.argsort(-score.reshape(11, -1), axis=1, kind="stable")[:, :3]
    chosen = np.take_along_axis(p, expected, axis=1)
    if normalise:
        chosen /= np.maximum(chosen.sum(axis=1, keepdims=True), 2.0**-14)
    np.testing.assert_array_equal(ids, expected)
    np.testing.assert_allclose(weights, 0.5 * chosen, rtol=4e-6, atol=1e-32)


def test_route_by_softmax_of_chosen(level: str) -> None:
    logits = np.random.default_rng(8).standard_normal((9, 12)).astype(np.float32) * 4
    ids, weights = route(level, logits, 4, gating=3)
    expected = np.argsort(-logits, axis=1)[:, :4]
    np.testing.assert_array_equal(ids, expected)
    np.testing.assert_allclose(weights, softmax(np.take_along_axis(logits, expected, axis=1)), rtol=2e-6)


def test_add_bias_and_scale(level: str) -> None:
    """Each slot gets the bias of its expert, or its scale."""
    bias, experts = np.random.default_rng(9).random((3, 21)).astype(np.float32), np.array([2, 0, 0, 1], np.int32)
    y = np.random.default_rng(10).random((4, 21)).astype(np.float32)
    expected = y + bias[experts]
    run("moe.add_bias", level, 3, count=count(4), bias=bias, expert_of=experts, y=y, ld=y.strides[0], n=21)
    np.testing.assert_array_equal(y, expected)
    expected = y * bias[0, experts][:, None]
    run("moe.scale", level, 3, count=count(4), scales=bias, expert_of=experts, y=y, ld=y.strides[0], n=21)
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("align", [1, 8, 32])
@pytest.mark.parametrize("rows", [1, 37])
def test_group(level: str, rows: int, align: int) -> None:
    """Every pair has a slot of its own, with its row and its expert; experts start on borders, in order."""
    experts, used = 9, 3
    ids = some_ids(rows, used, experts)
    out = grouped(level, ids, experts, align)
    sizes = -(-np.bincount(ids.reshape(-1), minlength=experts) // align)
    np.testing.assert_array_equal(out["segments"][: experts + 1], np.cumsum([0, *sizes]))
    total = int(out["slots"][0])
    assert total == align * sizes.sum()
    slots = out["slot_of"].reshape(-1)
    assert len(set(slots.tolist())) == rows * used
    np.testing.assert_array_equal(out["source"][slots], np.repeat(np.arange(rows), used))
    np.testing.assert_array_equal(out["expert_of"][:total], np.repeat(np.arange(experts), align * sizes))
    np.testing.assert_array_equal(out["expert_of"][slots], ids.reshape(-1))
    assert (np.delete(out["source"][:total], slots) == -1).all()
    assert (out["source"][total:] == -9).all()


def test_no_rows(level: str) -> None:
    out = grouped(level, np.zeros((0, 2), np.int32), 4, 8)
    assert out["slots"][0] == 0
    np.testing.assert_array_equal(out["segments"][:5], 0)


@pytest.mark.parametrize("threads", [1, 3])
def test_gather_and_combine(level: str, threads: int) -> None:
    """Slots get their rows, padding gets zeros; a row gets the sum of its slots, added or not."""
    rows, n, experts, used = 10, 21, 5, 2
    ids = some_ids(rows, used, experts)
    out = grouped(level, ids, experts, 8)
    total = int(out["slots"][0])
    rng = np.random.default_rng(3)
    x, slots = rng.standard_normal((rows, n)).astype(np.float32), np.full((total, n), np.nan, np.float32)
    run("moe.gather", level, threads, count=out["slots"], source=out["source"], x=x, ldx=4 * n, y=slots, ldy=4 * n, n=n)
    source = out["source"][:total]
    np.testing.assert_array_equal(slots, np.where(source[:, None] >= 0, x[source], 0))
    weights = rng.random((rows, used)).astype(np.float32)
    for accumulate in (0, 1):
        y = rng.standard_normal((rows, n)).astype(np.float32)
        expected = np.einsum("ru,run->rn", weights, slots[out["slot_of"]], dtype=np.float64) + accumulate * y
        run("moe.combine", level, threads, count=count(rows), x=slots, ldx=4 * n, weights=weights,
            slot_of=out["slot_of"], used=used, y=y, ldy=4 * n, n=n, accumulate=accumulate)  # fmt: skip
        np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("path", ["prompt", "exact", "decode"])
@pytest.mark.parametrize("name", TYPES)
def test_expert_matmul(level: str, name: str, path: str) -> None:
    """Each pair's product with its expert against float64; threads, and the other pairs, change no bit."""
    experts, n, k, rows, used = 6, 50, 512, 45, 2
    blocks = random_weights(name, experts * n, k, seed=5)
    weights = dequantize(name, blocks).reshape(experts, n, k).astype(np.float64)
    blocks = np.concatenate([blocks.reshape(-1), np.zeros(4096, np.uint8)])[: blocks.size].reshape(experts, n, -1)
    x = np.random.default_rng(6).standard_normal((rows, k)).astype(np.float32)
    ids = some_ids(rows, used, experts)
    out = grouped(level, ids, experts, 1 if path == "decode" else isa.BY_NAME[level].tile)
    y = expert_matmul(level, path, name, x, blocks, out, threads=1)[out["slot_of"]]
    expected = np.einsum("runk,rk->run", weights[ids], x.astype(np.float64))
    norms = np.linalg.norm(weights[ids], axis=3) * np.linalg.norm(x.astype(np.float64), axis=1)[:, None, None]
    rms = np.sqrt(np.mean(((y - expected) * np.sqrt(k) / norms) ** 2))
    assert rms <= (2e-6 if path == "exact" else 0.0075)
    again = expert_matmul(level, path, name, x, blocks, out, threads=4)[out["slot_of"]]
    np.testing.assert_array_equal(again, y)
    few = grouped(level, ids[40:], experts, 1 if path == "decode" else isa.BY_NAME[level].tile)
    np.testing.assert_array_equal(expert_matmul(level, path, name, x[40:], blocks, few, 2)[few["slot_of"]], y[40:])
