"""Attention over the paged cache against softmax(q k^T) v in float64, at every level.

The pages of several sequences lie shuffled in one cache; every slot that no token has written, every page from before
a window, and all scratch hold nan.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from edgert.kernels_cpu import layout
from edgert.kernels_cpu.team import aligned
from gguf import GGMLQuantizationType, quants
from kernel_calls import LEVELS, Array, batch, compile_all, run, run_together

KINDS = ("f32", "f16", "bf16", "q8_0", "q4_0")
# (tokens already in the cache, new tokens) of each sequence.
SEQUENCES = [(0, 1), (0, 40), (70, 33), (0, 129), (31, 1), (250, 6), (127, 2)]


@dataclass(frozen=True)
class Case:
    kind: str
    kv_heads: int
    group: int
    d_k: int
    d_v: int
    window: int
    cap: float
    extras: bool = False  # ALiBi and sinks

    def alibi(self) -> Array:
        """Slopes of the heads."""
        return np.random.default_rng(2).random(self.kv_heads * self.group).astype(np.float32) if self.extras else EMPTY

    def sinks(self) -> Array:
        """A score of each head that has no value, one of them so large that nothing else counts."""
        sinks = np.random.default_rng(3).standard_normal(self.kv_heads * self.group).astype(np.float32)
        sinks[-1] = 300
        return sinks if self.extras else EMPTY


EMPTY = np.zeros(0, np.float32)
CASES = [
    Case("f32", kv_heads=3, group=1, d_k=32, d_v=32, window=0, cap=0),
    Case("f16", kv_heads=2, group=3, d_k=24, d_v=16, window=50, cap=0),
    Case("bf16", kv_heads=2, group=4, d_k=16, d_v=48, window=0, cap=2.5),
    Case("f16", kv_heads=1, group=8, d_k=64, d_v=64, window=130, cap=1.5),
    Case("f32", kv_heads=1, group=5, d_k=17, d_v=16, window=1, cap=0),
    Case("bf16", kv_heads=2, group=1, d_k=16, d_v=16, window=33, cap=0),
    Case("f32", kv_heads=2, group=3, d_k=16, d_v=16, window=0, cap=0, extras=True),
    Case("f16", kv_heads=1, group=5, d_k=16, d_v=32, window=40, cap=3, extras=True),
    Case("q8_0", kv_heads=2, group=3, d_k=64, d_v=32, window=50, cap=0),
    Case("q8_0", kv_heads=1, group=4, d_k=32, d_v=96, window=0, cap=0),
    Case("q4_0", kv_heads=2, group=2, d_k=64, d_v=64, window=0, cap=1.5),
    Case("q4_0", kv_heads=1, group=8, d_k=96, d_v=32, window=33, cap=0, extras=True),
]

pytestmark = [
    pytest.mark.parametrize("level", LEVELS),
    pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.kind}-{c.group}-{c.window}-{c.cap}-{c.extras}"),
]


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    names = ("attn_decode.decode", "attn_prompt.prompt", "kv.write")
    compile_all(["attn_decode.merge", *(f"{name}[{kind}]" for name in names for kind in KINDS)])


def rounded(x: Array, kind: str) -> Array:
    """What the cache keeps of float32 values (n, heads * d), as float64."""
    if kind in layout.KV_QUANTS:
        ggml_type = GGMLQuantizationType[kind.upper()]
        return quants.dequantize(quants.quantize(x, ggml_type), ggml_type).astype(np.float64)
    if kind == "f16":
        return x.astype(np.float16).astype(np.float64)
    if kind == "bf16":
        u = x.view(np.uint32)
        return ((u + 0x7FFF + (u >> np.uint32(16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)
    return x.astype(np.float64)


def in_int8(q: Array) -> Array:
    """Queries as they meet quantised keys: 32 components by one scale, as float64."""
    blocks = q.astype(np.float64).reshape(-1, 32)
    scale = np.abs(blocks).max(axis=1, keepdims=True) / 127
    return (np.rint(blocks / scale) * scale).reshape(q.shape)


class Cache:
    """Sequences of keys and values in shuffled pages, and the kernels on them."""

    def __init__(self, case: Case, level: str, seed: int = 1) -> None:
        self.case, self.level = case, level
        rng = np.random.default_rng(seed)
        lengths = [past + new for past, new in SEQUENCES]
        self.page_bytes = layout.KV_TYPES[case.kind] * (case.d_k + case.d_v) * case.kv_heads
        needed = [-(-n // layout.PAGE) for n in lengths]
        self.pages = np.full((sum(needed) + 2, self.page_bytes), 0xFF, np.uint8)  # all bits set is nan in every kind
        numbers = rng.permutation(sum(needed)).astype(np.int32) + 1
        self.tables = np.split(numbers, np.cumsum(needed)[:-1])
        heads = case.kv_heads
        self.k = [rng.standard_normal((n, heads * case.d_k)).astype(np.float32) for n in lengths]
        self.v = [rng.standard_normal((n, heads * case.d_v)).astype(np.float32) for n in lengths]
        self.q = [rng.standard_normal((n, heads * case.group * case.d_k)).astype(np.float32) for n in lengths]

    def header(self, ranges: list[tuple[int, int, int]]) -> tuple[Array, list[Array]]:
        """A batch of (sequence, first position, end)."""
        rows = [(i, p) for i, (_, first, end) in enumerate(ranges) for p in range(first, end)]
        starts = np.cumsum([0] + [end - first for _, first, end in ranges]).astype(np.int32)
        tables = np.array([self.tables[seq].ctypes.data for seq, _, _ in ranges])
        seqs, positions = np.array(rows, np.int32).T.copy()
        return batch(
            TOKENS=len(rows), SEQS=len(ranges), POS=positions, SEQ=seqs, TABLES=tables, STARTS=starts
        )  # fmt: skip

    def rows(self, values: list[Array], ranges: list[tuple[int, int, int]]) -> Array:
        return np.concatenate([values[seq][first:end] for seq, first, end in ranges])

    def write(self, ranges: list[tuple[int, int, int]]) -> None:
        header, _kept = self.header(ranges)
        k, v = self.rows(self.k, ranges), self.rows(self.v, ranges)
        run(f"kv.write[{self.case.kind}]", self.level, 3, batch=header, k=k, v=v, ldk=k.strides[0], ldv=v.strides[0],
            cache=self.pages, page_bytes=self.page_bytes, heads=self.case.kv_heads, d_k=self.case.d_k,
            d_v=self.case.d_v)  # fmt: skip

    def forget(self, ranges: list[tuple[int, int, int]]) -> None:
        """Give up the pages that lie before the windows of all queries: their numbers now lead nowhere."""
        for seq, first, _ in ranges if self.case.window else []:
            self.tables[seq][: max(0, first - self.case.window + 1) // layout.PAGE] = 2**31 - 1 - seq

    def attend(self, path: str, ranges: list[tuple[int, int, int]], threads: int = 1) -> Array:
        """Outputs (rows, heads * d_v) by the decode or the prompt kernels."""
        case, (header, _kept) = self.case, self.header(ranges)
        q = self.rows(self.q, ranges)
        heads = case.kv_heads * case.group
        y = np.full((len(q), heads * case.d_v), np.nan, np.float32)
        ld_scratch = layout.attention_scratch_bytes(case.d_k, case.d_v, case.group)
        ld_scratch = max(ld_scratch, layout.decode_scratch_bytes(case.d_k, case.d_v))
        scratch, cursor = aligned(threads * ld_scratch, np.uint8), aligned(1)
        scratch[:] = 0xFF
        alibi, sinks = (x if x.size else 0 for x in (case.alibi(), case.sinks()))
        common = {
            "batch": header, "q": q, "ldq": q.strides[0], "cache": self.pages, "page_bytes": self.page_bytes,
            "heads": heads, "kv_heads": case.kv_heads, "d_k": case.d_k, "d_v": case.d_v, "window": case.window,
            "alibi": alibi, "scratch": scratch, "ld_scratch": ld_scratch, "cursor": cursor, "scale": case.d_k**-0.5,
            "cap": case.cap,
        }  # fmt: skip
        if path == "prompt":
            run_together(f"attn_prompt.prompt[{case.kind}]", self.level, threads, sinks=sinks, y=y, ldy=y.strides[0],
                         **common)  # fmt: skip
            return y
        pieces = max(len(table) for table in self.tables) * layout.PAGE // layout.PIECE + 2
        partial = np.full((len(q), pieces, heads, case.d_v + 2), np.nan, np.float32)
        split = {"partial": partial, "ld_partial": partial.strides[0]}
        run_together(f"attn_decode.decode[{case.kind}]", self.level, threads, **common, **split)
        run("attn_decode.merge", self.level, threads, batch=header, heads=heads, d_v=case.d_v, window=case.window,
            sinks=sinks, y=y, ldy=y.strides[0], **split)  # fmt: skip
        return y

    def reference(self, seq: int, position: int, path: str = "prompt") -> Array:
        """One row in float64: (heads * d_v,)."""
        case = self.case
        low = max(0, position - case.window + 1) if case.window else 0
        span = slice(low, position + 1)
        k = rounded(self.k[seq], case.kind)[span].reshape(-1, case.kv_heads, case.d_k)
        v = rounded(self.v[seq], case.kind)[span].reshape(-1, case.kv_heads, case.d_v)
        q = self.q[seq][position].astype(np.float64)
        if path == "decode" and case.kind in layout.KV_QUANTS:
            q = in_int8(q)
        q = q.reshape(case.kv_heads, case.group, case.d_k)
        scores = np.einsum("hgd,thd->hgt", q, k) * case.d_k**-0.5
        if case.cap:
            scores = case.cap * np.tanh(scores / case.cap)
        sinks = np.full(q.shape[:2], -np.inf)
        if case.extras:
            distance = np.arange(low, position + 1) - position
            scores += case.alibi().astype(np.float64).reshape(*q.shape[:2], 1) * distance
            sinks = case.sinks().astype(np.float64).reshape(q.shape[:2])
        scores = np.concatenate([scores, sinks[..., None]], axis=2)
        weights = np.exp(scores - scores.max(axis=2, keepdims=True))
        weights = (weights / weights.sum(axis=2, keepdims=True))[..., :-1]
        result: Array = np.einsum("hgt,thd->hgd", weights, v).reshape(-1)
        return result


NEW = [(i, past, past + new) for i, (past, new) in enumerate(SEQUENCES)]
OLD = [(i, 0, past) for i, (past, _) in enumerate(SEQUENCES) if past]


@pytest.mark.parametrize("path", ["decode", "prompt"])
def test_against_float64(level: str, case: Case, path: str) -> None:
    """Seven sequences of different lengths in one batch."""
    cache = Cache(case, level)
    cache.write(OLD)
    cache.write(NEW)
    cache.forget(NEW)
    y = cache.attend(path, NEW)
    expected = np.stack([cache.reference(seq, p, path) for seq, first, end in NEW for p in range(first, end)])
    np.testing.assert_allclose(y, expected, rtol=0, atol=4e-6)


@pytest.mark.parametrize("path", ["decode", "prompt"])
def test_threads_change_no_bit(level: str, case: Case, path: str) -> None:
    cache = Cache(case, level)
    cache.write(OLD)
    cache.write(NEW)
    alone = cache.attend(path, NEW)
    for threads in (2, 5):
        np.testing.assert_array_equal(cache.attend(path, NEW, threads), alone)


@pytest.mark.parametrize("path", ["decode", "prompt"])
def test_neighbours_and_chunks_change_no_bit(level: str, case: Case, path: str) -> None:
    """A sequence alone, in chunks of any size, each attended to before the next is written, as in one large batch."""
    cache = Cache(case, level)
    cache.write(OLD)
    cache.write(NEW)
    together = cache.attend(path, NEW)
    row = 0
    for seq, first, end in NEW:
        expected = together[row : row + end - first]
        row += end - first
        for chunk in (1, 7, 32, 50):
            fresh = Cache(case, level)
            fresh.write([(seq, 0, first)] if first else NEW[:1])
            parts = []
            for start in range(first, end, chunk):
                piece = [(seq, start, min(start + chunk, end))]
                fresh.write(piece)
                fresh.forget(piece)
                parts.append(fresh.attend(path, piece))
            np.testing.assert_array_equal(np.concatenate(parts), expected, err_msg=f"chunks of {chunk}")


def test_decode_agrees_with_prompt(level: str, case: Case) -> None:
    cache = Cache(case, level)
    cache.write(OLD)
    cache.write(NEW)
    apart = 3e-2 if case.kind in layout.KV_QUANTS else 3e-6  # decoding rounds queries as well
    np.testing.assert_allclose(cache.attend("decode", NEW), cache.attend("prompt", NEW), rtol=0, atol=apart)


def test_writing_touches_only_its_slots(level: str, case: Case) -> None:
    """The other tokens' slots stay as they were: nan."""
    cache = Cache(case, level)
    seq, first, end = 2, 70, 99
    cache.write([(seq, first, end)])
    k, v = unpacked(cache)
    for p in range(first, end):
        page, slot = cache.tables[seq][p // layout.PAGE], p % layout.PAGE
        np.testing.assert_array_equal(k[page, slot].reshape(-1), rounded(cache.k[seq], case.kind)[p])
        np.testing.assert_array_equal(v[page, slot].reshape(-1), rounded(cache.v[seq], case.kind)[p])
    empty = np.isnan(k).sum() + np.isnan(v).sum()
    assert empty == k.size + v.size - (end - first) * case.kv_heads * (case.d_k + case.d_v)


def unpacked(cache: Cache) -> tuple[Array, Array]:
    """What is in the pages: keys (pages, PAGE, kv_heads, d_k) and values (pages, PAGE, kv_heads, d_v) in float64."""
    case, page = cache.case, layout.PAGE
    if case.kind in layout.KV_QUANTS:
        block = 32 * layout.KV_QUANTS[case.kind]
        blocks = cache.pages.reshape(len(cache.pages), case.kv_heads, (case.d_k + case.d_v) // 32, block)
        scales = blocks[..., : 2 * page].copy().view(np.float16).astype(np.float64)[..., None]
        wide, of_keys = blocks[..., 2 * page :], case.d_k // 32
        fours = wide.reshape(*wide.shape[:3], -1, page, 4)[:, :, :of_keys].swapaxes(3, 4)
        rows = wide.reshape(*wide.shape[:3], page, -1)[:, :, of_keys:]
        both = np.concatenate([fours.reshape(*fours.shape[:4], -1), rows], axis=2)
        if case.kind == "q4_0":
            both = np.concatenate([both & 15, both >> 4], axis=-1) - np.float64(8)
        values = scales * both.view(np.int8) if case.kind == "q8_0" else scales * both
        values = values.transpose(0, 3, 1, 2, 4)
        k, v = values[..., :of_keys, :], values[..., of_keys:, :]
        return k.reshape(*k.shape[:3], -1), v.reshape(*v.shape[:3], -1)
    flat = cache.pages.view({"f32": np.float32, "f16": np.float16, "bf16": np.uint16}[case.kind])
    if case.kind == "bf16":
        flat = (flat.astype(np.uint32) << np.uint32(16)).view(np.float32)
    heads = flat.astype(np.float64).reshape(len(flat), case.kv_heads, page * (case.d_k + case.d_v))
    k = heads[..., : page * case.d_k].reshape(len(flat), case.kv_heads, case.d_k, page)
    v = heads[..., page * case.d_k :].reshape(len(flat), case.kv_heads, page, case.d_v)
    return k.transpose(0, 3, 1, 2), v.transpose(0, 2, 1, 3)
