"""A conversation as OpenAI's API has it, made plain: text content, arguments as objects, no empty fields."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .errors import EdgertError

Message = dict[str, Any]


class ChatError(EdgertError):
    """Messages or tools that are not as OpenAI's API has them; the text names the place."""


def plain(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """New messages: content is text, `developer` is `system`, arguments of tool calls are objects, a result has the
    name of its function. ChatError names the message and the field.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise ChatError("messages: not a list of messages")
    if not messages:
        raise ChatError("messages: there are none")
    names: dict[str, str] = {}  # of functions by the id of the call
    return [_plain(f"messages[{i}]", message, names) for i, message in enumerate(messages)]


def _plain(where: str, message: Any, names: dict[str, str]) -> Message:
    if not isinstance(message, Mapping):
        raise ChatError(f"{where}: {_kind(message)}, not an object with role and content")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise ChatError(f"{where}.role: {'missing' if role is None else 'not a text'}")
    out = {key: value for key, value in message.items() if value is not None and key != "refusal"}
    out["role"] = "system" if role == "developer" else role
    calls = out.pop("tool_calls", None)
    if calls:
        if role != "assistant":
            raise ChatError(f"{where}.tool_calls: only an assistant calls tools, not {role!r}")
        out["tool_calls"] = _calls(f"{where}.tool_calls", calls, names)
    if "content" not in out and role != "assistant":
        raise ChatError(f"{where}.content: missing")
    out["content"] = text_of(f"{where}.content", out.get("content", ""))
    if role == "tool":
        id = out.get("tool_call_id")
        if id is not None and not isinstance(id, str):
            raise ChatError(f"{where}.tool_call_id: {_kind(id)}, not a text")
        if "name" not in out and id in names:
            out["name"] = names[id]
    return out


def text_of(where: str, content: Any) -> str:
    """The text of content: text, or parts of type "text", a line each."""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise ChatError(f"{where}: {_kind(content)}, not a text or a list of parts")
    texts = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if not isinstance(part, Mapping) or kind != "text":
            what = f"parts of type {kind!r}" if kind is not None else "such parts"
            raise ChatError(f"{where}[{i}]: {what} are not supported, only text")
        if not isinstance(part.get("text"), str):
            raise ChatError(f"{where}[{i}].text: not a text")
        texts.append(part["text"])
    return "\n".join(texts)


def _calls(where: str, calls: Any, names: dict[str, str]) -> list[dict[str, Any]]:
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise ChatError(f"{where}: {_kind(calls)}, not a list")
    out = []
    for i, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping):
            raise ChatError(f"{where}[{i}].function: not an object")
        name, id = function.get("name"), call.get("id", "")
        if not isinstance(name, str) or not name:
            raise ChatError(f"{where}[{i}].function.name: not a text")
        if not isinstance(id, str):
            raise ChatError(f"{where}[{i}].id: {_kind(id)}, not a text")
        names[id] = name
        arguments = _arguments(f"{where}[{i}].function.arguments", function.get("arguments"))
        out.append({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
    return out


def _arguments(where: str, arguments: Any) -> dict[str, Any]:
    if isinstance(arguments, str) and arguments.strip():
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            raise ChatError(f"{where}: not the JSON of an object") from None
    if arguments is None or arguments == "":
        return {}
    if not isinstance(arguments, Mapping):
        raise ChatError(f"{where}: {_kind(arguments)}, not an object")
    return dict(arguments)


def functions(tools: Any) -> dict[str, dict[str, Any]]:
    """Function by name ({"name", "description", "parameters"}) of a list of tools as OpenAI's API has them."""
    if tools is None:
        return {}
    if isinstance(tools, str | Mapping) or not isinstance(tools, Sequence):
        raise ChatError("tools: not a list")
    out: dict[str, dict[str, Any]] = {}
    for i, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(tool, Mapping) or tool.get("type") != "function" or not isinstance(function, Mapping):
            raise ChatError(f'tools[{i}]: not of the form {{"type": "function", "function": {{...}}}}')
        name = function.get("name")
        if not isinstance(name, str) or not name:
            raise ChatError(f"tools[{i}].function.name: not a text")
        if name in out:
            raise ChatError(f"tools[{i}].function.name: {name!r} is there twice")
        parameters = function.get("parameters") or {"type": "object", "properties": {}}
        if not isinstance(parameters, Mapping):
            raise ChatError(f"tools[{i}].function.parameters: {_kind(parameters)}, not a JSON schema")
        out[name] = {"description": "", **function, "parameters": dict(parameters)}  # some templates need one
    return out


def chosen(choice: Any, names: Sequence[str]) -> tuple[str, ...] | None:
    """The functions of which one must be called; () if none may be; None if the model decides."""
    if isinstance(choice, Mapping):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, Mapping) else None
        if choice.get("type") != "function" or name not in names:
            raise ChatError(f"tool_choice: {name!r} is not one of the tools")
        return (str(name),)
    if choice in (None, "auto"):
        return None
    if choice == "none":
        return ()
    if choice == "required":
        if not names:
            raise ChatError("tool_choice: 'required', but there are no tools")
        return tuple(names)
    raise ChatError(f"tool_choice: {choice!r} is not auto, none, required or a function")


def _kind(value: object) -> str:
    return "a text" if isinstance(value, str) else f"{type(value).__name__}"
