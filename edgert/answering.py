"""From what a caller asks for to an answer that can begin: every argument is checked here."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

from . import logprobs
from .constrain import FORMS, Constrainer
from .errors import ContextLengthError, EdgertError
from .formats.tokenizer import Tokenizer
from .generation import Answer
from .kernels_cpu.jit import Kernel
from .sampling import Sampler, Settings


class Answering:
    """Makes answers of one model. Thread-safe."""

    def __init__(self, tokenizer: Tokenizer, n_vocab: int, n_ctx: int, top: Kernel) -> None:
        """top: the kernel "sample.top"."""
        self._tokenizer, self._n_vocab, self._n_ctx, self._top = tokenizer, n_vocab, n_ctx, top
        self._constrainer = Constrainer(tokenizer, n_vocab)
        self.close = self._constrainer.close

    def ids(self, prompt: str | Sequence[int]) -> list[int]:
        """Token ids of a prompt. EdgertError if there are none."""
        ids = self._tokenizer.encode(prompt) if isinstance(prompt, str) else checked(prompt, self._n_vocab)
        if not ids:
            raise EdgertError("the prompt has no tokens")
        return ids

    def fits(self, ids: list[int], room: int) -> None:
        """ContextLengthError if ids leave no room for so many tokens."""
        if len(ids) + room > self._n_ctx:
            raise ContextLengthError(
                f"the prompt has {len(ids)} tokens, the context only {self._n_ctx}" + "; no room to answer" * (room > 0)
            )

    def answer(self, prompt: str | Sequence[int], *, max_tokens: int | None = None,
               stop: str | Sequence[str] | None = (), ignore_eos: bool = False, context: str = "error",
               **given: Any) -> Answer:  # fmt: skip
        """An answer by the settings of `Model.stream`."""
        if max_tokens is not None and (
            isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1
        ):
            raise EdgertError(f"max_tokens: {max_tokens!r} is not a positive whole number")
        if context not in ("error", "shift", "truncate_middle"):
            raise EdgertError(f"context {context!r} is not one of error, shift, truncate_middle")
        ids, dropped = self.ids(prompt), 0
        keep = int(ids[0] == self._tokenizer.bos_id)
        if context != "error":
            ids, dropped = self._cut(ids, keep, max_tokens, context)
        self.fits(ids, 1)
        room = self._n_ctx if context == "shift" else self._n_ctx - len(ids)
        if max_tokens is not None and max_tokens > room and context != "shift":
            raise ContextLengthError(
                f"{len(ids)} prompt tokens and {max_tokens} new ones do not fit in the context of {self._n_ctx}"
            )
        stops = [stop] if isinstance(stop, str) else stop or ()
        if not isinstance(stops, Sequence) or not all(isinstance(s, str) and s for s in stops):
            raise EdgertError("stop: every stop string must be text that is not empty")
        shown = checked(given.pop("shown", ()), self._n_vocab)
        alternatives = [logprobs.check(name, given.pop(name, None)) for name in ("logprobs", "prompt_logprobs")]
        forms = {name: given.pop(name) for name in FORMS if name in given}
        sampler = Sampler(_settings(given), self._n_vocab, self._top, self._tokenizer)
        constraint = self._constrainer.constraint(**forms)
        answer = Answer(self._tokenizer, ids, max_tokens or room, sampler, stops, ignore_eos, constraint,
                        alternatives[0], alternatives[1], shown)  # fmt: skip
        answer.keep, answer.dropped = keep, dropped
        return answer

    def _cut(self, ids: list[int], keep: int, max_tokens: int | None, context: str) -> tuple[list[int], int]:
        """A prompt that leaves room, and how many tokens were dropped: the oldest after `keep`, or in the middle."""
        room = self._n_ctx // 4 if max_tokens is None else max_tokens
        most = self._n_ctx - (min(room, self._n_ctx // 4) if context == "shift" else room)
        if len(ids) <= most or most < 2:
            return ids, 0
        first = keep if context == "shift" else most // 2
        return ids[:first] + ids[len(ids) - (most - first) :], len(ids) - most


def priority(given: dict[str, Any]) -> int:
    """Take the priority out of settings."""
    value = given.pop("priority", 0)
    if isinstance(value, bool) or not isinstance(value, int):
        raise EdgertError(f"priority: {value!r} is not a whole number")
    return value


def several(n: int, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Settings of so many answers to one prompt: a seed that is given counts up."""
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise EdgertError(f"n: {n!r} is not a positive whole number")
    seed = settings.get("seed")
    return [{**settings, "seed": seed + i} if isinstance(seed, int) else dict(settings) for i in range(n)]


def checked(ids: Sequence[int], n_vocab: int) -> list[int]:
    """Token ids as whole numbers of the vocabulary. EdgertError for anything else."""
    if isinstance(ids, str | bytes):
        raise EdgertError("token ids must be a sequence of whole numbers, not text")
    try:
        out = [operator.index(i) for i in ids]
    except TypeError:
        raise EdgertError("token ids must be a sequence of whole numbers") from None
    for i in out:
        if not 0 <= i < n_vocab:
            raise EdgertError(f"token {i} is not in the vocabulary of {n_vocab}")
    return out


def _settings(given: Mapping[str, Any]) -> Settings:
    try:
        return Settings(**{k: v for k, v in given.items() if v is not None})
    except TypeError:
        unknown = sorted(set(given) - set(Settings.__dataclass_fields__))
        raise EdgertError(f"unknown settings: {', '.join(unknown)}") from None
