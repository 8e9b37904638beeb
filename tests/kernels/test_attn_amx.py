"""Prompt attention by tiles against softmax(q k^T) v in float64, with real and with emulated tiles.

Factors round to bfloat16: queries, keys and values before, which the reference does too, and the weights between.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from edgert.kernels_cpu import isa, jit, layout
from edgert.kernels_cpu.team import aligned
from kernel_calls import Array, run_together
from test_amx import AMX_LEVELS
from test_attention import CASES as OTHERS
from test_attention import NEW, OLD, Cache, Case, rounded

NMSE = 4e-6  # of weights rounded to 8 bits: 2^-18 / 3 each, less where they average out
CASES = [*OTHERS, Case("f16", kv_heads=1, group=3, d_k=64, d_v=80, window=0, cap=0)]
KINDS = sorted({case.kind for case in CASES})

pytestmark = [
    pytest.mark.parametrize("level", AMX_LEVELS),
    pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.kind}-{c.group}-{c.window}-{c.cap}-{c.extras}"),
]


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    for level in AMX_LEVELS:
        jit.load([*(f"{k}[{kind}]" for k in ("attn_amx.prompt", "kv.write") for kind in KINDS)], isa.BY_NAME[level])


def attend(cache: Cache, ranges: list[tuple[int, int, int]], threads: int = 1) -> Array:
    """Outputs (rows, heads * d_v); scratch holds nan."""
    case, (header, _kept) = cache.case, cache.header(ranges)
    q = cache.rows(cache.q, ranges)
    heads = case.kv_heads * case.group
    y = np.full((len(q), heads * case.d_v), np.nan, np.float32)
    ld_scratch = layout.amx_attention_scratch_bytes(case.d_k, case.d_v, case.group)
    scratch, cursor, config = aligned(threads * ld_scratch, np.uint8), aligned(1), aligned(64, np.uint8)
    alibi, sinks = (x if x.size else 0 for x in (case.alibi(), case.sinks()))
    scratch[:], config[:] = 0xFF, layout.amx_config()
    run_together(
        f"attn_amx.prompt[{case.kind}]", cache.level, threads, batch=header, q=q, ldq=q.strides[0], cache=cache.pages,
        page_bytes=cache.page_bytes, heads=heads, kv_heads=case.kv_heads, d_k=case.d_k, d_v=case.d_v,
        window=case.window, alibi=alibi, sinks=sinks, y=y, ldy=y.strides[0], scratch=scratch, ld_scratch=ld_scratch,
        cursor=cursor, config=config, scale=case.d_k**-0.5, cap=case.cap,
    )  # fmt: skip
    return y


def test_against_float64(level: str, case: Case) -> None:
    """Seven sequences of different lengths in one batch, on one thread and on three."""
    cache = Cache(case, level)
    cache.write(OLD)
    cache.write(NEW)
    cache.forget(NEW)
    y = attend(cache, NEW)
    np.testing.assert_array_equal(attend(cache, NEW, threads=3), y)
    cache.q[:] = [rounded(x, "bf16").astype(np.float32) for x in cache.q]
    for values in (cache.k, cache.v):  # as the cache keeps them, then as tiles take them
        values[:] = [rounded(rounded(x, case.kind).astype(np.float32), "bf16").astype(np.float32) for x in values]
    cache.case = replace(case, kind="bf16")
    expected = np.stack([cache.reference(seq, p) for seq, first, end in NEW for p in range(first, end)])
    assert np.sum((y - expected) ** 2) / np.sum(expected**2) <= NMSE
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-2)


def test_neighbours_and_chunks_change_no_bit(level: str, case: Case) -> None:
    """A sequence alone, in chunks of any size, each attended to before the next is written, as in one large batch."""
    cache = Cache(case, level)
    cache.write(OLD)
    cache.write(NEW)
    together = attend(cache, NEW)
    row = 0
    for seq, first, end in NEW:
        expected = together[row : row + end - first]
        row += end - first
        for chunk in (7, 50):
            fresh = Cache(case, level)
            fresh.write([(seq, 0, first)] if first else NEW[:1])
            parts = []
            for start in range(first, end, chunk):
                piece = [(seq, start, min(start + chunk, end))]
                fresh.write(piece)
                fresh.forget(piece)
                parts.append(attend(fresh, piece))
            np.testing.assert_array_equal(np.concatenate(parts), expected, err_msg=f"chunks of {chunk}")
