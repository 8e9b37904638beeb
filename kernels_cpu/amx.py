"""The slab matmul on AMX: bf16 weights decoded row by row are the A operand as they are, packed tokens the B operand.

Four C tiles of 16 x 16 f32 hold 32 rows by 32 tokens. k is taken in stretches of AMX_K, so that the stretch of 32
tokens (32 kB) stays in the first-level cache while all rows of the slab stream past it from the second, and the sums
(AMX_ROWS x AMX_TOKENS f32) wait there for the next stretch. Sums are made in the order of k whatever the slab, and
there is no scale epilogue.
"""

from __future__ import annotations

from .amx_decode import LINE, row_bf16
from .amx_tiles import configure, release, tile_dot, tile_load, tile_store, tile_stream, tile_zero
from .gemm import write_out
from .layout import AMX_K, AMX_ROWS, AMX_TOKENS
from .simd import TILE, atomic_add, i32_at, i64_at, inline, prefetch

AHEAD = 8  # rows of software prefetch, each of one stretch of k

_zero0, _zero1, _zero2, _zero3 = (tile_zero(t) for t in range(4))
_load0, _load1, _load2, _load3 = (tile_load(t) for t in range(4))
_stream_a0, _stream_a1 = tile_stream(4), tile_stream(5)
_load_b0, _load_b1 = tile_load(6), tile_load(7)
_store0, _store1, _store2, _store3 = (tile_store(t) for t in range(4))
_dot0, _dot1, _dot2, _dot3 = tile_dot(0, 4, 6), tile_dot(1, 4, 7), tile_dot(2, 5, 6), tile_dot(3, 5, 7)


@inline
def multiply(xt, a, steps, c, add, state):
    """32 rows of weights by 32 tokens over `steps` times 32 of k -> c (token half, 32 rows, 16); add: += there."""
    if add:
        _load0(state, c, 64)
        _load1(state, c + 2048, 64)
        _load2(state, c + 1024, 64)
        _load3(state, c + 3072, 64)
    else:
        _zero0(state)
        _zero1(state)
        _zero2(state)
        _zero3(state)
    for _ in range(steps):
        _stream_a0(state, a, 64)
        _load_b0(state, xt, 64)
        _dot0(state)
        _load_b1(state, xt + 1024, 64)
        _dot1(state)
        _stream_a1(state, a + 1024, 64)
        _dot2(state)
        _dot3(state)
        a += LINE
        xt += LINE
    _store0(state, c, 64)
    _store1(state, c + 2048, 64)
    _store2(state, c + 1024, 64)
    _store3(state, c + 3072, 64)


@inline
def slab_rows(n, experts, nth):
    """Rows of a slab: as many as the scratch holds, fewer where threads would be left without work."""
    rows = AMX_ROWS
    while rows > 32 and experts * ((n + rows - 1) // rows) < 4 * nth:
        rows //= 2
    return rows


def prompt(name):
    """Slab matmul of any type with bf16 tiles of tokens, k a multiple of 32. config: address of the 64-byte tile
    configuration; the other fields are gemm.slab_kernel's.

    scratch: per thread bf16 (AMX_ROWS / 32, AMX_K / 32, 32, 32) weights, f32 (AMX_TOKENS / 32, AMX_ROWS / 32, 2, 32,
    16) sums, and 16 kB for one row, one transposition and emulated tiles (layout.amx_scratch_bytes).
    """
    row_bytes, decode_row = row_bf16(name)

    @inline
    def decode(w, ld, rows, k, slab, scratch, stretch_bytes):
        for r in range(rows):
            for line in range(0, stretch_bytes, 64):
                prefetch(w + ld * (r + AHEAD) + line)
            decode_row(w + ld * r, k, slab + 2 * AMX_K * (r // 32 * 32) + 64 * (r % 32), scratch)

    def amx_matmul(
        tid, nth, count, x, w, n, k, y, ldy, accumulate, scratch, ld_scratch, cursor, experts, segments, expert_bytes,
        config,
    ):  # fmt: skip
        m = i64_at(count)
        if m == 0:
            return
        configure(config)
        slab = scratch + ld_scratch * tid
        c = slab + 2 * AMX_ROWS * AMX_K
        spare = c + 4 * AMX_ROWS * AMX_TOKENS
        height = slab_rows(n, experts, nth)
        slabs, ld = (n + height - 1) // height, row_bytes(k)
        while True:
            item = atomic_add(cursor, 1)
            if item >= slabs * experts:
                break
            expert, first = item // slabs, height * (item % slabs)
            t0, t1 = 0, (m + TILE - 1) // TILE
            if segments:
                t0, t1 = i32_at(segments + 4 * expert), i32_at(segments + 4 * expert + 4)
            rows, weights = min(height, n - first), w + expert_bytes * expert + ld * first
            for start in range(t0, t1, AMX_TOKENS // TILE):
                for at in range(0, k, AMX_K):
                    width = min(AMX_K, k - at)
                    decode(weights + row_bytes(at), ld, rows, width, slab, spare, row_bytes(width))
                    for t in range(start, min(t1, start + AMX_TOKENS // TILE)):
                        tokens = TILE if segments else min(TILE, m - TILE * t)
                        for r in range(0, rows, 32):
                            sums = c + 128 * (AMX_ROWS * (t - start) + r)
                            multiply(x + 64 * (k * t + at), slab + 2 * AMX_K * r, width // 32, sums, at, spare)
                            if at + width == k:
                                out = y + ldy * TILE * t + 4 * (first + r)
                                write_out(sums, 32, spare, out, ldy, tokens, min(32, rows - r), accumulate)
        release()

    return amx_matmul
