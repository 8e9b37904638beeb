"""Every quantised kernel against float64 products of the weights as the `gguf` package decodes them.

Errors are measured in units of |x| |w| / sqrt(k), the size that a product of unrelated rows has. In these units the
error of rounding the activations does not depend on k, on the size of the values or on a constant part of the weights.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from edgert.kernels_cpu import api, jit

from quant_blocks import F16_SCALES, ORACLE_TYPES, dequantize, get_f16, random_weights, row_bytes, set_f16

Array = npt.NDArray[Any]

FLOATS = ["F32", "F16", "BF16"]
LEVELS = api.isa.available()
MATMUL_TYPES = [*FLOATS, "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]
RARE_TYPES = [  # whose kernels differ in nothing but how a block decodes; tests/kernels has their exact products
    "Q8_1", "Q8_K", "IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4", "TQ1_0", "TQ2_0", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS",
    "IQ2_S", "IQ3_XXS", "IQ3_S",
]  # fmt: skip
# Compiling takes longer than testing: they run at the highest level, unless all are asked for.
RARE_CASES = [
    (name, level)
    for level in LEVELS
    for name in RARE_TYPES
    if level == LEVELS[-1] or "EDGERT_TEST_ALL_KERNELS" in os.environ
]
BATCHES = [1, 2, 3, 4, 5, 7, 8, 16, 17, 31, 32, 33, 64, 129]
PATHS = ["decode", "prompt", "exact"]

# Root mean square error in the units above. An int8 step of a normal row is the largest value of 32 / 127, that is
# 2.2 / 127 of a standard deviation, and rounding to it costs step / sqrt(12) = 0.005; measured 0.0053 to 0.0057.
RMS_INT8 = 0.0065
# bfloat16 keeps 8 bits: 2^-9 / sqrt(3) = 0.0011 for each factor. What float types may cost where they are not exact.
RMS_BF16 = 0.002
RMS_EXACT = 1e-6  # float32 sums; measured up to 5e-7
MAX_OVER_RMS = 6.0  # the largest of some 10,000 nearly normal errors is 4 times their root mean square
# Error / (|x| |w|) where the activations survive rounding to int8: what remains is bfloat16 weights (2^-9) or float16
# scales.
ALIGNED_ERROR = {"decode": 1.2e-3, "prompt": 2.5e-3, "exact": 2e-6}


@pytest.fixture(scope="session", autouse=True)
def compiled(request: pytest.FixtureRequest) -> None:
    """The kernels of all selected tests, compiled together: one at a time, each would start a compiler of its own."""
    wanted: dict[str, set[str]] = {level: set() for level in LEVELS}
    for item in request.session.items:
        if item.path == Path(__file__) and isinstance(item, pytest.Function) and "level" in item.fixturenames:
            params = item.callspec.params
            kinds = [f"embed.lookup[{params['name']}]"]
            if path := params.get("path"):
                whole = path == "exact" or params["name"] in FLOATS  # no int8 activations
                decode = "gemv.dense" if whole else "gemv.decode"
                prompt = "gemm.exact" if whole else "gemm.prompt"
                kinds = [f"{decode if path == 'decode' else prompt}[{params['name']}]"]
            wanted[params["level"]].update(kinds)
    for level, names in wanted.items():
        jit.load(names, api.isa.require(level))


def k_of(name: str) -> int:
    """A row of an odd number of blocks."""
    return 3 * 256 if row_bytes(name, 32) == 0 else 17 * 32


def product(weights: Array, x: Array) -> Array:
    """x @ W.T in float64."""
    y: Array = x.astype(np.float64) @ weights.astype(np.float64).T
    return y


def normalised_error(weights: Array, x: Array, y: Array) -> Array:
    """(y - x @ W.T) in units of |x| |w| / sqrt(k), float64 [m, n]."""
    norms = np.linalg.norm(x.astype(np.float64), axis=1)[:, None] * np.linalg.norm(weights.astype(np.float64), axis=1)
    error: Array = (y - product(weights, x)) * np.sqrt(x.shape[1]) / norms
    return error


def check(name: str, weights: Array, x: Array, y: Array, path: str) -> None:
    """Fail unless y is x @ W.T as well as the type's path can be expected to give it."""
    bound = RMS_EXACT if path == "exact" else RMS_BF16 if name in FLOATS else RMS_INT8
    error = normalised_error(weights, x, y)
    rms = float(np.sqrt(np.mean(error**2)))
    assert rms <= bound, f"root mean square error {rms:.2e}"
    largest = float(np.abs(error).max())
    assert largest <= MAX_OVER_RMS * bound, f"largest error {largest:.2e} at {np.abs(error).argmax()}"


@functools.cache
def case(name: str, n: int = 50) -> tuple[Array, Array, Array]:
    """Blocks, their float32 values [n, k] and activations [129, k] of one type."""
    blocks = random_weights(name, n, k_of(name), seed=1)
    x = np.random.default_rng(2).standard_normal((max(BATCHES), k_of(name))).astype(np.float32)
    return blocks, dequantize(name, blocks), x


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", MATMUL_TYPES)
def test_matmul(name: str, level: str, path: str) -> None:
    """The product is right for the largest batch, and each row's bits are the same in every smaller one."""
    blocks, weights, x = case(name)
    n, k = weights.shape
    largest = api.matmul(name, blocks, n, k, x, path=path, isa_level=level)
    assert largest.dtype == np.float32
    check(name, weights, x, largest, path)
    for m in BATCHES:
        y = api.matmul(name, blocks, n, k, x[:m], path=path, isa_level=level)
        assert y.shape == (m, n)
        np.testing.assert_array_equal(y, largest[:m], err_msg=f"m = {m}")


@pytest.mark.parametrize("path", ["decode", "prompt"])
@pytest.mark.parametrize(("name", "level"), RARE_CASES)
def test_matmul_of_rare_types(name: str, level: str, path: str) -> None:
    """The same with fewer batches, and with the largest activations of equal sign, whose 8-bit products clip first."""
    blocks, weights, x = case(name)
    n, k = weights.shape
    largest = api.matmul(name, blocks, n, k, x[:33], path=path, isa_level=level)
    check(name, weights, x[:33], largest, path)
    for m in (1, 2, 5):
        y = api.matmul(name, blocks, n, k, x[:m], path=path, isa_level=level)
        np.testing.assert_array_equal(y, largest[:m], err_msg=f"m = {m}")
    extremes = np.stack([np.ones(k), np.where(weights[3] < 0, -1.0, 1.0)]).astype(np.float32)
    y = api.matmul(name, blocks, n, k, extremes, path=path, isa_level=level)
    limit = ALIGNED_ERROR[path] * np.linalg.norm(extremes, axis=1)[:, None] * np.linalg.norm(weights, axis=1)
    assert (np.abs(y - product(weights, extremes)) <= limit).all()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", MATMUL_TYPES)
def test_matmul_does_not_saturate(name: str, level: str, path: str) -> None:
    """Largest weights times largest activations of equal sign: sums of 8-bit products must not clip at 16 bits."""
    n, k = 16, k_of(name)
    for fill in (0x00, 0x7F, 0x80, 0xFF):
        blocks = np.full((n, row_bytes(name, k)), fill, np.uint8)
        if name in FLOATS:
            blocks = random_weights(name, n, k)
        by_block = blocks.reshape(n, k // 256 if name.endswith("_K") else k // 32, -1)
        for offset in F16_SCALES.get(name, []):
            set_f16(by_block, offset, np.full(by_block.shape[:2], 0.25))
        weights = dequantize(name, blocks)
        # Ones, minus ones, alternating, and the signs of a row of weights: exact in int8 with a scale of 1/127.
        signs = np.where(weights[3] < 0, -1.0, 1.0)
        x = np.stack([np.ones(k), -np.ones(k), np.resize([1.0, -1.0], k), signs]).astype(np.float32)
        y = api.matmul(name, blocks, n, k, x, path=path, isa_level=level)
        limit = ALIGNED_ERROR[path] * np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(weights, axis=1)
        assert (np.abs(y - product(weights, x)) <= limit).all(), f"blocks filled with {fill:#x}"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("m", [1, 129])
def test_matmul_sees_no_row_but_its_own(path: str, m: int) -> None:
    """Zero activations give zero, and an all-zero row among others changes nothing for them."""
    blocks, weights, x = case("Q4_K")
    n, k = weights.shape
    holes = x[:m].copy()
    holes[::2] = 0
    y = api.matmul("Q4_K", blocks, n, k, holes, path=path)
    np.testing.assert_array_equal(y[::2], 0)
    np.testing.assert_array_equal(y[1::2], api.matmul("Q4_K", blocks, n, k, x[:m], path=path)[1::2])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", [name for name in MATMUL_TYPES if name in F16_SCALES])
def test_the_bounds_find_a_wrong_scale(name: str, path: str) -> None:
    """All scales 3 % off, or a single block's scale doubled, is more than the bounds let pass."""
    blocks, weights, x = case(name)
    n, k = weights.shape
    y = api.matmul(name, blocks, n, k, x, path=path)
    check(name, weights, x, y, path)
    for offset in F16_SCALES[name]:
        for rows, columns, factor in ((slice(None), slice(None), 1.03), (slice(7, 8), slice(1, 2), 2.0)):
            wrong = blocks.reshape(n, k // (256 if name.endswith("_K") else 32), -1).copy()
            scales = get_f16(wrong, offset)
            scales[rows, columns] *= factor
            set_f16(wrong, offset, scales)
            with pytest.raises(AssertionError, match=r"root mean square error|largest error"):
                check(name, dequantize(name, wrong.reshape(n, -1)), x, y, path)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ORACLE_TYPES)
def test_embedding_is_bit_equal_to_the_oracle(name: str, level: str) -> None:
    """Rows looked up in any order have exactly the float32 values that the `gguf` package gives."""
    blocks = random_weights(name, 40, 512, seed=3)
    ids = np.array([0, 39, 7, 7, 21, 38, 1], np.int32)
    values = api.embed(name, blocks, ids, 512, isa_level=level)
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values.view(np.uint32), dequantize(name, blocks)[ids].view(np.uint32))


PLAIN = {"I8": np.int8, "I16": np.int16, "I32": np.int32, "I64": np.int64, "F64": np.float64}


@pytest.mark.parametrize("name", PLAIN)
def test_embedding_of_plain_types(name: str) -> None:
    """Numbers that float32 holds exactly come back as they are."""
    table = np.random.default_rng(4).integers(-128, 128, (5, 64)).astype(PLAIN[name])
    ids = np.array([4, 0, 2], np.int32)
    np.testing.assert_array_equal(api.embed(name, table.view(np.uint8), ids, 64), table[ids].astype(np.float32))


def test_embedding_of_q8_1() -> None:
    """A Q8_1 block is float16 d, float16 d * sum(q), 32 int8: value = d * q."""
    q = np.arange(-16, 16, dtype=np.int8)
    block = np.concatenate([np.array([0.5, 0.5 * q.sum()], np.float16).view(np.uint8), q.view(np.uint8)])
    values = api.embed("Q8_1", block[None], np.zeros(1, np.int32), 32)
    np.testing.assert_array_equal(values[0], np.arange(-8, 8, 0.5))


def test_embedding_of_q8_k() -> None:
    """A Q8_K block is float32 d, 256 int8, 16 int16 sums: value = d * q."""
    q = np.arange(-128, 128).astype(np.int8)
    sums = q.reshape(16, 16).sum(axis=1, dtype=np.int16)
    block = np.concatenate([np.array([0.25], np.float32).view(np.uint8), q.view(np.uint8), sums.view(np.uint8)])
    values = api.embed("Q8_K", block[None], np.zeros(1, np.int32), 256)
    np.testing.assert_array_equal(values[0], np.arange(-32, 32, 0.25))
