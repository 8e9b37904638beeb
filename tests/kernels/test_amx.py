"""The bf16 tile matmul, with real tile instructions where the host has them, and with emulated ones."""

from __future__ import annotations

import numpy as np
import pytest
from edgert.kernels_cpu import api, isa, jit, layout
from edgert.kernels_cpu.dense_types import INTEGER_TYPES
from experts import expert_matmul, grouped, some_ids
from kernel_calls import LEVELS, Array, count, run

from quant_blocks import dequantize, random_weights

TYPES = ("F32", "IQ3_S", *INTEGER_TYPES)
AMX_LEVELS = [
    *(level for level in LEVELS if isa.BY_NAME[level].bf16_tiles),
    *(level.name for level in (isa.EMULATED, isa.EMULATED_BF16) if isa.host_features().issuperset(level.needs)),
]

pytestmark = pytest.mark.parametrize("level", AMX_LEVELS)


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    for level in AMX_LEVELS:
        jit.load([*(f"amx.prompt[{t}]" for t in TYPES), "act.pack_pairs"], isa.BY_NAME[level])


def bf16(x: Array) -> Array:
    """float32 rounded to bfloat16, as float64."""
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded: Array = ((u + 0x7FFF + (u >> np.uint32(16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
    return rounded.astype(np.float64)


@pytest.mark.parametrize("threads", [1, 3])
def test_pack_pairs(level: str, threads: int) -> None:
    """(k/32, tile/16, 16 pairs, 16 tokens, 2) bfloat16 per tile; lanes without a token stay as they were."""
    k, tile = 96, isa.BY_NAME[level].tile
    m = tile + 5
    x, out = (
        np.random.default_rng(1).standard_normal((m, k)).astype(np.float32),
        np.full((2, k * tile), 0xEEEE, np.uint16),
    )
    assert out[0].nbytes == layout.bf16_tile_bytes(k, tile)
    run("act.pack_pairs", level, threads, count=count(m), x=x, ldx=4 * k, k=k, out=out)
    pairs = out.reshape(2, k // 32, tile // 16, 16, 16, 2).transpose(0, 2, 4, 1, 3, 5).reshape(2 * tile, k)
    np.testing.assert_array_equal((pairs[:m].astype(np.uint32) << np.uint32(16)).view(np.float32), bf16(x))
    assert (pairs[m:] == 0xEEEE).all()


@pytest.mark.parametrize("name", TYPES)
def test_product(level: str, name: str) -> None:
    """Both factors round to bfloat16, sums are f32; the batch changes no bit of a token's result."""
    n, k = 50, 512
    blocks = random_weights(name, n, k, seed=2)
    weights = dequantize(name, blocks)
    x = np.random.default_rng(3).standard_normal((37, k)).astype(np.float32)
    y = api.matmul(name, blocks, n, k, x, path="prompt", isa_level=level)
    expected = bf16(x) @ bf16(weights).T
    norms = np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(weights, axis=1)
    assert (np.abs(y - expected) / norms).max() <= 1e-6
    for m in (1, 16, 33):
        np.testing.assert_array_equal(api.matmul(name, blocks, n, k, x[:m], path="prompt", isa_level=level), y[:m])


def test_large_product(level: str) -> None:
    """Several stretches of k, a last one that is short, several row groups, more tokens than sums are kept for."""
    n, k, m = 70, layout.AMX_K + 96, layout.AMX_TOKENS + 3
    blocks = random_weights("Q8_0", n, k, seed=6)
    weights = dequantize("Q8_0", blocks)
    x = np.random.default_rng(7).standard_normal((m, k)).astype(np.float32)
    y = api.matmul("Q8_0", blocks, n, k, x, path="prompt", isa_level=level)
    norms = np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(weights, axis=1)
    assert (np.abs(y - bf16(x) @ bf16(weights).T) / norms).max() <= 1e-6
    np.testing.assert_array_equal(api.matmul("Q8_0", blocks, n, k, x[:40], path="prompt", isa_level=level), y[:40])


def test_experts(level: str) -> None:
    """Each pair's product with its expert, on any number of threads."""
    experts, n, k, rows, used = 5, 40, 256, 20, 2
    blocks = random_weights("Q4_K", experts * n, k, seed=4)
    weights = bf16(dequantize("Q4_K", blocks)).reshape(experts, n, k)
    x, ids = np.random.default_rng(5).standard_normal((rows, k)).astype(np.float32), some_ids(rows, used, experts)
    out = grouped(level, ids, experts, isa.BY_NAME[level].tile)
    y = expert_matmul(level, "amx", "Q4_K", x, blocks.reshape(experts, n, -1), out, threads=1)[out["slot_of"]]
    expected = np.einsum("runk,rk->run", weights[ids], bf16(x))
    norms = np.linalg.norm(weights[ids], axis=3) * np.linalg.norm(x, axis=1)[:, None, None]
    assert (np.abs(y - expected) / norms).max() <= 1e-6
    again = expert_matmul(level, "amx", "Q4_K", x, blocks.reshape(experts, n, -1), out, threads=3)
    np.testing.assert_array_equal(again[out["slot_of"]], y)
