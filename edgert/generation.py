"""One answer: prompt in, tokens and text out, step by step."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .errors import EdgertError
from .formats.tokenizer import StreamDecoder
from .sampling import Sampler

if TYPE_CHECKING:
    from .model import Model


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
    """An answer. finish_reason: "stop" (end-of-turn token or stop string) or "length"."""

    text: str
    ids: list[int]
    finish_reason: str
    usage: Usage
    timings: Timings


class Stream(Iterator[str]):
    """Pieces of an answer, whole characters each. `close` stops the work; `completion` is there at the end."""

    def __init__(self, model: Model, ids: list[int], max_tokens: int, sampler: Sampler, stop: Sequence[str],
                 ignore_eos: bool) -> None:  # fmt: skip
        self._model, self._prompt, self._sampler, self._stop = model, ids, sampler, stop
        self._max_tokens = max_tokens
        self._ends = frozenset() if ignore_eos else model.tokenizer.eog_ids
        self._text: list[str] = []
        self._ids: list[int] = []
        self._cached = 0
        self._reason = "length"
        self._prompt_s = self._decode_s = 0.0
        self._completion: Completion | None = None
        self._pieces: Generator[str, None, None] = self._run()

    def __next__(self) -> str:
        return next(self._pieces)

    def close(self) -> None:
        """Stop. What has been said so far becomes the completion."""
        self._pieces.close()
        if self._completion is None:
            self._finish()

    @property
    def completion(self) -> Completion:
        """The whole answer; EdgertError before its end."""
        if self._completion is None:
            raise EdgertError("the answer has not ended yet: read the stream to its end or close it")
        return self._completion

    def _run(self) -> Generator[str, None, None]:
        decoder = StreamDecoder(self._model.tokenizer, continues=True)
        held = ""  # text that might begin a stop string
        for token in self._tokens():
            held, done = _cut(held + decoder.feed(token), self._stop)
            piece, held = (held, "") if done else _release(held, self._stop)
            if piece:
                self._text.append(piece)
                yield piece
            if done:
                self._reason = "stop"
                break
        else:
            rest, done = _cut(held + decoder.flush(), self._stop)
            self._reason = "stop" if done else self._reason
            if rest:
                self._text.append(rest)
                yield rest
        self._finish()

    def _tokens(self) -> Iterator[int]:
        model, history = self._model, list(self._prompt)
        start = time.perf_counter()
        with model.lease(self._prompt) as sequence:
            self._cached = len(sequence.tokens)
            logits = np.empty((1, model.n_vocab), np.float32)
            model.feed_prompt(sequence, self._prompt[self._cached :], logits)
            self._prompt_s = time.perf_counter() - start
            start = time.perf_counter()
            while True:
                token = self._sampler.choose(logits[0], history)
                if token in self._ends:
                    self._reason = "stop"
                    return
                self._ids.append(token)
                history.append(token)
                self._decode_s = time.perf_counter() - start
                yield token
                if len(self._ids) >= self._max_tokens:
                    return
                model.feed_token(sequence, token, logits)

    def _finish(self) -> None:
        fresh = len(self._prompt) - self._cached
        rest = max(0, len(self._ids) - 1)
        self._completion = Completion(
            "".join(self._text), self._ids, self._reason,
            Usage(len(self._prompt), len(self._ids), self._cached),
            Timings(self._prompt_s, self._decode_s, fresh / self._prompt_s if self._prompt_s else 0.0,
                    rest / self._decode_s if self._decode_s else 0.0),
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
