"""`edgert chat --connect` with a running server."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from edgert.apps.remote import Server as Remote

import edgert
from serving import Server, serve


def chat(command: str, *arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([command, "chat", *arguments], input=stdin, capture_output=True, encoding="utf-8",
                          env=os.environ | environment, timeout=120)  # fmt: skip


def test_the_same_conversation_as_alone(
    edgert_command: str, server: Server, smollm2_path: Path, ask: list[Any]
) -> None:
    """Answers, with the history and the settings, are those of the library; the figures are the server's."""
    first, second = ask[0]["content"], "Tell me more about it."
    settings: dict[str, Any] = {"temperature": 0, "repeat_penalty": 1.1, "penalty_last_n": 32, "max_tokens": 12}
    with edgert.load(smollm2_path) as model:
        messages = [{"role": "user", "content": first}]
        one = model.chat(messages, **settings).text
        messages += [{"role": "assistant", "content": one}, {"role": "user", "content": second}]
        two = model.chat(messages, **settings).text
    done = chat(edgert_command, "--connect", f"{server.url}/v1/", "--temp", "0", "--repeat-penalty", "1.1",
                "--repeat-last-n", "32", "-n", "12", stdin=f"{first}\n{second}\n/stats\n/model\n")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{one}\n{two}\nprompt ")
    assert "answer 12 tokens in" in done.stdout
    assert "of 8192 tokens" in done.stdout
    assert done.stdout.endswith("* smollm2\n")


def test_what_goes_wrong_is_one_line(edgert_command: str, server: Server) -> None:
    """No server, no such model, a message that is too long, options that are the server's."""
    long = chat(edgert_command, "--connect", server.url, "-n", "4", stdin="word " * 20_000 + "\nHello\n")
    assert "the context only 8192" in long.stderr
    assert long.stdout.strip()
    for arguments, complaint, code in [
        (("--connect", "http://127.0.0.1:1"), "cannot reach http://127.0.0.1:1", 1),
        (("--connect", "nowhere"), "is not http://HOST:PORT", 2),
        (("nosuch", "--connect", server.url), "has no model 'nosuch'; it has: smollm2", 1),
        (("--connect", server.url, "--ctx", "9"), "are the server's", 2),
    ]:
        done = chat(edgert_command, *arguments, stdin="hi\n")
        assert done.returncode == code, done.stderr
        assert complaint in done.stderr
        assert done.stderr.count("\n") == 1
        assert done.stdout == ""


def test_keys_and_sockets(edgert_command: str, smollm2_file: Path, tmp_path: Path) -> None:
    """A key is needed and sent; a unix socket serves as well."""
    place = tmp_path / "socket"
    with serve(edgert_command, str(smollm2_file), "--unix", str(place), EDGERT_API_KEY="secret-enough"):
        without = chat(edgert_command, "--connect", f"unix:{place}", stdin="hi\n", EDGERT_API_KEY="")
        assert without.returncode == 1
        assert "wants an API key: set EDGERT_API_KEY" in without.stderr
        with_key = chat(edgert_command, "--connect", f"unix:{place}", "-n", "4", stdin="hi\n",
                        EDGERT_API_KEY="secret-enough")  # fmt: skip
        assert with_key.returncode == 0, with_key.stderr
        assert with_key.stdout.strip()


def test_an_answer_that_is_left_ends(server: Server, ask: list[Any]) -> None:
    """What was said so far is the completion, and the connection serves the next message."""
    remote = Remote(server.url)
    model = remote.open("smollm2")
    answer = model.chat(ask, stream=True, reasoning="keep", max_tokens=4000, ignore_eos=True)
    pieces = [next(answer) for _ in range(3)]
    answer.close()
    assert answer.completion.text == "".join(pieces)
    assert answer.completion.finish_reason == "cancelled"
    assert answer.completion.usage.completion_tokens == 3
    whole = model.chat(ask, stream=True, reasoning="keep", max_tokens=4, temperature=0)
    assert "".join(whole) == whole.completion.text
    assert whole.completion.usage.completion_tokens == 4
    remote.close()
