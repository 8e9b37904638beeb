"""Anthropic's routes by its own client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest

import edgert
from serving import Server

TOOL = {
    "name": "get_weather", "description": "The weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}  # fmt: skip
GREEDY = {"temperature": 0}  # not every version of the client has it as an argument


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=120) as made:
        yield made


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> Iterator[edgert.Model]:
    with edgert.load(smollm2_path) as loaded:
        yield loaded


def test_messages(client: anthropic.Anthropic, model: edgert.Model, ask: list[Any]) -> None:
    """The library's answer, whole and streamed; the tokens that were counted before."""
    talk = [{"role": "system", "content": "Be brief."}, *ask]
    expected = model.chat(talk, max_tokens=16, temperature=0)
    given: dict[str, Any] = {"model": "smollm2", "messages": ask, "system": "Be brief."}
    answer = client.messages.create(max_tokens=16, extra_body=GREEDY, **given)
    assert [block.text for block in answer.content if block.type == "text"] == [expected.text]
    assert answer.stop_reason == ("max_tokens" if expected.finish_reason == "length" else "end_turn")
    assert answer.usage.output_tokens == len(expected.ids)
    count = client.messages.count_tokens(**given).input_tokens
    assert count == expected.usage.prompt_tokens
    assert answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0) == count
    with client.messages.stream(max_tokens=16, extra_body=GREEDY, **given) as stream:
        assert "".join(stream.text_stream) == expected.text
        final = stream.get_final_message()
    assert (final.stop_reason, final.usage.output_tokens) == (answer.stop_reason, answer.usage.output_tokens)


def test_stop_sequences(client: anthropic.Anthropic, ask: list[Any]) -> None:
    """Which of them ended the answer is said."""
    settings: dict[str, Any] = {"model": "smollm2", "messages": ask, "extra_body": GREEDY, "max_tokens": 40}
    text = client.messages.create(**settings).content[0].text
    word = text.split()[3]
    answer = client.messages.create(stop_sequences=["no such text", word], **settings)
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", word)
    assert answer.content[0].text == text[: text.index(word)]


def test_tools(client: anthropic.Anthropic, ask: list[Any]) -> None:
    """A forced call, whole and streamed; its result; the tokens that tools cost."""
    settings: dict[str, Any] = {"model": "smollm2", "tools": [TOOL], "extra_body": GREEDY, "max_tokens": 60}
    answer = client.messages.create(messages=ask, tool_choice={"type": "tool", "name": "get_weather"}, **settings)
    assert answer.stop_reason == "tool_use"
    call = answer.content[-1]
    assert call.type == "tool_use"
    assert (call.name, set(call.input)) == ("get_weather", {"city"})
    with client.messages.stream(messages=ask, tool_choice={"type": "any"}, **settings) as stream:
        streamed = stream.get_final_message().content[-1]
    assert streamed.type == "tool_use"
    assert streamed.input == call.input
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "sunny"}]}
    content = [block.model_dump(exclude_none=True) for block in answer.content]
    messages = [*ask, {"role": "assistant", "content": content}, {"role": "user", "content": [result]}]
    after = client.messages.create(messages=messages, tool_choice={"type": "none"}, **settings)
    assert after.content[0].type == "text"
    with_tools = client.messages.count_tokens(model="smollm2", messages=ask, tools=[TOOL]).input_tokens
    assert with_tools > client.messages.count_tokens(model="smollm2", messages=ask).input_tokens


def test_mistakes(client: anthropic.Anthropic, ask: list[Any]) -> None:
    """In Anthropic's form, by the exceptions of its client."""
    with pytest.raises(anthropic.NotFoundError, match="is not offered here"):
        client.messages.create(model="claude", messages=ask, max_tokens=4)
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
    for change, said in (
        ({"max_tokens": 100_000}, "100000 new ones do not fit in the context of 8192"),
        ({"messages": [{"role": "user", "content": [image]}]}, "type 'image' are not supported"),
        ({"messages": [*ask, {"role": "assistant", "content": "I"}]}, "answers that are begun"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "only 'custom'"),
        ({"extra_body": {"mcp_servers": [{}]}}, "mcp_servers"),
    ):
        given: dict[str, Any] = {"model": "smollm2", "messages": ask, "max_tokens": 4, **change}
        with pytest.raises(anthropic.BadRequestError, match=said) as caught:
            client.messages.create(**given)
        assert caught.value.body["error"]["type"] == "invalid_request_error"  # type: ignore[index]
