"""Ollama's routes by its own client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ollama
import pytest

import edgert
from serving import Server

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather", "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}  # fmt: skip
GREEDY = {"temperature": 0, "num_predict": 16}


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[ollama.Client]:
    made = ollama.Client(host=server.url, timeout=120)
    yield made
    made._client.close()  # not every version of the client has a method for it


def test_chat_and_generate(client: ollama.Client, smollm2_path: Path, ask: list[Any]) -> None:
    """The library's answer, by either route, whole and streamed."""
    with edgert.load(smollm2_path) as model:
        expected = model.chat(ask, max_tokens=16, temperature=0)
        raw = model.generate("The capital of France is", max_tokens=16, temperature=0).text
    answer = client.chat("smollm2", ask, options=GREEDY)
    assert answer.message.content == expected.text
    assert answer.eval_count == len(expected.ids)
    assert answer.prompt_eval_count == expected.usage.prompt_tokens
    assert answer.done_reason == expected.finish_reason
    assert answer.total_duration
    chunks = list(client.chat("smollm2:latest", ask, options=GREEDY, stream=True))
    assert "".join(chunk.message.content or "" for chunk in chunks) == expected.text
    assert [chunk.done for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    prompt = ask[0]["content"]
    assert client.generate("smollm2", prompt, options=GREEDY).response == expected.text
    assert "".join(c.response for c in client.generate("smollm2", prompt, options=GREEDY, stream=True)) == expected.text
    assert client.generate("smollm2", "The capital of France is", raw=True, options=GREEDY).response == raw
    assert client.generate("smollm2").done_reason == "load"


def test_tools_and_forms(client: ollama.Client, ask: list[Any]) -> None:
    """A JSON schema; tools in the prompt; calls and results of earlier turns."""
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 99}}, "required": ["n"],
              "additionalProperties": False}  # fmt: skip
    answer = client.chat("smollm2", ask, format=schema, options={"temperature": 0})
    assert isinstance(json.loads(answer.message.content or "")["n"], int)
    call = {"function": {"name": "get_weather", "arguments": {"city": "Paris"}}}
    earlier = [{"role": "assistant", "content": "", "tool_calls": [call]},
               {"role": "tool", "tool_name": "get_weather", "content": "sunny"}]  # fmt: skip
    plain = client.chat("smollm2", ask, options=GREEDY)
    after = client.chat("smollm2", [*ask, *earlier], tools=[TOOL], options=GREEDY)
    assert after.message.content or after.message.tool_calls
    assert (after.prompt_eval_count or 0) > (plain.prompt_eval_count or 0) + 20


def test_list_and_show(client: ollama.Client, smollm2_path: Path) -> None:
    """What the file says."""
    (listed,) = client.list().models
    assert listed.model == "smollm2:latest"
    assert listed.size == smollm2_path.stat().st_size
    assert listed.details
    assert (listed.details.family, listed.details.format) == ("llama", "gguf")
    shown = client.show("smollm2")
    assert shown.modelinfo
    assert shown.modelinfo["llama.context_length"] == 8192
    assert "<|im_start|>" in (shown.template or "")
    assert "completion" in (shown.capabilities or [])


def test_version(server: Server) -> None:
    """The program's version."""
    assert server.get("/api/version").json() == {"version": edgert.__version__}


def test_mistakes(client: ollama.Client, ask: list[Any]) -> None:
    """In Ollama's form."""
    with pytest.raises(ollama.ResponseError, match="is not offered here") as caught:
        client.chat("llama9", ask)
    assert caught.value.status_code == 404
    for options, said in (
        ({"num_ctx": 10**6}, "more than the context of 8192"),
        ({"magic": 1}, "magic"),
        ({"temperature": -1}, "temperature"),
        ({"num_predict": 10**5}, "100000 new ones do not fit"),
    ):
        with pytest.raises(ollama.ResponseError, match=said) as caught:
            client.chat("smollm2", ask, options=options)
        assert caught.value.status_code == 400
    with pytest.raises(ollama.ResponseError, match="pictures"):
        client.chat("smollm2", [{**ask[0], "images": [b"x"]}])
