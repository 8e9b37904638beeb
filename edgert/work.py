"""What the engine works on: each feeds tokens to a sequence of its own and takes the logits."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from . import kv
from .generation import Answer
from .logprobs import ROWS
from .request import Mailbox

if TYPE_CHECKING:
    from .memory import Swapped
    from .speculative import Drafter

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
    hidden     it wants final hidden states (wanted, n_embd) instead of logits
    kept       its prompt stays in the prefix cache
    """

    whole = alone = hidden = False
    kept = True
    rows = 1  # that it feeds at least in a decode step
    spare = 0  # pages that it may take itself after a step

    def __init__(self, prompt: list[int], priority: int) -> None:
        self.prompt = prompt
        self.order = (-priority, next(_numbers))
        self.box = Mailbox()
        self.cancelled = False
        self.admitted = False
        self.drafted = self.accepted = 0  # guessed tokens, and those that were right
        self.read = 0  # tokens of the prompt, also when the sequence is gone
        self.ended = False
        self.sequence: kv.Sequence | None = None
        self.swapped: Swapped | None = None  # what its sequence held when it was set aside

    @property
    def fed(self) -> int:
        return len(self.sequence.tokens) if self.sequence is not None else 0

    @property
    def size(self) -> int:
        """Tokens that must be in its sequence before it can go on."""
        return len(self.prompt)

    @property
    def left(self) -> int:
        """Rows that it could use now."""
        return max(1, (len(self.prompt) if self.phase == "prompt" else self.size) - self.fed)

    @property
    def generated(self) -> int:
        """Tokens chosen so far."""
        return 0

    @property
    def progress(self) -> tuple[int, int]:
        return self.read, len(self.prompt)

    @property
    def phase(self) -> str:
        """The path of the next feed."""
        return "prompt" if self.fed < len(self.prompt) else "decode"

    def start(self, sequence: kv.Sequence) -> None:
        """Begin, with a sequence that holds what was cached of the prompt, or go on with one."""
        self.sequence = sequence

    def pause(self) -> None:
        """Its sequence has been taken; `start` comes again."""
        self.sequence = None

    def prepare(self) -> None:  # noqa: B027
        """It will be asked for its next feed soon."""

    def finish(self) -> None:  # noqa: B027
        """It has ended, well or not."""

    @property
    def sequences(self) -> list[kv.Sequence]:
        """All that it holds."""
        return [self.sequence] if self.sequence is not None else []

    def feeds(self, most: int) -> list[Feed]:
        """What to run next, of each of its sequences: together at most so many rows, at least `rows`."""
        return [self.feed(most)]

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

    def __init__(self, answer: Answer, priority: int, drafter: Drafter | None = None) -> None:
        """drafter: guesses tokens, which are checked together with the one that is known."""
        super().__init__(answer.prompt, priority)
        self.answer, self._drafter = answer, drafter
        self._guesses: list[int] = []
        self._started = False
        self._text = list(answer.prompt)  # what must be in the sequence, the token to feed next included

    @property
    def generated(self) -> int:
        return self.answer.generated

    @property
    def size(self) -> int:
        return len(self._text)

    @property
    def whole(self) -> bool:  # type: ignore[override]
        return self.answer.scores is not None and not self.answer.scores.complete

    def start(self, sequence: kv.Sequence) -> None:
        super().start(sequence)
        if not self._started:
            self._started = True
            self.answer.start(len(sequence.tokens))

    def pause(self) -> None:
        super().pause()
        if self.whole and self.answer.scores is not None:
            self.answer.scores.restart()

    def feed(self, most: int) -> Feed:
        """The prompt on its path, then what was generated on its own: usually one token, after a pause all of it."""
        assert self.sequence is not None
        at, text, scored = self.fed, self._text, self.whole
        if at >= len(self.prompt):
            part = text[at : at + most]
        else:
            part = self.prompt[at : at + (min(most, ROWS) if scored else most)]
        last = at + len(part) == len(text)
        self._guesses = self._guess(most - len(part)) if last and at >= len(self.prompt) else []
        return Feed(self.sequence, part + self._guesses,
                    range(0 if scored else len(part) - last, len(part) + len(self._guesses)))  # fmt: skip

    def prepare(self) -> None:
        if self._drafter is not None and self.fed + 1 == len(self._text):
            self._drafter.prepare(self.answer.history)

    def _guess(self, most: int) -> list[int]:
        """Tokens that may come next, no more than the answer and the context have room for."""
        if self._drafter is None or self.sequence is None:
            return []
        most = min(most, self.answer.room - 1, self.sequence.n_ctx - len(self._text))
        return self._drafter.guess(self.answer.history, most) if most > 0 else []

    def finish(self) -> None:
        if self._drafter is not None:
            self._drafter.close()

    def take(self, rows: F32) -> None:
        answer = self.answer
        if self.whole and answer.scores is not None:
            answer.scores.add(rows)
        if self.fed < len(self._text):
            return
        known, guesses, right = len(answer.history), self._guesses, 0
        for i, row in enumerate(rows[len(rows) - len(guesses) - 1 :]):
            if piece := answer.advance(row):
                self.box.put(piece)
            if answer.token is None or i == len(guesses) or answer.token != guesses[i]:
                break
            right += 1
        self.ended = answer.token is None
        self._text += answer.history[known:]
        assert self.sequence is not None
        if guesses and self._drafter is not None:
            self.sequence.truncate(len(self._text) - 1)
            self._drafter.learn(len(guesses), right)
            self.drafted += len(guesses)
            self.accepted += right
        if not self.ended and len(self._text) > self.sequence.n_ctx:
            self._shift(self.sequence)

    def _shift(self, sequence: kv.Sequence) -> None:
        """The context is full: forget the older half of it but for its beginning, and read the rest as a prompt."""
        keep = self.answer.keep
        drop = (sequence.n_ctx - keep) // 2
        self.prompt = self._text[:keep] + self._text[keep + drop :]
        self._text = list(self.prompt)
        self.answer.dropped += drop
        sequence.truncate(0)

    def cancel(self) -> None:
        self.answer.cancel()


class LogitsWork(Work):
    """The logits after every token of a text, on the path of prompts or of generated tokens."""

    whole = alone = True
    kept = False

    def __init__(self, ids: list[int], out: F32, path: str, chunk: int | None) -> None:
        super().__init__(ids, 0)
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


class EmbedWork(Work):
    """The final hidden states of a text's tokens, pooled."""

    hidden = True
    kept = False

    def __init__(self, ids: list[int], pooling: str) -> None:
        """pooling: "mean" of all, "cls" (the first), "last", or "none": all of them."""
        super().__init__(ids, 0)
        self._pooling, self.whole = pooling, pooling != "last"
        self._sum: npt.NDArray[np.float64] | None = None
        self._rows: list[F32] = []

    def feed(self, most: int) -> Feed:
        assert self.sequence is not None
        at, n = self.fed, len(self.prompt)
        part = self.prompt[at : at + most]
        ends = {"cls": range(1 if at == 0 else 0), "last": range(len(part) - (at + len(part) == n), len(part))}
        return Feed(self.sequence, part, ends.get(self._pooling, range(len(part))))

    def take(self, rows: F32) -> None:
        if self._pooling == "mean":
            total = rows.sum(axis=0, dtype=np.float64)
            self._sum = total if self._sum is None else self._sum + total
        elif len(rows):
            self._rows.append(rows.copy())
        self.ended = self.fed == len(self.prompt)

    def pause(self) -> None:
        super().pause()
        self._sum, self._rows = None, []

    def result(self) -> F32:
        """float32 (n_embd,), or (tokens, n_embd) without pooling."""
        if self._sum is not None:
            return (self._sum / len(self.prompt)).astype(np.float32)
        rows = np.concatenate(self._rows)
        return rows if self._pooling == "none" else rows[0]
