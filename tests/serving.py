"""Running `edgert serve` and asking it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

START_S = 300  # kernels may have to be compiled


@dataclass
class Server:
    """A running server. url: its address, or the path of its socket; said: lines of its standard error so far."""

    process: subprocess.Popen[str]
    url: str
    said: list[str] = field(default_factory=list)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def get(self, path: str, **options: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=60, **options)

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=120, **options)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        lines = self.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith((f"{name}{{", f"{name} ")))


@contextmanager
def serve(command: str, *arguments: str, **environment: str) -> Iterator[Server]:
    """Start a server at a free port, wait until it is ready, end it."""
    process = subprocess.Popen(
        [command, "serve", *arguments], stderr=subprocess.PIPE, text=True, encoding="utf-8",
        env=os.environ | environment,
    )  # fmt: skip
    server = Server(process, "")
    ready = threading.Event()

    def read() -> None:
        assert process.stderr
        for line in process.stderr:
            server.said.append(line.rstrip())
            if "ready at " in line:
                server.url = line.rpartition("ready at ")[2].strip()
                ready.set()
        ready.set()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        assert ready.wait(START_S)
        assert server.url, "\n".join(server.said)
        yield server
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM if sys.platform != "win32" else signal.CTRL_BREAK_EVENT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join()
        if process.stderr:
            process.stderr.close()
