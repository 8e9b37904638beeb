"""Several models under a limit of memory, and a model whose chat template is hostile."""

from __future__ import annotations

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from serving import Server, serve

CHAT = "/v1/chat/completions"
POISON = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


def loaded(server: Server) -> dict[str, bool]:
    return {card["id"]: card["loaded"] for card in server.get("/v1/models").json()["data"]}


def test_several_models(edgert_command: str, smollm2_path: Path, tmp_path: Path, ask: list[Any]) -> None:
    """Each is loaded when it is asked for; the one that was used last stays; who waits for room gets it."""
    paths = []
    for name in ("a", "b", "c"):
        paths.append(tmp_path / f"{name}.gguf")
        paths[-1].symlink_to(smollm2_path)
    arguments = [*map(str, paths), "--port", "0", "--ctx", "512", "--cache-tokens", "1024", "--memory", "0.4"]
    with serve(edgert_command, *arguments) as server:

        def answer(name: str | None) -> str:
            body = {"messages": ask, "max_tokens": 8, "temperature": 0} | ({"model": name} if name else {})
            response = server.post(CHAT, body)
            assert response.status_code == 200, response.text
            return str(response.json()["choices"][0]["message"]["content"])

        assert loaded(server) == {"a": True, "b": False, "c": False}
        expected = answer("a")
        assert answer("b") == expected
        assert loaded(server) == {"a": True, "b": True, "c": False}
        assert answer(None) == expected
        assert answer("c:latest") == expected
        assert loaded(server) == {"a": True, "b": False, "c": True}
        with ThreadPoolExecutor(3) as threads:
            assert set(threads.map(answer, ["b", "a", "c"])) == {expected}
        assert sum(loaded(server).values()) == 2
        tags = [model["name"] for model in server.get("/api/tags").json()["models"]]
        assert tags == ["a:latest", "b:latest", "c:latest"]
        unload = server.post("/api/generate", {"model": "a", "keep_alive": 0}).json()
        assert unload["done_reason"] == "unload"
        assert not loaded(server)["a"]


def test_model_that_is_too_large(edgert_command: str, smollm2_file: Path) -> None:
    """The limit holds for the first model too, in one line that says what to do."""
    said = r"it needs \d+\.\d MB, --memory allows 50.0 MB; a smaller --ctx needs less"
    arguments = [str(smollm2_file), "--port", "0", "--memory", "0.05"]
    with pytest.raises(AssertionError, match=said), serve(edgert_command, *arguments):
        pass


def test_poisoned_template(edgert_command: str, smollm2_path: Path, tmp_path: Path, ask: list[Any]) -> None:
    """A chat template that would never end: conversations are refused in time, the rest is served."""
    path = tmp_path / "poisoned.gguf"
    shutil.copyfile(smollm2_path, path)
    with open(path, "r+b") as file:
        head = file.read(4 << 20)
        at = head.index(b"{% for message in messages %}")
        length = int.from_bytes(head[at - 8 : at], "little")
        assert len(POISON) <= length < 10_000
        file.seek(at)
        file.write(POISON.encode().ljust(length))
    with serve(edgert_command, str(path), "--port", "0") as server:
        start = time.monotonic()
        refused = server.post(CHAT, {"messages": ask})
        assert refused.status_code == 400
        assert "chat template" in refused.json()["error"]["message"]
        assert time.monotonic() - start < 30
        assert server.post("/v1/completions", {"prompt": "The capital of", "max_tokens": 2}).status_code == 200
        assert server.get("/health").status_code == 200
