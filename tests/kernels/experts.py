"""Products of rows with the weights of the experts they are routed to, by any of the matmul kernels."""

from __future__ import annotations

import numpy as np
from edgert.kernels_cpu import isa, layout
from edgert.kernels_cpu.team import aligned
from kernel_calls import Array, count, run, run_together


def grouped(level: str, ids: Array, experts: int, align: int) -> dict[str, Array]:
    """The results of moe.group."""
    rows, used = ids.shape
    most = rows * used + experts * align
    out: dict[str, Array] = {
        "slots": np.zeros(1, np.int64), "segments": np.full(2 * experts + 1, -9, np.int32),
        "source": np.full(most, -9, np.int32), "expert_of": np.full(most, -9, np.int32),
        "slot_of": np.full((rows, used), -9, np.int32),
    }  # fmt: skip
    run("moe.group", level, 3, count=count(rows), ids=ids, used=used, experts=experts, align=align, **out)
    return out


def some_ids(rows: int, used: int, experts: int) -> Array:
    """Distinct experts for each row, of which number 1 is never chosen and number 0 very often."""
    rng = np.random.default_rng(2)
    others = np.array([rng.permutation(np.arange(2, experts))[:used] for _ in range(rows)])
    others[: rows // 2, 0] = 0
    return others.astype(np.int32)


def expert_matmul(
    level: str, path: str, name: str, x: Array, blocks: Array, out: dict[str, Array], threads: int
) -> Array:
    """Y (slots, n) = the slot's expert's weights times its row, by the prompt, amx, exact or decode kernels."""
    experts, n, row_bytes = blocks.shape
    k, tile, slots = x.shape[1], isa.BY_NAME[level].tile, int(out["slots"][0])
    rows, y = np.zeros((slots, k), np.float32), np.full((slots, n), np.nan, np.float32)
    m = out["slots"]
    run("moe.gather", level, count=m, source=out["source"], x=x, ldx=4 * k, y=rows, ldy=4 * k, n=k)
    common = {"count": m, "w": blocks, "n": n, "k": k, "y": y, "ldy": 4 * n, "accumulate": 0, "cursor": aligned(1),
              "expert_bytes": n * row_bytes}  # fmt: skip
    if path == "decode":
        q8 = np.zeros((slots, layout.q8_row_bytes(k)), np.uint8)
        run("act.quantise_rows", level, count=m, x=rows, ldx=4 * k, k=k, out=q8, group=1)
        ld = layout.native_scratch_bytes(k)
        run_together(
            f"gemv.decode[{name}]", level, threads, x=q8, ldx=q8.strides[0], experts=out["expert_of"], group=1,
            scratch=aligned(threads * ld, np.uint8), ld_scratch=ld, **common
        )  # fmt: skip
        return y
    ld = layout.slab_scratch_bytes(k, tile)
    slab = {"scratch": aligned(threads * ld, np.uint8), "ld_scratch": ld, "experts": experts,
            "segments": out["segments"]}  # fmt: skip
    if path == "amx":
        slab["config"] = layout.amx_config()
    packer, size, kernel = {
        "prompt": ("act.quantise_tiles", layout.q8_tile_bytes(k, tile), "gemm.prompt"),
        "amx": ("act.pack_pairs", layout.bf16_tile_bytes(k, tile), "amx.prompt"),
        "exact": ("act.pack_tiles", layout.f32_tile_bytes(k, tile), "gemm.exact"),
    }[path]
    packed = aligned(-(-slots // tile) * size, np.uint8)
    run(packer, level, count=m, x=rows, ldx=4 * k, k=k, out=packed)
    run_together(f"{kernel}[{name}]", level, threads, x=packed, **common, **slab)
    return y
