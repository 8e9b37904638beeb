"""Conversations as files: versioned JSON that is read with suspicion, since anyone may have written it."""

import json
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FORMAT, VERSION = "edgert-chat", 1
MAX_BYTES = 16 << 20
MAX_MESSAGES = 10_000


class TranscriptError(Exception):
    """The file is no transcript that can be used; one line naming the file, the field and the value."""


@dataclass
class Conversation:
    """Messages (user and assistant in turn, the user first), the system message, and sampling settings."""

    messages: list[dict[str, str]] = field(default_factory=list)
    system: str | None = None
    settings: dict[str, float] = field(default_factory=dict)


def save(path: Path, model: str, conversation: Conversation) -> None:
    """Write a transcript; a file that is something else is not overwritten."""
    if path.exists():
        try:
            load(path)
        except TranscriptError as error:
            raise TranscriptError(f"{path} exists and is no transcript; choose another name") from error
    value = {
        "format": FORMAT,
        "version": VERSION,
        "model": model,
        "system": conversation.system,
        "settings": conversation.settings,
        "messages": conversation.messages,
    }
    draft = path.with_name(path.name + ".tmp")
    draft.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    os.replace(draft, path)


def load(path: Path) -> Conversation:
    """Read a transcript and check all of it; settings still have to be checked by whoever uses them."""
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise TranscriptError(f"{path}: {size} bytes are more than the {MAX_BYTES} a transcript may have")
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise TranscriptError(f"{path}: no JSON: {str(error)[:200]}") from error
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise TranscriptError(f"{path}: format is not {FORMAT!r}")
    if type(value.get("version")) is not int or value["version"] != VERSION:
        raise TranscriptError(f"{path}: version is {str(value.get('version'))[:20]}, this edgert reads {VERSION}")
    system = value.get("system")
    if not (system is None or _is_text(system)):
        raise TranscriptError(f"{path}: system is no text")
    return Conversation(_messages(path, value.get("messages")), system, _settings(path, value.get("settings", {})))


def _messages(path: Path, value: Any) -> list[dict[str, str]]:
    if not isinstance(value, list) or len(value) > MAX_MESSAGES:
        raise TranscriptError(f"{path}: messages is no list of at most {MAX_MESSAGES}")
    messages = []
    for i, message in enumerate(value):
        role = ("user", "assistant")[i % 2]
        if not isinstance(message, dict) or message.get("role") != role:
            raise TranscriptError(f"{path}: messages[{i}] is not by the {role}")
        if not _is_text(message.get("content")):
            raise TranscriptError(f"{path}: messages[{i}].content is no text")
        messages.append({"role": role, "content": message["content"]})
    if len(messages) % 2:
        raise TranscriptError(f"{path}: messages ends with one that has no answer")
    return messages


def _settings(path: Path, value: Any) -> dict[str, float]:
    if not isinstance(value, dict):
        raise TranscriptError(f"{path}: settings is no object")
    for name, setting in value.items():
        if isinstance(setting, bool) or not isinstance(setting, int | float) or not math.isfinite(setting):
            raise TranscriptError(f"{path}: settings.{name[:40]} is no number")
    return dict(value)


def _is_text(value: Any) -> bool:
    """A string that can be written as UTF-8 (JSON can hold half of a surrogate pair)."""
    if not isinstance(value, str):
        return False
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
