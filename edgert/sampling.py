"""From logits to a token: llama.cpp's chain, in its order or any other, with its parameters and defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real

import numpy as np
import numpy.typing as npt

from . import samplers
from .dry import Dry, breakers
from .errors import EdgertError
from .formats.tokenizer import Tokenizer
from .kernels_cpu.jit import Kernel
from .samplers import Candidates, Step, Top

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]

CHAIN = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")
ALIASES = {"typical_p": "typ_p", "typical": "typ_p", "typ": "typ_p", "nucleus": "top_p", "temp": "temperature"}


class SettingsError(EdgertError):
    """A sampling setting is out of range."""


@dataclass(frozen=True)
class Settings:
    """How tokens are chosen. temperature 0: the likeliest of those that the other steps leave.

    samplers names the steps in their order: a step that is not named is left out, one that does nothing with its
    values costs nothing. After the last a token is drawn by its probability. Logit bias comes before all.
    mirostat replaces all steps but the temperature.
    """

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
    top_n_sigma: float = -1.0  # logits within so many standard deviations of the largest; 0 or less: all
    min_keep: int = 0  # tokens that typical_p, top_p, min_p and xtc leave at least
    dynatemp_range: float = 0.0  # temperature +- this, by the entropy
    dynatemp_exponent: float = 1.0
    xtc_probability: float = 0.0  # how often xtc is applied
    xtc_threshold: float = 0.1  # above 0.5: never
    dry_multiplier: float = 0.0  # penalty = multiplier * base ** (tokens repeated - allowed_length)
    dry_base: float = 1.75  # below 1: off
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1  # recent tokens in which repetitions are looked for; -1: all, 0: none
    dry_sequence_breakers: Sequence[str] = ("\n", ":", '"', "*")  # a repetition begins after the last of these
    mirostat: int = 0  # 1 or 2: hold the surprise of the tokens near mirostat_tau
    mirostat_tau: float = 5.0  # bits
    mirostat_eta: float = 0.1  # learning rate
    samplers: Sequence[str] = CHAIN

    def check(self, n_vocab: int) -> None:
        """SettingsError for the first value out of range."""
        whole = {
            "top_k": (0, 2**31 - 1), "penalty_last_n": (-1, 2**31 - 1), "seed": (0, 2**128 - 1),
            "min_keep": (0, 2**31 - 1), "dry_allowed_length": (0, 2**31 - 1), "dry_penalty_last_n": (-1, 2**31 - 1),
            "mirostat": (0, 2),
        }  # fmt: skip
        numbers = {
            "temperature": (0, 1e6), "top_p": (0, 1), "min_p": (0, 1), "typical_p": (0, 1), "top_n_sigma": (-1e6, 1e6),
            "repeat_penalty": (1e-3, 1e3), "frequency_penalty": (-1e3, 1e3), "presence_penalty": (-1e3, 1e3),
            "dynatemp_range": (0, 1e6), "dynatemp_exponent": (0, 1e3), "xtc_probability": (0, 1),
            "xtc_threshold": (0, 1), "dry_multiplier": (0, 1e3), "dry_base": (0, 1e3), "mirostat_tau": (0, 1e3),
            "mirostat_eta": (0, 1e3),
        }  # fmt: skip
        for name, (low, high) in {**whole, **numbers}.items():
            value: object = getattr(self, name)
            kind = Integral if name in whole else Real
            if name == "seed" and value is None:
                continue
            if not _is(value, kind) or not low <= value <= high:  # type: ignore[operator]
                what = "a whole number" if kind is Integral else "a number"
                raise SettingsError(f"{name}: {value!r} is not {what} from {low:g} to {high:g}")
        self._check_bias(n_vocab)
        for name in ("samplers", "dry_sequence_breakers"):
            texts = getattr(self, name)
            if not isinstance(texts, Sequence) or isinstance(texts, str) or not all(_is(t, str) and t for t in texts):
                raise SettingsError(f"{name}: {texts!r} is not a list of texts that are not empty")
        self.chain()

    def _check_bias(self, n_vocab: int) -> None:
        if not _is(self.logit_bias, Mapping):
            raise SettingsError("logit_bias: not a mapping of token ids to numbers")
        for token, bias in self.logit_bias.items():
            if not _is(token, Integral) or not 0 <= token < n_vocab:
                raise SettingsError(f"logit_bias: {token!r} is not a token id of the vocabulary of {n_vocab}")
            if not _is(bias, Real) or bias != bias:
                raise SettingsError(f"logit_bias: {bias!r} of token {token} is not a number")

    def chain(self) -> list[str]:
        """The steps in their order, by llama.cpp's names. SettingsError for an unknown one."""
        names = [name.replace("-", "_") for name in self.samplers]
        names = [ALIASES.get(name, name) for name in names]
        if unknown := [name for name in names if name not in CHAIN]:
            raise SettingsError(f"samplers: {unknown[0]!r} is not one of {', '.join(CHAIN)}")
        return names


def _is(value: object, kind: type) -> bool:
    """Whether a value that a caller gave is of a kind of number (bool is none)."""
    return isinstance(value, kind) and not isinstance(value, bool)


class Sampler:
    """Chooses tokens of one sequence, with random numbers of its own: what else runs does not matter."""

    def __init__(self, settings: Settings, n_vocab: int, top: Kernel, tokenizer: Tokenizer | None = None) -> None:
        """top: the kernel "sample.top". tokenizer: needed only for the sequence breakers of DRY."""
        settings.check(n_vocab)
        self.settings, self._n_vocab = settings, n_vocab
        self._random = np.random.Generator(np.random.PCG64(settings.seed))
        self.top = Top(top)
        self._mu = 2.0 * settings.mirostat_tau  # largest surprise that mirostat allows, in bits
        self._steps = self._chain(tokenizer)

    def choose(self, logits: F32, history: Sequence[int]) -> int:
        """The next token from logits (n_vocab,), which are changed; history: all tokens so far, newest last.

        EdgertError if every logit is minus infinity.
        """
        ids, p = self.distribution(logits, history)
        at = 0
        if len(p) > 1:
            reached = np.cumsum(p)
            at = int(np.searchsorted(reached, self._random.random() * reached[-1], side="right"))
            at = min(at, len(p) - 1)
        if self.settings.mirostat:
            self._mu -= self.settings.mirostat_eta * (-float(np.log2(p[at])) - self.settings.mirostat_tau)
        return int(ids[at])

    def distribution(self, logits: F32, history: Sequence[int]) -> tuple[I32, F64]:
        """(ids, probabilities) of the tokens that `choose` draws from; changes logits (n_vocab,)."""
        with np.errstate(over="ignore"):  # beyond float32 a bias is infinite
            for token, bias in self.settings.logit_bias.items():
                logits[token] += np.float32(bias)
        candidates = Candidates(logits, self.top)
        for step in self._steps:
            step(candidates, history)
        p = candidates.probabilities()
        return candidates.ids, p

    def _chain(self, tokenizer: Tokenizer | None) -> list[Step]:
        """The steps that do something. At temperature 0 only the likeliest is looked for, where that gives the same."""
        s = self.settings
        if s.mirostat:
            return [self._step("temperature"), self._mirostat]
        names = [name for name in s.chain() if self._active(name)]
        if "temperature" in names and s.temperature == 0 and s.dynatemp_range == 0:
            del names[names.index("temperature") + 1 :]
            while len(names) > 1 and names[-2] in ("top_n_sigma", "top_k", "top_p", "min_p"):
                del names[-2]
        return [self._dry(tokenizer) if name == "dry" else self._step(name) for name in names]

    def _active(self, name: str) -> bool:
        """Whether a step does anything with its values."""
        s = self.settings
        penalties = s.repeat_penalty != 1 or bool(s.frequency_penalty) or bool(s.presence_penalty)
        return {
            "penalties": penalties and s.penalty_last_n != 0,
            "dry": s.dry_multiplier > 0 and s.dry_base >= 1 and s.dry_penalty_last_n != 0,
            "top_n_sigma": s.top_n_sigma > 0,
            "top_k": 0 < s.top_k < self._n_vocab,
            "typ_p": s.typical_p < 1,
            "top_p": s.top_p < 1,
            "min_p": s.min_p > 0,
            "xtc": s.xtc_probability > 0 and s.xtc_threshold <= 0.5,
            "temperature": s.temperature != 1 or s.dynatemp_range > 0,
        }[name]

    def _step(self, name: str) -> Step:
        s = self.settings
        steps: dict[str, Step] = {
            "penalties": self._penalties,
            "top_n_sigma": lambda c, _: samplers.top_n_sigma(c, s.top_n_sigma),
            "top_k": lambda c, _: c.keep_largest(s.top_k),
            "typ_p": lambda c, _: samplers.typical(c, s.typical_p, s.min_keep),
            "top_p": lambda c, _: samplers.top_p(c, s.top_p, s.min_keep),
            "min_p": lambda c, _: samplers.min_p(c, s.min_p, s.min_keep),
            "xtc": self._xtc,
            "temperature": self._temperature,
        }
        return steps[name]

    def _dry(self, tokenizer: Tokenizer | None) -> Step:
        s = self.settings
        if tokenizer is None and s.dry_sequence_breakers:
            raise SettingsError("dry_sequence_breakers: they can be found only with a tokenizer")
        ends = breakers(tokenizer, s.dry_sequence_breakers) if tokenizer is not None else {}
        return Dry(s.dry_multiplier, s.dry_base, s.dry_allowed_length, s.dry_penalty_last_n, ends)

    def _penalties(self, candidates: Candidates, history: Sequence[int]) -> None:
        s = self.settings
        recent = history if s.penalty_last_n < 0 else history[-s.penalty_last_n :]
        samplers.penalise(candidates, recent, s.repeat_penalty, s.frequency_penalty, s.presence_penalty)

    def _xtc(self, candidates: Candidates, _: Sequence[int]) -> None:
        s = self.settings
        if len(candidates) > 1 and self._random.random() <= s.xtc_probability:
            samplers.xtc(candidates, s.xtc_threshold, s.min_keep)

    def _temperature(self, candidates: Candidates, _: Sequence[int]) -> None:
        s = self.settings
        if s.dynatemp_range and not s.mirostat:
            samplers.dynamic_temperature(candidates, s.temperature, s.dynatemp_range, s.dynatemp_exponent)
        else:
            samplers.temperature(candidates, s.temperature)

    def _mirostat(self, candidates: Candidates, _: Sequence[int]) -> None:
        if self.settings.mirostat == 1:
            samplers.mirostat_1(candidates, self._mu, self._n_vocab)
        else:
            samplers.mirostat_2(candidates, self._mu)
