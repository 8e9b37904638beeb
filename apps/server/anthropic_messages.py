"""From Anthropic's messages and tools to OpenAI's, which the library takes."""

import json
from typing import Any

from .errors import ApiError


def conversation(system: Any, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages as OpenAI's API has them; ApiError names the place of what cannot be."""
    out: list[dict[str, Any]] = []
    if system:
        out.append({"role": "system", "content": _text("system", system)})
    for i, message in enumerate(messages):
        where, role = f"messages[{i}]", message.get("role")
        if role not in ("user", "assistant"):
            raise ApiError(400, f"{where}.role: {role!r} is not user or assistant", param="messages")
        content = message.get("content")
        if isinstance(content, str):
            out.append({"role": role, "content": content})
            continue
        if not isinstance(content, list) or not content:
            raise ApiError(400, f"{where}.content: not a text or a list of blocks", param="messages")
        blocks = [_block(f"{where}.content[{j}]", block) for j, block in enumerate(content)]
        out += _assistant(where, blocks) if role == "assistant" else _user(where, blocks)
    if messages[-1].get("role") == "assistant":
        raise ApiError(400, "messages: the last is the assistant's; answers that are begun are not supported")
    return out


def _block(where: str, block: Any) -> dict[str, Any]:
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        raise ApiError(400, f"{where}: not a block with a type", param="messages")
    return block


def _user(where: str, blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Results of tools, each a message, then the text."""
    results, texts = [], []
    for block in blocks:
        if block["type"] == "tool_result":
            content = _text(f"{where}.content", block.get("content") or "")
            content = f"Error: {content}" if block.get("is_error") else content
            results.append({"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": content})
        else:
            texts.append(_text(f"{where}.content", [block]))
    return [*results, *([{"role": "user", "content": "\n".join(texts)}] if texts else [])]


def _assistant(where: str, blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    texts, thoughts, calls = [], [], []
    for block in blocks:
        match block["type"]:
            case "thinking":
                thoughts.append(str(block.get("thinking", "")))
            case "redacted_thinking":
                pass
            case "tool_use":
                function = {"name": block.get("name"), "arguments": block.get("input") or {}}
                calls.append({"id": block.get("id"), "type": "function", "function": function})
            case _:
                texts.append(_text(f"{where}.content", [block]))
    message["content"] = "\n".join(texts)
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return [message]


def _text(where: str, content: Any) -> str:
    """The text of a text, or of a list of text blocks."""
    if isinstance(content, str):
        return content
    texts = []
    for block in content if isinstance(content, list) else [content]:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind != "text" or not isinstance(block.get("text"), str):
            raise ApiError(400, f"{where}: blocks of type {kind!r} are not supported here", param="messages")
        texts.append(block["text"])
    return "\n".join(texts)


def functions(tools: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Tools as OpenAI's API has them."""
    if not tools:
        return None
    out = []
    for i, tool in enumerate(tools):
        if tool.get("type") not in (None, "custom"):
            raise ApiError(400, f"tools[{i}].type: {tool.get('type')!r} is not supported, only 'custom'", param="tools")
        function = {"name": tool.get("name"), "description": tool.get("description") or "",
                    "parameters": tool.get("input_schema")}  # fmt: skip
        out.append({"type": "function", "function": function})
    return out


def choice(given: dict[str, Any] | None) -> Any:
    """tool_choice as OpenAI's API has it."""
    kind = "auto" if given is None else given.get("type")
    if kind == "tool" and given is not None:
        return {"type": "function", "function": {"name": given.get("name")}}
    known = {"auto": "auto", "any": "required", "none": "none"}
    if kind not in known:
        raise ApiError(400, f"tool_choice.type: {kind!r} is not auto, any, tool or none", param="tool_choice")
    return known[kind]


def arguments(text: str) -> dict[str, Any]:
    """A call's arguments as an object; empty if they were cut off."""
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
