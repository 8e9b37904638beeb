"""What every request passes before it reaches a route: Host, Origin, key, type and size of the body.

A web page of another site can send requests to a server on this computer, either to its address (then Origin says
so) or, after changing what its own name resolves to, as if they were its own (then Host has that name).
"""

import asyncio
import hmac
import ipaddress
import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from . import errors
from .errors import ApiError
from .options import ANYWHERE, Options, is_loopback
from .web import FILES

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

PAGES = frozenset(FILES)  # public, like /health: the page asks for the key
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"content-security-policy", CSP.encode()),
    (b"cache-control", b"no-store"),
)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class Gone(Exception):
    """The client left before its request was complete."""


class Guard:
    """ASGI middleware: refuses what must not pass, and reads the body before the application starts."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]], options: Options,
                 draining: Callable[[], bool]) -> None:  # fmt: skip
        self._app, self._options, self._draining = app, options, draining

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1008})
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        extra = list(HEADERS)

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *extra]
            await send(message)

        try:
            self._check_host(scope, headers)
            allowed = self._check_origin(scope, headers)
            if allowed is not None:
                extra[2] = (b"cross-origin-resource-policy", b"cross-origin")
                extra += [(b"access-control-allow-origin", allowed.encode("latin-1")), (b"vary", b"Origin")]
                if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
                    return await _preflight(send_safely)
            self._check_key(scope["path"], headers)
            if scope["method"] in ("POST", "PUT", "PATCH", "DELETE"):
                receive = await self._body(headers, receive)
        except Gone:
            return None
        except ApiError as error:
            response = errors.response(scope["path"], error)
            if error.status in (408, 413):
                response.headers["connection"] = "close"  # the rest of the body is not read
            return await response(scope, receive, send_safely)
        await self._app(scope, receive, send_safely)

    # ---- who asks ----

    def _check_host(self, scope: Scope, headers: dict[str, str]) -> None:
        if self._options.unix is not None:
            return
        if sum(name == b"host" for name, _ in scope["headers"]) != 1 or not self._known(_name(headers["host"])):
            raise ApiError(403, "Host: this name is not one of the server's; 'edgert serve --allow-host NAME' adds one")

    def _known(self, name: str) -> bool:
        options = self._options
        if is_loopback(name) or name in (options.host.lower(), *(host.lower() for host in options.hosts)):
            return True
        return options.host in ANYWHERE and _is_address(name)  # only names can be made to resolve to something else

    def _check_origin(self, scope: Scope, headers: dict[str, str]) -> str | None:
        """The origin of another page that may use the server, None if no other page asks."""
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if origin is None:
            if site in ("cross-site", "same-site") and scope["path"] not in PAGES:
                raise ApiError(403, "requests from other sites' pages are refused")
            return None
        if origin == f"{scope['scheme']}://{headers.get('host')}":
            return None
        if origin in self._options.origins or "*" in self._options.origins:
            return origin
        raise ApiError(403, "Origin: other sites' pages are refused; 'edgert serve --allow-origin ORIGIN' allows one")

    def _check_key(self, path: str, headers: dict[str, str]) -> None:
        keys = self._options.keys
        if not keys or path in PAGES or path == "/health":
            return
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        if not any([hmac.compare_digest(key.encode(), given.encode("latin-1")) for key in keys]):  # noqa: C419
            raise ApiError(401, "a valid API key is needed: 'Authorization: Bearer KEY'", code="invalid_api_key")

    # ---- what they send ----

    async def _body(self, headers: dict[str, str], receive: Receive) -> Receive:
        """Read the body; a `receive` that gives it once more, then what comes after it."""
        if self._draining():
            raise ApiError(503, "the server is shutting down")
        kind, _, parameters = headers.get("content-type", "").lower().partition(";")
        if kind.strip() != "application/json" or parameters.replace('"', "").strip() not in ("", "charset=utf-8"):
            raise ApiError(415, "Content-Type: only application/json in UTF-8 is taken")
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise ApiError(415, "Content-Encoding: compressed bodies are not taken")
        data = await self._read(headers, receive)
        if _SURROGATE.search(data) and not _is_text(data):
            raise ApiError(400, "the body has half of a surrogate pair, which is no text")
        waiting: list[Message] = [{"type": "http.request", "body": data, "more_body": False}]

        async def replay() -> Message:
            return waiting.pop() if waiting else await receive()

        return replay

    async def _read(self, headers: dict[str, str], receive: Receive) -> bytes:
        limit, seconds = self._options.max_body, self._options.receive_s
        too_large = ApiError(413, f"the body is larger than {limit} bytes")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:20]) > limit:
            raise too_large
        parts, size, more = [], 0, True
        try:
            async with asyncio.timeout(seconds):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Gone
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > limit:
                        raise too_large
                    more = message.get("more_body", False)
        except TimeoutError:
            raise ApiError(408, f"the body did not arrive within {seconds:g} seconds") from None
        return b"".join(parts)


async def _preflight(send: Send) -> None:
    headers = [
        (b"access-control-allow-methods", b"GET, POST"),
        (b"access-control-allow-headers", b"authorization, content-type, x-api-key, anthropic-version, anthropic-beta"),
        (b"access-control-max-age", b"600"),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def _name(host: str) -> str:
    """The name in a Host header, without port and brackets."""
    match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]]*)(?::\d{1,5})?", host)
    return match[1].strip("[]").lower() if match else ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_text(data: bytes) -> bool:
    """Whether all strings in the JSON are Unicode text; what is no JSON is somebody else's to refuse."""
    try:
        json.dumps(json.loads(data), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    except (ValueError, RecursionError):
        return True
    return True
