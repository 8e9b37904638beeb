"""Conversations with a real model: forced calls, streams of events, and what the completion holds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import edgert
from edgert.chat_events import ContentDelta, ToolCallDelta, ToolCallEnd, ToolCallStart

WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": {
    "type": "object", "properties": {"city": {"$ref": "#/$defs/c"}, "unit": {"enum": ["c", "f"]}},
    "required": ["city", "unit"], "additionalProperties": False,
    "$defs": {"c": {"type": "string", "maxLength": 20}}}}}  # fmt: skip
NOW = {"type": "function", "function": {"name": "now"}}
ASK: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": "How is the weather in Oslo?"}]}]


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> Iterator[edgert.Model]:
    with edgert.load(smollm2_path, n_ctx=1024) as model:
        yield model


def test_a_named_function_is_called(model: edgert.Model) -> None:
    choice = {"type": "function", "function": {"name": "get_weather"}}
    whole = model.chat(ASK, tools=[WEATHER, NOW], tool_choice=choice, temperature=0, max_tokens=80)
    assert (whole.text, whole.finish_reason) == ("", "tool_calls")
    (call,) = whole.tool_calls
    assert call.name == "get_weather"
    arguments = json.loads(call.arguments)
    assert set(arguments) == {"city", "unit"}
    assert whole.message["content"] is None
    answer = model.chat([*ASK, whole.message, {"role": "tool", "tool_call_id": call.id, "content": "cold"}],
                        tools=[WEATHER, NOW], max_tokens=5, temperature=0)  # fmt: skip
    assert answer.finish_reason in ("stop", "length")


def test_a_required_call_streams_its_arguments(model: edgert.Model) -> None:
    stream = model.chat(ASK, tools=[WEATHER, NOW], tool_choice="required", stream=True, seed=3, max_tokens=80)
    start, *deltas, end = stream.events()
    assert isinstance(start, ToolCallStart)
    assert start.name in ("get_weather", "now")
    assert all(isinstance(delta, ToolCallDelta) for delta in deltas)
    assert end == ToolCallEnd(0, True)
    (call,) = stream.completion.tool_calls
    assert call.arguments == "".join(delta.arguments for delta in deltas if isinstance(delta, ToolCallDelta))
    json.loads(call.arguments)


def test_plain_answers_stay_what_they_were(model: edgert.Model) -> None:
    """A stream, its events and the whole answer say the same; closing keeps what was said."""
    whole = model.chat(ASK, temperature=0, max_tokens=12)
    stream = model.chat(ASK, temperature=0, max_tokens=12, stream=True)
    with pytest.raises(edgert.EdgertError, match="has not ended"):
        _ = stream.completion
    assert "".join(stream) == whole.text == stream.completion.text != ""
    assert whole.message == {"role": "assistant", "content": whole.text}
    stream = model.chat(ASK, temperature=0, max_tokens=12, stream=True)
    first = next(stream.events())
    assert isinstance(first, ContentDelta)
    stream.close()
    assert stream.completion.finish_reason == "cancelled"
    assert stream.completion.text.startswith(first.text)


@pytest.mark.parametrize(
    ("messages", "settings", "error"),
    [([], {}, "messages: there are none"), (ASK, {"tool_choice": "maybe"}, "tool_choice: 'maybe'"),
     (ASK, {"reasoning": "hide"}, "reasoning: 'hide' is not split, keep or drop")],
)  # fmt: skip
def test_bad_input_is_named(model: edgert.Model, messages: Any, settings: Any, error: str) -> None:
    with pytest.raises(edgert.EdgertError, match=error):
        model.chat(messages, **settings)
