"""Every architecture against llama.cpp's logits of a tiny random model (32 tokens, F32 arithmetic; see data/archs)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import edgert
from builder import load_recipe
from edgert import archs

DATA = Path(__file__).parent / "data" / "archs"
GOLDENS = [
    "llama", "llama-moe", "llama-linear-bias", "mistral3", "internlm2", "arcee", "seed_oss", "minicpm",
    "qwen2", "qwen2moe", "qwen3", "qwen3moe", "olmoe", "smollm3", "granite", "granite-moe", "granitemoe-moe",
    "gemma", "gemma2", "gemma3", "phi3", "phimoe",
    "gpt2", "gptneox", "bloom", "mpt", "falcon", "starcoder2", "phi2", "nemotron", "stablelm", "command-r", "cohere2",
    "olmo2", "exaone4", "glm4", "gpt-oss", "deepseek2",
]  # fmt: skip
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


def test_every_architecture_has_a_golden() -> None:
    """Each architecture that can be loaded is one of the models above, and each file is a family that is found."""
    tested = {load_recipe(DATA / f"{name}.json")["meta"]["general.architecture"][1] for name in GOLDENS}
    assert set(archs.supported()) == tested
    files = {path.stem for path in Path(archs.__file__).parent.glob("*.py")} - {"__init__"}
    assert files == set(archs.FAMILIES)


def test_other_architectures_are_refused_by_name(arch_model: Callable[[str], Path]) -> None:
    """A model of an unknown architecture is a one-line error that names it."""
    with pytest.raises(edgert.FormatError, match="mamba2") as error:
        edgert.load(arch_model("mamba2"))
    assert "\n" not in str(error.value)
