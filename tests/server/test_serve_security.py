"""Who may use the server, and what it takes: names, origins, keys, types, sizes, paths."""

from __future__ import annotations

import re
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from serving import Server, serve

CHAT = "/v1/chat/completions"
KEY = "a-key-of-the-test"


def test_rebinding_is_refused(server: Server) -> None:
    """A name in Host that is not the server's, none, or two: whatever the route."""
    for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "evil.example:8080", "", "a:b:c"):
        assert server.get("/health", headers={"Host": host}).status_code == 403, host
        assert server.post(CHAT, {}, headers={"Host": host}).status_code == 403, host
    for host in (f"localhost:{server.port}", "127.0.0.1", "[::1]:80", "LOCALHOST"):
        assert server.get("/health", headers={"Host": host}).status_code == 200, host
    with server.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
        assert connection.recv(64).split()[1] in (b"400", b"403")


def test_other_origins_are_refused(server: Server, ask: list[Any]) -> None:
    """Pages of other sites get nothing, simple requests and preflights alike; its own page is served."""
    body = {"messages": ask, "max_tokens": 1}
    for origin in ("https://evil.example", "null", "http://localhost:1", f"https://127.0.0.1:{server.port}"):
        refused = server.post(CHAT, body, headers={"Origin": origin})
        assert refused.status_code == 403, origin
        assert "access-control-allow-origin" not in refused.headers
    preflight = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    assert httpx.options(server.url + CHAT, headers=preflight).status_code == 403
    assert server.get("/v1/models", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert server.post(CHAT, body, headers={"Origin": server.url}).status_code == 200


def test_only_json_is_taken(server: Server) -> None:
    """What a form of another page could send is refused, and so is what is not plain UTF-8 JSON."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "",
                 "application/json; charset=latin-1"):  # fmt: skip
        response = httpx.post(server.url + CHAT, content=b"{}", headers={"Content-Type": kind})
        assert response.status_code == 415, kind
    for content in (b"{", b"[]", b'"x"', b"\xff\xfe", b"[" * 50_000, b'{"messages": ' + b"[" * 50_000, b"",
                    b'{"messages": [{"role": "user", "content": "\\ud800"}]}', b'{"temperature": NaN}',
                    b'{"seed": ' + b"9" * 5000 + b"}"):  # fmt: skip
        response = httpx.post(server.url + CHAT, content=content, headers={"Content-Type": "application/json"})
        assert response.status_code == 400, content[:20]
        assert response.json()["error"]["message"]


def test_headers(server: Server) -> None:
    """Answers may not be guessed at, framed or kept."""
    headers = server.get("/health").headers
    assert headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in headers["content-security-policy"]
    assert headers["cache-control"] == "no-store"
    assert "server" not in headers


def test_paths(server: Server) -> None:
    """No name leads out of what is offered."""
    for path in ("/../../etc/passwd", "/..%2f..%2fetc%2fpasswd", "/app.js/../../main.py", "/%2e%2e/pyproject.toml",
                 "/v1/models/..%2f..%2fetc%2fpasswd", "/v1/models//etc/passwd", "/static/../app.py"):  # fmt: skip
        with server.connect() as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            answer = connection.makefile("rb").read()
        assert answer.split()[1] == b"404", path
        assert b"root:" not in answer
    for name in ("../../etc/passwd", "/etc/passwd", "hf:a/b/c.gguf", "smollm2.gguf", "smollm2/../smollm2"):
        response = server.post(CHAT, {"model": name, "messages": [{"role": "user", "content": "Hi"}]})
        assert response.status_code == 404, name


def test_keys_names_and_origins(edgert_command: str, smollm2_file: Path, tmp_path: Path, ask: list[Any]) -> None:
    """With keys nothing but health and the page is open; names and origins that are allowed pass."""
    (tmp_path / "keys").write_text(f"{KEY}\nanother-{KEY}\n", encoding="utf-8")
    keys = str(tmp_path / "keys")
    arguments = ["--host", "0.0.0.0", "--port", "0", "--api-key-file", keys, "--allow-host", "box.lan",
                 "--allow-origin", "https://app.example"]  # fmt: skip
    body = {"messages": ask, "max_tokens": 1}
    with serve(edgert_command, str(smollm2_file), *arguments) as running:
        running.url = f"http://127.0.0.1:{running.port}"
        assert running.get("/health").status_code == 200
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": KEY}, {"x-api-key": KEY[:-1]},
                        {"Authorization": "Bearer"}, {"x-api-key": "\xe9"}):  # fmt: skip
            encoded = {name: value.encode("latin-1") for name, value in headers.items()}
            for path in (CHAT, "/v1/messages", "/api/chat", "/tokenize"):
                assert running.post(path, body, headers=encoded).status_code == 401, (path, headers)
            assert running.get("/metrics", headers=encoded).status_code == 401
        right = {"Authorization": f"Bearer {KEY}"}
        assert running.post(CHAT, body, headers=right).status_code == 200
        assert running.post(CHAT, body, headers={"x-api-key": f"another-{KEY}"}).status_code == 200
        assert running.get("/v1/models", headers={**right, "Host": "box.lan"}).status_code == 200
        assert running.get("/v1/models", headers={**right, "Host": "192.168.7.7:80"}).status_code == 200
        assert running.get("/v1/models", headers={**right, "Host": "evil.example"}).status_code == 403
        origin = {"Origin": "https://app.example"}
        allowed = running.post(CHAT, body, headers={**right, **origin})
        assert allowed.headers["access-control-allow-origin"] == "https://app.example"
        asked = {**origin, "Access-Control-Request-Method": "POST"}
        assert httpx.options(running.url + CHAT, headers=asked).status_code == 204


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no unix sockets in Python")
def test_unix_socket(edgert_command: str, smollm2_file: Path, tmp_path: Path, ask: list[Any]) -> None:
    """Only this user may open it; a second server does not take it; it is gone at the end."""
    path = tmp_path / "edgert.sock"
    with serve(edgert_command, str(smollm2_file), "--unix", str(path)) as running:
        assert running.url == str(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), timeout=60) as client:
            answer = client.post(f"http://localhost{CHAT}", json={"messages": ask, "max_tokens": 2})
            assert answer.status_code == 200
        second = subprocess.run([edgert_command, "serve", "--unix", str(path)], capture_output=True, text=True)
        assert (second.returncode, second.stderr) == (1, f"edgert serve: another server listens at {path}\n")
    assert running.process.returncode == 0
    assert not path.exists()


def test_tls(edgert_command: str, smollm2_file: Path, tmp_path: Path) -> None:
    """https with a certificate that the client trusts."""
    import ssl

    import trustme

    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    certificate.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "both.pem"))
    pem = str(tmp_path / "both.pem")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with serve(edgert_command, str(smollm2_file), "--port", "0", "--tls-cert", pem, "--tls-key", pem) as running:
        assert running.url.startswith("https://")
        assert httpx.get(f"https://localhost:{running.port}/health", verify=context).json() == {"status": "ok"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "0.0.0.0"], r"lets other computers in: set EDGERT_API_KEY or --api-key-file"),
        (["--tls-cert", "x.pem"], r"--tls-cert and --tls-key: give both"),
        (["--api-key-file", "no-such-file"], r"no-such-file: No such file"),
        (["--port", "70000"], r"70000 is not between 0 and 65535"),
        (["no-such-model"], r"no model called 'no-such-model'"),
        (["smollm2-135m", "smollm2-135m"], r"two models are called 'smollm2-135m'"),
        (["--host", "no.such.host.invalid", "--port", "0"], r"--host no.such.host.invalid"),
    ],
)
def test_mistakes_on_the_command_line(edgert_command: str, arguments: list[str], said: str) -> None:
    """One line that says what to do."""
    run = subprocess.run([edgert_command, "serve", *arguments], capture_output=True, text=True, timeout=120)
    assert run.returncode in (1, 2)
    assert re.search(said, run.stderr), run.stderr
    assert run.stderr.count("\n") == 1, run.stderr


def test_port_in_use(edgert_command: str) -> None:
    """Said at once, before the model is loaded."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        run = subprocess.run([edgert_command, "serve", "--port", port], capture_output=True, text=True, timeout=120)
    assert run.returncode == 1
    assert run.stderr.startswith(f"edgert serve: cannot listen at 127.0.0.1:{port}: ")


def test_model_that_cannot_be_loaded(edgert_command: str, tmp_path: Path) -> None:
    """The server ends with one line."""
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(100))
    arguments = [edgert_command, "serve", str(tmp_path / "bad.gguf"), "--port", "0"]
    run = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    assert run.returncode == 1
    assert run.stderr.startswith("edgert serve: model 'bad' cannot be loaded: ")
    assert run.stderr.count("\n") == 1, run.stderr
