"""Byte layouts that kernels and the program that plans them share. No Numba here: the planner imports this."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

# The batch header: int64 slots. A kernel's `batch` argument is its address.
BATCH_TOKENS = 0  # number of token rows
BATCH_SEQS = 1  # number of sequences
BATCH_OUT = 2  # number of rows that want logits
BATCH_IDS = 3  # -> i32 (tokens,) token ids
BATCH_POS = 4  # -> i32 (tokens,) position of each row in its sequence
BATCH_SEQ = 5  # -> i32 (tokens,) sequence index of each row
BATCH_OUT_ROWS = 6  # -> i32 (out,) rows that want logits
BATCH_TABLES = 7  # -> i64 (seqs,) address of each sequence's block table, i32 page numbers
BATCH_STARTS = 8  # -> i32 (seqs + 1,) first row of each sequence
BATCH_LOGITS = 9  # -> f32 (out, n_vocab) where logits go
BATCH_SLOTS = 10

PAGE = 32  # tokens in a KV page
KV_QUANTS = {"q8_0": 34, "q4_0": 18}  # kinds of KV cache in blocks of 32 components of a head
KV_TYPES = {"f16": 64, "bf16": 64, "f32": 128, **KV_QUANTS}  # all of them, and the bytes of a component of PAGE tokens
PIECE = 128  # tokens in one piece of the KV axis that decode attention splits over threads

BLOCK = 32  # query tokens of one work item of prompt attention
AMX_BLOCK = 64  # and of its AMX form

SUPER = 384  # bytes of 256 quantised activations of one row: i8, scales, sums
GROUP = 4  # rows that native matmuls take side by side
NATIVE_K = 256  # the shortest row that native matmuls of quantised types take

SLAB = 48  # weight rows decoded at a time by the slab matmul
AMX_ROWS = 256  # the same on AMX, at most,
AMX_K = 512  # weights of each row that are decoded at a time,
AMX_TOKENS = 512  # and tokens whose sums are kept meanwhile


def q8_row_bytes(k: int) -> int:
    """Bytes of one quantised activation row for the native matmuls; see native for what is in them."""
    return -(-k // 256) * SUPER


def native_row_bytes(k: int) -> int:
    """Bytes of an unpacked weight row: u8, scales by lanes, mins; the rest keeps rows off a page's multiple."""
    return (k + 255) // 256 * (256 + 12 * 16) + 64


def native_scratch_bytes(k: int) -> int:
    """Per-thread scratch of a native matmul: four unpacked rows."""
    return 4 * native_row_bytes(k)


def q8_tile_bytes(k: int, tile: int) -> int:
    """`tile` tokens quantised: i8 (k/4, tile, 4), f32 (k/32, tile) scales, i32 (k/16, tile) sums."""
    return tile * (k + k // 8 + k // 4)


def bf16_tile_bytes(k: int, tile: int) -> int:
    """`tile` tokens in bfloat16, as AMX wants its B operand: (k/32, tile/16, 16 pairs, 16 tokens, 2)."""
    return 2 * k * tile


def f32_tile_bytes(k: int, tile: int) -> int:
    """`tile` tokens unquantised: f32 (k, tile)."""
    return 4 * k * tile


def slab_scratch_bytes(k: int, tile: int) -> int:
    """Per-thread scratch of a slab matmul over k: the widest slab (f32 rows plus one row of u8), output tiles.

    Memory is taken when touched, so that one size serves every form of it.
    """
    return max(4 * SLAB * k + 4 * k + 8 * SLAB * tile + 4096, amx_scratch_bytes())


def amx_scratch_bytes() -> int:
    """Per-thread scratch of the AMX slab matmul: weights, sums, and room for one row, transposing, emulated tiles."""
    return AMX_ROWS * (2 * AMX_K + 4 * AMX_TOKENS) + 16384


def attention_scratch_bytes(d_k: int, d_v: int, group: int) -> int:
    """Per-thread scratch of prompt attention: f32 K and V of a piece, scores of four queries, values, max and sum."""
    queries = BLOCK * group + 4
    return 4 * (PIECE * (d_k + d_v + 4) + queries * (d_v + 2))


def amx_attention_scratch_bytes(d_k: int, d_v: int, group: int) -> int:
    """Per-thread scratch of prompt attention by tiles: see attn_amx.prompt."""
    wide_k, wide_v, queries = -(-d_k // 32) * 32, -(-d_v // 32) * 32, -(-AMX_BLOCK * group // 32) * 32
    return 2 * PIECE * (wide_k + wide_v) + 6 * 32 * PIECE + 8192 + queries * (2 * wide_k + 4 * wide_v + 8)


def decode_scratch_bytes(d_k: int, d_v: int) -> int:
    """Per-thread scratch of decode attention, for four heads: scores, weights of a page, queries, values."""
    return -(-16 * (PIECE + PAGE + d_k + d_v) // 64) * 64


def amx_config() -> npt.NDArray[np.uint8]:
    """Tile configuration (palette 1): eight tiles of 16 rows of 64 bytes."""
    config = np.zeros(64, np.uint8)
    config[0] = 1
    config[16:32].view(np.uint16)[:] = 64
    config[48:56] = 16
    return config
