"""What a model keeps in files: sessions, and prompts that later runs find."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from .answering import Answering
from .engine import Engine
from .errors import EdgertError
from .prefix_store import PrefixStore
from .runtime import Runtime
from .session import SessionError, decode, encode, fingerprint, write_file
from .session_work import RestoreWork, SaveWork


class ModelFiles:
    """The part of `Model` that reads and writes files."""

    _runtime: Runtime
    _engine: Engine
    _answering: Answering
    n_vocab: int

    def save_session(self, path: str | os.PathLike[str], prompt: str | Sequence[int]) -> None:
        """Write the keys and values of a prompt to a file; reads the prompt as far as it is not cached.

        The file serves this model with this precision and KV type on processors with the same instruction set.
        """
        ids = self._answering.ids(prompt)
        self._answering.fits(ids, 0)
        self._engine.check_open()
        work = SaveWork(ids, self._runtime.pool)
        self._engine.run([work])
        try:
            write_file(Path(path), encode(work.records, self._fingerprint))
        except OSError as error:
            raise EdgertError(f"cannot write {path}: {error.strerror or error}") from None

    def load_session(self, path: str | os.PathLike[str]) -> list[int]:
        """Take a file's keys and values into the cache, so that prompts that begin like its own need not be read
        again; the tokens of that prompt. SessionError if the file is damaged, or for another model.
        """
        self._engine.check_open()
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise EdgertError(f"cannot read {path}: {error.strerror or error}") from None
        pool = self._runtime.pool
        parent, records = decode(memoryview(data), str(path), self._fingerprint, pool, self.n_vocab)
        if parent.strip(b"\0"):
            raise SessionError(f"{path}: not a whole session")
        work = RestoreWork(records, pool)
        self._engine.run([work])
        return work.prompt

    def _store(self, folder: Path, limit: int) -> PrefixStore:
        try:
            return PrefixStore(folder, limit, self._fingerprint, self._runtime.pool, self.n_vocab)
        except OSError as error:
            self._runtime.close()
            raise EdgertError(f"prefix_cache: cannot use {folder}: {error.strerror or error}") from None

    @cached_property
    def _fingerprint(self) -> bytes:
        return fingerprint(self._runtime)
