"""Serve models over HTTP: the APIs of OpenAI, Anthropic and Ollama, and a web page to chat.

Without MODEL the default one is served. The first is loaded at once, others when they are asked for. Only this
computer can reach the server unless --host says otherwise, and then an API key is needed.
"""

import argparse
import os
import socket
import stat
import sys
from pathlib import Path
from typing import Any

import edgert

from .console import MODEL_HELP, UsageError, add_load_options, integer, number

KEYS_VARIABLE = "EDGERT_API_KEY"
MEMORY_SHARE = 0.8  # of the computer's memory, for all loaded models
MIN_KEY = 8  # characters
SWITCH_S = 0.001  # after which a thread that renders or tokenizes lets the event loop run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", metavar="MODEL", nargs="*", help=MODEL_HELP)
    parser.add_argument("--host", default="127.0.0.1", metavar="HOST", help="address to listen at (default 127.0.0.1)")
    parser.add_argument("--port", type=integer(0, 65535), default=8080, metavar="N", help="(default 8080; 0: any free)")
    parser.add_argument("--unix", metavar="PATH", help="listen at a unix socket, for this user alone, instead")
    parser.add_argument("--api-key-file", metavar="FILE",
                        help=f"API keys that clients must have, one a line; also in {KEYS_VARIABLE}")  # fmt: skip
    parser.add_argument("--tls-cert", metavar="FILE", help="certificate chain (PEM), for https")
    parser.add_argument("--tls-key", metavar="FILE", help="its private key (PEM)")
    parser.add_argument("--allow-host", action="append", default=[], metavar="NAME",
                        help="a further name by which clients call this server")  # fmt: skip
    parser.add_argument("--allow-origin", action="append", default=[], metavar="ORIGIN",
                        help="another site (https://example.org) that may use the server; '*': all")  # fmt: skip
    parser.add_argument("--memory", type=number(0.01, 1e6), metavar="GB",
                        help="for all loaded models (default: 80 %% of all); beyond, idle ones go")  # fmt: skip
    parser.add_argument("--cache-tokens", type=integer(1), metavar="N",
                        help="that each model's KV cache holds for all requests")  # fmt: skip
    parser.add_argument("--max-waiting", type=integer(1, 100_000), default=256, metavar="N",
                        help="requests that may wait for a model (default 256)")  # fmt: skip
    parser.add_argument("--max-body", type=number(0.01, 1000), default=4, metavar="MB",
                        help="largest request (default 4)")  # fmt: skip
    parser.add_argument("--receive-timeout", type=number(0.1, 3600), default=30, metavar="S",
                        help="seconds for a request to arrive (default 30)")  # fmt: skip
    parser.add_argument("--grace", type=number(0, 86400), default=30, metavar="S",
                        help="seconds that answers may still take after SIGTERM (default 30)")  # fmt: skip
    add_load_options(parser)


def execute(options: argparse.Namespace) -> int:
    try:
        from .server import app, protocol
        from .server.options import Options
    except ModuleNotFoundError as error:
        raise UsageError(f"{error.name} is missing; pip install 'edgert[server]'") from None
    chosen = Options(
        models=tuple(options.models), host=options.host, unix=options.unix, keys=_keys(options.api_key_file),
        hosts=tuple(options.allow_host), origins=tuple(options.allow_origin), max_body=int(options.max_body * 1e6),
        receive_s=options.receive_timeout, grace_s=options.grace, memory=_memory(options.memory), ctx=options.ctx,
        cache_tokens=options.cache_tokens, threads=options.threads, precision=options.precision,
        max_waiting=options.max_waiting,
    )  # fmt: skip
    if bool(options.tls_cert) != bool(options.tls_key):
        raise UsageError("--tls-cert and --tls-key: give both")
    for option, name in (("--tls-cert", options.tls_cert), ("--tls-key", options.tls_key)):
        if name and not Path(name).is_file():
            raise UsageError(f"{option} {name}: no such file")
    if not chosen.local and not chosen.keys:
        raise UsageError(f"--host {options.host} lets other computers in: set {KEYS_VARIABLE} or --api-key-file")
    listener, address = _listen(options)
    failures: list[Exception] = []

    def started() -> None:
        print(f"edgert serve: ready at {address}", file=sys.stderr, flush=True)

    def failed(error: Exception) -> None:
        failures.append(error)
        server.should_exit = True

    sys.setswitchinterval(SWITCH_S)
    application = app.Application(chosen, started, failed)
    server = protocol.Server(_config(application.asgi, options), application.state.drain)
    try:
        server.run(sockets=[listener])
    finally:
        listener.close()
        if options.unix:
            Path(options.unix).unlink(missing_ok=True)
    if failures:
        raise edgert.EdgertError(str(failures[0]))
    return 0


def _config(asgi: Any, options: argparse.Namespace) -> Any:
    import uvicorn

    from .server.protocol import protocol

    return uvicorn.Config(
        asgi, http=protocol(options.receive_timeout), ws="none", loop="asyncio", log_level="warning", access_log=False,
        server_header=False, proxy_headers=False, ssl_certfile=options.tls_cert, ssl_keyfile=options.tls_key,
        timeout_graceful_shutdown=int(options.grace) + 10, backlog=1024,
    )  # fmt: skip


def _keys(file: str | None) -> tuple[str, ...]:
    """API keys of the file and of the environment."""
    texts = [os.environ.get(KEYS_VARIABLE, "")]
    if file is not None:
        try:
            texts.append(Path(file).read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            raise UsageError(f"--api-key-file: {file} is not text") from None
    keys = tuple(line.strip() for text in texts for line in text.splitlines() if line.strip())
    if file is not None and not keys:
        raise UsageError(f"--api-key-file: {file} has no key")
    for key in keys:
        if len(key) < MIN_KEY or not key.isascii() or not key.isprintable() or " " in key:
            raise UsageError(f"an API key has fewer than {MIN_KEY} characters, or others than visible ASCII")
    return keys


def _memory(gigabytes: float | None) -> int:
    import psutil

    return int(psutil.virtual_memory().total * MEMORY_SHARE if gigabytes is None else gigabytes * 1e9)


def _listen(options: argparse.Namespace) -> tuple[socket.socket, str]:
    """A bound socket, so that an address in use is known before a model is loaded; and the address to show."""
    if options.unix:
        return _listen_unix(options.unix), options.unix
    scheme = "https" if options.tls_cert else "http"
    try:
        family, kind, _, _, place = socket.getaddrinfo(options.host or None, options.port, type=socket.SOCK_STREAM,
                                                       flags=socket.AI_PASSIVE)[0]  # fmt: skip
    except (socket.gaierror, UnicodeError) as error:
        raise UsageError(f"--host {options.host}: {error}") from None
    listener = socket.socket(family, kind)
    try:
        if os.name == "posix":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
    except OSError as error:
        listener.close()
        raise edgert.EdgertError(f"cannot listen at {options.host}:{options.port}: {error.strerror}") from None
    host = f"[{options.host}]" if ":" in options.host else options.host
    return listener, f"{scheme}://{host}:{listener.getsockname()[1]}"


def _listen_unix(path: str) -> socket.socket:
    if not hasattr(socket, "AF_UNIX"):
        raise UsageError("--unix: this system has no unix sockets")
    place = Path(path)
    if place.exists() and not stat.S_ISSOCK(place.stat().st_mode):
        raise UsageError(f"--unix: {path} is there and is no socket")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if place.exists():
            if listener.connect_ex(path) == 0:
                raise edgert.EdgertError(f"another server listens at {path}")
            place.unlink()
            listener.close()
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        mask = os.umask(0o177)
        try:
            listener.bind(path)
        finally:
            os.umask(mask)
    except OSError as error:
        listener.close()
        raise edgert.EdgertError(f"cannot listen at {path}: {error.strerror or error}") from None
    except edgert.EdgertError:
        listener.close()
        raise
    return listener
