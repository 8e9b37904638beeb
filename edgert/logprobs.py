"""Log-probabilities of tokens, from rows of logits as the model gave them: before penalties, filters, temperature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .errors import EdgertError
from .samplers import KERNEL_TOP_K, Top

F32 = npt.NDArray[np.float32]

ROWS = 32  # rows of logits held at a time while a prompt is scored


@dataclass(frozen=True)
class TokenLogprob:
    """A token's natural log-probability, and (token, logprob) of the likeliest at its place, the likeliest first."""

    token: int
    logprob: float
    top: list[tuple[int, float]]


def check(name: str, value: object) -> int | None:
    """How many alternatives the caller wants: None, or 0 to 512. EdgertError otherwise."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= KERNEL_TOP_K:
        raise EdgertError(f"{name}: {value!r} is not a whole number from 0 to {KERNEL_TOP_K}")
    return value


class Row:
    """The log-softmax of one row of logits (n_vocab,), of which it keeps a copy."""

    def __init__(self, logits: F32, n: int, top: Top) -> None:
        """n: how many alternatives `of` gives."""
        self._logits = logits.copy()
        self._total = log_total(self._logits)
        ids, values = top(self._logits, min(n, len(logits)))
        self._best = [(token, value - self._total) for token, value in zip(ids.tolist(), values.tolist(), strict=True)]

    def of(self, token: int) -> TokenLogprob:
        """The token that was chosen at this place."""
        return TokenLogprob(token, float(self._logits[token]) - self._total, self._best)


def log_total(logits: F32) -> float:
    """The logarithm of the sum of e to the power of the logits (n_vocab,)."""
    highest = logits.max()
    return float(highest) + float(np.log(np.exp(logits - highest).sum(dtype=np.float64)))


class PromptLogprobs:
    """Log-probabilities of a prompt's tokens, each given those before it; None for the first."""

    def __init__(self, prompt: Sequence[int], n: int, top: Top) -> None:
        self._prompt, self._n, self._top = prompt, n, top
        self.tokens: list[TokenLogprob | None] = [None]

    @property
    def complete(self) -> bool:
        return len(self.tokens) >= len(self._prompt)

    def restart(self) -> None:
        """The rows come again from the first."""
        self.tokens = [None]

    def add(self, rows: F32) -> None:
        """The next rows of logits (up to ROWS, n_vocab): each is about the token after its own."""
        for row in rows:
            if len(self.tokens) < len(self._prompt):
                self.tokens.append(Row(row, self._n, self._top).of(self._prompt[len(self.tokens)]))
