"""A small stand-in for the Hugging Face hub: the same redirects and headers, Range, and faults on demand."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "c0ffee" + "0" * 34


@dataclass
class Hub:
    """The files that the server has, the faults it is to show, and what it was asked."""

    files: dict[str, bytes] = field(default_factory=dict)  # "owner/repo/name" -> content
    url: str = ""
    cut_after: list[int] = field(default_factory=list)  # close the next answers after so many bytes
    statuses: list[int] = field(default_factory=list)  # answer the next requests with these
    wrong_hash: bool = False
    no_hash: bool = False
    no_range: bool = False
    delay: float = 0.0  # seconds between pieces of 16 KiB
    renamed: dict[str, str] = field(default_factory=dict)  # "owner/old" -> "owner/new"
    log: list[tuple[str, str, str]] = field(default_factory=list)  # (method, path, Range)

    def ranges(self) -> list[str]:
        """The Range header of each request for content, "" where there was none."""
        return [wanted for method, path, wanted in self.log if method == "GET" and path.startswith("/cdn/")]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, format: str, *args: object) -> None:
        return

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        self.hub.log.append((self.command, self.path, self.headers.get("Range", "")))
        if self.hub.statuses and (status := self.hub.statuses.pop(0)):
            return self._head(status, {"Content-Length": "0"})
        if self.path.startswith("/cdn/"):
            return self._content(self.hub.files[self.path.removeprefix("/cdn/")])
        owner, repo, kind, revision, *names = self.path.strip("/").split("/")
        assert kind == "resolve"
        if new := self.hub.renamed.get(f"{owner}/{repo}"):
            where = f"/{new}/resolve/{revision}/{'/'.join(names)}"
            return self._head(307, {"Location": where, "Content-Length": "0"})
        key = "/".join([owner, repo, *names])
        if key not in self.hub.files or revision not in ("main", COMMIT):
            return self._head(404, {"Content-Length": "0"})
        content = self.hub.files[key]
        sha256 = hashlib.sha256(content + b"!" * self.hub.wrong_hash).hexdigest()
        headers = {"X-Linked-Etag": f'"{sha256}"', "X-Linked-Size": str(len(content)), "X-Repo-Commit": COMMIT}
        if self.hub.no_hash:
            del headers["X-Linked-Etag"]
        self._head(302, headers | {"Location": f"{self.hub.url}/cdn/{key}", "Content-Length": "0"})

    def _content(self, content: bytes) -> None:
        start, wanted = 0, self.headers.get("Range")
        headers = {}
        if wanted and not self.hub.no_range:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        body = content[start:]
        self._head(206 if headers else 200, headers | {"Content-Length": str(len(body))})
        if self.hub.cut_after:
            body = body[: self.hub.cut_after.pop(0)]
            self.close_connection = True
        for at in range(0, len(body), 16384):
            try:
                self.wfile.write(body[at : at + 16384])
            except OSError:
                return  # the client was interrupted
            time.sleep(self.hub.delay)

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


@contextmanager
def serve() -> Iterator[Hub]:
    """Run the server on a free port of this computer."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
