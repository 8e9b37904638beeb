"""The models that a server offers: loaded when they are first asked for, the least recently used unloaded for room."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import edgert

from ..console import UsageError, human_bytes
from .errors import ApiError

PATIENCE_S = 60.0  # for models in use to become free


@dataclass
class Entry:
    """A model that is offered. name: by which clients know it; given: as on the command line; bytes: while loaded."""

    name: str
    given: str
    model: edgert.Model | None = None
    bytes: int = 0
    cache_tokens: int | None = None
    users: int = 0
    used: float = 0.0
    loading: "asyncio.Task[None] | None" = None

    @property
    def loaded(self) -> edgert.Model:
        assert self.model is not None
        return self.model

    def path(self) -> Path | None:
        """Its file, None if that is not on this computer."""
        try:
            return edgert.registry.local_path(self.given)
        except edgert.ModelNotFoundError:
            return None


def offer(given: Sequence[str]) -> list[Entry]:
    """The models of the command line: named as in 'edgert list', or by their files' names."""
    entries: dict[str, Entry] = {}
    for text in given or [edgert.registry.default_model()]:
        named = text.startswith("hf:") or text in edgert.registry.known()
        name = text.removeprefix("hf:") if named else edgert.registry.local_path(text).name
        name = name.rpartition("/")[2].removesuffix(".gguf")
        if name in entries:
            raise UsageError(f"two models are called {name!r}")
        entries[name] = Entry(name, text)
    return list(entries.values())


class Models:
    """Belongs to the event loop. load: makes a model, and its size in bytes, on a thread of its own."""

    def __init__(self, entries: Sequence[Entry], limit: int, size: Callable[[Entry], Awaitable[int]],
                 load: Callable[[Entry], Awaitable[edgert.Model]]) -> None:  # fmt: skip
        self.entries = {entry.name: entry for entry in entries}
        self._limit, self._size, self._load_model = limit, size, load
        self._one = asyncio.Lock()  # loads at a time
        self._freed = asyncio.Event()

    @property
    def first(self) -> Entry:
        return next(iter(self.entries.values()))

    def find(self, name: str | None) -> Entry:
        """The model of this name, the first if none is named."""
        if not name:
            return self.first
        entry = self.entries.get(name) or self.entries.get(name.removesuffix(":latest"))
        if entry is None:
            known = ", ".join(self.entries)
            raise ApiError(404, f"model {name[:200]!r} is not offered here; there are: {known}", code="model_not_found",
                           param="model")  # fmt: skip
        return entry

    @asynccontextmanager
    async def use(self, name: str | None) -> AsyncIterator[Entry]:
        """A model that stays loaded meanwhile."""
        entry = self.find(name)
        entry.users += 1
        try:
            await self._ready(entry)
            entry.used = time.monotonic()
            yield entry
        finally:
            entry.users -= 1
            entry.used = time.monotonic()
            self._freed.set()

    async def _ready(self, entry: Entry) -> None:
        if entry.model is not None:
            return
        if entry.loading is None:
            entry.loading = asyncio.create_task(self._load(entry))
            entry.loading.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(entry.loading)  # the next client may want it though this one leaves

    async def _load(self, entry: Entry) -> None:
        try:
            async with self._one:
                entry.bytes = await self._size(entry)
                await self._make_room(entry)
                entry.model = await self._load_model(entry)
        except (edgert.EdgertError, edgert.FormatError, OSError, MemoryError) as error:
            raise ApiError(500, f"model {entry.name!r} cannot be loaded: {error}") from error
        finally:
            entry.loading = None

    async def _make_room(self, entry: Entry) -> None:
        limit = time.monotonic() + PATIENCE_S
        while sum(e.bytes for e in self.entries.values() if e.model is not None) + entry.bytes > self._limit:
            loaded = [e for e in self.entries.values() if e.model is not None]
            if not loaded:
                need = f"it needs {human_bytes(entry.bytes)}, --memory allows {human_bytes(self._limit)}"
                raise edgert.EdgertError(f"{need}; a smaller --ctx needs less")
            idle = [e for e in loaded if e.users == 0]
            if idle:
                await self.unload(min(idle, key=lambda e: e.used))
                continue
            self._freed.clear()
            try:
                async with asyncio.timeout_at(asyncio.get_running_loop().time() + limit - time.monotonic()):
                    await self._freed.wait()
            except TimeoutError:
                raise ApiError(503, f"no memory for model {entry.name!r} while others are in use") from None

    async def unload(self, entry: Entry) -> None:
        """Close a model; whoever uses it gets an error."""
        model, entry.model = entry.model, None
        if model is not None:
            await asyncio.to_thread(model.close)

    async def close(self) -> None:
        for entry in self.entries.values():
            await self.unload(entry)
