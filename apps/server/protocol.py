"""The HTTP protocol with a limit on how long a client may take to send a request's headers."""

import asyncio
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol


def protocol(seconds: float) -> type[H11Protocol]:
    """A protocol that closes connections whose headers are not complete after so many seconds."""

    class Patient(H11Protocol):
        _expiry: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget()
            super().connection_lost(exc)

        def _watch(self) -> None:
            """While headers are awaited, the time runs; what arrives in between does not set it back."""
            if self.conn.their_state is not h11.IDLE:
                self._forget()
            elif self._expiry is None:
                self._expiry = self.loop.call_later(seconds, self._expire)

        def _forget(self) -> None:
            if self._expiry is not None:
                self._expiry.cancel()
                self._expiry = None

        def _expire(self) -> None:
            self._expiry = None
            if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
                self.transport.close()

    return Patient


class Server(uvicorn.Server):
    """uvicorn's, that tells when the first signal to end comes and does not raise the signal again at the end."""

    def __init__(self, config: uvicorn.Config, at_signal: Callable[[], None]) -> None:
        super().__init__(config)
        self._at_signal = at_signal

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()

        def handle(number: int, frame: FrameType | None) -> None:
            loop.call_soon_threadsafe(self._end, number)

        numbers = [signal.SIGINT, signal.SIGTERM]
        if sys.platform == "win32":
            numbers.append(signal.SIGBREAK)
        before: dict[int, Any] = {number: signal.signal(number, handle) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _end(self, number: int) -> None:
        if self.should_exit and number == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True
        self._at_signal()
