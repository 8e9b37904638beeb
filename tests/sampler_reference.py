"""The sampler steps again, as plainly as they can be said: a reference for tests.

Every step takes and returns float64 logits (n_vocab,), those of tokens that were dropped minus infinity.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]


def softmax(logits: F64) -> F64:
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def ranked(logits: F64) -> list[int]:
    """Candidates, the likeliest first, of equals the lower id first."""
    return sorted((i for i in range(len(logits)) if logits[i] > -np.inf), key=lambda i: (-logits[i], i))


def only(logits: F64, kept: Sequence[int]) -> F64:
    out = np.full(len(logits), -np.inf)
    out[list(kept)] = logits[list(kept)]
    return out


def penalties(logits: F64, history: Sequence[int], last_n: int, repeat: float, frequency: float, present: float) -> F64:
    out = logits.copy()
    recent = list(history)[-last_n:] if last_n > 0 else list(history)
    for token in set(recent):
        out[token] = out[token] / repeat if out[token] > 0 else out[token] * repeat
        out[token] -= recent.count(token) * frequency + present
    return out


def dry(logits: F64, history: Sequence[int], multiplier: float, base: float, allowed: int, last_n: int,
        breakers: Sequence[Sequence[int]]) -> F64:  # fmt: skip
    """For every token and every earlier place of it: how many tokens before that place are also at the end?"""
    recent = list(history)[-last_n:] if last_n > 0 else list(history)
    n, out = len(recent), logits.copy()
    limit = n
    for back in range(n):  # tokens after the last breaker count
        here = n - 1 - back
        lengths = [len(b) for b in breakers if recent[here : here + len(b)] == list(b)]
        if lengths:
            limit = back - (max(lengths) - 1)
            break
    if n <= allowed or limit < allowed:
        return out
    for token in range(len(logits)):
        longest = -1
        for place in range(1, n):
            if recent[place] == token:
                size = 0
                while size < place and recent[place - 1 - size] == recent[n - 1 - size]:
                    size += 1
                longest = max(longest, min(size, limit))
        if longest >= allowed and [token] not in [list(b) for b in breakers]:
            out[token] -= multiplier * base ** min(longest - allowed, int(88.7228391 / math.log(base)))
    return out


def top_n_sigma(logits: F64, n: float) -> F64:
    finite = logits[logits > -np.inf]
    return only(logits, np.flatnonzero(logits >= finite.max() - n * finite.std()).tolist())


def top_k(logits: F64, k: int) -> F64:
    return only(logits, ranked(logits)[:k])


def typ_p(logits: F64, mass: float, min_keep: int = 0) -> F64:
    p = softmax(logits)
    entropy = -sum(x * math.log(x) for x in p if x > 0)
    kept: list[int] = []
    total = 0.0
    for i in sorted(ranked(logits), key=lambda i: abs(-math.log(p[i]) - entropy)):
        kept.append(i)
        total += p[i]
        if total > mass and len(kept) >= min_keep:
            break
    return only(logits, kept)


def top_p(logits: F64, mass: float, min_keep: int = 0) -> F64:
    p = softmax(logits)
    kept: list[int] = []
    total = 0.0
    for i in ranked(logits):
        kept.append(i)
        total += p[i]
        if total >= mass and len(kept) >= min_keep:
            break
    return only(logits, kept)


def min_p(logits: F64, ratio: float, min_keep: int = 0) -> F64:
    p = softmax(logits)
    kept = [i for i in ranked(logits) if p[i] >= ratio * p.max()]
    return only(logits, kept if len(kept) >= min_keep else ranked(logits)[:min_keep])


def xtc(logits: F64, threshold: float, min_keep: int = 0) -> F64:
    """As when chance has it that it is applied."""
    p = softmax(logits)
    above = [i for i in ranked(logits) if p[i] >= threshold]
    rest = [i for i in ranked(logits) if i not in above[:-1]]
    return only(logits, rest) if len(above) > 1 and len(rest) >= min_keep else logits


def temperature(logits: F64, value: float) -> F64:
    return logits / value if value > 0 else top_k(logits, 1)


def dynamic_temperature(logits: F64, value: float, spread: float, exponent: float) -> F64:
    p = softmax(logits)
    p = p[p > 0]
    if len(p) == 1:
        return logits
    evenness = -sum(p * np.log(p)) / math.log(len(p))
    low, high = max(0.0, value - spread), value + spread
    return temperature(logits, low + (high - low) * evenness**exponent)


def mirostat_1(logits: F64, mu: float, m: int = 100) -> F64:
    p = softmax(logits)
    order = ranked(logits)
    above = below = 0.0
    for i in range(min(m - 1, len(order) - 1)):
        t = math.log((i + 2) / (i + 1))
        above += t * math.log(p[order[i]] / p[order[i + 1]])
        below += t * t
    s = above / below
    e = s - 1
    k = ((e * 2**mu) / (1 - len(logits) ** -e)) ** (1 / s)
    return only(logits, order[: max(1, int(k))])


def mirostat_2(logits: F64, mu: float) -> F64:
    p = softmax(logits)
    kept = [i for i in ranked(logits) if -math.log2(p[i]) <= mu]
    return only(logits, kept or ranked(logits)[:1])
