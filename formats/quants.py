"""The ggml tensor types a GGUF file may hold: one row per type.

Ids and block layouts are those of ggml's public headers (`enum ggml_type` in ggml.h, the block structs in
ggml-common.h). Values of a row come in blocks: `block_size` values stored in `type_size` bytes.
"""

from typing import NamedTuple


class GgmlType(NamedTuple):
    """One tensor type: `block_size` consecutive values of a row take `type_size` bytes."""

    id: int
    name: str
    block_size: int
    type_size: int

    def row_bytes(self, n: int) -> int:
        """Bytes of a row of `n` values; `n` must be a multiple of `block_size`."""
        return n // self.block_size * self.type_size


_TYPES = (
    GgmlType(0, "F32", 1, 4),
    GgmlType(1, "F16", 1, 2),
    GgmlType(2, "Q4_0", 32, 2 + 16),
    GgmlType(3, "Q4_1", 32, 2 + 2 + 16),
    GgmlType(6, "Q5_0", 32, 2 + 4 + 16),
    GgmlType(7, "Q5_1", 32, 2 + 2 + 4 + 16),
    GgmlType(8, "Q8_0", 32, 2 + 32),
    GgmlType(9, "Q8_1", 32, 2 + 2 + 32),  # two halves since 2024; the gguf package still counts two floats
    GgmlType(10, "Q2_K", 256, 2 + 2 + 16 + 64),
    GgmlType(11, "Q3_K", 256, 2 + 12 + 32 + 64),
    GgmlType(12, "Q4_K", 256, 2 + 2 + 12 + 128),
    GgmlType(13, "Q5_K", 256, 2 + 2 + 12 + 32 + 128),
    GgmlType(14, "Q6_K", 256, 2 + 16 + 64 + 128),
    GgmlType(15, "Q8_K", 256, 4 + 256 + 32),
    GgmlType(16, "IQ2_XXS", 256, 2 + 64),
    GgmlType(17, "IQ2_XS", 256, 2 + 64 + 8),
    GgmlType(18, "IQ3_XXS", 256, 2 + 64 + 32),
    GgmlType(19, "IQ1_S", 256, 2 + 32 + 16),
    GgmlType(20, "IQ4_NL", 32, 2 + 16),
    GgmlType(21, "IQ3_S", 256, 2 + 64 + 8 + 32 + 4),
    GgmlType(22, "IQ2_S", 256, 2 + 64 + 8 + 8),
    GgmlType(23, "IQ4_XS", 256, 2 + 2 + 4 + 128),
    GgmlType(24, "I8", 1, 1),
    GgmlType(25, "I16", 1, 2),
    GgmlType(26, "I32", 1, 4),
    GgmlType(27, "I64", 1, 8),
    GgmlType(28, "F64", 1, 8),
    GgmlType(29, "IQ1_M", 256, 32 + 16 + 8),
    GgmlType(30, "BF16", 1, 2),
    GgmlType(34, "TQ1_0", 256, 2 + 48 + 4),
    GgmlType(35, "TQ2_0", 256, 2 + 64),
    GgmlType(39, "MXFP4", 32, 1 + 16),
    GgmlType(40, "NVFP4", 64, 4 + 32),
)

GGML_TYPES: dict[int, GgmlType] = {t.id: t for t in _TYPES}
BY_NAME: dict[str, GgmlType] = {t.name: t for t in _TYPES}

REMOVED_TYPES: dict[int, str] = {
    4: "Q4_2", 5: "Q4_3", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8",
    36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8",
}  # fmt: skip
"""Ids that ggml once used and no longer reads; the number is never given out again."""
