"""What comes out of a conversation: content, reasoning and tool calls, as they come and as a whole."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ContentDelta:
    """More of the answer's text."""

    text: str


@dataclass(frozen=True)
class ReasoningDelta:
    """More of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True)
class ToolCallStart:
    """The model calls a function. index counts the calls of this answer from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class ToolCallDelta:
    """More of a call's arguments: pieces of one JSON object."""

    index: int
    arguments: str


@dataclass(frozen=True)
class ToolCallEnd:
    """The call has ended. complete is False if its arguments are no JSON object (cut off, or malformed)."""

    index: int
    complete: bool


Event = ContentDelta | ReasoningDelta | ToolCallStart | ToolCallDelta | ToolCallEnd


@dataclass
class ToolCall:
    """A call as a whole; arguments is JSON text of an object if complete, else what the model wrote."""

    id: str
    name: str
    arguments: str = ""
    complete: bool = False

    def as_dict(self) -> dict[str, Any]:
        """As OpenAI's API has it."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclass
class Reply:
    """What a model said, taken apart. `add` takes the next event."""

    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)

    def add(self, event: Event) -> None:
        match event:
            case ContentDelta(text):
                self.content += text
            case ReasoningDelta(text):
                self.reasoning += text
            case ToolCallStart(_, id, name):
                self.tool_calls.append(ToolCall(id, name))
            case ToolCallDelta(index, arguments):
                self.tool_calls[index].arguments += arguments
            case ToolCallEnd(index, complete):
                self.tool_calls[index].complete = complete

    def as_message(self) -> dict[str, Any]:
        """The message for the history, as OpenAI's API has it; content is None if there is none but calls."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["content"] = self.content or None
            message["tool_calls"] = [call.as_dict() for call in self.tool_calls]
        return message


def collect(events: Iterable[Event]) -> Reply:
    """The whole of a sequence of events."""
    reply = Reply()
    for event in events:
        reply.add(event)
    return reply
