"""The paged KV cache: pages for the layers that see equally far, and sequences that hold them by block tables."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

import numpy as np
import numpy.typing as npt

from .errors import EdgertError
from .kernels_cpu.layout import KV_TYPES
from .kernels_cpu.layout import PAGE as PAGE
from .kernels_cpu.team import reserve
from .plan import CacheLayer

MARGIN = 64  # tokens beyond a window that stay, so that as many can be taken back
STATE_PAGES = 4  # that a sequence holds at most when it does not run: its state and checkpoints of it
NO_LIMIT = 1 << 40
GONE = -1  # in place of a page that no window sees any more


def token_bytes(layers: SequenceOf[CacheLayer], kind: str) -> int:
    """KV bytes of one token over all layers."""
    return sum(layer.heads * (layer.d_k + layer.d_v) for layer in layers) * KV_TYPES[kind] // PAGE


def windows(layers: SequenceOf[CacheLayer]) -> list[int]:
    """The windows that layers have (0: all), in the order in which they are numbered as groups."""
    return list(dict.fromkeys(layer.window for layer in layers)) or [0]


class Group:
    """Pages of PAGE tokens for all layers with one window. A page number is the same in each of these layers.

    Layers with a state keep the one after a page's tokens in it. Such a page serves nobody who wants fewer of its
    tokens; most pages of a sequence have none of their own, because the state has moved on to the next.

    A page is used by as many sequences as `hold` it. When nobody does, it is free, or idle if it belongs to the prefix
    cache: then it is taken when no other is free, the one that fell idle first before others.
    """

    def __init__(self, window: int, n_pages: int, memory: list[npt.NDArray[np.uint8]], state: bool) -> None:
        """memory: for each layer, the bytes (n_pages, page bytes). state: whether any of them has one."""
        self.window, self.n_pages, self._memory, self.state = window, n_pages, memory, state
        self._users = [0] * n_pages
        self._free = list(range(n_pages - 1, -1, -1))
        self._idle: dict[int, None] = {}  # in the order in which they fell idle
        self._cached: set[int] = set()
        self.evicted: Callable[[int], None] = lambda page: None  # told of an idle page that is taken

    @property
    def page_bytes(self) -> int:
        """Of all layers."""
        return sum(layer.shape[1] for layer in self._memory)

    @property
    def free(self) -> int:
        """Pages that nobody uses, in the prefix cache or not."""
        return len(self._free) + len(self._idle)

    @property
    def cached(self) -> int:
        """Pages in the prefix cache that nobody uses."""
        return len(self._idle)

    def take(self) -> int:
        """A page for one user; EdgertError when all are in use."""
        if not self._free:
            if not self._idle:
                raise EdgertError(f"the KV cache is full: all {self.n_pages} pages of {PAGE} tokens are in use")
            page = next(iter(self._idle))
            self.evicted(page)  # which frees it
        page = self._free.pop()
        self._users[page] = 1
        return page

    def hold(self, page: int) -> None:
        """One more user of a page."""
        self._idle.pop(page, None)
        self._users[page] += 1

    def drop(self, page: int) -> None:
        """One user less."""
        self._users[page] -= 1
        if not self._users[page]:
            if page in self._cached:
                self._idle[page] = None
            else:
                self._free.append(page)

    def cache(self, page: int) -> None:
        """The page belongs to the prefix cache now."""
        self._cached.add(page)

    def uncache(self, page: int) -> None:
        """No more."""
        self._cached.discard(page)
        if page in self._idle:
            del self._idle[page]
            self._free.append(page)

    def is_own(self, page: int) -> bool:
        """Whether only one sequence can ever see what is in a page."""
        return self._users[page] == 1 and page not in self._cached

    def is_cached(self, page: int) -> bool:
        return page in self._cached

    def copy(self, source: int, to: int) -> None:
        for layer in self._memory:
            layer[to] = layer[source]

    def read(self, page: int) -> bytes:
        """What is in a page, layer after layer."""
        return b"".join(layer[page].tobytes() for layer in self._memory)

    def write(self, page: int, data: memoryview) -> None:
        """Put back what `read` gave."""
        at = 0
        for layer in self._memory:
            size = layer.shape[1]
            layer[page] = np.frombuffer(data[at : at + size], np.uint8)
            at += size

    def close(self) -> None:
        self._memory = []


class PagePool:
    """The groups of all layers. Memory is taken when touched."""

    def __init__(self, layers: SequenceOf[CacheLayer], kind: str, n_pages: SequenceOf[int]) -> None:
        """n_pages: of each group, in the order of `windows`."""
        of = windows(layers)
        self.page_bytes = [PAGE * token_bytes([layer], kind) + -(-layer.state // 64) * 64 for layer in layers]
        counts = [n_pages[of.index(layer.window)] for layer in layers]
        self._memory = reserve(sum(n * size for n, size in zip(counts, self.page_bytes, strict=True)))
        self.addresses: list[int] = []
        memory: list[list[npt.NDArray[np.uint8]]] = [[] for _ in of]
        start = 0
        for layer, n, size in zip(layers, counts, self.page_bytes, strict=True):
            self.addresses.append(int(self._memory.ctypes.data) + start)
            memory[of.index(layer.window)].append(self._memory[start : start + n * size].reshape(n, size))
            start += n * size
        states = {layer.window for layer in layers if layer.state}
        self.groups = [Group(w, n, each, w in states) for w, n, each in zip(of, n_pages, memory, strict=True)]
        self.has_states = bool(states)

    @property
    def n_pages(self) -> int:
        return sum(group.n_pages for group in self.groups)

    @property
    def used(self) -> int:
        """Pages that sequences use."""
        return sum(group.n_pages - group.free for group in self.groups)

    @property
    def cached(self) -> int:
        """Pages that nobody uses, kept for prompts that begin alike."""
        return sum(group.cached for group in self.groups)

    def room(self) -> int:
        """Pages that each group of keys and values can give."""
        return min((group.free for group in self.groups if not group.state), default=NO_LIMIT)

    def state_room(self) -> int:
        """States that each group of them can give."""
        return min((group.free for group in self.groups if group.state), default=NO_LIMIT)

    def close(self) -> None:
        """Give the memory back; nothing may run on it any more."""
        for group in self.groups:
            group.close()
        del self._memory


class Sequence:
    """Tokens whose keys and values are in the cache.

    n_prompt  how many of them, from the start, were computed on the prompt path: only those are reused for another
              prompt, so that an answer does not depend on what was asked before
    pages     for each group the pages in their order, GONE for those that its window no longer sees
    tables    the same for kernels: int32, one for each group
    keys      of its first pages in the prefix cache
    """

    def __init__(self, pool: PagePool, n_ctx: int) -> None:
        self._pool, self.n_ctx = pool, n_ctx
        self.tokens: list[int] = []
        self.n_prompt = 0
        self.keys: list[bytes] = []
        self.pages: list[list[int]] = [[] for _ in pool.groups]
        self.tables: list[npt.NDArray[np.int32]] = [np.zeros(-(-n_ctx // PAGE), np.int32) for _ in pool.groups]

    @property
    def n_pages(self) -> int:
        """Pages held in all groups."""
        return sum(page != GONE for pages in self.pages for page in pages)

    def pages_for(self, n: int) -> int:
        """How many more pages n more tokens need in each group."""
        return -(-(len(self.tokens) + n) // PAGE) - len(self.pages[0])

    def states_for(self, n: int) -> int:
        """How many more pages n more tokens need, at most, in a group of states."""
        return max(
            ((not own or not group.is_own(own[-1])) + (self.pages_for(n) > 0)
             for group, own in zip(self._pool.groups, self.pages, strict=True) if group.state), default=0,
        )  # fmt: skip

    def extend(self, ids: SequenceOf[int], *, prompt: bool) -> None:
        """Make room for ids after what is there. A page is taken when its first token comes; all or none are."""
        if len(self.tokens) + len(ids) > self.n_ctx:
            raise EdgertError(f"{len(self.tokens) + len(ids)} tokens do not fit in the context of {self.n_ctx}")
        more = self.pages_for(len(ids))
        if more > self._pool.room() or self.states_for(len(ids)) > self._pool.state_room():
            raise EdgertError(f"the KV cache is full: all {self._pool.n_pages} pages of {PAGE} tokens are in use")
        last = len(self.pages[0]) + more - 1
        for group, own, table in zip(self._pool.groups, self.pages, self.tables, strict=True):
            if group.state and ids:
                self._extend_state(group, own, table, last, keep=prompt)
                continue
            for _ in range(more):
                table[len(own)] = page = group.take()
                own.append(page)
        if prompt and self.n_prompt == len(self.tokens):
            self.n_prompt += len(ids)
        self.tokens.extend(ids)

    def _extend_state(self, group: Group, own: list[int], table: npt.NDArray[np.int32], last: int, *,
                      keep: bool) -> None:  # fmt: skip
        """Pages up to `last`: the state moves on, and only what others use is left behind, where kernels go on from.

        keep: leave a copy at the last end of a page, too.
        """
        page = own[-1] if own else GONE
        if page != GONE and not group.is_own(page) and len(self.tokens) % PAGE:  # tokens come into this page
            group.copy(page, new := group.take())
            group.drop(page)
            own[-1] = table[len(own) - 1] = page = new
        while len(own) <= last:
            at = len(own)
            if page == GONE or not group.is_own(page) or (keep and at == last):
                page = group.take()
            else:
                own[-1] = GONE
            table[at] = page
            own.append(page)

    def append(self, pages: SequenceOf[int]) -> None:
        """Add a page of each group that this sequence is a user of already."""
        for own, table, page in zip(self.pages, self.tables, pages, strict=True):
            table[len(own)] = max(0, page)
            own.append(page)

    def truncate(self, n: int) -> None:
        """Forget all but the first n tokens: any number at the end of `slide`'s margin, or all.

        With states, go back to the last one that is kept and has no more tokens.
        """
        if n < len(self.tokens):
            n = self._checkpoint(n)
        del self.tokens[n:]
        self.n_prompt = min(self.n_prompt, n)
        del self.keys[n // PAGE :]
        keep = -(-n // PAGE)
        for group, own in zip(self._pool.groups, self.pages, strict=True):
            while len(own) > keep:
                if (page := own.pop()) != GONE:
                    group.drop(page)

    def _checkpoint(self, n: int) -> int:
        """The most tokens, at most n but not all there are, of which all states are kept."""
        for group, own in zip(self._pool.groups, self.pages, strict=True):
            if group.state:
                at = n // PAGE
                while at and own[at - 1] == GONE:
                    at -= 1
                n = PAGE * at
        return n

    def first_seen(self, group: Group, margin: int = 0) -> int:
        """The first page that the next token sees in a group."""
        return max(0, len(self.tokens) - group.window + 1 - margin) // PAGE if group.window else 0

    def slide(self) -> None:
        """Give back the pages that windows no longer see."""
        for group, own in zip(self._pool.groups, self.pages, strict=True):
            at = self.first_seen(group, MARGIN)
            while at > 0 and (group.state or own[at - 1] != GONE):
                at -= 1
                if own[at] != GONE:
                    group.drop(own[at])
                    own[at] = GONE

    def fork(self) -> Sequence:
        """Another with the same tokens: full pages are shared, the last is copied if more tokens go there."""
        other = Sequence(self._pool, self.n_ctx)
        other.tokens, other.n_prompt, other.keys = list(self.tokens), self.n_prompt, list(self.keys)
        full = len(self.tokens) // PAGE
        if full < len(self.pages[0]) and min(self._pool.room(), self._pool.state_room()) < 1:
            raise EdgertError("the KV cache is full")
        for group, own, theirs, table in zip(self._pool.groups, self.pages, other.pages, other.tables, strict=True):
            for i, page in enumerate(own):
                if page == GONE:
                    new = GONE
                elif i < full:
                    group.hold(new := page)
                else:
                    group.copy(page, new := group.take())
                theirs.append(new)
                table[i] = max(0, new)
        return other
