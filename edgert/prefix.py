"""Prompts that begin alike share pages: an index of pages by the tokens in them and all before them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np

from .kv import GONE, PAGE, PagePool, Sequence

ROOT = b""
SIBLINGS = 32  # pages after one another that are looked through for a common beginning, the latest first


@dataclass(eq=False)
class Node:
    """A page of prompt tokens, full or the last of a prompt. pages: of each group, GONE where it was given away."""

    key: bytes
    parent: bytes
    tokens: list[int]
    pages: list[int]


def chain(parent: bytes, tokens: SequenceOf[int]) -> bytes:
    """The key of a page: a hash of its tokens and of the key of the page before."""
    return hashlib.blake2b(np.asarray(tokens, "<i4").tobytes(), key=parent, digest_size=16).digest()


def common(a: SequenceOf[int], b: SequenceOf[int]) -> int:
    """Length of the longest common beginning."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    return next(i for i in range(n) if a[i] != b[i])


class Prefixes:
    """The pages of prompts in a pool. A page that no sequence uses stays until the pool needs it.

    Only keys and values from the prompt path are here. Full pages are shared; a part of one is copied.
    """

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self._nodes: dict[bytes, Node] = {}
        self._children: dict[bytes, list[Node]] = {}
        self._owner: list[dict[int, Node]] = [{} for _ in pool.groups]
        for i, group in enumerate(pool.groups):
            group.evicted = lambda page, i=i: self._evict(i, page)  # type: ignore[misc]

    def __len__(self) -> int:
        return len(self._nodes)

    # ---- finding ----

    def find(self, ids: SequenceOf[int], most: int) -> tuple[list[Node], Node | None, int]:
        """(full pages, a page of which only the beginning serves, tokens of all) for a prompt; at most so many tokens.

        As many as all groups have: of a group with a window, only the pages that it sees from the end are needed.
        """
        nodes: list[Node] = []
        key = ROOT
        for start in range(0, most - PAGE + 1, PAGE):
            part = ids[start : start + PAGE]
            key = chain(key, part)
            node = self._nodes.get(key)
            if node is None or node.tokens != list(part):
                break
            nodes.append(node)
        while True:
            parent = nodes[-1].key if nodes else ROOT
            start = PAGE * len(nodes)
            last, n = self._beginning(parent, ids[start : min(most, start + PAGE)])
            if last is not None and not self._usable([*nodes, last], start + n):
                last, n = None, 0
            if not nodes or last is not None or self._usable(nodes, start):
                return nodes, last, start + n
            nodes.pop()

    def _beginning(self, parent: bytes, ids: SequenceOf[int]) -> tuple[Node | None, int]:
        """The page after another that has the longest beginning in common with ids."""
        best, most = None, 0
        for node in reversed(self._children.get(parent, [])[-SIBLINGS:]):
            n = common(node.tokens, ids) if node.tokens[:1] == list(ids[:1]) else 0
            if n > most and (n == len(node.tokens) or not self._pool.has_states):
                best, most = node, n
        return best, most

    def _usable(self, nodes: list[Node], n: int) -> bool:
        """Whether every group has what the token after the first n sees."""
        for i, group in enumerate(self._pool.groups):
            first = max(0, n - group.window + 1) // PAGE if group.window else 0
            if any(node.pages[i] == GONE for node in nodes[first:]):
                return False
        return True

    def begin(self, sequence: Sequence, ids: SequenceOf[int]) -> int:
        """Give an empty sequence what is known of a prompt, never all of it; the number of tokens."""
        nodes, last, n = self.find(ids, len(ids) - 1)
        sequence.tokens, sequence.n_prompt = list(ids[:n]), n
        sequence.keys = [node.key for node in nodes]
        groups = list(enumerate(self._pool.groups))
        firsts = [sequence.first_seen(group) for group in self._pool.groups]
        kept = [*nodes, last] if last is not None else nodes
        for at, node in enumerate(kept):
            pages = [node.pages[i] if at >= firsts[i] else GONE for i, _ in groups]
            for i, group in groups:
                if pages[i] != GONE:
                    group.hold(pages[i])
            sequence.append(pages)
        if last is not None and not self._own_last(sequence):
            sequence.truncate(PAGE * len(nodes))
        return len(sequence.tokens)

    def _own_last(self, sequence: Sequence) -> bool:
        """Copy the last page, which others use too; whether there was room."""
        if min(self._pool.room(), self._pool.state_room()) < 1:
            return False
        for group, own, table in zip(self._pool.groups, sequence.pages, sequence.tables, strict=True):
            if (shared := own[-1]) != GONE:
                own[-1] = group.take()
                group.copy(shared, own[-1])
                group.drop(shared)
                table[len(own) - 1] = own[-1]
        return True

    # ---- adding and forgetting ----

    def add(self, sequence: Sequence, *, last: bool) -> None:
        """Add the full pages of a sequence's prompt tokens. last: also the page that the prompt ends in."""
        for at in range(len(sequence.keys), sequence.n_prompt // PAGE):
            sequence.keys.append(self._add(sequence, at, PAGE))
        if last and (n := sequence.n_prompt % PAGE) and len(sequence.keys) == sequence.n_prompt // PAGE:
            self._add(sequence, len(sequence.keys), n)

    def _add(self, sequence: Sequence, at: int, n: int) -> bytes:
        parent = sequence.keys[at - 1] if at else ROOT
        tokens = sequence.tokens[PAGE * at : PAGE * at + n]
        key, pages = chain(parent, tokens), [own[at] for own in sequence.pages]
        known = self._nodes.get(key)
        if all(page == GONE for page in pages):
            return key
        if known is None and any(self._taken(i, page) for i, page in enumerate(pages)):
            return key  # part of the page is there already
        if known is None:
            known = self._nodes[key] = Node(key, parent, tokens, [GONE] * len(pages))
            self._children.setdefault(parent, []).append(known)
        if known.tokens == tokens:
            for i, page in enumerate(pages):
                if known.pages[i] == GONE != page and not self._taken(i, page):
                    known.pages[i] = page
                    self._owner[i][page] = known
                    self._pool.groups[i].cache(page)
        return key

    def _taken(self, group: int, page: int) -> bool:
        return page != GONE and page in self._owner[group]

    def _evict(self, group: int, page: int) -> None:
        """A page is needed for something else."""
        node = self._owner[group][page]
        self._give(group, node)
        if not self._pool.groups[group].window or all(p == GONE for p in node.pages):
            for i in range(len(node.pages)):
                self._give(i, node)
            del self._nodes[node.key]
            siblings = self._children[node.parent]
            siblings.remove(node)
            if not siblings:
                del self._children[node.parent]

    def _give(self, group: int, node: Node) -> None:
        if (page := node.pages[group]) != GONE:
            node.pages[group] = GONE
            del self._owner[group][page]
            self._pool.groups[group].uncache(page)
