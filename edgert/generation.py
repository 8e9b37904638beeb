"""One answer: prompt in, tokens and text out, step by step."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .constrain import Constraint
from .formats.tokenizer import StreamDecoder, Tokenizer
from .logprobs import PromptLogprobs, Row, TokenLogprob
from .sampling import Sampler

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Usage:
    """Tokens of one answer; cached_tokens of the prompt were still in the KV cache.

    dropped_tokens: left out of the prompt, or forgotten later, to fit in the context (only if that was asked for).
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    dropped_tokens: int = 0


@dataclass(frozen=True)
class Timings:
    """Seconds. prompt_s: from the beginning of the work to the first token's logits; decode_s: the tokens after it."""

    prompt_s: float
    decode_s: float
    prompt_rate: float  # tokens per second that were not cached
    decode_rate: float  # tokens per second after the first
    queued_s: float = 0.0  # before the work began


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
        self.keep = self.dropped = 0  # tokens at the beginning that are never dropped, and dropped ones
        self.cached = 0  # prompt tokens that were in the cache
        self.token: int | None = None
        self.max_tokens = max_tokens
        self._sampler, self._stop = sampler, stop
        self._ends = frozenset() if ignore_eos and constraint is None else tokenizer.eog_ids
        self._constraint, self._alternatives = constraint, logprobs
        self._logprobs: list[TokenLogprob] = []
        self._decoder = StreamDecoder(tokenizer, shown=shown, continues=True)
        self.history = list(prompt)  # and what was generated
        self._held = ""  # text that might begin a stop string
        self._text: list[str] = []
        self._ids: list[int] = []
        self._reason = "length"
        self._made = self._start = self._first = self._last = time.perf_counter()

    def start(self, cached: int) -> None:
        """The work begins; so many tokens of the prompt were in the cache."""
        self.cached = cached
        self._start = self._first = self._last = time.perf_counter()

    @property
    def room(self) -> int:
        """Tokens that may still come."""
        return self.max_tokens - len(self._ids)

    @property
    def generated(self) -> int:
        """Tokens so far."""
        return len(self._ids)

    def advance(self, logits: F32) -> str:
        """Choose the next token from logits (n_vocab,), which are changed; the text that became certain."""
        if not self._ids:
            self._first = time.perf_counter()
        row = Row(logits, self._alternatives, self._sampler.top) if self._alternatives is not None else None
        if self._constraint is not None:
            self._constraint.mask(logits)
        token = self._sampler.choose(logits, self.history)
        self._last = time.perf_counter()
        if token in self._ends:
            return self._end("stop")
        if row is not None:
            self._logprobs.append(row.of(token))
        self._ids.append(token)
        self.history.append(token)
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

    def logprobs(self, start: int) -> list[TokenLogprob]:
        """Of the tokens from this one on that have been chosen so far."""
        return self._logprobs[start:]

    def cancel(self) -> None:
        """The caller does not want the rest."""
        self._reason = "cancelled"

    def completion(self) -> Completion:
        """What has been said so far."""
        prompt_s, decode_s = self._first - self._start, self._last - self._first
        fresh, rest = len(self.prompt) - self.cached, max(0, len(self._ids) - 1)
        return Completion(
            "".join(self._text), self._ids, self._reason,
            Usage(len(self.prompt), len(self._ids), self.cached, self.dropped),
            Timings(prompt_s, decode_s, fresh / prompt_s if prompt_s else 0.0, rest / decode_s if decode_s else 0.0,
                    self._start - self._made),
            self._logprobs if self._alternatives is not None else None,
            self.scores.tokens if self.scores is not None else None,
        )  # fmt: skip


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
