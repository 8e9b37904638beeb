"""Saving and restoring sessions, as work of the engine."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from . import kv
from .kv import PagePool
from .session import Record, fill, records
from .work import F32, Feed, Work


class SaveWork(Work):
    """Reads a prompt, as far as it is not cached, and gives its pages."""

    def __init__(self, ids: list[int], pool: PagePool) -> None:
        super().__init__(ids, 0)
        self._pool = pool
        self.records: list[Record] = []

    def feed(self, most: int) -> Feed:
        assert self.sequence is not None
        part = self.prompt[self.fed : self.fed + most]
        return Feed(self.sequence, part, range(0))

    def take(self, rows: F32) -> None:
        if self.fed == len(self.prompt) and self.sequence is not None:
            self.records = records(self.sequence, self._pool)
            self.ended = True


class RestoreWork(Work):
    """Puts pages into the prefix cache."""

    whole = True

    def __init__(self, found: SequenceOf[Record], pool: PagePool) -> None:
        super().__init__([token for record in found for token in record.tokens], 0)
        self._records, self._pool = found, pool

    def start(self, sequence: kv.Sequence) -> None:
        super().start(sequence)
        fill(sequence, self._pool, self._records)
        self.read, self.ended = sequence.n_prompt, True

    def feed(self, most: int) -> Feed:
        raise AssertionError("there is nothing to feed")

    def take(self, rows: F32) -> None:
        raise AssertionError("nothing was fed")
