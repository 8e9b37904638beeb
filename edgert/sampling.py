"""From logits to a token: llama.cpp's chain in its order — penalties, top-k, typical, top-p, min-p, temperature."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real

import numpy as np
import numpy.typing as npt

from .errors import EdgertError
from .kernels_cpu.jit import Kernel

F32 = npt.NDArray[np.float32]
KERNEL_TOP_K = 512  # beyond, sorting everything is faster


class SettingsError(EdgertError):
    """A sampling setting is out of range."""


@dataclass(frozen=True)
class Settings:
    """How tokens are chosen. temperature 0: the likeliest, whatever the other filters say."""

    temperature: float = 0.8
    top_k: int = 40  # 0: all
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    repeat_penalty: float = 1.0  # divides positive and multiplies negative logits of recent tokens
    frequency_penalty: float = 0.0  # subtracted per occurrence
    presence_penalty: float = 0.0  # subtracted once
    penalty_last_n: int = 64  # recent tokens that penalties look at; -1: all, 0: none
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None

    def check(self, n_vocab: int) -> None:
        """SettingsError for the first value out of range."""
        limits = {
            "temperature": (0, 1e6), "top_k": (0, 2**31 - 1), "top_p": (0, 1), "min_p": (0, 1), "typical_p": (0, 1),
            "repeat_penalty": (1e-3, 1e3), "frequency_penalty": (-1e3, 1e3), "presence_penalty": (-1e3, 1e3),
            "penalty_last_n": (-1, 2**31 - 1), "seed": (0, 2**128 - 1),
        }  # fmt: skip
        for name, (low, high) in limits.items():
            value: object = getattr(self, name)
            kind = Integral if name in ("top_k", "penalty_last_n", "seed") else Real
            if name == "seed" and value is None:
                continue
            if not _is(value, kind) or not low <= value <= high:  # type: ignore[operator]
                what = "a whole number" if kind is Integral else "a number"
                raise SettingsError(f"{name}: {value!r} is not {what} from {low:g} to {high:g}")
        if not _is(self.logit_bias, Mapping):
            raise SettingsError("logit_bias: not a mapping of token ids to numbers")
        for token, bias in self.logit_bias.items():
            if not _is(token, Integral) or not 0 <= token < n_vocab:
                raise SettingsError(f"logit_bias: {token!r} is not a token id of the vocabulary of {n_vocab}")
            if not _is(bias, Real) or bias != bias:
                raise SettingsError(f"logit_bias: {bias!r} of token {token} is not a number")


def _is(value: object, kind: type) -> bool:
    """Whether a value that a caller gave is of a kind of number (bool is none)."""
    return isinstance(value, kind) and not isinstance(value, bool)


class Sampler:
    """Chooses tokens of one sequence."""

    def __init__(self, settings: Settings, n_vocab: int, top: Kernel) -> None:
        settings.check(n_vocab)
        self.settings, self._n_vocab = settings, n_vocab
        self._random = np.random.Generator(np.random.PCG64(settings.seed))
        self._top = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(top.address)

    def choose(self, logits: F32, history: Sequence[int]) -> int:
        """The next token from logits (n_vocab,), which are changed; history: all tokens so far, newest last."""
        s = self.settings
        self._penalise(logits, history)
        with np.errstate(over="ignore"):  # beyond float32 a bias is infinite
            for token, bias in s.logit_bias.items():
                logits[token] += np.float32(bias)
        if s.temperature == 0:
            return int(logits.argmax())
        ids, values = self._candidates(logits)
        p = _softmax(values)
        if s.typical_p < 1:
            ids, values, p = _typical(ids, values, p, s.typical_p)
        if s.top_p < 1:
            keep = int(np.searchsorted(np.cumsum(p), s.top_p)) + 1
            ids, values, p = ids[:keep], values[:keep], p[:keep]
        if s.min_p > 0:
            keep = max(1, int(np.count_nonzero(p >= p[0] * s.min_p)))
            ids, values = ids[:keep], values[:keep]
        p = np.cumsum(_softmax(values, s.temperature))
        return int(ids[min(int(np.searchsorted(p, self._random.random() * p[-1], side="right")), len(ids) - 1)])

    def _penalise(self, logits: F32, history: Sequence[int]) -> None:
        s = self.settings
        if s.penalty_last_n == 0 or (s.repeat_penalty == 1 and not s.frequency_penalty and not s.presence_penalty):
            return
        recent = history if s.penalty_last_n < 0 else history[-s.penalty_last_n :]
        for token, count in Counter(recent).items():
            value = float(logits[token])
            value = value / s.repeat_penalty if value > 0 else value * s.repeat_penalty
            logits[token] = value - count * s.frequency_penalty - s.presence_penalty

    def _candidates(self, logits: F32) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]:
        """The top_k (or all) tokens and their logits, likeliest first."""
        k = min(self.settings.top_k or self._n_vocab, self._n_vocab)
        if k > KERNEL_TOP_K:
            order = np.argsort(-logits, kind="stable")[:k].astype(np.int32)
            return order, logits[order].astype(np.float64)
        ids, values = np.zeros(k, np.int32), np.zeros(k, np.float32)
        addresses = [logits.ctypes.data, self._n_vocab, k, ids.ctypes.data, values.ctypes.data]
        args = np.array(addresses, np.int64)
        self._top(args.ctypes.data, 0, 1)
        return ids, values.astype(np.float64)


def _softmax(values: npt.NDArray[np.float64], temperature: float = 1.0) -> npt.NDArray[np.float64]:
    with np.errstate(over="ignore", invalid="ignore"):  # at tiny temperatures all but the likeliest are at -infinity
        p = np.exp((values - values.max()) / temperature)
    return np.asarray(p / p.sum(), np.float64)


def _typical(
    ids: npt.NDArray[np.int32], values: npt.NDArray[np.float64], p: npt.NDArray[np.float64], mass: float
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Tokens whose surprise is nearest the entropy, up to `mass` of probability (Meister et al. 2022)."""
    surprise = -np.log(np.maximum(p, 1e-300))
    entropy = float((p * surprise).sum())
    order = np.argsort(np.abs(surprise - entropy), kind="stable")
    keep = int(np.searchsorted(np.cumsum(p[order]), mass)) + 1
    chosen = np.sort(order[:keep])
    return ids[chosen], values[chosen], _softmax(values[chosen])
