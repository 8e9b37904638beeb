"""Selective state spaces: the scans of Mamba (Gu & Dao 2023) and Mamba 2 (Dao & Gu 2024)."""

from __future__ import annotations

from .act import f32x16, full16
from .recur import enter, exp16, silu, softplus
from .simd import f32_at, fma, i32_at, i64_at, store


def scan(tid, nth, batch, cache, page_bytes, x, ldx, dt, lddt, a, b, c, ldbc, d, z, ldz, y, ldy, n, states):
    """Mamba: h = h * exp(dt a) + dt x b; y = (c . h + d x) * silu(z), dt through a softplus.

    Rows: x, dt, z, y of n channels (a multiple of 16), b and c of `states`; a: f32 (states, n), d (n,).
    """
    seqs, starts, tables, positions = i64_at(batch + 8), i64_at(batch + 64), i64_at(batch + 56), i64_at(batch + 32)
    size = 64 * states
    for block in range(n // 16 * tid // nth, n // 16 * (tid + 1) // nth):
        k = 64 * block
        for s in range(seqs):
            table = i64_at(tables + 8 * s)
            for r in range(i32_at(starts + 4 * s), i32_at(starts + 4 * s + 4)):
                h = enter(table, cache, page_bytes, i32_at(positions + 4 * r), size * block, size)
                step, v = softplus(f32x16(dt + lddt * r + k)), f32x16(x + ldx * r + k)
                vin, acc = step * v, f32x16(d + k) * v
                for i in range(states):
                    decay = exp16(step * f32x16(a + 4 * n * i + k))
                    new = fma(f32x16(h + 64 * i), decay, vin * f32_at(b + ldbc * r + 4 * i))
                    store(h + 64 * i, new)
                    acc = fma(new, full16(f32_at(c + ldbc * r + 4 * i)), acc)
                store(y + ldy * r + k, acc * silu(f32x16(z + ldz * r + k)))


def scan_heads(tid, nth, batch, cache, page_bytes, x, ldx, dt, lddt, bias, a, b, c, d, z, ldz, y, ldy, n, heads, groups,
               states):  # fmt: skip
    """Mamba 2: the same with one dt, a and d for each head, and b and c (groups, states) shared by groups of heads.

    x, b and c are parts of the same rows; n / heads is a multiple of 16; bias: of dt (heads,).
    """
    seqs, starts, tables, positions = i64_at(batch + 8), i64_at(batch + 64), i64_at(batch + 56), i64_at(batch + 32)
    size, width = 64 * states, n // heads // 16
    for block in range(n // 16 * tid // nth, n // 16 * (tid + 1) // nth):
        k, head = 64 * block, block // width
        shared = 4 * states * (head // (heads // groups))
        rate, offset, skip = full16(f32_at(a + 4 * head)), full16(f32_at(bias + 4 * head)), full16(f32_at(d + 4 * head))
        for s in range(seqs):
            table = i64_at(tables + 8 * s)
            for r in range(i32_at(starts + 4 * s), i32_at(starts + 4 * s + 4)):
                h = enter(table, cache, page_bytes, i32_at(positions + 4 * r), size * block, size)
                step = softplus(full16(f32_at(dt + lddt * r + 4 * head)) + offset)
                decay, v = exp16(step * rate), f32x16(x + ldx * r + k)
                vin, acc = step * v, skip * v
                pb, pc = b + ldx * r + shared, c + ldx * r + shared
                for i in range(states):
                    new = fma(f32x16(h + 64 * i), decay, vin * f32_at(pb + 4 * i))
                    store(h + 64 * i, new)
                    acc = fma(new, full16(f32_at(pc + 4 * i)), acc)
                store(y + ldy * r + k, acc * silu(f32x16(z + ldz * r + k)))
