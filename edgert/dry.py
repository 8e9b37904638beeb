"""DRY ("don't repeat yourself"): a penalty for tokens that would go on repeating a sequence, as in llama.cpp.

The penalty grows exponentially with the length of what would be repeated. Sequence breakers (a newline, say) end a
repetition, so that lists and chat turns are not penalised for having the same form.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from .formats.tokenizer import Tokenizer
from .samplers import Candidates

Breakers = Mapping[int, Sequence[tuple[int, ...]]]  # first token of a breaker -> tokens that may follow to complete it

MAX_BREAKER_BYTES, MAX_TAIL = 40, 20
LOG_FLOAT_MAX = 88.7228391  # natural logarithm of the largest float32

_known: weakref.WeakKeyDictionary[Tokenizer, dict[str, Breakers]] = weakref.WeakKeyDictionary()


def breakers(tokenizer: Tokenizer, strings: Sequence[str]) -> Breakers:
    """All ways in which the strings can occur in tokens: within one, or begun by one and completed by others.

    Looks at the whole vocabulary once per tokenizer and string.
    """
    known = _known.setdefault(tokenizer, {})
    if new := [string for string in strings if string not in known]:
        pieces = tokenizer.pieces()
        known.update({string: _breaker(tokenizer, pieces, string) for string in new})
    found: dict[int, list[tuple[int, ...]]] = {}
    for string in strings:
        for token, tails in known[string].items():
            have = found.setdefault(token, [])
            have += [tail for tail in tails if tail not in have]
    return found


def _breaker(tokenizer: Tokenizer, pieces: Sequence[bytes], string: str) -> Breakers:
    data = string.encode()[:MAX_BREAKER_BYTES]
    found: dict[int, list[tuple[int, ...]]] = {}
    for token, piece in enumerate(pieces):
        if data in piece:
            found[token] = [()]
            continue
        for size in range(1, min(len(data) - 1, len(piece)) + 1):
            if piece.endswith(data[:size]):
                rest = data[size:].decode("utf-8", "replace")
                tail = tuple(tokenizer.encode(rest, add_special=False)[:MAX_TAIL])
                if tail not in found.setdefault(token, []):
                    found[token].append(tail)
    return found


class Dry:
    """The step of the chain. multiplier, base, allowed_length, last_n: the settings `dry_*`."""

    def __init__(self, multiplier: float, base: float, allowed_length: int, last_n: int, ends: Breakers) -> None:
        self._multiplier, self._base, self._allowed, self._last_n = multiplier, base, allowed_length, last_n
        self._ends = ends
        self._most = int(LOG_FLOAT_MAX / math.log(base)) if base > 1.000001 else None  # a longer one overflows

    def __call__(self, c: Candidates, history: Sequence[int]) -> None:
        recent = history if self._last_n < 0 else history[-self._last_n :]
        if len(recent) <= self._allowed:
            return
        lengths = repeats(np.asarray(recent, np.int32), self._allowed, self._limit(recent), self._most)
        lengths = {t: n for t, n in lengths.items() if () not in self._ends.get(t, ())}
        for place, token in c.places_of(lengths):
            exponent = lengths[token] - self._allowed
            if self._most is not None:
                exponent = min(exponent, self._most)
            with np.errstate(over="ignore"):  # beyond float32 a logit is minus infinity
                c.logits[place] -= self._multiplier * self._base**exponent
            c.ordered = False

    def _limit(self, recent: Sequence[int]) -> int:
        """How many of the last tokens may count as repeated: those after the last sequence breaker."""
        for back, token in enumerate(reversed(recent) if self._ends else ()):
            matches = [
                len(tail)
                for tail in self._ends.get(token, ())
                if len(tail) <= back and tuple(recent[len(recent) - back : len(recent) - back + len(tail)]) == tail
            ]
            if matches:
                return back - max(matches)
        return len(recent)


def repeats(recent: npt.NDArray[np.int32], allowed: int, limit: int, most: int | None) -> dict[int, int]:
    """For each token that would continue a repetition: how many tokens at the end of `recent` it would repeat.

    Only repetitions of at least `allowed` tokens; no more than `limit` of them are counted, and no more than
    allowed + most are looked for.
    """
    if limit < allowed:
        return {}
    n = len(recent)
    length = np.zeros(n - 1, np.int32)  # (places,) how much of the end also ends at this place
    alive = np.arange(n - 1)
    for size in range(limit if most is None else min(limit, allowed + most)):
        alive = alive[alive >= size]
        alive = alive[recent[alive - size] == recent[n - 1 - size]]
        if not len(alive):
            break
        length[alive] = size + 1
    places = np.flatnonzero(length >= allowed)
    places = places[np.argsort(length[places], kind="stable")]  # the longest last, so that it stays in the dict
    return dict(zip(recent[places + 1].tolist(), length[places].tolist(), strict=True))
