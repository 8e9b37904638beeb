"""A conversation's turn: messages and tools to a prompt, the answer to content, reasoning and tool calls."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .chat_events import Reply, ToolCall
from .chat_messages import ChatError, Message, chosen, functions, plain
from .chat_parser import ChatParser, Reasoning
from .chat_tools import call_schema, forced_format, instructions
from .chat_traits import Traits
from .generation import Completion

_SPECIAL = re.compile(r"<[^<>]*>|\[[^\[\]]*\]")


@dataclass(frozen=True)
class Turn:
    """text: the prompt. marks: special tokens that the answer must show to `parser`. settings: of the generation."""

    text: str
    marks: tuple[str, ...]
    parser: ChatParser
    settings: dict[str, Any]


@dataclass(frozen=True)
class ChatCompletion(Completion):
    """An answer in a conversation. text is its content, without reasoning and tool calls.

    finish_reason is "tool_calls" if the model called tools and ended there. message: for the history, as OpenAI's API
    has it.
    """

    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    message: dict[str, Any] = field(default_factory=dict)


def turn(
    traits: Traits,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Any = None,
    tool_choice: Any = "auto",
    reasoning: Reasoning = "split",
    template_args: Mapping[str, Any] | None = None,
    formed: bool = False,
) -> Turn:
    """Prepare one turn. formed: the answer must have a form, so there is no room for reasoning.

    ChatError for bad messages or tools, TemplateError if the template still refuses them.
    """
    if reasoning not in ("split", "keep", "drop"):
        raise ChatError(f"reasoning: {reasoning!r} is not split, keep or drop")
    known = functions(tools)
    must = chosen(tool_choice, list(known))
    if must == ():
        known = {}
    instructed = bool(known) and not traits.tools
    conversation = traits.adapt(_instructed(plain(messages), known) if instructed else plain(messages))
    listed = [{"type": "function", "function": function} for function in known.values()]
    text = traits.template.render(conversation, tools=listed if listed and not instructed else None,
                                  **(template_args or {}))  # fmt: skip
    thinks, calls = traits.reasoning, traits.format if known else None
    thinking = thinks is not None and text.rstrip().endswith(thinks.open)
    settings: dict[str, Any] = {}
    if must and formed:
        raise ChatError("tool_choice: a call is forced, so the answer can have no other form")
    if (must or formed) and thinking and thinks is not None:
        text, thinking = f"{text.rstrip()}\n{thinks.close}\n\n", False
    if must and calls is not None:
        calls = forced_format(calls, instructed=instructed)
        settings["json_schema"] = call_schema(known, must, calls)
        text += "" if calls.bare else calls.open
    parser = ChatParser(
        {name: function["parameters"] for name, function in known.items()}, calls, thinks,
        thinking=thinking, calling=bool(must), reasoning=reasoning,
    )  # fmt: skip
    marks = (calls.marks if calls else ()) + (thinks.marks if thinks else ())
    return Turn(text, marks, parser, settings)


def _instructed(messages: list[Message], known: Mapping[str, Mapping[str, Any]]) -> list[Message]:
    """The conversation with a system message about the functions."""
    text = instructions(known)
    if messages[0]["role"] == "system":
        return [{**messages[0], "content": f"{messages[0]['content']}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def shown(marks: Sequence[str], vocabulary: Mapping[str, int]) -> list[int]:
    """Ids of the special tokens that the marks are made of."""
    texts = {text for mark in marks for text in (mark, *_SPECIAL.findall(mark))}
    return sorted(vocabulary[text] for text in texts if text in vocabulary)


def whole(completion: Completion, reply: Reply) -> ChatCompletion:
    """A completion with what the model said taken apart."""
    reason = completion.finish_reason
    calls = reply.tool_calls
    shared = {name: getattr(completion, name) for name in completion.__dataclass_fields__}
    shared |= {"text": reply.content, "finish_reason": "tool_calls" if calls and reason == "stop" else reason}
    return ChatCompletion(**shared, reasoning=reply.reasoning, tool_calls=calls, message=reply.as_message())
