"""What the engine works on: each feeds tokens to a sequence of its own and takes the logits."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from . import kv
from .generation import Answer
from .logprobs import ROWS
from .request import Mailbox

F32 = npt.NDArray[np.float32]
_numbers = itertools.count()


@dataclass(frozen=True)
class Feed:
    """ids to append to a sequence, and which of them want logits after them."""

    sequence: kv.Sequence
    ids: list[int]
    want: range


class Work(ABC):
    """One thing to do. All but `box` and `cancelled` belongs to the engine's thread.

    prompt     tokens that go through the prompt path, or as many as are known
    whole      no token of the prompt may come from the cache, because the logits of all are needed
    alone      its rows share a run with no other's, and `out` says where their logits go
    max_tokens  that may be in its sequence at the end
    """

    whole = False
    alone = False

    def __init__(self, prompt: list[int], max_tokens: int, priority: int) -> None:
        self.prompt, self.max_tokens = prompt, max_tokens
        self.order = (-priority, next(_numbers))
        self.box = Mailbox()
        self.cancelled = False
        self.ended = False
        self.sequence: kv.Sequence | None = None

    @property
    def fed(self) -> int:
        return len(self.sequence.tokens) if self.sequence is not None else 0

    @property
    def left(self) -> int:
        """Rows that it could use now."""
        return max(1, len(self.prompt) - self.fed)

    @property
    def generated(self) -> int:
        """Tokens chosen so far."""
        return 0

    @property
    def progress(self) -> tuple[int, int]:
        return min(self.fed, len(self.prompt)), len(self.prompt)

    @property
    def phase(self) -> str:
        """The path of the next feed."""
        return "prompt" if self.fed < len(self.prompt) else "decode"

    def start(self, sequence: kv.Sequence) -> None:
        """Begin, with a sequence that holds what was cached of the prompt."""
        self.sequence = sequence

    @abstractmethod
    def feed(self, most: int) -> Feed:
        """What to run next: at most so many rows, one or more."""

    @abstractmethod
    def take(self, rows: F32) -> None:
        """Logits (wanted, n_vocab) of what was fed, which may be changed. Sets `ended` at the end."""

    def out(self, n: int) -> F32 | None:
        """Where the logits of the next n rows go, for work that has a place of its own for them."""
        return None

    def cancel(self) -> None:  # noqa: B027 (most have nothing to do)
        """The caller does not want the rest."""


class AnswerWork(Work):
    """An answer: the prompt in chunks, then token by token."""

    def __init__(self, answer: Answer, priority: int) -> None:
        super().__init__(answer.prompt, len(answer.prompt) + answer.max_tokens, priority)
        self.answer = answer
        self.whole = answer.scores is not None

    @property
    def generated(self) -> int:
        return self.answer.generated

    def start(self, sequence: kv.Sequence) -> None:
        super().start(sequence)
        self.answer.start(len(sequence.tokens))

    def feed(self, most: int) -> Feed:
        assert self.sequence is not None
        at, prompt = len(self.sequence.tokens), self.prompt
        if at >= len(prompt):
            assert self.answer.token is not None
            return Feed(self.sequence, [self.answer.token], range(1))
        part = prompt[at : at + (min(most, ROWS) if self.whole else most)]
        last = at + len(part) == len(prompt)
        return Feed(self.sequence, part, range(0 if self.whole else len(part) - last, len(part)))

    def take(self, rows: F32) -> None:
        answer = self.answer
        if answer.scores is not None and self.fed <= len(self.prompt):
            answer.scores.add(rows)
        if self.fed < len(self.prompt):
            return
        if piece := answer.advance(rows[-1]):
            self.box.put(piece)
        self.ended = answer.token is None

    def cancel(self) -> None:
        self.answer.cancel()


class LogitsWork(Work):
    """The logits after every token of a text, on the path of prompts or of generated tokens."""

    whole = alone = True

    def __init__(self, ids: list[int], out: F32, path: str, chunk: int | None) -> None:
        super().__init__(ids, len(ids), 0)
        self._out, self._path, self._chunk = out, path, chunk

    @property
    def phase(self) -> str:
        return self._path

    def feed(self, most: int) -> Feed:
        assert self.sequence is not None
        part = self.prompt[self.fed : self.fed + min(most, self._chunk or most)]
        return Feed(self.sequence, part, range(len(part)))

    def out(self, n: int) -> F32:
        return self._out[self.fed : self.fed + n]

    def take(self, rows: F32) -> None:
        self.ended = self.fed == len(self.prompt)
