"""Pages of prompts on the disk, so that a conversation goes on after a restart, or in another process.

A file for each full page, named by its key, in a folder for each model; see `session` for what is in it. Files appear
whole or not at all, and what is wrong with one only means that it does not help.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Sequence as SequenceOf
from contextlib import suppress
from pathlib import Path

from .kv import PAGE, PagePool, Sequence
from .prefix import ROOT, chain
from .session import Record, SessionError, decode, encode, fill, records, write_file

AHEAD = 64  # pages that may wait to be written; more are not written at all


class PrefixStore:
    """A folder of pages with a limit to its size: the least recently used files are deleted first.

    Reading belongs to the engine's thread; writing is done by a thread of its own.
    """

    def __init__(self, folder: Path, limit: int, model: bytes, pool: PagePool, n_vocab: int) -> None:
        """limit: bytes of all files. model: its fingerprint. EdgertError if the folder cannot be made."""
        self._folder, self._limit, self._model = folder / model.hex()[:32], limit, model
        self._root, self._pool, self._n_vocab = folder, pool, n_vocab
        self._folder.mkdir(parents=True, exist_ok=True)
        self._queue: queue.Queue[tuple[Path, bytes] | None] = queue.Queue(AHEAD)
        self._thread = threading.Thread(target=self._write, name="edgert-prefixes", daemon=True)
        self._thread.start()

    def has(self, sequence: Sequence, ids: SequenceOf[int]) -> bool:
        """Whether there is a page that goes on with a prompt after the full pages of a sequence."""
        at = len(sequence.keys)
        parent = sequence.keys[-1] if sequence.keys else ROOT
        return PAGE * (at + 1) < len(ids) and self._path(chain(parent, ids[PAGE * at : PAGE * (at + 1)])).exists()

    def load(self, sequence: Sequence, ids: SequenceOf[int]) -> int:
        """Append the pages that go on with a prompt to a sequence that ends with a full page; how many there were."""
        at, found = len(sequence.keys), []
        key = sequence.keys[-1] if sequence.keys else ROOT
        states = [i for i, group in enumerate(self._pool.groups) if group.state]
        while PAGE * (at + 1) < len(ids):
            part = list(ids[PAGE * at : PAGE * (at + 1)])
            record = self._read(key, part)
            if record is None:
                break
            key, at = chain(key, part), at + 1
            found.append(record)
        while found and not all(found[-1].pages[i] is not None for i in states):
            found.pop()
        fill(sequence, self._pool, found)
        return len(found)

    def _read(self, parent: bytes, tokens: list[int]) -> Record | None:
        path = self._path(chain(parent, tokens))
        try:
            data = path.read_bytes()
            before, found = decode(memoryview(data), path.name, self._model, self._pool, self._n_vocab)
            os.utime(path)
        except (OSError, SessionError):
            return None
        return found[0] if before == parent.ljust(16, b"\0") and [r.tokens for r in found] == [tokens] else None

    def save(self, sequence: Sequence, first: int) -> None:
        """Write a sequence's full pages from `first` on, some time soon."""
        last = len(sequence.keys)
        for at in range(first, last):
            path = self._path(sequence.keys[at])
            if not path.exists() and not self._queue.full():
                parent = sequence.keys[at - 1] if at else ROOT
                with suppress(queue.Full):
                    self._queue.put_nowait((path, encode(records(sequence, self._pool, at)[:1], self._model, parent)))

    def _path(self, key: bytes) -> Path:
        return self._folder / f"{key.hex()}.kv"

    def _write(self) -> None:
        written = self._limit  # so that the first file makes room
        while (item := self._queue.get()) is not None:
            path, data = item
            with suppress(OSError):
                if len(data) <= self._limit:
                    write_file(path, data)
                    written += len(data)
                if written >= self._limit // 16:
                    self._trim()
                    written = 0

    def _trim(self) -> None:
        """Delete the least recently used files of all models until the rest leaves room for more."""
        files = []
        for path in self._root.glob("*/*.kv"):
            with suppress(OSError):
                stat = path.stat()
                files.append((stat.st_mtime, stat.st_size, path))
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self._limit - self._limit // 16:
                return
            with suppress(OSError):
                path.unlink()
            total -= size

    def close(self) -> None:
        """Write what waits. Idempotent."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()
