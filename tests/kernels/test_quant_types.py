"""The less common types: every value of a row, and products with rows decoded to f32."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from edgert.formats.quants import BY_NAME
from edgert.kernels_cpu import api, dense_types, jit
from edgert.kernels_cpu import isa as levels
from kernel_calls import LEVELS, Array, assert_same_bits, compile_all

from quant_blocks import dequantize, random_weights, row_bytes

ORACLE = (
    "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0",
    "MXFP4", "NVFP4",
)  # fmt: skip
PLAIN: dict[str, npt.DTypeLike] = {"F64": "f8", "I8": "i1", "I16": "i2", "I32": "i4", "I64": "i8"}
TYPES = (*ORACLE, "Q8_1", "Q8_K", *PLAIN)
# The product around a decoder is the same for all types, so one of each kind is enough below the highest level.
PRODUCTS = [(t, LEVELS[-1]) for t in TYPES] + [(t, at) for t in ("IQ3_S", "TQ1_0", "F64") for at in LEVELS[:-1]]


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    compile_all([*(f"embed.lookup[{t}]" for t in TYPES), "act.pack_tiles"])
    for level in LEVELS:
        jit.load([f"gemm.exact[{t}]" for t, at in PRODUCTS if at == level], levels.BY_NAME[level])


def weights(name: str, n: int, k: int, seed: int) -> tuple[Array, Array]:
    """Rows of a type as bytes, and their float32 values (n, k)."""
    if name in PLAIN:
        table = np.random.default_rng(seed).integers(-128, 128, (n, k)).astype(PLAIN[name])
        return table.view(np.uint8), table.astype(np.float32)
    blocks = random_weights(name, n, k, seed)
    return blocks, dequantize(name, blocks)


def test_every_type_of_a_file_has_a_decoder() -> None:
    """The plain numbers, those with integer kernels and the float types, as large as the file reader takes them."""
    assert {*PLAIN, *dense_types.INTEGER_TYPES, *dense_types.FLOAT_TYPES} == set(dense_types.BLOCKS)
    assert {t.name: (t.block_size, t.type_size) for t in BY_NAME.values()} == dense_types.BLOCKS


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ORACLE)
def test_any_bytes_decode_as_the_oracle_does(name: str, level: str) -> None:
    """65536 weights from random bytes: every point of a grid, every scale, infinite and nan scales too."""
    n, k = 128, 512
    blocks = np.random.default_rng(1).integers(0, 256, (n, row_bytes(name, k)), dtype=np.uint8)
    with np.errstate(invalid="ignore", over="ignore"):
        expected = dequantize(name, blocks)
    assert_same_bits(api.embed(name, blocks, np.arange(n), k, isa_level=level), expected)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["Q8_1", "Q8_K"])
def test_q8(name: str, level: str) -> None:
    blocks, expected = weights(name, 9, 1024, seed=2)
    assert_same_bits(api.embed(name, blocks, np.arange(9), 1024, isa_level=level), expected)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", PLAIN)
def test_plain_numbers_round_to_the_nearest(name: str, level: str) -> None:
    rng = np.random.default_rng(3)
    if name == "F64":
        table = rng.standard_normal((4, 50)) * 10.0 ** rng.integers(-50, 50, (4, 50))
        table[0, :5] = [np.inf, -np.inf, np.nan, 0.1, -0.0]
    else:
        info = np.iinfo(PLAIN[name])
        table = rng.integers(info.min, info.max, (4, 50), PLAIN[name], endpoint=True)
        table[0, :2] = [info.min, info.max]
    with np.errstate(over="ignore", under="ignore"):
        expected = table[[2, 0]].astype(np.float32)
    assert_same_bits(api.embed(name, table.view(np.uint8), [2, 0], 50, isa_level=level), expected)


@pytest.mark.parametrize(("name", "level"), PRODUCTS)
def test_exact_product(name: str, level: str) -> None:
    """Rows not a multiple of six or of a slab, tokens not a multiple of a tile; any path of plain numbers is exact."""
    n, k, tile = 53, 512, levels.BY_NAME[level].tile
    blocks, values = weights(name, n, k, seed=4)
    x = np.random.default_rng(5).standard_normal((tile + 3, k)).astype(np.float32)
    y = api.matmul(name, blocks, n, k, x, path="exact", isa_level=level)
    wide = x.astype(np.float64) @ values.astype(np.float64).T
    norms = np.linalg.norm(x.astype(np.float64), axis=1)[:, None] * np.linalg.norm(values.astype(np.float64), axis=1)
    assert (np.abs(y - wide) / norms).max() <= 5e-7
    for path in ("decode", "prompt") if name in PLAIN else ():
        np.testing.assert_array_equal(api.matmul(name, blocks, n, k, x[:2], path=path, isa_level=level), y[:2])


def block(*parts: bytes | list[int]) -> Array:
    """One block (1, bytes) from its fields."""
    return np.frombuffer(b"".join(bytes(part) for part in parts), np.uint8)[None]


def half(value: float) -> bytes:
    return np.float16(value).tobytes()


# Worked by hand from the layouts: the block, and its first and last weights.
BY_HAND: dict[str, tuple[Array, list[float], list[float]]] = {
    "Q8_1": (block(half(0.5), half(99), [1, 255, *[0] * 29, 128]), [0.5, -0.5, 0], [0, -64]),
    "Q8_K": (block(np.float32(2).tobytes(), [3, 254, *[0] * 253, 127], [7] * 32), [6, -4, 0], [0, 254]),
    "IQ4_NL": (block(half(1), [0xF0, *[0x88] * 14, 0x7A]), [-127, 1, 1], [1, -10]),
    "IQ4_XS": (
        # Scale 33 - 32 for the first 32 (high bits 2, low nibble 1), 0 - 32 for all others.
        block(half(2), [2, 0], [1, 0, 0, 0], [0x0F, *[0x88] * 127]),
        [226, 2, 2],
        [-64, -64],
    ),
    "TQ1_0": (block([255, 0, *[0] * 50], half(3)), [3, -3, -3], [-3, -3]),
    "TQ2_0": (block([0b10, 0b01, *[0] * 61, 0b11000000], half(2)), [2, 0, -2], [-2, 4]),
    "MXFP4": (block([128], [0x7F, *[0] * 14, 0x21]), [-12, 0, 0], [0, 2]),
    # Scales 1.0 (exponent 7), 2^-9 (the smallest), none, 1.875 (mantissa 7/8): halves of them times doubled numbers.
    "NVFP4": (block([7 << 3, 1, 0x7F, 7 << 3 | 7], [0x07, *[0] * 30, 0xF2]), [6, 0, 0], [0, -11.25]),
    # Index 0 of each grid is its lowest point, here 32 times the same.
    "IQ1_S": (block(half(1), [0] * 32, [0, 0x80] * 8), [-1.125] * 3, [-1.125] * 2),
    "IQ1_M": (block([0] * 32, [0] * 16, [0, 0, 0, 0, 0, 0xC0, 0, 0x30]), [-0.875] * 3, [-0.875] * 2),
    "IQ2_XXS": (block(half(1), [0, 0, 0, 0, 1, 0, 0, 0] * 8), [-1, 1, 1], [1, 1]),
    "IQ2_XS": (block(half(1), [0, 2] * 32, [0x10] * 8), [-1, 1, 1], [3, -3]),
    "IQ2_S": (block(half(1), [0] * 32, [1] * 32, [0] * 8, [0x10] * 8), [-1, 1, 1], [3, 3]),
    "IQ3_XXS": (block(half(1), [0] * 64, [3, 0, 0, 0x10] * 8), [-3, -3, 3], [3, 3]),
    "IQ3_S": (block(half(1), [0] * 64, [0] * 8, [128] * 32, [0x10] * 4), [1, 1, 1], [3, -3]),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_HAND)
def test_blocks_worked_by_hand(name: str) -> None:
    data, first, last = BY_HAND[name]
    size, n_bytes = dense_types.BLOCKS[name]
    assert data.shape == (1, n_bytes)
    values = api.embed(name, data, [0], size)[0]
    assert values[: len(first)].tolist() == first
    assert values[-len(last) :].tolist() == last
