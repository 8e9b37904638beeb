"""Random but valid blocks of every ggml type, and the `gguf` package's float values of them."""

from __future__ import annotations

import gguf
import numpy as np
import numpy.typing as npt
from gguf import quants

U8 = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]

# Byte offsets of the float16 scales (and minimums) inside one block; every other byte may take any value.
F16_SCALES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
    "IQ1_S": [0], "IQ2_XXS": [0], "IQ2_XS": [0], "IQ2_S": [0], "IQ3_XXS": [0], "IQ3_S": [0],
    "IQ4_NL": [0], "IQ4_XS": [0], "TQ1_0": [52], "TQ2_0": [64],
}  # fmt: skip
FLOATS: dict[str, npt.DTypeLike] = {"F32": np.float32, "F16": np.float16}
FOR_DOTS = {"Q8_1": (np.float16, 32), "Q8_K": (np.float32, 256)}  # scale and weights of a block; `gguf` lacks them
ORACLE_TYPES = [*FLOATS, "BF16", *F16_SCALES, "IQ1_M", "MXFP4", "NVFP4"]  # all that `gguf` can dequantise


def row_bytes(name: str, k: int) -> int:
    """Bytes of one row of k values."""
    if name == "Q8_1":
        return k // 32 * 36  # `gguf` has the size of an older form, with float32 d and s
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    return k // block * size


def random_weights(name: str, n: int, k: int, seed: int = 0) -> U8:
    """n rows of k values as random blocks of the type, uint8 [n, row bytes]; all scales finite and of ordinary size."""
    rng = np.random.default_rng(seed)
    if name in FLOATS:
        return rng.standard_normal((n, k)).astype(FLOATS[name]).view(np.uint8)
    if name == "BF16":
        bits = rng.standard_normal((n, k)).astype(np.float32).view(np.uint32) >> np.uint32(16)
        return bits.astype(np.uint16).view(np.uint8)
    if name in FOR_DOTS:
        return _blocks_for_dots(name, n, k, rng)
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    blocks = rng.integers(0, 256, (n, k // block, size), dtype=np.uint8)
    shape = blocks.shape[:2]
    for i, offset in enumerate(F16_SCALES.get(name, [])):
        # A minimum (i = 1) is some half of the largest quant times the scale, as in real files.
        set_f16(blocks, offset, np.exp2(rng.uniform(-7, -4, shape) + 3 * i) * rng.choice([-1, 1], shape))
    if name == "IQ1_M":  # the float16 scale is spread over the top four bits of four words
        scale = np.exp2(rng.uniform(-7, -4, shape)).astype(np.float16).view(np.uint16)
        for i in range(4):
            high = (scale >> np.uint16(4 * i) & np.uint16(15)).astype(np.uint8)
            blocks[:, :, 49 + 2 * i] = blocks[:, :, 49 + 2 * i] & 15 | high << 4
    elif name == "MXFP4":  # one exponent byte; 127 is 1.0
        blocks[:, :, 0] = rng.integers(122, 127, shape)
    elif name == "NVFP4":  # four unsigned E4M3 bytes; 0x7F is not a number
        blocks[:, :, :4] = rng.integers(0, 0x7F, (*shape, 4))
    return blocks.reshape(n, -1)


def _blocks_for_dots(name: str, n: int, k: int, rng: np.random.Generator) -> U8:
    """Scale, sums and quants, in the order of the type. The sums are not looked at."""
    kind, block = FOR_DOTS[name]
    q = rng.integers(-128, 128, (n, k // block, block), dtype=np.int8).view(np.uint8)
    d = rng.standard_normal((n, k // block, 1)).astype(kind).view(np.uint8)
    sums = rng.integers(0, 256, (n, k // block, 2 if name == "Q8_1" else 32), dtype=np.uint8)
    return np.concatenate([d, sums, q] if name == "Q8_1" else [d, q, sums], axis=2).reshape(n, -1)


def set_f16(blocks: U8, offset: int, values: npt.ArrayLike) -> None:
    """Write float16 values at a byte offset of each block of uint8 [..., block bytes]."""
    blocks[..., offset : offset + 2] = np.asarray(values).astype(np.float16)[..., None].view(np.uint8)


def get_f16(blocks: U8, offset: int) -> F32:
    """The float16 values at a byte offset of each block of uint8 [..., block bytes], as float32 [...]."""
    values: F32 = np.ascontiguousarray(blocks[..., offset : offset + 2]).view(np.float16)[..., 0].astype(np.float32)
    return values


def dequantize(name: str, weights: U8) -> F32:
    """What the `gguf` package makes of uint8 [n, row bytes] (d * q for the types that it lacks): float32 [n, k]."""
    if name in FOR_DOTS:
        kind, block = FOR_DOTS[name]
        blocks = weights.reshape(len(weights), -1, row_bytes(name, block))
        d = np.ascontiguousarray(blocks[..., : np.dtype(kind).itemsize]).view(kind).astype(np.float32)
        q = blocks[..., 4 : 4 + block].view(np.int8)
        return (d * q.astype(np.float32)).reshape(len(weights), -1)
    data = weights.view(FLOATS[name]) if name in FLOATS else weights
    values: F32 = quants.dequantize(data, gguf.GGMLQuantizationType[name])
    return values
