"""Convolutions, scans and the delta rule against float64 recurrences; chunks, neighbours and threads change no bit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from edgert.kernels_cpu.layout import PAGE
from kernel_calls import LEVELS, Array, assert_same_bits, batch, compile_all, run

KERNELS = ["conv.short[silu]", "conv.short[gated]", "ssm.scan", "ssm.scan_heads", "delta.net"]
T, PAGES = 2 * PAGE + 9, 8  # tokens of a sequence, pages in the cache
Fields = dict[str, float | Array]

pytestmark = pytest.mark.parametrize("level", LEVELS)


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    compile_all(KERNELS)


def drive(kernel: str, level: str, rows: dict[str, Array], n: int, state: int, fields: Fields, chunks: list[int],
          threads: int) -> Array:  # fmt: skip
    """(2, T, n) of two sequences, the second in reverse order, in one batch per chunk; pages at every other place.

    rows: (T, width) arrays by the names of the fields that point at them.
    """
    tables = [np.array([0, 2, 4], np.int32), np.array([1, 1, 5], np.int32)]  # the second works in place at first
    cache = np.full((PAGES, state), np.nan, np.float32)
    out, start = np.zeros((2, T, n), np.float32), 0
    for size in chunks:
        part = slice(start, start + size)
        here = {name: np.concatenate([x[part], x[::-1][part]]) for name, x in rows.items()}
        y = np.zeros((2 * size, n), np.float32)
        addresses = np.array([t.ctypes.data for t in tables], np.int64)
        positions = np.tile(np.arange(start, start + size, dtype=np.int32), 2)
        header, kept = batch(TOKENS=2 * size, SEQS=2, POS=positions, TABLES=addresses,
                             STARTS=np.array([0, size, 2 * size], np.int32))  # fmt: skip
        run(kernel, level, threads, batch=header, cache=cache, page_bytes=4 * state, y=y, ldy=4 * n, **here, **fields)
        out[:, start : start + size] = y.reshape(2, size, n)
        assert kept
        start += size
    return out


def check(kernel: str, level: str, rows: dict[str, Array], n: int, state: int, fields: Fields,
          expected: Callable[[dict[str, Array]], Array]) -> None:  # fmt: skip
    whole = drive(kernel, level, rows, n, state, fields, [T], 1)
    wide = {name: x.astype(np.float64) for name, x in rows.items()}
    for got, want in zip(whole, (expected(wide), expected({k: x[::-1] for k, x in wide.items()})), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
    for chunks in ([PAGE, PAGE, 9], [7, 40, T - 47], [1] * T):
        assert_same_bits(drive(kernel, level, rows, n, state, fields, chunks, 3), whole)


def values(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def silu(x: Array) -> Array:
    result: Array = x / (1 + np.exp(-x))
    return result


def convolved(x: Array, w: Array, bias: Array) -> Array:
    taps = len(w)
    padded = np.concatenate([np.zeros((taps - 1, x.shape[1])), x])
    result: Array = sum(w[j] * padded[j : j + len(x)] for j in range(taps)) + bias
    return result


@pytest.mark.parametrize("taps", [2, 3, 4])
def test_convolution(level: str, taps: int) -> None:
    n = 48
    w, bias = values(taps, n, seed=1), values(n, seed=2)
    fields: Fields = {"ldx": 4 * n, "w": w, "bias": bias, "n": n, "taps": taps}
    check("conv.short[silu]", level, {"x": values(T, n)}, n, (taps - 1) * n, fields,
          lambda r: silu(convolved(r["x"], w, bias)))  # fmt: skip


def test_gated_convolution(level: str) -> None:
    n, taps = 32, 3
    w = values(taps, n, seed=1)
    fields: Fields = {"ldx": 12 * n, "w": w, "bias": 0, "n": n, "taps": taps}

    def expected(r: dict[str, Array]) -> Array:
        b, c, x = np.split(r["x"], 3, axis=1)
        return c * convolved(b * x, w, np.zeros(n))

    check("conv.short[gated]", level, {"x": values(T, 3 * n)}, n, (taps - 1) * n, fields, expected)


def test_scan(level: str) -> None:
    n, states = 32, 6
    a, d = -np.exp(values(states, n, seed=1)), values(n, seed=2)
    rows = {"x": values(T, n, seed=3), "dt": 8 * values(T, n, seed=4), "b": values(T, states, seed=5),
            "c": values(T, states, seed=6), "z": values(T, n, seed=7)}  # fmt: skip
    fields: Fields = {"ldx": 4 * n, "lddt": 4 * n, "a": a, "ldbc": 4 * states, "d": d, "ldz": 4 * n, "n": n,
                      "states": states}  # fmt: skip

    def expected(r: dict[str, Array]) -> Array:
        h, out = np.zeros((states, n)), []
        for x, dt, b, c, z in zip(r["x"], np.logaddexp(0, r["dt"]), r["b"], r["c"], r["z"], strict=True):
            h = h * np.exp(dt * a) + np.outer(b, dt * x)
            out.append((c @ h + d * x) * silu(z))
        return np.array(out)

    check("ssm.scan", level, rows, n, n * states, fields, expected)


def test_scan_of_heads(level: str) -> None:
    n, heads, groups, states = 128, 4, 2, 5
    width = n // heads
    a, d, bias = -np.exp(values(heads, seed=1)), values(heads, seed=2), values(heads, seed=8)
    k = groups * states
    rows = {"x": values(T, n, seed=3), "dt": 8 * values(T, heads, seed=4), "z": values(T, n, seed=7)}
    mixed = np.concatenate([rows["x"], values(T, 2 * k, seed=5)], axis=1)

    def expected(r: dict[str, Array]) -> Array:
        h, out = np.zeros((heads, states, width)), []
        for m, dt, z in zip(r["x"], np.logaddexp(0, r["dt"] + bias), r["z"], strict=True):
            x = m[:n].reshape(heads, width)
            b, c = (np.repeat(part.reshape(groups, states), heads // groups, axis=0) for part in np.split(m[n:], 2))
            h = h * np.exp(dt * a)[:, None, None] + b[:, :, None] * (dt[:, None] * x)[:, None]
            out.append((np.einsum("hs,hsw->hw", c, h) + d[:, None] * x).reshape(-1) * silu(z))
        return np.array(out)

    # x, b and c are parts of one row: addresses within it are taken apart for each call
    for threads, chunks in ((1, [T]), (3, [7, 40, T - 47]), (2, [1] * T)):
        got = heads_in_chunks(level, mixed, rows, a, bias, d, (n, heads, groups, states), chunks, threads)
        np.testing.assert_allclose(got, expected({**rows, "x": mixed.astype(np.float64)}), rtol=2e-5, atol=2e-5)
        if threads == 1:
            whole = got
        assert_same_bits(got, whole)


def heads_in_chunks(level: str, mixed: Array, rows: dict[str, Array], a: Array, bias: Array, d: Array,
                    sizes: tuple[int, int, int, int], chunks: list[int], threads: int) -> Array:  # fmt: skip
    n, heads, groups, states = sizes
    cache, table, parts, start = np.full((3, n * states), np.nan, np.float32), np.arange(3, dtype=np.int32), [], 0
    for size in chunks:
        m, dt, z = (np.ascontiguousarray(x[start : start + size]) for x in (mixed, rows["dt"], rows["z"]))
        y, at = np.zeros((size, n), np.float32), m.ctypes.data
        header, kept = batch(TOKENS=size, SEQS=1, POS=np.arange(start, start + size, dtype=np.int32),
                             TABLES=np.array([table.ctypes.data]), STARTS=np.array([0, size], np.int32))  # fmt: skip
        run("ssm.scan_heads", level, threads, batch=header, cache=cache, page_bytes=4 * n * states, x=m,
            ldx=4 * m.shape[1], dt=dt, lddt=4 * heads, bias=bias, a=a, b=at + 4 * n, c=at + 4 * (n + groups * states),
            d=d, z=z, ldz=4 * n, y=y, ldy=4 * n, n=n, heads=heads, groups=groups, states=states)  # fmt: skip
        parts.append(y)
        assert kept
        start += size
    return np.concatenate(parts)


def test_delta_net(level: str) -> None:
    heads, k_heads, d = 4, 2, 32
    shared, n = heads // k_heads, heads * d
    a, bias = -np.exp(values(heads, seed=1)), values(heads, seed=2)
    rows = {"q": values(T, k_heads * d, seed=3), "k": values(T, k_heads * d, seed=4), "v": values(T, n, seed=5),
            "ba": values(T, 2 * heads, seed=6)}  # fmt: skip
    wide = {name: np.concatenate([x, np.zeros((T, n - x.shape[1]), np.float32)], axis=1) for name, x in rows.items()}
    fields: Fields = {"ldx": 4 * n, "ldba": 4 * n, "a": a, "bias": bias, "heads": heads, "k_heads": k_heads, "d_k": d,
                      "d_v": d, "eps": 1e-6}  # fmt: skip

    def expected(r: dict[str, Array]) -> Array:
        s, out = np.zeros((heads, d, d)), []
        for q, k, v, ba in zip(r["q"], r["k"], r["v"], r["ba"], strict=True):
            q, k = (np.repeat(x[: k_heads * d].reshape(k_heads, d), shared, axis=0) for x in (q, k))
            q, k = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (q, k))
            both = ba[: 2 * heads].reshape(k_heads, 2, shared)
            beta, alpha = 1 / (1 + np.exp(-both[:, 0].reshape(-1))), both[:, 1].reshape(-1)
            s = s * np.exp(a * np.logaddexp(0, alpha + bias))[:, None, None]
            change = (v.reshape(heads, d) - np.einsum("hkv,hk->hv", s, k)) * beta[:, None]
            s = s + k[:, :, None] * change[:, None]
            out.append((np.einsum("hkv,hk->hv", s, q) / np.sqrt(d)).reshape(-1))
        return np.array(out)

    check("delta.net", level, wide, n, n * d, fields, expected)
