"""One answer: prompt in, tokens and text out, step by step."""

from __future__ import annotations

import time
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .constrain import Constraint
from .errors import EdgertError
from .formats.tokenizer import StreamDecoder, Tokenizer
from .logprobs import PromptLogprobs, Row, TokenLogprob
from .sampling import Sampler

if TYPE_CHECKING:
    from . import kv
    from .model import Model

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Usage:
    """Tokens of one answer; cached_tokens of the prompt were still in the KV cache."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(frozen=True)
class Timings:
    """Seconds. prompt_s: until the first token's logits; decode_s: the tokens after the first."""

    prompt_s: float
    decode_s: float
    prompt_rate: float  # tokens per second that were not cached
    decode_rate: float  # tokens per second after the first


@dataclass(frozen=True)
class Completion:
    """An answer.

    finish_reason    "stop" (end-of-turn token, stop string, or a form that is complete), "length", "cancelled" (closed
                     early)
    logprobs         of each of ids, if asked for
    prompt_logprobs  of each token of the prompt but the first (None), if asked for
    """

    text: str
    ids: list[int]
    finish_reason: str
    usage: Usage
    timings: Timings
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None


class Answer:
    """The state of one answer: chooses tokens, makes text of them, knows when to stop.

    `token` is the one to feed next, None at the end.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: list[int], max_tokens: int, sampler: Sampler, stop: Sequence[str],
                 ignore_eos: bool, constraint: Constraint | None = None, logprobs: int | None = None,
                 prompt_logprobs: int | None = None, shown: Collection[int] = ()) -> None:  # fmt: skip
        """shown: control tokens whose text is part of the answer's.

        logprobs, prompt_logprobs: how many alternatives to report with each token; None: no log-probabilities."""
        self.prompt = prompt
        self.scores = PromptLogprobs(prompt, prompt_logprobs, sampler.top) if prompt_logprobs is not None else None
        self.cached = 0  # prompt tokens that were in the cache
        self.token: int | None = None
        self.max_tokens = max_tokens
        self._sampler, self._stop = sampler, stop
        self._ends = frozenset() if ignore_eos and constraint is None else tokenizer.eog_ids
        self._constraint, self._alternatives = constraint, logprobs
        self._logprobs: list[TokenLogprob] = []
        self._decoder = StreamDecoder(tokenizer, shown=shown, continues=True)
        self._history = list(prompt)
        self._held = ""  # text that might begin a stop string
        self._text: list[str] = []
        self._ids: list[int] = []
        self._reason = "length"
        self._start = time.perf_counter()
        self._first = self._last = self._start

    def advance(self, logits: F32) -> str:
        """Choose the next token from logits (n_vocab,), which are changed; the text that became certain."""
        if not self._ids:
            self._first = time.perf_counter()
        row = Row(logits, self._alternatives, self._sampler.top) if self._alternatives is not None else None
        if self._constraint is not None:
            self._constraint.mask(logits)
        token = self._sampler.choose(logits, self._history)
        self._last = time.perf_counter()
        if token in self._ends:
            return self._end("stop")
        if row is not None:
            self._logprobs.append(row.of(token))
        self._ids.append(token)
        self._history.append(token)
        self._held, stopped = _cut(self._held + self._decoder.feed(token), self._stop)
        if stopped:
            return self._end("stop", whole=True)
        if self._constraint is not None and self._constraint.accept(token):
            return self._end("stop")
        if len(self._ids) >= self.max_tokens:
            return self._end("length")
        self.token = token
        piece, self._held = _release(self._held, self._stop)
        return self._say(piece)

    def _end(self, reason: str, *, whole: bool = False) -> str:
        self.token, self._reason = None, reason
        if not whole:
            self._held, stopped = _cut(self._held + self._decoder.flush(), self._stop)
            self._reason = "stop" if stopped else reason
        return self._say(self._held)

    def _say(self, piece: str) -> str:
        if piece:
            self._text.append(piece)
        return piece

    def cancel(self) -> None:
        """The caller does not want the rest."""
        self._reason = "cancelled"

    def completion(self) -> Completion:
        """What has been said so far."""
        prompt_s, decode_s = self._first - self._start, self._last - self._first
        fresh, rest = len(self.prompt) - self.cached, max(0, len(self._ids) - 1)
        return Completion(
            "".join(self._text), self._ids, self._reason, Usage(len(self.prompt), len(self._ids), self.cached),
            Timings(prompt_s, decode_s, fresh / prompt_s if prompt_s else 0.0, rest / decode_s if decode_s else 0.0),
            self._logprobs if self._alternatives is not None else None,
            self.scores.tokens if self.scores is not None else None,
        )  # fmt: skip


class Stream(Iterator[str]):
    """Pieces of an answer, whole characters each. `close` stops the work; `completion` is there at the end."""

    def __init__(self, model: Model, answer: Answer) -> None:
        self._model, self._answer = model, answer
        self._pieces: Generator[str, None, None] = self._run()
        self._ended = False

    def __next__(self) -> str:
        try:
            return next(self._pieces)
        except StopIteration:
            self._ended = True
            raise

    def close(self) -> None:
        """Stop. What has been said so far becomes the completion."""
        if not self._ended:
            self._pieces.close()
            self._answer.cancel()
            self._ended = True

    @property
    def completion(self) -> Completion:
        """The whole answer; EdgertError before its end."""
        if not self._ended:
            raise EdgertError("the answer has not ended yet: read the stream to its end or close it")
        return self._answer.completion()

    def _run(self) -> Generator[str, None, None]:
        model, answer = self._model, self._answer
        logits = np.empty((1, model.n_vocab), np.float32)
        with model.lease(answer) as sequence:
            model.feed_prompt(sequence, answer, logits)
            while True:
                if piece := answer.advance(logits[0]):
                    yield piece
                if answer.token is None:
                    return
                model.feed_tokens([(sequence, answer.token)], logits)


def run_together(model: Model, answers: Sequence[Answer], most: int) -> None:
    """Generate all answers, at most `most` in one decode step and as fit in the cache; one joins when one ends."""
    waiting = list(reversed(answers))
    running: list[tuple[Answer, kv.Sequence, ExitStack]] = []
    logits = np.empty((most, model.n_vocab), np.float32)
    with ExitStack() as everything:
        while waiting or running:
            while waiting and len(running) < most and model.fits([a for a, _, _ in running] + waiting[-1:]):
                answer, stack = waiting.pop(), everything.enter_context(ExitStack())
                sequence = stack.enter_context(model.lease(answer))
                model.feed_prompt(sequence, answer, logits[:1])
                answer.advance(logits[0])
                running.append((answer, sequence, stack))
            for answer, _, stack in running:
                if answer.token is None:
                    stack.close()
            running = [r for r in running if r[0].token is not None]
            if running:
                model.feed_tokens([(s, a.token) for a, s, _ in running if a.token is not None], logits[: len(running)])
                for i, (answer, _, _) in enumerate(running):
                    answer.advance(logits[i])


def _cut(text: str, stop: Sequence[str]) -> tuple[str, bool]:
    """Text before the first stop string, and whether there was one."""
    at = min((i for i in (text.find(s) for s in stop) if i >= 0), default=-1)
    return (text[:at], True) if at >= 0 else (text, False)


def _release(text: str, stop: Sequence[str]) -> tuple[str, str]:
    """(text that can be shown, its end that might be the beginning of a stop string)."""
    longest = max((len(s) for s in stop), default=1) - 1
    for size in range(min(longest, len(text)), 0, -1):
        if any(s.startswith(text[-size:]) for s in stop):
            return text[:-size], text[-size:]
    return text, ""
