"""A turn of a conversation that is being made: events, or only the content, as they come."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Generator, Iterator
from typing import Any

from .chat import ChatCompletion, whole
from .chat_events import ContentDelta, Event, Reply
from .chat_parser import ChatParser
from .logprobs import TokenLogprob
from .request import Request


class ChatRequest(Iterator[Event], AsyncIterator[Event]):
    """Iterate (also with `async for`) for events, `result` or `await` for the whole; see `Request`."""

    def __init__(self, request: Request, parser: ChatParser) -> None:
        self._request, self._parser = request, parser
        self._reply = Reply()
        self._events: deque[Event] = deque()  # that have come and were not read
        self._parsed = False

    def __iter__(self) -> ChatRequest:
        return self

    def __next__(self) -> Event:
        while not self._events:
            if self._parsed:
                raise StopIteration
            self._feed(next(self._request, None))
        return self._events.popleft()

    def __aiter__(self) -> ChatRequest:
        return self

    async def __anext__(self) -> Event:
        while not self._events:
            if self._parsed:
                raise StopAsyncIteration
            self._feed(await anext(self._request, None))
        return self._events.popleft()

    def _feed(self, piece: str | None) -> None:
        """Text of the answer; None at its end."""
        events = self._parser.feed(piece) if piece is not None else self._parser.finish()
        self._parsed = piece is None
        for event in events:
            self._reply.add(event)
            self._events.append(event)

    def result(self, timeout: float | None = None) -> ChatCompletion:
        """The whole answer, as `Request.result`."""
        self._request.result(timeout)
        return self.completion

    def __await__(self) -> Generator[Any, None, ChatCompletion]:
        return self._wait().__await__()

    async def _wait(self) -> ChatCompletion:
        await self._request
        return self.completion

    def cancel(self) -> None:
        """Stop within a step; returns at once."""
        self._request.cancel()

    def close(self) -> None:
        """Cancel and wait for the end. What has been said so far becomes the completion."""
        self._request.close()

    @property
    def done(self) -> bool:
        return self._request.done

    @property
    def progress(self) -> tuple[int, int]:
        """(tokens of the prompt that have been read or were cached, tokens of the prompt)."""
        return self._request.progress

    def logprobs(self, start: int = 0) -> list[TokenLogprob]:
        """Log-probabilities of the tokens from this one on that have been chosen so far, if they were asked for."""
        return self._request.logprobs(start)

    @property
    def completion(self) -> ChatCompletion:
        """The whole answer; EdgertError before its end, or the error that ended it."""
        completion = self._request.completion
        while not self._parsed:
            self._feed(self._request.ready())
        return whole(completion, self._reply)


class ChatStream(Iterator[str], AsyncIterator[str]):
    """An answer as it comes: iterate for pieces of its content, or use `events` for reasoning and tool calls too.

    `close` stops the work; `completion` is there at the end.
    """

    def __init__(self, request: ChatRequest) -> None:
        self._request = request

    def events(self) -> ChatRequest:
        """All that comes, in its order."""
        return self._request

    def __iter__(self) -> ChatStream:
        return self

    def __next__(self) -> str:
        for event in self._request:
            if isinstance(event, ContentDelta):
                return event.text
        raise StopIteration

    def __aiter__(self) -> ChatStream:
        return self

    async def __anext__(self) -> str:
        async for event in self._request:
            if isinstance(event, ContentDelta):
                return event.text
        raise StopAsyncIteration

    def close(self) -> None:
        """Stop. What has been said so far becomes the completion."""
        self._request.close()

    @property
    def completion(self) -> ChatCompletion:
        """The whole answer; EdgertError before its end, or the error that ended it."""
        return self._request.completion
