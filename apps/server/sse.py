"""Answers as they come: server-sent events or lines of JSON, and the end of the work when the client leaves."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AsyncExitStack, aclosing
from typing import Any, TypeVar

from fastapi import Request as Http
from fastapi import Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from .errors import ApiError, api_error, dumps

T = TypeVar("T")
PING_S = 15.0  # of silence, as while a long prompt is read, before something is sent that means nothing
DONE = b"data: [DONE]\n\n"


def event(data: Any, name: str | None = None) -> bytes:
    """A server-sent event."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + dumps(data) + b"\n\n"


async def gone(receive: Receive) -> None:
    """Wait until the client leaves."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def attended(http: Http, work: Coroutine[Any, Any, T]) -> T | Response:
    """The result of the work, which ends if the client leaves."""
    task, left = asyncio.ensure_future(work), asyncio.ensure_future(gone(http.receive))
    try:
        await asyncio.wait({task, left}, return_when=asyncio.FIRST_COMPLETED)
        return await task if task.done() else Response(status_code=499)
    finally:
        await _end(task, left)


async def _end(*tasks: "asyncio.Future[Any]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Stream(StreamingResponse):
    """Sends pieces until they or the client end, then gives back what the answer held.

    failed: the piece that tells of an error, after which nothing more comes.
    """

    def __init__(self, pieces: AsyncGenerator[bytes, None], held: AsyncExitStack, failed: Callable[[ApiError], bytes],
                 media_type: str = "text/event-stream", ping: bytes | None = b": ping\n\n") -> None:  # fmt: skip
        super().__init__(pieces, media_type=media_type, headers={"x-accel-buffering": "no"})
        self._pieces, self._held, self._failed, self._ping = pieces, held, failed, ping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._held:
            sending, left = asyncio.ensure_future(self._send(send)), asyncio.ensure_future(gone(receive))
            try:
                await asyncio.wait({sending, left}, return_when=asyncio.FIRST_COMPLETED)
                if sending.done():
                    await sending
            finally:
                await _end(sending, left)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            async with aclosing(self._with_pings()) as pieces:
                async for piece in pieces:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
        except Exception as error:
            told = api_error(error)
            await send({"type": "http.response.body", "body": self._failed(told), "more_body": True})
            if told.status == 500 and not isinstance(error, ApiError):
                await send({"type": "http.response.body", "body": b""})
                raise
        await send({"type": "http.response.body", "body": b""})

    async def _with_pings(self) -> AsyncGenerator[bytes, None]:
        piece: asyncio.Future[bytes] | None = None
        try:
            while True:
                if piece is None:
                    piece = asyncio.ensure_future(anext(self._pieces))
                done, _ = await asyncio.wait({piece}, timeout=PING_S)
                if done:
                    text, piece = await piece, None
                    yield text
                elif self._ping is not None:
                    yield self._ping
        except StopAsyncIteration:
            pass
        finally:
            if piece is not None:
                await _end(piece)
            await self._pieces.aclose()
