"""Who may use the KV cache: admitting work, sharing prefixes, and making room by setting work aside."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence as SequenceOf
from typing import IO

from .kv import GONE, PAGE, STATE_PAGES, PagePool, Sequence
from .prefix import Prefixes, common
from .prefix_store import PrefixStore
from .work import Work

ALIKE = 2 * PAGE  # tokens that work must share with a prompt in progress to wait for it


class Memory:
    """The cache of one runtime. Work that is set aside is computed again later, or swapped to a file."""

    def __init__(self, pool: PagePool, n_ctx: int, preempt: str, store: PrefixStore | None) -> None:
        """preempt: "recompute" or "swap"."""
        self._pool, self._n_ctx, self._swap, self._store = pool, n_ctx, preempt == "swap", store
        self.prefixes = Prefixes(pool)

    def admit(self, work: Work, running: SequenceOf[Work]) -> bool:
        """Give work a sequence, if what it feeds first fits beside what runs; alone it always does."""
        sequence = Sequence(self._pool, self._n_ctx)
        swapped = work.swapped
        if swapped is None and not work.whole:
            self.prefixes.begin(sequence, work.prompt)
            self._read_more(sequence, work.prompt)
        pages = swapped.pages + 1 if swapped is not None else sequence.pages_for(work.size - len(sequence.tokens)) + 1
        full = pages + sum(self._coming(other) for other in running) > self._pool.room()
        if running and (full or self._pool.state_room() < STATE_PAGES):
            sequence.truncate(0)
            return False
        if swapped is not None:
            swapped.load(sequence, self._pool)
            work.swapped = None
        work.start(sequence)
        return True

    def _read_more(self, sequence: Sequence, prompt: list[int]) -> None:
        """Take pages from the disk that go on where those in memory end."""
        at = len(sequence.keys)
        if self._store is not None and self._store.has(sequence, prompt):
            sequence.truncate(PAGE * at)  # what was copied of the next page is in it
            if self._store.load(sequence, prompt):
                self.prefixes.add(sequence, last=False)

    def _coming(self, work: Work) -> int:
        """Pages that work in progress takes before it generates, and one more."""
        return max(0, work.sequence.pages_for(work.size - work.fed)) + 1 if work.sequence is not None else 0

    def alike(self, work: Work, running: SequenceOf[Work]) -> bool:
        """Whether to wait for a prompt that is being read because its beginning will serve this one."""
        if work.whole or work.swapped is not None:
            return False
        for other in running:
            if other.sequence is None or other.generated or not other.kept:
                continue
            if other.prompt[:ALIKE] == work.prompt[:ALIKE]:
                known = PAGE * len(other.sequence.keys)
                if common(other.prompt[known:], work.prompt[known:-1]) >= ALIKE:
                    return True
        return False

    def read(self, work: Work) -> None:
        """A part of its prompt has been computed."""
        work.read = min(work.fed, len(work.prompt))
        if (sequence := work.sequence) is not None and work.kept:
            known = len(sequence.keys)
            self.prefixes.add(sequence, last=sequence.n_prompt == len(work.prompt))
            if self._store is not None:
                self._store.save(sequence, known)

    def set_aside(self, work: Work) -> None:
        """Take the pages of work in progress; it can be admitted again."""
        assert work.sequence is not None
        sequence = work.sequence
        if self._swap and sequence.tokens and work.rows == 1:
            try:
                work.swapped = Swapped(sequence, self._pool)
            except OSError:
                work.swapped = None  # no room on the disk: compute it again
        for each in work.sequences:
            each.truncate(0)
        work.pause()

    def release(self, work: Work) -> None:
        """Work has ended."""
        for sequence in work.sequences:
            sequence.truncate(0)
        if work.swapped is not None:
            work.swapped.close()
            work.swapped = None


class Swapped:
    """A sequence in a temporary file."""

    def __init__(self, sequence: Sequence, pool: PagePool) -> None:
        self._tokens, self._n_prompt, self._keys = list(sequence.tokens), sequence.n_prompt, list(sequence.keys)
        self._held = [[page != GONE for page in own] for own in sequence.pages]
        self.pages = max(len(own) for own in sequence.pages)
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="edgert-kv-")  # noqa: SIM115
        try:
            for group, own in zip(pool.groups, sequence.pages, strict=True):
                for page in own:
                    if page != GONE:
                        self._file.write(group.read(page))
            self._file.flush()
        except BaseException:
            self._file.close()
            raise

    def load(self, sequence: Sequence, pool: PagePool) -> None:
        """Fill an empty sequence."""
        self._file.seek(0)
        for group, held, own, table in zip(pool.groups, self._held, sequence.pages, sequence.tables, strict=True):
            for i, there in enumerate(held):
                page = group.take() if there else GONE
                if there:
                    group.write(page, memoryview(self._file.read(group.page_bytes)))
                own.append(page)
                table[i] = max(0, page)
        sequence.tokens, sequence.n_prompt, sequence.keys = self._tokens, self._n_prompt, self._keys
        self.close()

    def close(self) -> None:
        self._file.close()
