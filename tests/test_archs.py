"""Every architecture against llama.cpp's logits of a tiny random model (32 tokens, F32 arithmetic; see data/archs)."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from edgert.formats.gguf import Gguf

import edgert
from builder import load_recipe
from edgert import archs, kv
from edgert.runtime import Runtime

DATA = Path(__file__).parent / "data" / "archs"
RECIPES = sorted(p for p in DATA.glob("*.json") if p.stem != "MANIFEST")
ARCHITECTURES = {p.stem: load_recipe(p)["meta"]["general.architecture"][1] for p in RECIPES}
GOLDENS = [name for name, arch in ARCHITECTURES.items() if arch in archs.supported()]
FAMILY_LINES = 80
EXACT_ERROR = 1e-4  # absolute; llama.cpp's own order of summation moves these logits by up to 2e-5
FAST_NMSE = 2e-3
CHUNKS = [None, 1, 7]  # the whole prompt at once, token by token, and a size that divides nothing

F32 = npt.NDArray[np.float32]


def golden(name: str) -> tuple[list[int], F32]:
    """Token ids [32] and reference logits float32 [32, n_vocab]."""
    with np.load(DATA / f"{name}.npz") as data:
        return data["tokens"].tolist(), data["logits"]


def nmse(values: F32, reference: F32) -> float:
    """Normalised mean square error: |values - reference|^2 / |reference|^2."""
    return float(np.sum((values - reference) ** 2.0) / np.sum(reference**2.0))


@pytest.mark.parametrize("name", GOLDENS)
def test_exact(name: str, arch_model: Callable[[str], Path]) -> None:
    """precision="exact" gives the reference's logits, however the tokens are cut into chunks."""
    tokens, reference = golden(name)
    with edgert.load(arch_model(name), precision="exact") as model:
        for chunk in CHUNKS:
            logits = model.logits(tokens, chunk=chunk)
            assert logits.dtype == np.float32
            np.testing.assert_allclose(logits, reference, rtol=0, atol=EXACT_ERROR, err_msg=f"chunk = {chunk}")


@pytest.mark.parametrize("name", GOLDENS)
def test_fast(name: str, arch_model: Callable[[str], Path]) -> None:
    """precision="fast" is near the reference on both paths, and chunks do not change a single bit."""
    tokens, reference = golden(name)
    with edgert.load(arch_model(name), precision="fast") as model:
        for path in ("prompt", "decode"):
            whole = model.logits(tokens, path=path)
            assert nmse(whole, reference) <= FAST_NMSE, path
            for chunk in CHUNKS[1:]:
                chunked = model.logits(tokens, path=path, chunk=chunk)
                np.testing.assert_array_equal(chunked, whole, err_msg=f"{path}, chunk = {chunk}")


@pytest.mark.parametrize("name", GOLDENS)
def test_threads_change_nothing(name: str, arch_model: Callable[[str], Path]) -> None:
    """One thread and three give the same bits."""
    tokens, _ = golden(name)
    results = []
    for threads in (1, 3):
        with edgert.load(arch_model(name), threads=threads) as model:
            results.append(model.logits(tokens))
    np.testing.assert_array_equal(results[0], results[1])


def ragged(runtime: Runtime, phase: str, tokens: list[int]) -> list[F32]:
    """Logits of eight copies that share every run, each copy at a position of its own."""
    copies = [kv.Sequence(runtime.pool, runtime.n_ctx) for _ in range(8)]
    logits: list[list[F32]] = [[] for _ in copies]
    step = 0
    while any(len(s.tokens) < len(tokens) for s in copies):
        parts = [tokens[len(s.tokens) :][: 1 + (i + step) % 4] if i <= step else [] for i, s in enumerate(copies)]
        rows = [(s, part) for s, part in zip(copies, parts, strict=True) if part]
        out = np.empty((sum(len(part) for part in parts), runtime.config.n_vocab), np.float32)
        runtime.begin(phase, rows, range(len(out)), out)
        while not runtime.advance(phase):
            pass
        borders = np.cumsum([len(part) for part in parts])[:-1]
        for mine, part in zip(logits, np.split(out, borders), strict=True):
            mine.append(part)
        step += 1
    return [np.concatenate(parts) for parts in logits]


@pytest.mark.parametrize("name", GOLDENS)
def test_ragged_batch(name: str, arch_model: Callable[[str], Path]) -> None:
    """Copies in one batch at different positions: the reference in exact mode, the very bits of one alone in fast."""
    tokens, reference = golden(name)
    for precision in ("exact", "fast"):
        with edgert.load(arch_model(name), precision=precision) as model:
            alone = {path: model.logits(tokens, path=path) for path in ("prompt", "decode")}
        config = archs.read_config(Gguf.open(arch_model(name)))
        runtime = Runtime(config, threads=2, n_ctx=None, precision=precision, kv_type="f16", progress=None)
        for path, expected in alone.items():
            for logits in ragged(runtime, path, tokens):
                if precision == "exact":
                    np.testing.assert_allclose(logits, reference, rtol=0, atol=EXACT_ERROR, err_msg=path)
                np.testing.assert_array_equal(logits, expected, err_msg=f"{precision}, {path}")
        runtime.close()


def test_every_architecture_has_a_golden() -> None:
    """Each architecture that can be loaded is one of the models above, and each file serves at least one."""
    assert set(archs.supported()) == {ARCHITECTURES[name] for name in GOLDENS}
    files = [path for path in Path(archs.__file__).parent.glob("*.py") if path.stem != "__init__"]
    assert {path.stem for path in files} == set(archs.FAMILIES)
    for path in files:
        assert importlib.import_module(f"edgert.archs.{path.stem}").ARCHS, path.name
        assert len(path.read_text(encoding="utf-8").splitlines()) <= FAMILY_LINES, path.name
