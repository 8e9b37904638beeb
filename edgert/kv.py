"""The paged KV cache: a pool of pages, and sequences that hold them by block tables."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import numpy as np
import numpy.typing as npt

from .errors import EdgertError
from .kernels_cpu.layout import PAGE as PAGE
from .kernels_cpu.team import reserve
from .plan import CacheLayer

ELEMENT_BYTES = {"f16": 2, "bf16": 2, "f32": 4}


def token_bytes(layers: SequenceOf[CacheLayer], kind: str) -> int:
    """KV bytes of one token over all layers."""
    return sum(layer.heads * (layer.d_k + layer.d_v) for layer in layers) * ELEMENT_BYTES[kind]


class PagePool:
    """Pages of PAGE tokens for all layers. A page number is the same in every layer; memory is taken when touched."""

    def __init__(self, layers: SequenceOf[CacheLayer], kind: str, n_pages: int) -> None:
        self.n_pages = n_pages
        self.page_bytes = [PAGE * layer.heads * (layer.d_k + layer.d_v) * ELEMENT_BYTES[kind] for layer in layers]
        self._memory = reserve(n_pages * sum(self.page_bytes))
        start = int(self._memory.ctypes.data)
        self.addresses = []
        for size in self.page_bytes:
            self.addresses.append(start)
            start += n_pages * size
        self._free = list(range(n_pages - 1, -1, -1))

    @property
    def free(self) -> int:
        """Pages not in use."""
        return len(self._free)

    def take(self) -> int:
        """A free page; EdgertError when there is none."""
        if not self._free:
            raise EdgertError(f"the KV cache is full: all {self.n_pages} pages of {PAGE} tokens are in use")
        return self._free.pop()

    def drop(self, page: int) -> None:
        """Give a page back."""
        self._free.append(page)

    def close(self) -> None:
        """Give the memory back; nothing may run on it any more."""
        del self._memory


class Sequence:
    """Tokens whose keys and values are in the cache.

    `n_prompt`: how many of them, from the start, were computed on the prompt path. Only those are reused for another
    prompt, so that an answer does not depend on what was asked before.
    """

    def __init__(self, pool: PagePool, n_ctx: int) -> None:
        self._pool = pool
        self.tokens: list[int] = []
        self.n_prompt = 0
        self.table: npt.NDArray[np.int32] = np.zeros(-(-n_ctx // PAGE), np.int32)
        self._n_pages = 0

    @property
    def n_pages(self) -> int:
        return self._n_pages

    def pages_for(self, n: int) -> int:
        """How many more pages n more tokens need."""
        return -(-(len(self.tokens) + n) // PAGE) - self._n_pages

    def extend(self, ids: SequenceOf[int], *, prompt: bool) -> None:
        """Make room for ids after what is there. A page is taken when its first token comes."""
        for _ in range(self.pages_for(len(ids))):
            self.table[self._n_pages] = self._pool.take()
            self._n_pages += 1
        if prompt and self.n_prompt == len(self.tokens):
            self.n_prompt += len(ids)
        self.tokens.extend(ids)

    def truncate(self, n: int) -> None:
        """Forget all but the first n tokens."""
        del self.tokens[n:]
        self.n_prompt = min(self.n_prompt, n)
        keep = -(-n // PAGE)
        while self._n_pages > keep:
            self._n_pages -= 1
            self._pool.drop(int(self.table[self._n_pages]))

    def common(self, ids: SequenceOf[int]) -> int:
        """Length of the longest prefix of ids that this sequence can serve."""
        n = min(self.n_prompt, len(ids))
        if self.tokens[:n] == list(ids[:n]):
            return n
        return next(i for i in range(n) if self.tokens[i] != ids[i])
