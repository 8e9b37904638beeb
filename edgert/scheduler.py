"""Which work runs in the next step: a token of each answer in progress, then a stretch of a chunk of prompts."""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from . import kv
from .runtime import Runtime
from .work import Feed, Work

F32 = npt.NDArray[np.float32]

KEPT = 4  # idle sequences kept for prefix reuse
TURN_S = 0.05  # a chunk of prompts runs so long before new and cancelled work is looked at,
SHARE = 1.0  # and so long per second of decode steps while answers are in progress,
BESIDE = 256  # with so many rows, because one operation on all of them is the shortest that it can run


@dataclass
class Stats:
    """What an engine does now, and did since its model was loaded."""

    running: int = 0
    waiting: int = 0
    pages_used: int = 0  # of the KV cache, by what runs now
    pages_total: int = 0
    prompt_tokens: int = 0  # computed
    cached_tokens: int = 0  # of prompts, taken from the cache
    generated_tokens: int = 0
    prefix_hits: int = 0  # prompts of which a part was in the cache
    prefix_misses: int = 0
    steps: int = 0  # runs of either program


@dataclass(frozen=True)
class Chunk:
    """A run of a program: of which work, and where its logits go."""

    phase: str
    works: list[Work]
    feeds: list[Feed]
    rows: F32


class Scheduler:
    """Runs work on a runtime. Belongs to one thread. What goes wrong with one work ends that work alone."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self._pool = runtime, runtime.pool
        self._most = {phase: runtime.max_rows(phase) for phase in ("prompt", "decode")}
        self._space = {phase: np.empty((0, runtime.config.n_vocab), np.float32) for phase in self._most}
        self.waiting: list[Work] = []
        self.running: list[Work] = []
        self.stats = Stats(pages_total=runtime.pool.n_pages)
        self._chunk: Chunk | None = None  # of prompts, begun
        self._idle: list[kv.Sequence] = []

    # ---- coming and going ----

    def add(self, work: Work) -> None:
        bisect.insort(self.waiting, work, key=lambda w: w.order)

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    def end_all(self, error: BaseException) -> None:
        """End everything with an error."""
        self._chunk = None
        for work in [*self.waiting, *self.running]:
            self._end(work, error)

    def _end(self, work: Work, error: BaseException | None = None) -> None:
        for works in (self.waiting, self.running):
            if work in works:
                works.remove(work)
        if work.sequence is not None:
            self._keep(work.sequence, 0 if error is not None else work.sequence.n_prompt)
        work.box.end(error)

    def _guarded(self, work: Work, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            self._end(work, error)
        else:
            if work.ended:
                self._end(work)

    @property
    def _begun(self) -> list[Work]:
        """Work whose prompt is being run."""
        return self._chunk.works if self._chunk is not None else []

    def _sweep(self) -> None:
        """End what was cancelled. A chunk that has begun is given up only if nobody wants it any more."""
        if self._begun and all(work.cancelled for work in self._begun):
            self._chunk = None
        for work in [*self.waiting, *self.running]:
            if work.cancelled and work not in self._begun:
                work.cancel()
                self._end(work)

    def _admit(self) -> None:
        """Start what waits, in its order, as long as all that run fit in the cache to their full length."""
        while self.waiting and len(self.running) < self._most["decode"] and self._fits(self.waiting[0]):
            work = self.waiting.pop(0)
            self.running.append(work)
            sequence = self._sequence(work)
            if sequence.tokens:
                self.stats.prefix_hits += 1
            else:
                self.stats.prefix_misses += 1
            self.stats.cached_tokens += len(sequence.tokens)
            work.start(sequence)

    # ---- steps ----

    def step(self) -> None:
        """A token of each answer in progress, and a stretch of a chunk of prompts."""
        self._sweep()
        self._admit()
        start = time.perf_counter()
        decoding = [w for w in self.running if w.phase == "decode" and w not in self._begun]
        for works in ([w for w in decoding if not w.alone], *([w] for w in decoding if w.alone)):
            if (chunk := self._begin("decode", works, self._most["decode"])) and self._advance(chunk):
                self._finish(chunk)
        seconds = SHARE * (time.perf_counter() - start) if decoding else TURN_S
        if self._chunk is None:
            self._chunk = self._begin("prompt", self._next_prompts(), BESIDE if decoding else self._most["prompt"])
        if self._chunk and self._advance(self._chunk, time.perf_counter() + seconds):
            chunk, self._chunk = self._chunk, None
            self._finish(chunk)

    def _next_prompts(self) -> list[Work]:
        """Of the highest priority in progress: one work that must be alone or with its logits, or all others."""
        works = sorted((w for w in self.running if w.phase == "prompt"), key=lambda w: w.order)
        if not works or works[0].alone:
            return works[:1]
        first = works[0]
        return [w for w in works if w.order[0] == first.order[0] and not w.alone and (w is first or not w.whole)]

    def _begin(self, phase: str, works: list[Work], most: int) -> Chunk | None:
        """Start a run of these, which get equal shares of at most so many rows as far as they need them."""
        if not works:
            return None
        room = min(most, self._most[phase])
        feeds: dict[int, Feed] = {}
        for i, work in enumerate(sorted(works, key=lambda w: w.left)):
            if share := room // (len(works) - i):
                feeds[id(work)] = feed = work.feed(share)
                room -= len(feed.ids)
        works = [work for work in works if id(work) in feeds]
        chunk = Chunk(phase, works, [feeds[id(work)] for work in works], self._rows(phase, works, feeds))
        return chunk if self._run(chunk, lambda: self._start(chunk)) is not None else None

    def _rows(self, phase: str, works: list[Work], feeds: dict[int, Feed]) -> F32:
        """Where the logits of a run go."""
        n = sum(len(feed.want) for feed in feeds.values())
        if (own := works[0].out(n)) is not None:
            return own
        if len(self._space[phase]) < n:
            self._space[phase] = np.empty((n, self._space[phase].shape[1]), np.float32)
        return self._space[phase][:n]

    def _start(self, chunk: Chunk) -> bool:
        want: list[int] = []
        start = 0
        for feed in chunk.feeds:
            want += [start + i for i in feed.want]
            start += len(feed.ids)
        self._make_room(sum(feed.sequence.pages_for(len(feed.ids)) for feed in chunk.feeds))
        self._runtime.begin(chunk.phase, [(feed.sequence, feed.ids) for feed in chunk.feeds], want, chunk.rows)
        self.stats.steps += 1
        if chunk.phase == "prompt":
            self.stats.prompt_tokens += start
        return True

    def _advance(self, chunk: Chunk, until: float = float("inf")) -> bool:
        """Whether the run has ended well."""
        return bool(self._run(chunk, lambda: self._runtime.advance(chunk.phase, until)))

    def _run(self, chunk: Chunk, call: Callable[[], bool]) -> bool | None:
        """Call, or end all work of a chunk with the error."""
        try:
            return call()
        except Exception as error:
            if chunk is self._chunk:
                self._chunk = None
            for work in chunk.works:
                self._end(work, error)
            return None

    def _finish(self, chunk: Chunk) -> None:
        """Hand the logits out."""
        at = 0
        for work, feed in zip(chunk.works, chunk.feeds, strict=True):
            rows, before = chunk.rows[at : at + len(feed.want)], work.generated
            at += len(feed.want)
            self._guarded(work, lambda work=work, rows=rows: work.take(rows))  # type: ignore[misc]
            self.stats.generated_tokens += work.generated - before

    # ---- the cache ----

    def _fits(self, work: Work) -> bool:
        """Whether the cache can hold this beside what runs, all to their full length (one always fits)."""
        pages = sum(-(-w.max_tokens // kv.PAGE) for w in [*self.running, work])
        return not self.running or pages <= self._pool.n_pages

    def _sequence(self, work: Work) -> kv.Sequence:
        """One that holds as much of the prompt as is cached (never all of it)."""
        idle = [] if work.whole else self._idle  # what is cached has no logits
        best = max(idle, key=lambda s: s.common(work.prompt), default=None)
        if best is None or (n := min(best.common(work.prompt), len(work.prompt) - 1)) <= 0:
            return kv.Sequence(self._pool, self._runtime.n_ctx)
        self._idle.remove(best)
        best.truncate(n)
        return best

    def _keep(self, sequence: kv.Sequence, n: int) -> None:
        """Keep the first n tokens for another prompt."""
        sequence.truncate(n)
        if n:
            self._idle.append(sequence)
        while len(self._idle) > KEPT:
            self._idle.pop(0).truncate(0)

    def _make_room(self, n_pages: int) -> None:
        """Drop idle sequences until n_pages are free."""
        while self._idle and self._pool.free < n_pages:
            self._idle.pop(0).truncate(0)

    def pages_used(self) -> int:
        return sum(w.sequence.n_pages for w in [*self.running] if w.sequence is not None)
