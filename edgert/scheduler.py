"""Which work runs in the next step: a token of each answer in progress, then a stretch of a chunk of prompts."""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .errors import EdgertError
from .memory import Memory
from .prefix_store import PrefixStore
from .runtime import Runtime
from .work import Feed, Work

F32 = npt.NDArray[np.float32]

TURN_S = 0.05  # a chunk of prompts runs so long before new and cancelled work is looked at,
SHARE = 1.0  # and so long per second of decode steps while answers are in progress,
BESIDE = 256  # with so many rows, because one operation on all of them is the shortest that it can run


@dataclass
class Stats:
    """What an engine does now, and did since its model was loaded."""

    running: int = 0
    waiting: int = 0
    pages_used: int = 0  # of the KV cache, by what runs now
    pages_cached: int = 0  # by nobody, kept for prompts that begin alike
    pages_total: int = 0
    prompt_tokens: int = 0  # computed
    cached_tokens: int = 0  # of prompts, taken from the cache
    generated_tokens: int = 0
    prefix_hits: int = 0  # prompts of which a part was in the cache
    prefix_misses: int = 0
    drafted: int = 0  # tokens guessed by speculation,
    accepted: int = 0  # and those of them that were right
    preemptions: int = 0  # works that were set aside because the cache was full
    steps: int = 0  # runs of either program


@dataclass(frozen=True)
class Chunk:
    """A run of a program: of which work, and where its logits go."""

    phase: str
    works: list[Work]
    feeds: list[list[Feed]]  # of each work
    rows: F32


class Scheduler:
    """Runs work on a runtime. Belongs to one thread. What goes wrong with one work ends that work alone."""

    def __init__(self, runtime: Runtime, preempt: str, store: PrefixStore | None) -> None:
        """preempt: how work is set aside when the cache is full, "recompute" or "swap". store: pages on the disk."""
        self._runtime, self._pool = runtime, runtime.pool
        self.memory = Memory(runtime.pool, runtime.n_ctx, preempt, store)
        self._most = {phase: runtime.max_rows(phase) for phase in ("prompt", "decode")}
        self._space = {phase: np.empty((0, runtime.config.n_vocab), np.float32) for phase in self._most}
        self.waiting: list[Work] = []
        self.running: list[Work] = []
        self.stats = Stats(pages_total=runtime.pool.n_pages)
        self._chunk: Chunk | None = None  # of prompts, begun

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
        self.memory.release(work)
        work.finish()
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
        """Start what waits, in its order, as the cache has room; but let a prompt wait for one that begins alike."""
        for work in self.waiting[:]:
            if sum(w.rows for w in self.running) + work.rows > self._most["decode"]:
                return
            if self.memory.alike(work, self.running):
                continue
            try:
                if not self.memory.admit(work, self.running):
                    return
            except Exception as error:
                self._end(work, error)
                continue
            self.waiting.remove(work)
            self.running.append(work)
            if not work.admitted and work.kept:
                work.admitted = True
                self.stats.prefix_hits += work.fed > 0
                self.stats.prefix_misses += work.fed == 0
                self.stats.cached_tokens += work.fed
            if work.ended:
                self.memory.read(work)
                self._end(work)

    def _set_aside(self, works: list[Work]) -> list[Work]:
        """Make room by taking the pages of the last work in progress; what is left of `works`."""
        others = [work for work in self.running if work not in self._begun]
        if len(others) < 2:
            if not self._begun:
                self._end(others[0], EdgertError("the KV cache is full"))
            return []  # when the prompts have been read there is more to choose from
        last = max(others, key=lambda work: work.order)
        self.running.remove(last)
        self.memory.set_aside(last)
        self.add(last)
        self.stats.preemptions += 1
        return [work for work in works if work is not last]

    # ---- steps ----

    def step(self) -> None:
        """A token of each answer in progress, and a stretch of a chunk of prompts."""
        self._sweep()
        self._admit()
        start = time.perf_counter()
        decoding = [w for w in self.running if w.phase == "decode" and w not in self._begun]
        for work in decoding:
            self._guarded(work, work.prepare)
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
        """Of the highest priority in progress: what can run with the first of them."""
        works = sorted((w for w in self.running if w.phase == "prompt"), key=lambda w: w.order)
        if not works or works[0].alone:
            return works[:1]
        first = works[0]
        if first.hidden:
            return [w for w in works if w.order[0] == first.order[0] and w.hidden]
        beside = [w for w in works[1:] if w.order[0] == first.order[0] and not (w.alone or w.whole or w.hidden)]
        return [first, *beside]

    def _begin(self, phase: str, works: list[Work], most: int) -> Chunk | None:
        """Start a run of these, or of those that the cache has room for."""
        while works:
            feeds = self._share(works, min(most, self._most[phase]))
            works = [work for work in works if id(work) in feeds]
            run = [feed for each in feeds.values() for feed in each]
            spare = sum(work.spare for work in works)
            needed = spare + sum(feed.sequence.pages_for(len(feed.ids)) for feed in run)
            states = spare + sum(feed.sequence.states_for(len(feed.ids)) for feed in run)
            if needed <= self._pool.room() and states <= self._pool.state_room():
                chunk = Chunk(phase, works, [feeds[id(work)] for work in works], self._rows(phase, works, feeds))
                return chunk if self._run(chunk, self._start, chunk) else None
            works = self._set_aside(works)
        return None

    def _share(self, works: list[Work], room: int) -> dict[int, list[Feed]]:
        """Equal shares of so many rows, as far as each needs them; by id of the work."""
        feeds: dict[int, list[Feed]] = {}
        later = sum(work.rows for work in works)
        for i, work in enumerate(sorted(works, key=lambda w: w.left)):
            later -= work.rows
            share = min(max(work.rows, room // (len(works) - i)), room - later)
            if share >= work.rows:
                try:
                    feeds[id(work)] = work.feeds(share)
                except Exception as error:
                    self._end(work, error)
                else:
                    room -= sum(len(feed.ids) for feed in feeds[id(work)])
        return feeds

    def _rows(self, phase: str, works: list[Work], feeds: dict[int, list[Feed]]) -> F32:
        """Where the logits of a run go."""
        n = sum(len(feed.want) for each in feeds.values() for feed in each)
        if works[0].hidden:
            return np.empty((n, self._runtime.config.n_embd), np.float32)
        if (own := works[0].out(n)) is not None:
            return own
        if len(self._space[phase]) < n:
            self._space[phase] = np.empty((n, self._space[phase].shape[1]), np.float32)
        return self._space[phase][:n]

    def _start(self, chunk: Chunk) -> bool:
        want: list[int] = []
        start = 0
        rows = [(feed.sequence, feed.ids) for each in chunk.feeds for feed in each]
        for feed in (feed for each in chunk.feeds for feed in each):
            want += [start + i for i in feed.want]
            start += len(feed.ids)
        self._runtime.begin(chunk.phase, rows, want, chunk.rows, hidden=chunk.works[0].hidden)
        self.stats.steps += 1
        if chunk.phase == "prompt":
            self.stats.prompt_tokens += start
        return True

    def _advance(self, chunk: Chunk, until: float = float("inf")) -> bool:
        """Whether the run has ended well."""
        return self._run(chunk, self._runtime.advance, chunk.phase, until)

    def _run(self, chunk: Chunk, call: Callable[..., bool], *args: object) -> bool:
        """Call, or end all work of a chunk with the error."""
        try:
            return call(*args)
        except Exception as error:
            if chunk is self._chunk:
                self._chunk = None
            for work in chunk.works:
                self._end(work, error)
            return False

    def _finish(self, chunk: Chunk) -> None:
        """Hand the logits out."""
        at = 0
        for work, feeds in zip(chunk.works, chunk.feeds, strict=True):
            n, before = sum(len(feed.want) for feed in feeds), (work.generated, work.drafted, work.accepted)
            rows = chunk.rows[at : at + n]
            at += n
            if chunk.phase == "prompt":
                self.memory.read(work)
            for feed in feeds:
                feed.sequence.slide()
            self._guarded(work, lambda work=work, rows=rows: work.take(rows))  # type: ignore[misc]
            self.stats.generated_tokens += work.generated - before[0]
            self.stats.drafted += work.drafted - before[1]
            self.stats.accepted += work.accepted - before[2]
