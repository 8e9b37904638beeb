"""One thread per model that runs all work on it, given to it by callers on any thread."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

from .errors import EdgertError, EngineBusy
from .prefix_store import PrefixStore
from .request import acquire
from .runtime import Runtime
from .scheduler import Scheduler, Stats
from .work import Work

AHEAD = 64  # works of one caller that may wait or run at a time: more than run together, so that none waits for it
CLOSED = "the model is closed"


class Engine:
    """Takes work, in a queue of bounded length, and runs it on its own thread. Thread-safe.

    The thread starts with the first work. It knows nothing of who holds the engine, so that forgetting a model can
    close it.
    """

    def __init__(self, runtime: Runtime, max_waiting: int, preempt: str, store: PrefixStore | None = None) -> None:
        self._runtime, self._max_waiting = runtime, max_waiting
        self._scheduler = Scheduler(runtime, preempt, store)
        self._changed = threading.Condition()
        self._new: list[Work] = []
        self._closing = False
        self.guesses = self.is_asked = False  # whether it asks another for guesses, or another asks it
        self._thread: threading.Thread | None = None

    def submit(self, work: Work, *, bounded: bool = True) -> None:
        """Queue work; EngineBusy if the queue is full. bounded: false for callers that hold themselves back."""
        with self._changed:
            self.check_open()
            waiting = len(self._new) + len(self._scheduler.waiting)
            if bounded and waiting >= self._max_waiting:
                raise EngineBusy(f"{waiting} requests wait already; try again later")
            self._new.append(work)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="edgert-engine", daemon=True)
                self._thread.start()
            self._changed.notify()

    def run(self, works: Sequence[Work]) -> None:
        """Do all of these and wait for them. The first error ends the rest and is raised; so does Ctrl-C."""
        places = threading.BoundedSemaphore(AHEAD)
        begun: list[Work] = []
        try:
            for work in works:
                acquire(places)
                begun.append(work)
                self.submit(work, bounded=False)
                work.box.at_end(places.release)
            for work in works:
                work.box.wait()
                if work.box.error is not None:
                    raise work.box.error
        except BaseException:
            for work in begun:
                self.cancel(work)
            raise

    def cancel(self, work: Work) -> None:
        """End work within a step. Returns at once."""
        work.cancelled = True
        with self._changed:
            self._changed.notify()

    def check_open(self) -> None:
        if self._closing:
            raise EdgertError(CLOSED)

    def stats(self) -> Stats:
        """EdgertError once closed: the pages are gone."""
        with self._changed:
            self.check_open()
            s = self._scheduler
            pool = self._runtime.pool
            return replace(s.stats, running=len(s.running), waiting=len(s.waiting) + len(self._new),
                           pages_used=pool.used, pages_cached=pool.cached)  # fmt: skip

    def close(self) -> None:
        """End all work with an error, then the thread, and give the memory back. Idempotent."""
        with self._changed:
            first, self._closing = not self._closing, True
            self._changed.notify()
        if self._thread is None:
            if first:
                self._runtime.close()
        elif self._thread is not threading.current_thread():  # the garbage collector may call from there
            self._thread.join()

    def _run(self) -> None:
        error: Exception = EdgertError(CLOSED)
        try:
            while self._wait():
                self._scheduler.step()
        except BaseException as failure:
            error = EdgertError(f"the engine has failed: {failure!r}")
            raise
        finally:
            with self._changed:
                self._closing = True
                self._scheduler.end_all(error)
                for work in self._new:
                    work.box.end(error)
            self._runtime.close()

    def _wait(self) -> bool:
        """Wait for something to do, and take what is new; false at the end."""
        with self._changed:
            while not (self._closing or self._new or self._scheduler.busy):
                self._changed.wait()
            for work in self._new:
                self._scheduler.add(work)
            self._new.clear()
            return not self._closing
