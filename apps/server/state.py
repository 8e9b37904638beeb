"""What the routes share: the models, threads for what must not hold up the event loop, the answers in progress."""

import asyncio
import functools
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from fastapi import Request as Http

import edgert

from ..console import Progress
from .errors import ApiError
from .metrics import Metrics
from .models import Entry, Models, offer
from .options import Options

T = TypeVar("T")
Answering = edgert.Request | edgert.ChatRequest
SHARED_CONTEXTS = 4  # that the KV cache of one of several models has room for
THREADS = 4  # for rendering, tokenizing and the compiling of forms


class Job:
    """Answers to one request: one, or n of them. Cancelled when it is forgotten, as its parts are."""

    def __init__(self, state: "State", entry: Entry, parts: Sequence[Answering]) -> None:
        self._state, self._entry, self.parts = state, entry, parts
        state.jobs.add(self)

    def cancel(self) -> None:
        """Stop within a step."""
        self._state.jobs.discard(self)
        for part in self.parts:
            part.cancel()

    async def results(self) -> list[Any]:
        """All completions, in their order."""
        return [await self._end(part) for part in self.parts]

    async def pieces(self) -> AsyncIterator[tuple[int, Any]]:
        """(index of the answer, a piece of it) as they come; each answer ends with its completion."""
        box: asyncio.Queue[tuple[int, Any]] = asyncio.Queue()

        async def read(index: int, part: Answering) -> None:
            try:
                async for piece in part:
                    box.put_nowait((index, piece))
                box.put_nowait((index, await self._end(part)))
            except Exception as error:
                box.put_nowait((index, error))

        readers = [asyncio.create_task(read(i, part)) for i, part in enumerate(self.parts)]
        left = len(readers)
        try:
            while left:
                index, piece = await box.get()
                if isinstance(piece, Exception):
                    raise await self._failure(piece)
                left -= isinstance(piece, edgert.Completion)
                yield index, piece
        finally:
            for reader in readers:
                reader.cancel()

    async def _end(self, part: Answering) -> edgert.Completion:
        try:
            completion = await part
        except Exception as error:
            raise await self._failure(error) from error
        self._state.metrics.answered(self._entry.name, completion)
        if completion.finish_reason == "cancelled":
            count = completion.usage.completion_tokens
            raise ApiError(503, f"the server is shutting down; the answer was ended after {count} tokens")
        return completion

    async def _failure(self, error: Exception) -> Exception:
        """What to tell of an error that came while the answer was made."""
        if isinstance(error, ApiError):
            return error
        self._state.metrics.failed(self._entry.name)
        if isinstance(error, edgert.ConstraintError):
            return ApiError(400, str(error))
        if isinstance(error, edgert.EdgertError):
            await self._state.models.unload(self._entry)  # its engine has failed: the next request loads it anew
            return ApiError(500, str(error))
        return error


class State:
    """One server's. Belongs to the event loop."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._threads = ThreadPoolExecutor(THREADS, "edgert-http")
        self.models = Models(offer(options.models), options.memory, self._size, self._load)
        self.metrics = Metrics(lambda: [(e.name, e.model) for e in self.models.entries.values() if e.model is not None])
        self.jobs: set[Job] = set()
        self.ready = self.draining = False

    async def run(self, call: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Call on another thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, functools.partial(call, *arguments, **named))

    def check_ready(self) -> None:
        if not self.ready:
            raise ApiError(503, "the model is being loaded")

    async def submit(self, entry: Entry, ask: Callable[..., Answering], n: int, given: Any,
                     settings: Mapping[str, Any]) -> Job:  # fmt: skip
        """Ask a model for n answers; what is given and the settings are checked on another thread."""
        return Job(self, entry, await self.run(lambda: [ask(given, **one) for one in several(n, settings)]))

    async def warm(self) -> None:
        """Load the first model, and answer once, so that nothing is compiled when the first client comes."""
        async with self.models.use(None) as entry:
            try:
                await self.run(entry.loaded.chat, [{"role": "user", "content": "Hello"}], max_tokens=2, temperature=0)
            except edgert.FormatError:  # its chat template is broken; its other uses are not
                await self.run(entry.loaded.generate, "Hello", max_tokens=2, temperature=0)
        self.ready = True

    def drain(self) -> None:
        """From now on nothing new; what runs may end within the grace period, then it is ended."""
        if not self.draining:
            self.draining = True
            asyncio.get_running_loop().call_later(self.options.grace_s, self._end_jobs)

    def _end_jobs(self) -> None:
        for job in list(self.jobs):
            job.cancel()

    async def close(self) -> None:
        self._end_jobs()
        await self.models.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _size(self, entry: Entry) -> int:
        several = len(self.models.entries) > 1

        def size() -> int:
            with Progress() as progress:
                info = edgert.inspect(edgert.registry.resolve(entry.given, progress))
            context = self.options.ctx or info.default_n_ctx
            entry.cache_tokens = self.options.cache_tokens or (SHARED_CONTEXTS * context if several else None)
            return info.memory(max(context, entry.cache_tokens or 0))

        return await asyncio.to_thread(size)

    async def _load(self, entry: Entry) -> edgert.Model:
        options = self.options

        def load() -> edgert.Model:
            with Progress() as progress:
                return edgert.load(entry.given, threads=options.threads, n_ctx=options.ctx,
                                   precision=options.precision, cache_tokens=entry.cache_tokens,
                                   max_waiting=options.max_waiting,
                                   progress=progress)  # fmt: skip

        return await asyncio.to_thread(load)


def several(n: int, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Settings of n answers to one prompt: a seed that is given counts up."""
    seed = settings.get("seed")
    return [{**settings, "seed": seed + i} if seed is not None else dict(settings) for i in range(n)]


def state_of(http: Http) -> State:
    """The server's state, from a request."""
    return http.app.state.server  # type: ignore[no-any-return]


def new_id(prefix: str) -> str:
    return f"{prefix}{uuid.uuid4().hex}"
