"""Models that a server runs, by OpenAI's API: `edgert chat --connect URL`."""

import contextlib
import json
import os
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import httpx

import edgert

from .console import UsageError

KEY_VARIABLE = "EDGERT_API_KEY"
PATIENCE = httpx.Timeout(10, read=600)  # seconds; other servers may be silent while they read a long prompt
NAMES = {"penalty_last_n": "repeat_last_n"}  # of settings that the API calls otherwise


class Server:
    """A `models.Source`. url: http(s)://..., or unix:PATH of a socket. EdgertError for whatever goes wrong."""

    def __init__(self, url: str) -> None:
        key = os.environ.get(KEY_VARIABLE, "").split("\n")[0].strip()
        scheme, _, place = url.partition(":")
        if scheme == "unix" and place:
            transport, url = httpx.HTTPTransport(uds=place), "http://localhost"
        elif scheme in ("http", "https") and place.strip("/"):
            transport = httpx.HTTPTransport(verify=ssl.create_default_context())  # the system's authorities
        else:
            raise UsageError(f"--connect: {url!r} is not http://HOST:PORT, https://HOST or unix:PATH")
        headers = {"authorization": f"Bearer {key}"} if key else {}
        base = url.rstrip("/").removesuffix("/v1")
        try:
            self._client = httpx.Client(base_url=base, headers=headers, timeout=PATIENCE, transport=transport)
        except (httpx.InvalidURL, ValueError) as error:
            raise UsageError(f"--connect: {url}: {error}") from None
        self._url = base

    def names(self) -> list[str]:
        return [str(card["id"]) for card in self._cards()]

    def first(self) -> str:
        """The name of the model that it names first."""
        names = self.names()
        if not names:
            raise edgert.EdgertError(f"{self._url} has no models")
        return names[0]

    def open(self, name: str) -> "ServedModel":
        cards = self._cards()
        for card in cards:
            if card["id"] == name:
                return ServedModel(self, str(card["id"]), int((card.get("meta") or {}).get("n_ctx") or 0))
        known = ", ".join(str(card["id"]) for card in cards) or "none"
        raise edgert.EdgertError(f"{self._url} has no model {name!r}; it has: {known}")

    def close(self) -> None:
        self._client.close()

    def _cards(self) -> list[dict[str, Any]]:
        response = self.send("GET", "/v1/models")
        with contextlib.closing(response):
            try:
                response.read()
                cards = response.json()["data"]
                return [card for card in cards if isinstance(card["id"], str)]
            except (httpx.HTTPError, ValueError, KeyError, TypeError):
                raise edgert.EdgertError(f"{self._url} does not answer as OpenAI's API does") from None

    def send(self, method: str, path: str, body: Any = None) -> httpx.Response:
        """The beginning of the answer, if it is a good one."""
        try:
            response = self._client.send(self._client.build_request(method, path, json=body), stream=True)
            if response.status_code == 200:
                return response
            with contextlib.closing(response):
                response.read()
        except httpx.HTTPError as error:
            raise edgert.EdgertError(f"cannot reach {self._url}: {error}") from None
        if response.status_code == 401:
            raise edgert.EdgertError(f"{self._url} wants an API key: set {KEY_VARIABLE}")
        raise edgert.EdgertError(f"{self._url}: {_complaint(response)}")


class ServedModel:
    """A `models.Talker`."""

    def __init__(self, server: Server, name: str, n_ctx: int) -> None:
        self.name, self.n_ctx, self._server = name, n_ctx, server

    def chat(self, messages: Sequence[Mapping[str, Any]], *, stream: Literal[True], reasoning: Literal["keep"],
             **settings: Any) -> "ServedAnswer":  # fmt: skip
        """settings: as for `edgert.Model.chat`."""
        given = {NAMES.get(name, name): value for name, value in settings.items()}
        body = {"model": self.name, "messages": list(messages), "stream": stream, "reasoning_format": "none",
                "stream_options": {"include_usage": True}, **given}  # fmt: skip
        return ServedAnswer(self._server.send("POST", "/v1/chat/completions", body))


class ServedAnswer(Iterator[str]):
    """A `models.Answering`."""

    def __init__(self, response: httpx.Response) -> None:
        self._response, self._lines = response, response.iter_lines()
        self._text: list[str] = []
        self._reason = "cancelled"
        self._usage: dict[str, Any] = {}
        self._timings: dict[str, Any] = {}
        self._start = self._first = self._last = time.perf_counter()

    def __next__(self) -> str:
        try:
            for line in self._lines:
                if not line.startswith("data:"):
                    continue
                if line[5:].strip() == "[DONE]":
                    break
                if piece := self._read(json.loads(line[5:])):
                    self._last = time.perf_counter()
                    self._first = self._last if not self._text else self._first
                    self._text.append(piece)
                    return piece
        except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            self.close()
            raise edgert.EdgertError(f"the server's answer broke off: {error}") from None
        self.close()
        raise StopIteration

    def _read(self, event: dict[str, Any]) -> str:
        """The text of an event; keeps what else it says."""
        if "error" in event:
            raise edgert.EdgertError(" ".join(str(event["error"]["message"]).split()))
        self._usage = event.get("usage") or self._usage
        self._timings = event.get("timings") or self._timings
        if not event.get("choices"):
            return ""
        choice = event["choices"][0]
        self._reason = choice.get("finish_reason") or self._reason
        return str(choice["delta"].get("content") or "")

    def close(self) -> None:
        """Leave; the server then stops."""
        self._response.close()

    @property
    def completion(self) -> edgert.Completion:
        """What has been said; a server that tells no times gets those that were seen here."""
        used, times, pieces = self._usage, self._timings, len(self._text)
        prompt = int(used.get("prompt_tokens", 0))
        cached = int((used.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
        seconds = self._last - self._first
        return edgert.Completion(
            "".join(self._text), [], self._reason,
            edgert.Usage(prompt, int(used.get("completion_tokens", pieces)), cached),
            edgert.Timings(
                float(times.get("prompt_ms", (self._first - self._start) * 1e3)) / 1e3,
                float(times.get("predicted_ms", seconds * 1e3)) / 1e3,
                float(times.get("prompt_per_second", 0)),
                float(times.get("predicted_per_second", (pieces - 1) / seconds if seconds > 0 else 0)),
            ),
        )  # fmt: skip


def _complaint(response: httpx.Response) -> str:
    try:
        return " ".join(str(response.json()["error"]["message"]).split())
    except (ValueError, KeyError, TypeError):
        return f"HTTP status {response.status_code}"
