"""Random weights straight as blocks of a type, with a standard deviation that keeps activations near one."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import gguf
import numpy as np
import numpy.typing as npt

from quant_blocks import F16_SCALES, dequantize, set_f16

U8 = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]

CHUNK = 8 << 20  # bytes made at a time
# Minimum over scale that centres a block: half of its largest quant, with the sign that the type gives it.
CENTRE = {"Q4_1": -7.5, "Q5_1": -15.5, "Q2_K": 1.5, "Q4_K": 7.5, "Q5_K": 15.5}
# Unsigned word of one value, bits kept random (sign and mantissa), bits of mantissa, exponent bias
FLOATS: dict[str, tuple[str, int, int, int]] = {
    "F32": ("<u4", 0x807FFFFF, 23, 127), "F16": ("<u2", 0x83FF, 10, 15), "BF16": ("<u2", 0x807F, 7, 127),
}  # fmt: skip


def block_of(name: str) -> tuple[int, int]:
    """(values, bytes) of a block of a type."""
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    return int(block), int(size)


def random_bytes(rng: np.random.Generator, count: int) -> U8:
    """uint8 (count,)."""
    return rng.integers(0, 2**64, -(-count // 8), np.uint64).view(np.uint8)[:count]


def weights(rng: np.random.Generator, name: str, count: int, std: float) -> Iterator[U8]:
    """`count` values of about mean 0 and standard deviation `std`, in pieces of whole blocks, as bytes."""
    block, size = block_of(name)
    left = count // block
    while left:
        n = min(left, max(1, CHUNK // size))
        yield _floats(rng, name, n, std) if name in FLOATS else _blocks(rng, name, n, std / unit_std(name))
        left -= n


def _floats(rng: np.random.Generator, name: str, n: int, std: float) -> U8:
    """Random signs and mantissas under one exponent: values of 1 to 2 times a power of two."""
    word, keep, mantissa, bias = FLOATS[name]
    bits = random_bytes(rng, n * np.dtype(word).itemsize).view(word)
    exponent = int(np.clip(round(np.log2(std / 1.53)) + bias, 1, 2 * bias))
    return np.asarray(bits & bits.dtype.type(keep) | bits.dtype.type(exponent << mantissa)).view(np.uint8)


def _blocks(rng: np.random.Generator, name: str, n: int, scale: float) -> U8:
    _, size = block_of(name)
    blocks = random_bytes(rng, n * size).reshape(n, size)
    set_scales(name, blocks, scale * (np.float32(0.5) + rng.random(n, np.float32)))
    if name == "TQ2_0":  # two bits hold 0, 1 or 2: turn 3 into 1
        quants = blocks[:, :64]
        quants ^= (quants & quants >> 1 & 0x55) << 1
    return blocks.reshape(-1)


def set_scales(name: str, blocks: U8, d: F32) -> None:
    """Give each of `blocks` (n, bytes) the scale d (n,), or the nearest power of two where the type has no others."""
    for i, offset in enumerate(F16_SCALES.get(name, [])):
        set_f16(blocks, offset, d * (CENTRE[name] if i else 1))
    if name == "IQ1_M":  # the float16 scale lies in the top four bits of four words
        half = d.astype(np.float16).view(np.uint16)
        for i in range(4):
            nibble = (half >> np.uint16(4 * i) & np.uint16(15)).astype(np.uint8)
            blocks[:, 49 + 2 * i] = blocks[:, 49 + 2 * i] & 15 | nibble << 4
    elif name == "MXFP4":  # one exponent byte, 127 is 1.0
        blocks[:, 0] = np.clip(np.round(np.log2(d)) + 127, 1, 254)
    elif name == "NVFP4":  # four E4M3 bytes: 7 << 3 is 1.0, below 2^-6 the mantissa alone counts 2^-9
        power = np.clip(np.round(np.log2(d)), -9, 8).astype(np.int32)
        code = np.where(power >= -6, (power + 7) << 3, 1 << np.maximum(power + 9, 0))
        blocks[:, :4] = code.astype(np.uint8)[:, None]


@functools.cache
def unit_std(name: str) -> float:
    """Standard deviation of random blocks whose scale is 1, by the `gguf` package's decoder."""
    blocks = _blocks(np.random.default_rng(0), name, 512, 1.0).reshape(512, -1)
    return float(dequantize(name, blocks).std())
