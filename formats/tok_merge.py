"""Greedy pair merging, the heart of BPE and of SentencePiece's BPE: always the best-ranked pair, leftmost first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise

from edgert.formats.texts import Index

NEVER = 1 << 62  # the rank of what is not merged
_KNOWN = 1 << 16
_SHORT = 32  # below this many symbols a scan per merge is faster than a heap


class Ranks(dict[str, int]):
    """Rank of a joined pair, `NEVER` where it has none; those asked for are remembered."""

    def __init__(self, index: Index, ranks: Sequence[int] | None = None) -> None:
        """ranks: by position in the index; None: the position is the rank."""
        self._index, self._ranks = index, ranks

    def __missing__(self, pair: str) -> int:
        at = self._index.get(pair)
        rank = NEVER if at is None else at if self._ranks is None else self._ranks[at]
        if len(self) >= _KNOWN:
            self.clear()
        self[pair] = rank
        return rank


def merge(symbols: list[str], rank_of: Callable[[str], int], glue: str) -> list[str]:
    """`symbols` merged until no neighbours a, b have a rank as `a + glue + b`; the lowest rank goes first.

    O(n log n) in the number of symbols. The argument may be changed and returned.
    """
    return (_merge_short if len(symbols) < _SHORT else _merge_long)(symbols, rank_of, glue)


def _merge_short(symbols: list[str], get: Callable[[str], int], glue: str) -> list[str]:
    pairs = [get(a + glue + b) for a, b in pairwise(symbols)]
    while pairs and (best := min(pairs)) != NEVER:
        i = pairs.index(best)
        joined = symbols[i] + symbols.pop(i + 1)
        symbols[i] = joined
        del pairs[i]
        if i:
            pairs[i - 1] = get(symbols[i - 1] + glue + joined)
        if i < len(pairs):
            pairs[i] = get(joined + glue + symbols[i + 1])
    return symbols


def _merge_long(symbols: list[str], get: Callable[[str], int], glue: str) -> list[str]:
    n = len(symbols)
    after = list(range(1, n + 1))  # index of the next living symbol, n at the end
    before = list(range(-1, n))  # (n + 1,): one more so that before[n] may be written
    pairs = [get(a + glue + b) for a, b in pairwise(symbols)]
    pairs.append(NEVER)  # (n,) rank of each symbol with its next one
    heap = [rank << 32 | i for i, rank in enumerate(pairs) if rank != NEVER]
    heapify(heap)
    while heap:
        key = heappop(heap)
        i = key & 0xFFFFFFFF
        if pairs[i] != key >> 32:
            continue  # one of the two was merged meanwhile
        j = after[i]
        joined = symbols[i] + symbols[j]
        symbols[i], symbols[j] = joined, ""
        pairs[j] = NEVER
        k = after[i] = after[j]
        before[k] = i
        rank = pairs[i] = get(joined + glue + symbols[k]) if k < n else NEVER
        if rank != NEVER:
            heappush(heap, rank << 32 | i)
        h = before[i]
        if h >= 0:
            rank = pairs[h] = get(symbols[h] + glue + joined)
            if rank != NEVER:
                heappush(heap, rank << 32 | h)
    return [s for s in symbols if s]
