"""Greedy pair merging, the heart of BPE and of SentencePiece's BPE: always the best-ranked pair, leftmost first."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from itertools import pairwise

_NEVER = 1 << 62
_SHORT = 32  # below this many symbols a scan per merge is faster than a heap


def merge(symbols: list[str], ranks: Mapping[str, int], glue: str) -> list[str]:
    """`symbols` merged until no neighbours a, b have `a + glue + b` in `ranks`; the lowest rank goes first.

    O(n log n) in the number of symbols. The argument may be changed and returned.
    """
    return _merge_short(symbols, ranks, glue) if len(symbols) < _SHORT else _merge_long(symbols, ranks, glue)


def _merge_short(symbols: list[str], ranks: Mapping[str, int], glue: str) -> list[str]:
    get = ranks.get
    pairs = [get(a + glue + b, _NEVER) for a, b in pairwise(symbols)]
    while pairs and (best := min(pairs)) != _NEVER:
        i = pairs.index(best)
        joined = symbols[i] + symbols.pop(i + 1)
        symbols[i] = joined
        del pairs[i]
        if i:
            pairs[i - 1] = get(symbols[i - 1] + glue + joined, _NEVER)
        if i < len(pairs):
            pairs[i] = get(joined + glue + symbols[i + 1], _NEVER)
    return symbols


def _merge_long(symbols: list[str], ranks: Mapping[str, int], glue: str) -> list[str]:
    get, n = ranks.get, len(symbols)
    after = list(range(1, n + 1))  # index of the next living symbol, n at the end
    before = list(range(-1, n))  # (n + 1,): one more so that before[n] may be written
    pairs = [get(a + glue + b) for a, b in pairwise(symbols)]
    pairs.append(None)  # (n,) rank of each symbol with its next one
    heap = [rank << 32 | i for i, rank in enumerate(pairs) if rank is not None]
    heapify(heap)
    while heap:
        key = heappop(heap)
        i = key & 0xFFFFFFFF
        if pairs[i] != key >> 32:
            continue  # one of the two was merged meanwhile
        j = after[i]
        joined = symbols[i] + symbols[j]
        symbols[i], symbols[j] = joined, ""
        pairs[j] = None
        k = after[i] = after[j]
        before[k] = i
        rank = pairs[i] = get(joined + glue + symbols[k]) if k < n else None
        if rank is not None:
            heappush(heap, rank << 32 | i)
        h = before[i]
        if h >= 0:
            rank = pairs[h] = get(symbols[h] + glue + joined)
            if rank is not None:
                heappush(heap, rank << 32 | h)
    return [s for s in symbols if s]
