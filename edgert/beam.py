"""Beam search: the likeliest continuations, whose sequences fork and share pages."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from . import kv
from .logprobs import log_total
from .samplers import Top
from .work import F32, Feed, Work


@dataclass(frozen=True)
class Beam:
    """A continuation. logprob: of all its tokens; score: the same divided by length ** length_penalty.

    finish_reason: "stop" (it ended with an end-of-turn token, which is not in `ids`) or "length".
    """

    text: str
    ids: list[int]
    logprob: float
    score: float
    finish_reason: str


@dataclass
class _Branch:
    sequence: kv.Sequence
    ids: list[int]
    logprob: float


class BeamWork(Work):
    """Reads a prompt, then goes on with the `beams` likeliest branches, a token of each in every step."""

    def __init__(self, prompt: list[int], beams: int, max_tokens: int, length_penalty: float, ends: Collection[int],
                 top: Top) -> None:  # fmt: skip
        super().__init__(prompt, 0)
        self.rows = self.spare = beams
        self._beams, self._max_tokens, self._penalty = beams, max_tokens, length_penalty
        self._ends, self._top = ends, top
        self._branches: list[_Branch] = []
        self.found: list[tuple[list[int], float, bool]] = []  # ids, logprob, whether it ended by itself

    @property
    def sequences(self) -> list[kv.Sequence]:
        return [branch.sequence for branch in self._branches] or super().sequences

    def pause(self) -> None:
        """It begins again from the prompt, with the same result."""
        super().pause()
        self._branches, self.found = [], []

    def feed(self, most: int) -> Feed:
        assert self.sequence is not None
        part = self.prompt[self.fed : self.fed + most]
        last = self.fed + len(part) == len(self.prompt)
        return Feed(self.sequence, part, range(len(part) - last, len(part)))

    def feeds(self, most: int) -> list[Feed]:
        if not self._branches:
            return super().feeds(most)
        return [Feed(branch.sequence, branch.ids[-1:], range(1)) for branch in self._branches]

    @property
    def generated(self) -> int:
        return sum(len(branch.ids) for branch in self._branches)

    def score(self, logprob: float, length: int) -> float:
        return float(logprob / max(1, length) ** self._penalty)

    def take(self, rows: F32) -> None:
        if not len(rows):
            return
        if not self._branches:
            assert self.sequence is not None
            self._branches = [_Branch(self.sequence, [], 0.0)]
        choices: list[tuple[float, int, int]] = []  # logprob, branch, token
        for i, (branch, row) in enumerate(zip(self._branches, rows, strict=True)):
            total = log_total(row)
            ids, values = self._top(row, min(2 * self._beams, len(row)))
            for token, value in zip(ids.tolist(), values.tolist(), strict=True):
                choices.append((branch.logprob + value - total, i, token))
        choices.sort(key=lambda choice: (-choice[0], choice[1], choice[2]))
        kept: list[tuple[float, int, int]] = []
        for logprob, i, token in choices[: 2 * self._beams]:
            if token in self._ends:
                if len(kept) < self._beams:
                    self.found.append((self._branches[i].ids, logprob, True))
            elif len(kept) < self._beams:
                kept.append((logprob, i, token))
        self._branch(kept)
        full = len(self._branches[0].ids) >= self._max_tokens
        if full or len(self.found) >= self._beams:
            if full:
                self.found += [(branch.ids, branch.logprob, False) for branch in self._branches]
            self.ended = True

    def _branch(self, kept: list[tuple[float, int, int]]) -> None:
        """Go on with these: the first child of a branch keeps its sequence, others fork it."""
        old, new, used = self._branches, list[_Branch](), set[int]()
        for logprob, i, token in kept:
            sequence = old[i].sequence.fork() if i in used else old[i].sequence
            used.add(i)
            new.append(_Branch(sequence, [*old[i].ids, token], logprob))
        for i, branch in enumerate(old):
            if i not in used:
                branch.sequence.truncate(0)
        self._branches, self.sequence = new, new[0].sequence

    def best(self) -> list[tuple[list[int], float, bool]]:
        """The best that were found, the best first."""
        return sorted(self.found, key=lambda f: -self.score(f[1], len(f[0]) + f[2]))[: self._beams]
