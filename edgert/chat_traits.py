"""What a chat template can do, found by trying it, and conversations changed to what it can."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

from .chat_events import collect
from .chat_formats import FORMATS, GENERIC, GRANITE, HERMES, LLAMA3, REASONING, THINK, ReasoningFormat, ToolFormat
from .chat_messages import Message
from .chat_parser import ChatParser
from .formats.chat_template import ChatTemplate, TemplateError

_ID = "a1b2c3d4e"
_TOOL = {
    "type": "function",
    "function": {
        "name": "probe_tool", "description": "probe",
        "parameters": {"type": "object", "properties": {"probe_key": {"type": "string"}}, "required": ["probe_key"]},
    },
}  # fmt: skip
_CALL = {"id": _ID, "type": "function", "function": {"name": "probe_tool", "arguments": {"probe_key": "probe_value"}}}
_ASK = {"role": "user", "content": "probe_ask"}
_CALLS = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
_RESULT = {"role": "tool", "tool_call_id": _ID, "name": "probe_tool", "content": "probe_result"}
_SAY = {"role": "assistant", "content": "probe_say"}
_SYSTEM = {"role": "system", "content": "probe_system"}


class Traits:
    """Traits of one template, each tried when it is first asked for. vocabulary: holds texts of special tokens."""

    def __init__(self, template: ChatTemplate, vocabulary: Container[str] = ()) -> None:
        self.template, self._vocabulary = template, vocabulary

    def _render(self, *messages: Mapping[str, Any], tools: bool = False) -> str | None:
        """The text of a small conversation, None if the template refuses it."""
        try:
            return self.template.render(messages, tools=[_TOOL] if tools else None)
        except TemplateError:
            return None

    def _writes(self, text: str, *messages: Mapping[str, Any], tools: bool = False) -> bool:
        return text in (self._render(*messages, tools=tools) or "")

    @cached_property
    def usable(self) -> bool:
        """Whether the template renders the simplest conversation as it should; if not, nothing is changed for it."""
        return self._writes("probe_ask", _ASK)

    @cached_property
    def system(self) -> bool:
        """Whether there may be a system message at the start."""
        return not self.usable or self._writes("probe_system", _SYSTEM, _ASK)

    @cached_property
    def late_system(self) -> bool:
        """Whether there may be system messages anywhere, and several."""
        late = {"role": "system", "content": "probe_late"}
        return self.system and (not self.usable or self._writes("probe_late", _SYSTEM, late, _ASK, _SAY, late, _ASK))

    @cached_property
    def repeats(self) -> bool:
        """Whether one role may speak twice in a row."""
        return not self.usable or self._render(_ASK, _ASK, _SAY, _SAY, _ASK) is not None

    @cached_property
    def tools(self) -> bool:
        """Whether the template tells the model of the tools."""
        return self._writes("probe_tool", _ASK, tools=True)

    @cached_property
    def calls(self) -> bool:
        """Whether the template writes the calls of earlier turns."""
        return self._writes("probe_value", _ASK, _CALLS, _RESULT, tools=True)

    @cached_property
    def results(self) -> bool:
        """Whether the template writes results of calls."""
        return self._writes("probe_result", _ASK, _CALLS if self.calls else _SAY, _RESULT, tools=True)

    @cached_property
    def parallel(self) -> bool:
        """Whether one message may hold several calls."""
        two = {**_CALLS, "tool_calls": [_CALL, _CALL]}
        return self._render(_ASK, two, _RESULT, _RESULT, tools=True) is not None

    @cached_property
    def any_id(self) -> bool:
        """Whether ids of calls may be other than nine letters and digits."""
        call = {**_CALLS, "tool_calls": [{**_CALL, "id": "call_0123456789abcdef"}]}
        result = {**_RESULT, "tool_call_id": "call_0123456789abcdef"}
        return self._render(_ASK, call, result, tools=True) is not None

    @cached_property
    def format(self) -> ToolFormat:
        """How the model writes calls: as its template does; else by its marks; else JSON."""
        text = self._render(_ASK, _CALLS, _RESULT, tools=True) or ""
        text = text[text.rfind("probe_ask") + len("probe_ask") :]
        for format in FORMATS:
            parser = ChatParser({"probe_tool": {}}, format)
            calls = collect([*parser.feed(text), *parser.finish()]).tool_calls
            if [(c.name, c.arguments.replace(" ", "")) for c in calls] == [
                ("probe_tool", '{"probe_key":"probe_value"}')
            ]:
                return format
        source = (self.template.tool_source or "") + self.template.source
        if '"parameters"' in text or "<|python_tag|>" in source:
            return LLAMA3
        for format in (GRANITE, *(f for f in FORMATS if f not in (HERMES, GRANITE))):
            if format.open in source or format.open in self._vocabulary:
                return format
        return GENERIC

    @cached_property
    def reasoning(self) -> ReasoningFormat | None:
        """How the model marks its reasoning, None if it is not known to reason."""
        source = self.template.source
        for format in REASONING:
            if all(mark in source for mark in format.marks):
                return format
        return THINK if "</think>" in source or "<think>" in self._vocabulary else None

    # ---- conversations ----

    def adapt(self, messages: Sequence[Message]) -> list[Message]:
        """The messages (as `chat_messages.plain` makes them), changed where the template would refuse or lose them."""
        out = list(messages)
        if any("tool_calls" in m or m["role"] == "tool" for m in out):
            out = self._adapt_calls(out)
        if any(m["role"] == "system" for m in out):
            out = self._adapt_system(out)
        roles = [m["role"] for m in out]
        odd = (("user", "user"), ("assistant", "assistant"), ("tool", "user"))
        if any(pair in odd for pair in pairwise(roles)) and not self.repeats:
            out = _merged(out)
        return self._without_old_thoughts(out)

    def _adapt_calls(self, messages: list[Message]) -> list[Message]:
        out: list[Message] = []
        for message in messages:
            if "tool_calls" in message and not self.calls:
                calls = [call["function"] for call in message["tool_calls"]]
                text = "\n".join(t for t in (message["content"], self.format.write(calls)) if t)
                message = {k: v for k, v in message.items() if k != "tool_calls"} | {"content": text}
            elif message["role"] == "tool" and not self.results:
                name = f" of {message['name']}" if "name" in message else ""
                message = {"role": "user", "content": f"Result{name}: {message['content']}"}
            out.append(message)
        if self.calls and not self.parallel:
            out = _one_by_one(out)
        if self.calls and not self.any_id:
            out = [_short_ids(message) for message in out]
        return out

    def _adapt_system(self, messages: list[Message]) -> list[Message]:
        if self.late_system:
            return messages
        out: list[Message] = []
        waiting: list[str] = []  # system texts for the next message of the user
        for message in messages:
            if message["role"] == "system":
                first = self.system and all(m["role"] == "system" for m in out)
                if first and out:
                    out[0] = {**out[0], "content": f"{out[0]['content']}\n\n{message['content']}"}
                elif first:
                    out.append(message)
                else:
                    waiting.append(message["content"])
                continue
            if message["role"] == "user" and waiting:
                message = {**message, "content": "\n\n".join([*waiting, message["content"]])}
                waiting = []
            out.append(message)
        return [*out, {"role": "user", "content": "\n\n".join(waiting)}] if waiting else out

    def _without_old_thoughts(self, messages: list[Message]) -> list[Message]:
        """Reasoning in the content of earlier turns left out, unless the template does that or wants it."""
        if self.reasoning is None or "reasoning_content" in self.template.source:
            return messages
        opens, close = self.reasoning.open, self.reasoning.close
        out = []
        for message in messages:
            before, found, after = message["content"].partition(close)
            if message["role"] == "assistant" and found and before.lstrip().startswith(opens):
                message = {**message, "content": after.lstrip()}
            out.append(message)
        return out


def _merged(messages: list[Message]) -> list[Message]:
    """Neighbours of one role as one message; between a result and a user's message an empty answer."""
    out: list[Message] = []
    for message in messages:
        last = out[-1] if out else {}
        if last.get("role") == "tool" and message["role"] == "user":
            out.append({"role": "assistant", "content": ""})
        same = last.get("role") == message["role"] in ("user", "assistant")
        if same and "tool_calls" not in last and "tool_calls" not in message:
            out[-1] = {**last, "content": f"{last['content']}\n\n{message['content']}"}
        else:
            out.append(message)
    return out


def _one_by_one(messages: list[Message]) -> list[Message]:
    """Each call in a message of its own, followed by its result."""
    out: list[Message] = []
    results = {m["tool_call_id"]: m for m in messages if m["role"] == "tool" and "tool_call_id" in m}
    placed: set[int] = set()
    for message in messages:
        if len(message.get("tool_calls", ())) > 1:
            for i, call in enumerate(message["tool_calls"]):
                out.append({**message, "content": message["content"] if i == 0 else "", "tool_calls": [call]})
                if call["id"] in results:
                    out.append(results[call["id"]])
                    placed.add(id(results[call["id"]]))
        elif id(message) not in placed:
            out.append(message)
    return out


def _short_ids(message: Message) -> Message:
    if "tool_calls" in message:
        calls = [{**call, "id": _short(call["id"])} for call in message["tool_calls"]]
        return {**message, "tool_calls": calls}
    return {**message, "tool_call_id": _short(message["tool_call_id"])} if "tool_call_id" in message else message


def _short(id: str) -> str:
    """Nine letters and digits that stand for an id."""
    return id if len(id) == 9 and id.isalnum() and id.isascii() else hashlib.sha256(id.encode()).hexdigest()[:9]
