"""The steps of the sampler chain: each narrows or reweighs the tokens that may still be chosen.

The behaviour is llama.cpp's, except that tokens which can no longer be drawn are dropped rather than kept with a
probability of zero.
"""

from __future__ import annotations

import ctypes
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from .errors import EdgertError
from .kernels_cpu.jit import Kernel

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]
Logits = npt.NDArray[np.float32 | np.float64]
Places = npt.NDArray[np.integer] | npt.NDArray[np.bool_] | slice

KERNEL_TOP_K = 512  # beyond, sorting everything is as fast
EXACT = 4096  # up to so many candidates probabilities are computed in float64 throughout
COLD = 1e-20  # a temperature below is as good as zero, and would overflow
MIROSTAT_TOKENS = 100  # the likeliest, from which mirostat 1 estimates how probabilities fall off


class Top:
    """The kernel that finds the largest of a row."""

    def __init__(self, kernel: Kernel) -> None:
        self._call = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(kernel.address)

    def __call__(self, row: F32, k: int) -> tuple[I32, F32]:
        """(ids, values) of the k <= n largest of a contiguous row (n,), largest first, of equals the lower id first.

        A nan counts, and comes out, as minus infinity.
        """
        ids, values = np.zeros(k, np.int32), np.zeros(k, np.float32)
        args = np.array([row.ctypes.data, len(row), k, ids.ctypes.data, values.ctypes.data], np.int64)
        self._call(args.ctypes.data, 0, 1)
        return ids, values


class Candidates:
    """Tokens that may still be chosen: `ids` (n,) and `logits` (n,); `ordered` once the likeliest are first."""

    def __init__(self, logits: F32, top: Top) -> None:
        self.logits: Logits = logits
        self.ordered = False
        self._ids: I32 | None = None  # None: all of the vocabulary
        self._top = top
        self._clean = False  # no logit is nan or infinite

    def __len__(self) -> int:
        return len(self.logits)

    @property
    def ids(self) -> I32:
        return np.arange(len(self), dtype=np.int32) if self._ids is None else self._ids

    def keep(self, places: Places) -> None:
        """Drop all others. Places must be in rising order."""
        self._ids, self.logits = self.ids[places], self.logits[places]

    def places_of(self, tokens: Iterable[int]) -> Iterable[tuple[int, int]]:
        """(place, token) of those tokens that are candidates."""
        if self._ids is None:
            return ((token, token) for token in tokens)
        place = {token: i for i, token in enumerate(self._ids.tolist())}
        return ((place[token], token) for token in tokens if token in place)

    def largest(self, k: int) -> tuple[I32, Logits]:
        """(ids, logits) of the k likeliest in order, of equals the lower id first."""
        if self.ordered:
            return self.ids[:k], self.logits[:k]
        if k <= KERNEL_TOP_K and self.logits.dtype == np.float32:
            places, values = self._top(np.ascontiguousarray(self.logits, np.float32), k)
            return places if self._ids is None else self._ids[places], values.astype(np.float64)
        self.clean()
        places = _falling(self.logits)[:k]
        return self.ids[places], self.logits[places]

    def order(self) -> None:
        """Put the likeliest first."""
        self._ids, self.logits = self.largest(len(self))
        self.ordered = True

    def keep_largest(self, k: int) -> None:
        """Keep the k likeliest, of equals those with lower ids; in order unless they are many."""
        if k <= KERNEL_TOP_K or self.ordered:
            self._ids, self.logits = self.largest(min(k, len(self)))
            self.ordered = True
            return
        self.clean()
        if k < len(self):
            least = np.partition(self.logits, len(self) - k)[len(self) - k]
            kept = self.logits > least
            kept[np.flatnonzero(self.logits == least)[: k - np.count_nonzero(kept)]] = True
            self.keep(kept)

    def clean(self) -> None:
        """Drop what cannot be chosen (nan, minus infinity); where logits are infinite, only these count.

        EdgertError when nothing is left.
        """
        if self._clean:
            return
        possible = self.logits > -np.inf
        if not possible.all():
            self.keep(possible)
        if not len(self):
            raise EdgertError("no token can be chosen: every logit is minus infinity or not a number")
        if self.logits.max() == np.inf:
            self.keep(self.logits == np.inf)
            self.logits = np.zeros(len(self), np.float64)
        self._clean = True

    def weights(self) -> Logits:
        """Probabilities, not normalised: e to the power of (logit - largest logit)."""
        self.clean()
        logits = self.precise()
        weights: Logits = np.exp(logits - logits.max())
        return weights

    def precise(self) -> Logits:
        """The logits in float64 if they are few."""
        return self.logits.astype(np.float64) if len(self) <= EXACT else self.logits

    def probabilities(self) -> F64:
        """Softmax of the logits."""
        weights = self.weights()
        return np.asarray(weights / weights.sum(dtype=np.float64), np.float64)


def _falling(logits: Logits) -> I32:
    """Places in the order of falling logits (n,), of equals the earlier first."""
    if logits.dtype != np.float32:
        return np.argsort(-logits, kind="stable").astype(np.int32)
    # NumPy sorts integers with SIMD, but nothing stably: so sort (logit, place) as one integer.
    bits = (np.float32(0) - logits).view(np.int32)
    rising = np.where(bits < 0, ~bits, bits ^ np.int32(-(2**31))).view(np.uint32)  # orders as the floats do
    keys = rising.astype(np.uint64) << np.uint64(32) | np.arange(len(logits), dtype=np.uint64)
    keys.sort()
    return (keys & np.uint64(0xFFFFFFFF)).astype(np.int32)


Step = Callable[[Candidates, Sequence[int]], None]  # changes the candidates; history is all tokens so far


def penalise(c: Candidates, recent: Sequence[int], repeat: float, frequency: float, presence: float) -> None:
    """Make recent tokens less likely: by a factor, by an amount per occurrence, by an amount."""
    counts = Counter(recent)
    for place, token in c.places_of(counts):
        value = float(c.logits[place])
        value = value / repeat if value > 0 else value * repeat
        c.logits[place] = value - counts[token] * frequency - presence
        c.ordered = False


def top_n_sigma(c: Candidates, n: float) -> None:
    """Keep logits within n standard deviations of the largest (Tang et al. 2024)."""
    c.clean()
    if len(c) > 1:
        c.keep(c.logits >= c.logits.max() - n * c.logits.std(dtype=np.float64))


def typical(c: Candidates, mass: float, min_keep: int) -> None:
    """Keep tokens whose surprise is nearest the entropy, until they have more than `mass` (Meister et al. 2022)."""
    c.clean()
    c.order()
    p = c.probabilities()
    surprise = -np.log(np.maximum(p, 1e-300))
    order = np.argsort(np.abs(surprise - float((p * surprise).sum())), kind="stable")
    count = int(np.searchsorted(np.cumsum(p[order]), mass, side="right")) + 1
    c.keep(np.sort(order[: max(count, min_keep)]))


def top_p(c: Candidates, mass: float, min_keep: int) -> None:
    """Keep the likeliest that together have at least `mass` of probability (Holtzman et al. 2019)."""
    total, highest = c.weights().sum(dtype=np.float64), c.logits.max()
    _, logits = c.largest(min(len(c), KERNEL_TOP_K))  # mostly enough, without sorting all
    reached = np.cumsum(np.exp(logits.astype(np.float64) - highest)) / total
    if reached[-1] < mass and len(c) > len(logits):
        logits = np.sort(c.logits)[::-1]
        reached = np.cumsum(np.exp(logits - highest), dtype=np.float64) / total
    c.keep_largest(max(int(np.searchsorted(reached, mass)) + 1, min_keep))


def min_p(c: Candidates, ratio: float, min_keep: int) -> None:
    """Keep tokens at least `ratio` times as likely as the likeliest."""
    c.clean()
    kept = c.logits >= c.logits.max() + math.log(ratio)
    if np.count_nonzero(kept) >= min_keep:
        c.keep(kept)
    else:
        c.keep_largest(min_keep)


def xtc(c: Candidates, threshold: float, min_keep: int) -> None:
    """Drop all but the least likely of the tokens with at least `threshold` of probability ("exclude top choices")."""
    c.clean()
    c.order()
    above = int(np.count_nonzero(c.probabilities() >= threshold))
    if above > 1 and len(c) - above + 1 >= min_keep:
        c.keep(slice(above - 1, None))


def temperature(c: Candidates, value: float) -> None:
    """Divide the logits; at zero only the likeliest is left."""
    c.clean()
    if value < COLD:
        return c.keep_largest(1)
    with np.errstate(over="ignore"):
        scaled = c.precise() / value
    if np.isfinite(scaled.max()):
        c.logits = scaled
    else:
        c.keep_largest(1)


def dynamic_temperature(c: Candidates, value: float, spread: float, exponent: float) -> None:
    """A temperature within `spread` of `value`, higher the more evenly probability is spread (normalised entropy)."""
    c.clean()
    if len(c) > 1:
        p = c.probabilities()
        p = p[p > 0]
        evenness = float(-(p * np.log(p)).sum()) / math.log(len(c))
        low = max(0.0, value - spread)
        temperature(c, low + (value + spread - low) * max(evenness, 0.0) ** exponent)


def mirostat_1(c: Candidates, mu: float, n_vocab: int) -> None:
    """Keep so many of the likeliest that a surprise of mu bits is expected, assuming Zipf's law (Basu et al. 2021)."""
    c.clean()
    if len(c) == 1:
        return
    _, logits = c.largest(min(MIROSTAT_TOKENS, len(c)))
    ranks = np.arange(1, len(logits), dtype=np.float64)
    t, b = np.log((ranks + 1) / ranks), -np.diff(logits.astype(np.float64))
    with np.errstate(all="ignore"):  # where all are equally likely the formula divides by zero
        s = np.float64((t * b).sum() / (t * t).sum())
        k = ((s - 1) * 2.0**mu / (1 - np.float64(n_vocab) ** (1 - s))) ** (1 / s)
    c.keep_largest(int(min(max(k, 1), len(c))) if k == k else 1)


def mirostat_2(c: Candidates, mu: float) -> None:
    """Keep the tokens with a surprise of at most mu bits, at least the likeliest (Basu et al. 2021)."""
    with np.errstate(divide="ignore"):
        kept = -np.log2(c.probabilities()) <= mu
    if kept.any():
        c.keep(kept)
    else:
        c.keep_largest(1)
