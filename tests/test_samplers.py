"""Every step of the sampler chain, alone and together, against plain references on random logits."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from edgert.kernels_cpu import isa, jit

import sampler_reference as ref
from edgert.dry import breakers
from edgert.errors import EdgertError
from edgert.sampling import CHAIN, Sampler, Settings, SettingsError

F64 = npt.NDArray[np.float64]
Reference = Callable[[F64, list[int], Settings], F64]
VECTORS = 1000
OFF: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "dry_sequence_breakers": ()}
DRY: dict[str, Any] = {"dry_multiplier": 0.8, "dry_base": 1.75}
REFERENCES: dict[str, Reference] = {
    "penalties": lambda x, h, s: ref.penalties(
        x, h, s.penalty_last_n, s.repeat_penalty, s.frequency_penalty, s.presence_penalty
    ),
    "dry": lambda x, h, s: ref.dry(x, h, s.dry_multiplier, s.dry_base, s.dry_allowed_length, s.dry_penalty_last_n, []),
    "top_n_sigma": lambda x, h, s: ref.top_n_sigma(x, s.top_n_sigma),
    "top_k": lambda x, h, s: ref.top_k(x, s.top_k),
    "typ_p": lambda x, h, s: ref.typ_p(x, s.typical_p, s.min_keep),
    "top_p": lambda x, h, s: ref.top_p(x, s.top_p, s.min_keep),
    "min_p": lambda x, h, s: ref.min_p(x, s.min_p, s.min_keep),
    "xtc": lambda x, h, s: ref.xtc(x, s.xtc_threshold, s.min_keep),
    "temperature": lambda x, h, s: (
        ref.dynamic_temperature(x, s.temperature, s.dynatemp_range, s.dynatemp_exponent)
        if s.dynatemp_range
        else ref.temperature(x, s.temperature)
    ),
}
FULL: dict[str, Any] = {
    **DRY, "repeat_penalty": 1.2, "frequency_penalty": 0.1, "presence_penalty": 0.2, "top_n_sigma": 2.5, "top_k": 40,
    "typical_p": 0.98, "top_p": 0.95, "min_p": 0.02, "xtc_probability": 1.0, "xtc_threshold": 0.1, "temperature": 0.8,
    "dynatemp_range": 0.3,
}  # fmt: skip
CASES: dict[str, tuple[Sequence[str], dict[str, Any]]] = {
    "penalties": (["penalties"], {"repeat_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.6}),
    "penalties of few": (["penalties"], {"repeat_penalty": 0.8, "penalty_last_n": 3}),
    "dry": (["dry"], DRY),
    "dry of few": (["dry"], {**DRY, "dry_base": 1.1, "dry_penalty_last_n": 12, "dry_allowed_length": 1}),
    "top_n_sigma": (["top_n_sigma"], {"top_n_sigma": 1.0}),
    "top_k": (["top_k"], {"top_k": 13}),
    "typ_p": (["typ_p"], {"typical_p": 0.6}),
    "typ_p keeps": (["typ_p"], {"typical_p": 0.05, "min_keep": 4}),
    "top_p": (["top_p"], {"top_p": 0.7}),
    "top_p keeps": (["top_p"], {"top_p": 0.01, "min_keep": 4}),
    "min_p": (["min_p"], {"min_p": 0.1}),
    "min_p keeps": (["min_p"], {"min_p": 0.9, "min_keep": 4}),
    "xtc": (["xtc"], {"xtc_probability": 1.0, "xtc_threshold": 0.05}),
    "temperature": (["temperature"], {"temperature": 0.6}),
    "zero": (["temperature"], {"temperature": 0.0}),
    "dynamic": (["temperature"], {"temperature": 0.9, "dynatemp_range": 0.5, "dynatemp_exponent": 1.5}),
    "the chain": (CHAIN, FULL),
    "backwards": (CHAIN[::-1], {**FULL, "top_n_sigma": 1.0}),
    "the chain at zero": (CHAIN, {**FULL, "temperature": 0.0, "dynatemp_range": 0.0}),
}


@pytest.fixture(scope="module")
def top() -> jit.Kernel:
    return jit.load(["sample.top"], isa.choose())["sample.top"]


def vectors(count: int, seed: int) -> list[tuple[F64, list[int]]]:
    """Logits as spread as a model's, some with equals or impossible tokens, and histories that repeat themselves."""
    random = np.random.default_rng(seed)
    out = []
    for i in range(count):
        logits = random.standard_normal(int(random.integers(8, 120))).astype(np.float32) * random.uniform(0.5, 6)
        if i % 5 == 1:
            logits = np.round(logits)
        if i % 5 == 2:
            logits[random.integers(0, len(logits), 3)] = -np.inf
        phrase = random.integers(0, len(logits), int(random.integers(1, 8))).tolist()
        noise = random.integers(0, len(logits), int(random.integers(0, 6))).tolist()
        out.append((logits.astype(np.float64), noise + phrase + noise[:2] + phrase + phrase[: len(phrase) // 2]))
    return out


def same(sampler: Sampler, logits: F64, history: list[int], expected: F64) -> None:
    """The same tokens are left, with the same probabilities."""
    ids, p = sampler.distribution(logits.astype(np.float32), history)
    want = ref.softmax(expected)
    assert sorted(ids.tolist()) == np.flatnonzero(expected > -np.inf).tolist()
    np.testing.assert_allclose(p, want[ids], rtol=2e-5, atol=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_against_the_reference(top: jit.Kernel, case: str) -> None:
    names, given = CASES[case]
    settings = Settings(**{**OFF, **given, "samplers": names})
    for logits, history in vectors(VECTORS, seed=sum(case.encode())):
        expected = logits
        for name in names:
            expected = REFERENCES[name](expected, history, settings)
        same(Sampler(settings, len(logits), top), logits, history, expected)


@pytest.mark.parametrize("mirostat", [1, 2])
def test_mirostat(top: jit.Kernel, mirostat: int) -> None:
    """The tokens left, and how the threshold follows the surprise of what was drawn."""
    step = ref.mirostat_1 if mirostat == 1 else ref.mirostat_2
    for logits, _ in vectors(VECTORS, seed=mirostat):
        settings = Settings(mirostat=mirostat, mirostat_tau=1.5, mirostat_eta=0.3, temperature=0.9, seed=1)
        sampler, mu = Sampler(settings, len(logits), top), 2 * 1.5
        for _ in range(2):
            expected = step(ref.temperature(logits, 0.9), mu)
            same(sampler, logits, [], expected)
            token = sampler.choose(logits.astype(np.float32), [])
            mu -= 0.3 * (-math.log2(ref.softmax(expected)[token]) - 1.5)


@pytest.mark.parametrize("given", [{"top_p": 0.9}, {"min_p": 0.01}, {"top_n_sigma": 1.0}, {"typical_p": 0.5}, {}])
@pytest.mark.parametrize("spread", [0.5, 4.0])
def test_large_vocabularies(top: jit.Kernel, given: dict[str, Any], spread: float) -> None:
    """Where few tokens are likely, and where more are than the selecting kernel finds."""
    logits = np.random.default_rng(3).standard_normal(6000).astype(np.float32) * np.float32(spread)
    settings = Settings(**{**OFF, **given})
    expected = logits.astype(np.float64)
    for name in given:
        name = {"typical_p": "typ_p"}.get(name, name)
        expected = REFERENCES[name](expected, [], settings)
    same(Sampler(settings, len(logits), top), logits.astype(np.float64), [], expected)


def test_dry_by_hand(top: jit.Kernel) -> None:
    """After a b c c b c y a b c, c would repeat 3 tokens, y 2 and b 1; only at least 2 count."""
    a, b, c, y = range(4)
    logits = np.zeros(5, np.float32)
    settings = Settings(**{**OFF, "samplers": ["dry"], "dry_multiplier": 1.0, "dry_base": 2.0})
    ids, p = Sampler(settings, 5, top).distribution(logits, [a, b, c, c, b, c, y, a, b, c])
    assert ids.tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_allclose(np.log(p / p[0]), [0, 0, -2, -1, 0], atol=1e-6)


class Letters:
    """A tokenizer of a few texts, longest first."""

    texts = (b"a", b"b", b"c", b"\n", b"x\n", b"##", b"#", b"a#")

    def pieces(self) -> list[bytes]:
        return list(self.texts)

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        out, data = [], text.encode()
        while data:
            token = max((i for i, t in enumerate(self.texts) if data.startswith(t)), key=lambda i: len(self.texts[i]))
            out.append(token)
            data = data[len(self.texts[token]) :]
        return out


def test_dry_sequence_breakers(top: jit.Kernel) -> None:
    """Tokens that contain a breaker, or begin one that the next tokens complete, end a repetition."""
    letters: Any = Letters()
    assert breakers(letters, ["\n"]) == {3: [()], 4: [()]}
    assert breakers(letters, ["##"]) == {5: [()], 6: [(6,)], 7: [(6,)]}
    found = [[3], [4], [5], [6, 6], [7, 6]]
    settings = Settings(**{**OFF, **DRY, "samplers": ["dry"], "dry_sequence_breakers": ["\n", "##"]})
    random = np.random.default_rng(5)
    sampler = Sampler(settings, 8, top, letters)
    for _ in range(VECTORS):
        history = random.choice(8, 40, p=[0.3, 0.3, 0.2, 0.04, 0.04, 0.04, 0.04, 0.04]).tolist()
        logits = random.standard_normal(8).astype(np.float32).astype(np.float64)
        same(sampler, logits, history, ref.dry(logits, history, 0.8, 1.75, 2, -1, found))
    with pytest.raises(SettingsError, match="tokenizer"):
        Sampler(settings, 8, top)


def test_long_repetitions_do_not_overflow(top: jit.Kernel) -> None:
    """A penalty as large as float32 holds bans the token, and finding it takes no longer for a longer history."""
    settings = Settings(**{**OFF, **DRY, "samplers": ["dry"]})
    ids, p = Sampler(settings, 3, top).distribution(np.zeros(3, np.float32), [1] * 5000)
    assert dict(zip(ids.tolist(), p.tolist(), strict=True)) == {0: 0.5, 2: 0.5, **({1: 0.0} if 1 in ids else {})}


def chi_square_is_small(counts: Counter[int], p: dict[int, float]) -> None:
    """Below the 99.99 % point of the distribution (Wilson and Hilferty's approximation)."""
    n, free = sum(counts.values()), len(p) - 1
    assert set(counts) <= set(p)
    statistic = sum((counts[token] - n * q) ** 2 / (n * q) for token, q in p.items())
    assert statistic < free * (1 - 2 / (9 * free) + 3.72 * math.sqrt(2 / (9 * free))) ** 3


@pytest.mark.parametrize("given", [{}, FULL, {**FULL, "xtc_probability": 0.3}, {"top_k": 0, "min_p": 0.01}])
def test_drawn_tokens_have_their_probabilities(top: jit.Kernel, given: dict[str, Any]) -> None:
    """A chi-square test of 10,000 tokens; with xtc by chance, of the mixture."""
    settings = Settings(**{"dry_sequence_breakers": (), **given, "seed": 11})
    logits = (np.random.default_rng(8).standard_normal(200) * 3).astype(np.float32)
    history = [5, 6, 7, 8, 5, 6, 7]
    sampler = Sampler(settings, len(logits), top)
    counts = Counter(sampler.choose(logits.copy(), history) for _ in range(10_000))
    p: Counter[int] = Counter()
    chance = settings.xtc_probability
    for weight, applied in ((chance, True), (1 - chance, False)):
        expected = logits.astype(np.float64)
        for name in sampler.settings.chain():
            if Sampler(settings, len(logits), top)._active(name) and (applied or name != "xtc"):
                expected = REFERENCES[name](expected, history, settings)
        for token, q in enumerate(ref.softmax(expected)):
            p[token] += weight * q
    likely = {token: q for token, q in p.items() if q > 0}
    chi_square_is_small(counts, likely)


def test_mirostat_holds_the_surprise(top: jit.Kernel) -> None:
    """Over many tokens the mean surprise is near the target."""
    logits = (np.random.default_rng(8).standard_normal(2000) * 1.5).astype(np.float32)
    settings = Settings(mirostat=2, mirostat_tau=4.0, temperature=1.0, seed=2)
    sampler = Sampler(settings, len(logits), top)
    surprises = []
    for _ in range(1500):
        _, p = sampler.distribution(logits.copy(), [])
        surprises.append(-float((p * np.log2(p)).sum()))
        sampler.choose(logits.copy(), [])
    assert abs(np.mean(surprises[300:]) - 4.0) < 0.2


def test_order_matters_and_names_have_aliases(top: jit.Kernel) -> None:
    """Temperature before top_p keeps others than after it; llama.cpp's other spellings are understood."""
    logits = np.array([4.0, 3.0, 2.0, 1.0, 0.0], np.float32)
    base: dict[str, Any] = {"temperature": 3.0, "top_p": 0.8}
    kept = {
        names: len(Sampler(Settings(**base, samplers=names), 5, top).distribution(logits.copy(), [])[0])
        for names in (("top-p", "temp"), ("temperature", "top_p"), ("temperature",), ())
    }
    assert kept == {("top-p", "temp"): 2, ("temperature", "top_p"): 4, ("temperature",): 5, (): 5}
    with pytest.raises(SettingsError, match="samplers: 'topk' is not one of penalties, dry"):
        Sampler(Settings(samplers=["topk"]), 5, top)


def test_nothing_left_to_choose(top: jit.Kernel) -> None:
    """Banned or broken logits are never drawn; none left is an error, in every kind of chain."""
    logits = np.array([np.nan, 1.0, -np.inf, 2.0], np.float32)
    for given in ({}, OFF, {"mirostat": 1}, {"mirostat": 2}, {"temperature": 0}):
        settings = Settings(**{**given, "seed": 1})
        sampler = Sampler(settings, 4, top)
        assert {sampler.choose(logits.copy(), []) for _ in range(50)} <= {1, 3}
        with pytest.raises(EdgertError, match="no token can be chosen"):
            sampler.choose(np.full(4, -np.inf, np.float32), [])
        with pytest.raises(EdgertError, match="no token can be chosen"):
            sampler.choose(np.full(4, np.nan, np.float32), [])


@pytest.mark.parametrize(
    "given",
    [{"xtc_probability": 1.1}, {"mirostat": 3}, {"mirostat": 1.0}, {"dry_allowed_length": -1}, {"dry_base": -1},
     {"dynatemp_range": -0.1}, {"top_n_sigma": float("nan")}, {"samplers": "top_k"}, {"samplers": [1]},
     {"dry_sequence_breakers": [""]}, {"min_keep": -1}, {"mirostat_tau": True}],
)  # fmt: skip
def test_settings_out_of_range(top: jit.Kernel, given: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=next(iter(given))):
        Sampler(Settings(**given), 4, top)


@pytest.mark.parametrize("k", [40, 600, 5000])
def test_top_k_among_many_equals(top: jit.Kernel, k: int) -> None:
    """Of equal logits those with lower ids, whether the kernel or a threshold finds them."""
    logits = np.round(np.random.default_rng(6).standard_normal(6000) * 3).astype(np.float32)
    logits[[7, 8]] = np.nan, -np.inf
    expected = ref.top_k(np.where(np.isnan(logits), -np.inf, logits).astype(np.float64), k)
    ids, p = Sampler(Settings(**{**OFF, "top_k": k}), 6000, top).distribution(logits, [])
    assert sorted(ids.tolist()) == np.flatnonzero(expected > -np.inf).tolist()
    np.testing.assert_allclose(p, ref.softmax(expected)[ids], rtol=2e-5)


@pytest.mark.parametrize(("n_vocab", "milliseconds"), [(49152, 0.3), (262144, 1.0)])
def test_the_default_chain_is_fast(top: jit.Kernel, n_vocab: int, milliseconds: float) -> None:
    """The best of many, since other programs may run: about a fifth of what is allowed here."""
    logits = np.random.default_rng(1).standard_normal(n_vocab).astype(np.float32) * 3
    sampler = Sampler(Settings(seed=1), n_vocab, top)
    best = math.inf
    for _ in range(200):
        start = time.perf_counter()
        sampler.choose(logits, [])
        best = min(best, time.perf_counter() - start)
    assert best * 1e3 < milliseconds
