"""A caller's end of something that the engine works on: pieces as they come, the whole at the end, cancelling."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from .errors import EdgertError
from .generation import Completion

if TYPE_CHECKING:
    import asyncio

    from .logprobs import TokenLogprob
    from .work import AnswerWork, Work

_TICK = 0.1 if sys.platform == "win32" else None  # there, waiting for a lock without limit does not see Ctrl-C


class Mailbox:
    """From the engine's thread to callers on any: pieces of text, then the end. Thread-safe."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.error: BaseException | None = None
        self._pieces: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._at_end: list[Callable[[], None]] = []

    def put(self, piece: str) -> None:
        self._pieces.put(piece)
        self._wake()

    def end(self, error: BaseException | None) -> None:
        """No more pieces. Only the first call counts."""
        with self._lock:
            if self.ended.is_set():
                return
            self.error = error
            self.ended.set()
            at_end, self._at_end = self._at_end, []
        self._pieces.put(None)
        self._wake()
        for call in at_end:
            call()

    def at_end(self, call: Callable[[], None]) -> None:
        """Call this at the end, on the engine's thread, or now if that has passed."""
        with self._lock:
            if not self.ended.is_set():
                self._at_end.append(call)
                return
        call()

    def wait(self, timeout: float | None = None) -> None:
        """Wait for the end; TimeoutError after so many seconds."""
        limit = None if timeout is None else time.monotonic() + timeout
        while not self.ended.is_set():
            left = None if limit is None else limit - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(f"the answer has not ended within {timeout:g} seconds")
            self.ended.wait(left if _TICK is None else min(_TICK, left or _TICK))

    def get(self) -> str | None:
        """The next piece, None at the end; waits for it."""
        while True:
            with suppress(queue.Empty):
                return self._seen(self._pieces.get(timeout=_TICK))

    def get_nowait(self) -> str | None:
        """The same; queue.Empty if there is none yet."""
        return self._seen(self._pieces.get_nowait())

    async def get_async(self) -> str | None:
        """The same, on an event loop."""
        with suppress(queue.Empty):
            return self.get_nowait()
        while True:
            change = self._change()
            with suppress(queue.Empty):
                return self.get_nowait()
            await change

    async def wait_async(self) -> None:
        while True:
            change = self._change()
            if self.ended.is_set():
                return
            await change

    def _seen(self, piece: str | None) -> str | None:
        if piece is None:
            self._pieces.put(None)  # for whoever else reads
        return piece

    def _change(self) -> asyncio.Future[None]:
        """Done when a piece or the end comes after this call."""
        import asyncio

        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self._lock:
            self._waiters.append((loop, future))
        return future

    def _wake(self) -> None:
        if not self._waiters:
            return
        with self._lock:
            waiters, self._waiters = self._waiters, []
        for loop, future in waiters:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_resolve, future)


def acquire(places: threading.Semaphore) -> None:
    """Take one, however long it takes; Ctrl-C is seen."""
    while not places.acquire(timeout=_TICK):
        pass


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Request(Iterator[str], AsyncIterator[str]):
    """An answer that is being made. It goes on whether or not its pieces are read, until it ends or is cancelled.

    Iterate (also with `async for`) for pieces of text, whole characters each; `result` or `await` for the whole.
    Ctrl-C, or cancellation of the task, while waiting for it cancels it, and so does forgetting it.
    """

    def __init__(self, work: AnswerWork, cancel: Callable[[Work], None], owner: object) -> None:
        """cancel: tells the engine. owner: what must live as long as this."""
        self._work, self._box, self._cancel, self._owner = work, work.box, cancel, owner

    def __iter__(self) -> Request:
        return self

    def __next__(self) -> str:
        try:
            piece = self._box.get()
        except BaseException:
            self.cancel()
            raise
        if piece is None:
            self._check()
            raise StopIteration
        return piece

    def __aiter__(self) -> Request:
        return self

    async def __anext__(self) -> str:
        try:
            piece = await self._box.get_async()
        except BaseException:
            self.cancel()
            raise
        if piece is None:
            self._check()
            raise StopAsyncIteration
        return piece

    def ready(self) -> str | None:
        """A piece that has come and was not read, without waiting; None if there is none."""
        with suppress(queue.Empty):
            return self._box.get_nowait()
        return None

    def result(self, timeout: float | None = None) -> Completion:
        """The whole answer. TimeoutError after so many seconds, and the work goes on; else the error that ended it."""
        try:
            self._box.wait(timeout)
        except TimeoutError:
            raise
        except BaseException:
            self.cancel()
            raise
        return self.completion

    def __await__(self) -> Generator[Any, None, Completion]:
        return self._wait().__await__()

    async def _wait(self) -> Completion:
        try:
            await self._box.wait_async()
        except BaseException:
            self.cancel()
            raise
        return self.completion

    def cancel(self) -> None:
        """Stop within a step. Returns at once; the completion then says "cancelled". Nothing happens after the end."""
        if not self._box.ended.is_set():
            self._cancel(self._work)

    def close(self) -> None:
        """Cancel and wait for the end. What has been said so far becomes the completion."""
        self.cancel()
        self._box.wait()

    def __del__(self) -> None:
        with suppress(AttributeError):
            self.cancel()

    @property
    def done(self) -> bool:
        return self._box.ended.is_set()

    @property
    def progress(self) -> tuple[int, int]:
        """(tokens of the prompt that have been read or were cached, tokens of the prompt)."""
        return self._work.progress

    def logprobs(self, start: int = 0) -> list[TokenLogprob]:
        """Log-probabilities of the tokens from this one on that have been chosen so far, if they were asked for."""
        return self._work.answer.logprobs(start)

    @property
    def completion(self) -> Completion:
        """The whole answer; EdgertError before its end, or the error that ended it."""
        if not self._box.ended.is_set():
            raise EdgertError("the answer has not ended yet: read it to its end or close it")
        self._check()
        return self._work.answer.completion()

    def _check(self) -> None:
        if self._box.error is not None:
            raise self._box.error
