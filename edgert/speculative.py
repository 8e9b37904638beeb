"""Guesses at the next tokens, which the model checks in one step: from the text so far, or by a smaller model.

A guess is right if it is the token that would have been chosen anyway, so answers are those without guesses, whatever
the settings; only their speed differs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .errors import EdgertError
from .prefix import common
from .work import Feed, Work

if TYPE_CHECKING:
    from . import kv
    from .engine import Engine

F32 = npt.NDArray[np.float32]

MOST = 15  # guesses in one step
FIRST = 4  # guesses in the first step
LENGTHS = (4, 3, 2)  # of the last tokens that are looked for in the text, the longest first


class Drafter(ABC):
    """Guesses for one answer. How many follows from how many were right."""

    def __init__(self) -> None:
        self._n = FIRST

    def prepare(self, history: list[int]) -> None:  # noqa: B027 (few have anything to prepare)
        """`guess` will be asked soon; may go on elsewhere meanwhile."""

    @abstractmethod
    def guess(self, history: list[int], most: int) -> list[int]:
        """Up to `most` tokens that may come after history."""

    def learn(self, guessed: int, right: int) -> None:
        """So many of the last guesses were right."""
        if guessed and right == guessed:
            self._n = min(MOST, 2 * self._n)
        elif guessed:
            self._n = max(1, right + 1, self._n // 2)

    def close(self) -> None:  # noqa: B027
        """The answer has ended."""


class Lookup(Drafter):
    """What came after the same few tokens before (prompt lookup, Saxena 2023)."""

    def __init__(self) -> None:
        super().__init__()
        self._after: dict[tuple[int, ...], int] = {}  # the last tokens -> where the text went on
        self._seen = 0
        self._misses = 0  # lately: the more, the longer must be what is found

    def guess(self, history: list[int], most: int) -> list[int]:
        for end in range(max(self._seen, min(LENGTHS)), len(history)):
            for n in LENGTHS:
                if n <= end:
                    self._after[tuple(history[end - n : end])] = end
        self._seen = len(history)
        for n in LENGTHS:
            at = self._after.get(tuple(history[-n:]))
            if at is not None and n >= min(LENGTHS) + self._misses:
                return history[at : at + min(most, self._n)]
        return []

    def learn(self, guessed: int, right: int) -> None:
        super().learn(guessed, right)
        if guessed:
            self._misses = max(0, self._misses - 1) if right else min(len(LENGTHS) - 1, self._misses + 1)


class DraftModel(Drafter):
    """What a smaller model of the same vocabulary finds likeliest."""

    def __init__(self, engine: Engine, sequence: kv.Sequence, owner: object) -> None:
        """engine, sequence: the other model's. owner: what must live as long as this."""
        super().__init__()
        self._engine, self._sequence, self._owner = engine, sequence, owner
        self._work: DraftWork | None = None
        self._failed = False

    def prepare(self, history: list[int]) -> None:
        n = min(self._n, self._sequence.n_ctx - len(history))
        if self._failed or self._work is not None or n < 1:
            return
        self._work = DraftWork(list(history), self._sequence, n)
        try:
            self._engine.submit(self._work, bounded=False)
        except EdgertError:
            self._work, self._failed = None, True

    def guess(self, history: list[int], most: int) -> list[int]:
        work, self._work = self._work, None
        if work is None:
            return []
        work.box.wait()
        self._failed = work.box.error is not None
        return work.guesses[:most] if work.prompt == history else []

    def close(self) -> None:
        with suppress(EdgertError):
            if self._work is not None:
                self._work.box.wait()
            self._engine.submit(DraftWork([], self._sequence, 0), bounded=False)


class DraftWork(Work):
    """Guesses of a draft model, whose sequence stays from one time to the next. Without history: gives it back."""

    whole = True
    kept = False

    def __init__(self, history: list[int], sequence: kv.Sequence, n: int) -> None:
        super().__init__(history, 1)
        self.guesses: list[int] = []
        self._kept, self._n = sequence, n

    @property
    def phase(self) -> str:
        """Text that several tokens are missing of is read as a prompt; guesses need not be exact."""
        return "prompt" if self.fed < len(self.prompt) - 1 else "decode"

    def start(self, sequence: kv.Sequence) -> None:
        self.sequence = self._kept
        self._kept.truncate(common(self._kept.tokens, self.prompt[:-1]))
        if not self.prompt:
            self._leave()

    def feed(self, most: int) -> Feed:
        text = self.prompt + self.guesses
        part = text[self.fed : self.fed + most]
        if self.phase == "prompt":
            part = part[: len(self.prompt) - 1 - self.fed]
        last = self.fed + len(part) == len(text)
        return Feed(self._kept, part, range(len(part) - last, len(part)))

    def take(self, rows: F32) -> None:
        if len(rows):
            self.guesses.append(int(rows[-1].argmax()))
            if len(self.guesses) >= self._n:
                self._leave()

    def pause(self) -> None:
        super().pause()
        self._leave()

    def _leave(self) -> None:
        """End, and keep the sequence for the next time."""
        self.sequence, self.ended = None, True

