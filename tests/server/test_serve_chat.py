"""/v1/chat/completions by OpenAI's own client, against what the library itself answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

import edgert
from serving import Server

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
SCHEMA = {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"],
    "additionalProperties": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as made:
        yield made


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> Iterator[edgert.Model]:
    with edgert.load(smollm2_path) as loaded:
        yield loaded


def test_answer(client: openai.OpenAI, model: edgert.Model, ask: list[Any]) -> None:
    """The answer, its end and its usage are the library's."""
    expected = model.chat(ask, max_tokens=24, temperature=0)
    answer = client.chat.completions.create(model="smollm2", messages=ask, max_tokens=24, temperature=0)
    assert answer.choices[0].message.content == expected.text
    assert answer.choices[0].finish_reason == expected.finish_reason
    assert answer.usage
    assert answer.usage.prompt_tokens == expected.usage.prompt_tokens
    assert answer.usage.completion_tokens == expected.usage.completion_tokens == len(expected.ids)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_stream(client: openai.OpenAI, model: edgert.Model, ask: list[Any]) -> None:
    """Pieces join to the whole answer; the last chunk has the usage and no choice."""
    expected = model.chat(ask, max_tokens=24, temperature=0)
    chunks = list(
        client.chat.completions.create(
            model="smollm2", messages=ask, max_tokens=24, temperature=0, stream=True,
            stream_options={"include_usage": True},
        )
    )  # fmt: skip
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == expected.text
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == expected.finish_reason
    assert len([c for c in chunks if c.choices and c.choices[0].delta.content]) > 4
    assert chunks[-1].usage
    assert chunks[-1].usage.completion_tokens == len(expected.ids)
    assert not chunks[-1].choices


def test_seed_and_several(client: openai.OpenAI, model: edgert.Model, ask: list[Any]) -> None:
    """The same seed, the library's answers; several answers have seeds that count up, streamed or not."""
    settings: dict[str, Any] = {"max_tokens": 12, "temperature": 1.0, "seed": 7}
    expected = [one.text for one in model.chat(ask, n=2, **settings)]
    assert expected[0] != expected[1]
    answer = client.chat.completions.create(model="smollm2", messages=ask, n=2, **settings)
    assert [choice.message.content for choice in answer.choices] == expected
    texts = ["", ""]
    for chunk in client.chat.completions.create(model="smollm2", messages=ask, n=2, stream=True, **settings):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == expected


def test_logprobs(client: openai.OpenAI, model: edgert.Model, ask: list[Any]) -> None:
    """Of every token with its alternatives, streamed or not."""
    expected = model.chat(ask, max_tokens=8, temperature=0, logprobs=3).logprobs
    assert expected
    settings: dict[str, Any] = {"max_tokens": 8, "temperature": 0, "logprobs": True, "top_logprobs": 3}
    whole = client.chat.completions.create(model="smollm2", messages=ask, **settings).choices[0].logprobs
    assert whole
    assert whole.content
    streamed = [
        entry
        for chunk in client.chat.completions.create(model="smollm2", messages=ask, stream=True, **settings)
        for entry in (chunk.choices[0].logprobs.content or [] if chunk.choices[0].logprobs else [])
    ]
    for content in (whole.content, streamed):
        assert [entry.logprob for entry in content] == pytest.approx([one.logprob for one in expected], abs=1e-4)
        assert [bytes(entry.bytes or []) for entry in content] == [model.token_bytes(one.token) for one in expected]
        assert all(len(entry.top_logprobs) == 3 for entry in content)


def test_tools(client: openai.OpenAI, ask: list[Any]) -> None:
    """A forced call, whole and streamed, and its result in the conversation."""
    settings: dict[str, Any] = {"model": "smollm2", "tools": [WEATHER], "temperature": 0, "max_tokens": 60}
    choice = {"type": "function", "function": {"name": "get_weather"}}
    answer = client.chat.completions.create(messages=ask, tool_choice=choice, **settings).choices[0]
    assert answer.finish_reason == "tool_calls"
    assert answer.message.tool_calls
    call = answer.message.tool_calls[0]
    assert call.function.name == "get_weather"
    assert set(json.loads(call.function.arguments)) == {"city"}
    name, arguments = "", ""
    for chunk in client.chat.completions.create(messages=ask, tool_choice="required", stream=True, **settings):
        for piece in chunk.choices[0].delta.tool_calls or []:
            name += piece.function.name or ""
            arguments += piece.function.arguments or ""
    assert (name, json.loads(arguments)) == ("get_weather", json.loads(call.function.arguments))
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    messages = [*ask, answer.message.model_dump(exclude_none=True), result]
    after = client.chat.completions.create(messages=messages, tool_choice="none", **settings).choices[0]
    assert after.message.content
    assert not after.message.tool_calls


def test_forms(client: openai.OpenAI, ask: list[Any]) -> None:
    """Answers by a JSON schema, and as any JSON object."""
    for form in (
        {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}},
        {"type": "json_object"},
    ):
        answer = client.chat.completions.create(
            model="smollm2", messages=ask, response_format=form, temperature=0, max_tokens=120
        )
        if answer.choices[0].finish_reason == "stop":
            assert isinstance(json.loads(answer.choices[0].message.content or ""), dict)
        else:
            assert form["type"] == "json_object"


def test_stop_and_sampling(client: openai.OpenAI, model: edgert.Model, ask: list[Any]) -> None:
    """Stop strings, OpenAI's fields and llama.cpp's further ones mean what they mean in the library."""
    expected = model.chat(ask, temperature=0.7, seed=3, top_k=20, min_p=0.1, repeat_penalty=1.2, penalty_last_n=32,
                          presence_penalty=0.5, logit_bias={260: -5.0}, stop=["."], max_tokens=24)  # fmt: skip
    answer = client.chat.completions.create(
        model="smollm2", messages=ask, temperature=0.7, seed=3, presence_penalty=0.5, logit_bias={"260": -5},
        stop=["."], max_completion_tokens=24, user="somebody",
        extra_body={"top_k": 20, "min_p": 0.1, "repeat_penalty": 1.2, "repeat_last_n": 32},
    )  # fmt: skip
    assert answer.choices[0].message.content == expected.text


@pytest.mark.parametrize(
    ("change", "param", "said"),
    [
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing"),
        ({"temperature": -1}, "temperature", "greater than or equal to 0"),
        ({"temperature": "1"}, "temperature", "valid number"),
        ({"top_p": 1.5}, "top_p", "less than or equal to 1"),
        ({"n": 1000}, "n", "less than or equal to 16"),
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ({"max_tokens": 100_000}, "messages", "100000 new ones do not fit in the context of 8192"),
        ({"audio": {"voice": "x"}}, "audio", "not supported"),
        ({"functions": []}, "functions", "not supported"),
        ({"temprature": 1}, "temprature", "not supported"),
        ({"top_logprobs": 2}, "top_logprobs", "needs logprobs"),
        ({"tools": [{"type": "magic"}]}, "tools[0]", "not of the form"),
        ({"tool_choice": "required"}, "tool_choice", "there are no tools"),
        ({"regex": "(" * 10}, None, "regex"),
        ({"regex": "a" * 5000}, "regex", "at most 4096"),
        ({"json_schema": {"enum": ["x" * 70_000]}}, "json_schema", "larger than 65536"),
        ({"response_format": {"type": "magic"}}, "response_format", "magic"),
        ({"logit_bias": {"abc": 1}}, "logit_bias", "token id"),
        ({"logit_bias": {"99999": 1}}, "logit_bias", "vocabulary"),
        ({"stop": ""}, "stop", "at least 1"),
    ],
)
def test_mistakes(server: Server, ask: list[Any], change: dict[str, Any], param: str | None, said: str) -> None:
    """Each is a 400 in OpenAI's form that names the field."""
    response = server.post("/v1/chat/completions", {"messages": ask, "max_tokens": 4} | change)
    error = response.json()["error"]
    assert response.status_code == 400, error
    assert said in error["message"]
    assert error["type"] == "invalid_request_error"
    assert param is None or error["param"] == param


def test_models(client: openai.OpenAI) -> None:
    """The list of models, one of them, and one that is not there."""
    assert [model.id for model in client.models.list()] == ["smollm2"]
    assert client.models.retrieve("smollm2").owned_by == "edgert"
    with pytest.raises(openai.NotFoundError, match="smollm2"):
        client.chat.completions.create(model="gpt-none", messages=[{"role": "user", "content": "Hi"}])
