"""Clients that are slow, broken or gone, and many at once: the server goes on and gives everything back."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from edgert.apps.serve import SWITCH_S
from edgert.apps.server.app import Application
from edgert.apps.server.options import Options

import edgert
from serving import Server, serve

CHAT = "/v1/chat/completions"
TEXT = (Path(__file__).parent.parent / "data" / "text" / "eval.txt").read_text(encoding="utf-8")


def wait_for(what: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not come to be"
        time.sleep(0.05)


def idle(server: Server) -> bool:
    """Whether nothing runs or waits, and no page of the KV cache is held."""
    return not any(server.metric(f"edgert_engine_{name}") for name in ("running", "waiting", "pages_used"))


def request(body: Any, length: int | None = None) -> bytes:
    """The bytes of a POST."""
    data = json.dumps(body).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data) if length is None else length}\r\n\r\n".encode() + data


def test_slow_body(server: Server) -> None:
    """A body that does not come is given up, and so are headers that do not."""
    with server.connect() as body, server.connect() as headers:
        body.sendall(request({}, length=1000))
        headers.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: loc")
        start = time.monotonic()
        assert body.makefile("rb").readline().split()[1] == b"408"
        assert headers.recv(100) == b""
        assert time.monotonic() - start < 20
    assert server.get("/health").status_code == 200


def test_huge_body(server: Server) -> None:
    """Refused by its length before it is sent, or as soon as too much has come."""
    with server.connect() as said, server.connect() as chunked:
        said.sendall(request({}, length=10**12))
        assert said.makefile("rb").readline().split()[1] == b"413"
        chunked.sendall(request({})[: request({}).index(b"Content-Length")] + b"Transfer-Encoding: chunked\r\n\r\n")
        try:
            for _ in range(100):
                chunked.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")
        except OSError:
            pass  # the server has closed the connection
        else:
            assert chunked.makefile("rb").readline().split()[1] == b"413"
    assert server.get("/health").status_code == 200


def test_half_open_connections(server: Server) -> None:
    """500 of them do not keep anybody out, and are closed when the time for their headers is over."""
    with ExitStack() as stack:
        half_open = [stack.enter_context(server.connect()) for _ in range(500)]
        for connection in half_open[::2]:
            connection.sendall(b"GET /health HT")
        assert server.get("/health").status_code == 200
        for connection in half_open:
            assert connection.recv(100) == b""
    assert server.get("/health").status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_client_leaves_while_its_prompt_is_read(server: Server, stream: bool) -> None:
    """The work ends with the connection, long before the prompt is read, and its pages are free."""
    before = server.metric("edgert_requests_total")
    read = server.metric("edgert_engine_prompt_tokens_total")
    body = {"messages": [{"role": "user", "content": f"{stream} {TEXT[:24_000]}"}], "max_tokens": 64, "stream": stream}
    with server.connect() as connection:
        connection.sendall(request(body))
        wait_for(lambda: not idle(server))
        connection.shutdown(socket.SHUT_RDWR)
    start = time.monotonic()
    wait_for(lambda: idle(server))
    assert time.monotonic() - start < 5
    assert server.metric("edgert_requests_total") == before
    assert server.metric("edgert_engine_prompt_tokens_total") - read < 5000


def test_client_leaves_while_the_answer_is_made(server: Server, ask: list[Any]) -> None:
    """Streamed or not."""
    for stream in (True, False):
        made = server.metric("edgert_engine_generated_tokens_total")
        with server.connect() as connection:
            connection.sendall(request({"messages": ask, "stream": stream, "max_tokens": 4000, "ignore_eos": True}))
            wait_for(lambda before=made: server.metric("edgert_engine_generated_tokens_total") > before + 8)  # type: ignore[misc]
        wait_for(lambda: idle(server))
        assert server.metric("edgert_engine_generated_tokens_total") - made < 3000


def test_many_streams_are_as_one_alone(server: Server, smollm2_path: Path) -> None:
    """32 at a time: each answer is the one that the library gives to it alone."""
    asked = [[{"role": "user", "content": f"Write one sentence about the number {i}."}] for i in range(32)]
    settings = {"max_tokens": 8, "temperature": 0.9, "seed": 5}
    with edgert.load(smollm2_path) as model:
        expected = [model.chat(messages, **settings).text for messages in asked]  # type: ignore[call-overload]

    def stream(messages: list[dict[str, str]]) -> str:
        text = ""
        with httpx.stream("POST", server.url + CHAT, timeout=120,
                          json={"messages": messages, "stream": True, **settings}) as response:  # fmt: skip
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    text += json.loads(line[6:])["choices"][0]["delta"].get("content", "")
        return text

    with ThreadPoolExecutor(32) as threads:
        assert list(threads.map(stream, asked)) == expected
    assert idle(server)


def test_loop_is_never_held_up(smollm2_file: Path) -> None:
    """While a prompt of 100 kB is rendered and tokenized the event loop runs at least every 50 ms.

    The best of 5: a busy machine can only add to the time.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        longest = asyncio.run(_longest_waits(str(smollm2_file), 5))
    finally:
        sys.setswitchinterval(before)
    assert min(longest) < 0.05, longest


async def _longest_waits(model: str, times: int) -> list[float]:
    """Seconds that the loop of a server in this process was held up at most, for each of so many requests."""
    ready, failures = asyncio.Event(), list[Exception]()
    made = Application(Options((model,)), ready.set, failures.append)
    body = {"messages": [{"role": "user", "content": (TEXT * 20)[:100_000]}], "max_tokens": 1}
    longest = [0.0]

    async def watch() -> None:
        while True:
            start = time.perf_counter()
            await asyncio.sleep(0.001)
            longest[-1] = max(longest[-1], time.perf_counter() - start - 0.001)

    async with made.app.router.lifespan_context(made.app):
        await ready.wait()
        watcher = asyncio.create_task(watch())
        async with httpx.AsyncClient(transport=httpx.ASGITransport(made.asgi), base_url="http://localhost") as client:
            for _ in range(times):
                longest.append(0.0)
                answer = await client.post(CHAT, json=body, timeout=120)
                assert answer.status_code == 400
                error = answer.json()["error"]
                assert error["code"] == "context_length_exceeded"
                assert "8192" in error["message"]
        watcher.cancel()
    assert not failures
    return longest[1:]


def test_busy(edgert_command: str, smollm2_file: Path, ask: list[Any]) -> None:
    """When as many wait as may, the next is told to come again."""
    body = {"messages": ask, "max_tokens": 3000, "ignore_eos": True, "stream": True}
    arguments = [str(smollm2_file), "--port", "0", "--max-waiting", "1", "--ctx", "4096", "--cache-tokens", "4096"]
    with serve(edgert_command, *arguments) as running, ExitStack() as stack:
        statuses = set()
        for _ in range(80):
            response = stack.enter_context(httpx.stream("POST", running.url + CHAT, json=body, timeout=60))
            statuses.add(response.status_code)
            if response.status_code == 429:
                assert int(response.headers["retry-after"]) > 0
                assert json.loads(response.read())["error"]["code"] == "engine_busy"
                break
        assert statuses == {200, 429}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM to send")
def test_end_under_load(edgert_command: str, smollm2_file: Path, ask: list[Any]) -> None:
    """After SIGTERM what can end in time ends, the rest is told, and nothing new is taken."""
    with serve(edgert_command, str(smollm2_file), "--port", "0", "--grace", "6") as running:

        def stream(tokens: int) -> list[str]:
            body = {"messages": ask, "max_tokens": tokens, "ignore_eos": True, "stream": True}
            with httpx.stream("POST", running.url + CHAT, json=body, timeout=60) as response:
                return [line[6:] for line in response.iter_lines() if line.startswith("data: ")]

        def whole(tokens: int) -> httpx.Response:
            return running.post(CHAT, {"messages": ask, "max_tokens": tokens, "ignore_eos": True})

        with ThreadPoolExecutor(8) as threads, closing(running.connect()) as late:
            short = [threads.submit(stream, 3) for _ in range(2)]
            long = [threads.submit(stream, 8000) for _ in range(2)]
            rest = [threads.submit(whole, tokens) for tokens in (3, 8000)]
            wait_for(lambda: running.metric("edgert_engine_running") >= 3)
            late.sendall(request({"messages": ask}, length=60)[:-30])
            running.process.send_signal(signal.SIGTERM)
            assert all(future.result()[-1] == "[DONE]" for future in short)
            for future in long:
                lines = future.result()
                assert len(lines) > 4
                assert "shutting down" in json.loads(lines[-1])["error"]["message"]
            assert rest[0].result().status_code == 200
            assert rest[1].result().status_code == 503
            assert "shutting down" in rest[1].result().json()["error"]["message"]
        assert running.process.wait(30) == 0
    assert not any("Traceback" in line for line in running.said), running.said
