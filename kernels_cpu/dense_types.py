"""Which types have which kernels, and their block sizes, for the planner. No Numba here."""

from __future__ import annotations

# name: (weights, bytes) of a block
BLOCKS: dict[str, tuple[int, int]] = {
    "F32": (1, 4), "F16": (1, 2), "BF16": (1, 2),
    "Q4_0": (32, 18), "Q4_1": (32, 20), "Q5_0": (32, 22), "Q5_1": (32, 24), "Q8_0": (32, 34),
    "Q2_K": (256, 84), "Q3_K": (256, 110), "Q4_K": (256, 144), "Q5_K": (256, 176), "Q6_K": (256, 210),
}  # fmt: skip
FLOAT_TYPES = ("F32", "F16", "BF16")
INTEGER_TYPES = tuple(name for name in BLOCKS if name not in FLOAT_TYPES)


def row_bytes(name: str, k: int) -> int:
    """Bytes of a row of k weights."""
    block, size = BLOCKS[name]
    return k // block * size
