"""Takes an answer apart while it comes: content, reasoning, tool calls. No part of a mark ever shows.

However the text is cut into pieces, the events, joined, are the same. What does not turn out to be a call is content.
"""

from __future__ import annotations

import json
import secrets
import string
from collections.abc import Callable, Mapping
from typing import Any, Literal

from .chat_events import ContentDelta, Event, ReasoningDelta, ToolCallDelta, ToolCallEnd, ToolCallStart
from .chat_formats import ReasoningFormat, ToolFormat
from .chat_scan import CallScanner, is_object

Reasoning = Literal["split", "keep", "drop"]
MAX_HEAD = 256  # characters of the name of a function and what stands around it


def call_id() -> str:
    """Nine letters and digits, as Mistral's templates want them."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))


class ChatParser:
    """`feed` takes pieces of an answer and `finish` its end; both return events."""

    def __init__(
        self,
        tools: Mapping[str, Mapping[str, Any]] | None = None,
        calls: ToolFormat | None = None,
        thinks: ReasoningFormat | None = None,
        *,
        thinking: bool = False,
        calling: bool = False,
        reasoning: Reasoning = "split",
        new_id: Callable[[], str] = call_id,
    ) -> None:
        """tools: JSON schema of the arguments by function name; without, nothing is a call. calls, thinks: the
        family's marks. thinking, calling: the prompt ends within reasoning, or after the mark that opens calls.
        """
        self._tools = tools or {}
        self._calls = calls if self._tools else None
        self._thinks, self._reasoning, self._new_id = thinks, reasoning, new_id
        self._events: list[Event] = []
        self._buffer = ""
        self._space = ""  # white space at the end of a text, which is dropped before a mark
        self._fresh = True  # no content yet
        self._after_mark = False  # white space is dropped
        self._bare = bool(self._calls and self._calls.bare)
        self._index, self._name = -1, ""
        self._scanner: CallScanner | None = None
        self._opened = ""  # text before the scanned object, should it be no call
        self._started = False
        self._arguments: list[str] = []
        self._in_list = self._in_bare = False
        self._state: Callable[[], bool] = self._text
        if calling and self._calls:
            self._state = self._open_call
        elif thinking and thinks:
            self._begin_thinking()

    def feed(self, text: str) -> list[Event]:
        """The events that a piece of the answer brings."""
        self._buffer += text
        while self._state():
            pass
        events, self._events = self._events, []
        return events

    def finish(self) -> list[Event]:
        """The events that the end of the answer brings."""
        events = self.feed("")
        if self._state == self._object and self._scanner is not None:
            self._end_call()
        elif self._state == self._params:
            self._say_arguments("" if self._arguments else "{")
            self._events.append(ToolCallEnd(self._index, False))
            self._say_content(self._buffer)
        elif self._state == self._think:
            self._say_thought(self._space + self._buffer)
        elif self._state != self._between:  # between calls there is at most a part of a mark
            self._say_content(self._opened + self._space + self._buffer)
            self._opened = self._space = ""
        self._buffer = ""
        events += self._events
        self._events = []
        return events

    # ---- text ----

    def _text(self) -> bool:
        """Content, up to a mark."""
        if self._fresh and (decided := self._try_start()) is not None:
            return decided
        marks = self._marks()
        at, mark = _first(self._buffer, marks)
        if mark:
            before, self._buffer = self._buffer[:at], self._buffer[at + len(mark) :]
            self._say_text(before)
            self._space = ""
            self._enter(mark)
            return True
        held = _held(self._buffer, marks)
        sure, self._buffer = self._buffer[: len(self._buffer) - held], self._buffer[len(self._buffer) - held :]
        self._say_text(sure)
        return False

    def _marks(self) -> tuple[str, ...]:
        marks: tuple[str, ...] = ()
        if self._calls is not None:
            marks = (self._calls.open, *self._calls.drop)
        if self._thinks is not None:
            marks += self._thinks.drop
        return marks

    def _enter(self, mark: str) -> None:
        if self._calls is not None and mark == self._calls.open:
            self._state, self._opened = self._open_call, mark
        else:
            self._after_mark = True

    def _say_text(self, text: str) -> None:
        """Content whose trailing white space waits for what follows."""
        text = self._space + text
        body = text.rstrip()
        self._space = text[len(body) :]
        if self._after_mark:
            body = body.lstrip()
            if not body:
                self._space = ""
        if body:
            self._after_mark = False
            self._say_content(body)

    def _say_content(self, text: str) -> None:
        if text:
            self._fresh = self._fresh and not text.strip()
            self._events.append(ContentDelta(text))

    def _try_start(self) -> bool | None:
        """Begin reasoning or JSON without marks at the start of the content; None if it is something else."""
        text = (self._space + self._buffer).lstrip()
        if self._thinks is not None:
            if text.startswith(self._thinks.open):
                self._buffer = text[len(self._thinks.open) :]
                self._begin_thinking()
                return True
            if self._thinks.open.startswith(text):
                return False
        return self._try_bare(text) if self._bare else None

    def _try_bare(self, text: str) -> bool | None:
        if not text or "```json\n".startswith(text) or "```\n".startswith(text):
            return False
        for fence in ("```json\n", "```\n", ""):
            if text.startswith(fence):
                text = text[len(fence) :].lstrip()
                break
        if not text:
            return False
        if text[0] not in "[{":
            self._bare = False
            return None
        whole, self._buffer, self._space = self._space + self._buffer, text, ""
        self._opened, self._in_bare = whole[: len(whole) - len(text)], True
        self._state = self._open_call
        return True

    # ---- reasoning ----

    def _begin_thinking(self) -> None:
        self._state, self._space, self._after_mark = self._think, "", True
        if self._reasoning == "keep" and self._thinks is not None:
            self._events.append(ContentDelta(self._thinks.open + "\n"))

    def _think(self) -> bool:
        assert self._thinks is not None
        at = self._buffer.find(self._thinks.close)
        size = at if at >= 0 else len(self._buffer) - _held(self._buffer, (self._thinks.close,))
        text, self._buffer = self._space + self._buffer[:size], self._buffer[size:]
        body = text.rstrip()
        self._space = text[len(body) :]
        if self._after_mark:
            body = body.lstrip()
            self._space = self._space if body else ""
        self._say_thought(body)
        if at < 0:
            return False
        self._buffer, self._space = self._buffer[len(self._thinks.close) :], ""
        if self._reasoning == "keep":
            self._events.append(ContentDelta("\n" + self._thinks.close + "\n\n"))
        self._state, self._after_mark = self._text, True
        return True

    def _say_thought(self, text: str) -> None:
        if not text:
            return
        self._after_mark = False
        if self._reasoning == "split":
            self._events.append(ReasoningDelta(text))
        elif self._reasoning == "keep":
            self._events.append(ContentDelta(text))

    # ---- calls ----

    def _open_call(self) -> bool:
        """After the mark that opens calls: JSON, or the head of one call."""
        assert self._calls is not None
        text = self._buffer.lstrip()
        if text.startswith("[") and not text[1:].lstrip():
            return False
        if text.startswith("["):
            inner = text[1:].lstrip()
            if inner.startswith("{"):
                self._opened += self._buffer[: len(self._buffer) - len(inner)]
                self._buffer, self._in_list = inner, True
                return self._begin_object(None)
            return self._no_call()
        if text.startswith("{"):
            self._opened += self._buffer[: len(self._buffer) - len(text)]
            self._buffer, self._in_list = text, False
            return self._begin_object(None)
        if self._calls.head is not None and (match := self._calls.head.match(self._buffer[:MAX_HEAD])):
            return self._begin_named(match["name"], match.end())
        if text and (self._calls.head is None or len(self._buffer) > MAX_HEAD):
            return self._no_call()
        return False

    def _begin_named(self, name: str, end: int) -> bool:
        """The arguments of a function whose name stood in the head: JSON, or parameters."""
        assert self._calls is not None
        rest = self._buffer[end:].lstrip()
        if not rest:
            return False
        self._opened += self._buffer[: len(self._buffer) - len(rest)]
        self._buffer, self._in_list = rest, False
        if rest.startswith("{"):
            return self._begin_object(name)
        if self._calls.param is None:
            return self._no_call()
        self._start(name)
        self._state = self._params
        return True

    def _begin_object(self, name: str | None) -> bool:
        self._scanner = CallScanner(name, keyed=self._calls is not None and self._calls.keyed and name is None)
        self._started, self._arguments = False, []
        if name is not None:
            self._start(name)
        self._state = self._object
        return True

    def _start(self, name: str) -> None:
        self._index += 1
        self._started, self._arguments, self._fresh = True, [], False
        self._opened, self._name = "", name
        self._events.append(ToolCallStart(self._index, self._new_id(), name))

    def _say_arguments(self, text: str) -> None:
        if text:
            self._arguments.append(text)
            self._events.append(ToolCallDelta(self._index, text))

    def _object(self) -> bool:
        """Within the JSON of a call."""
        scanner = self._scanner
        assert scanner is not None
        size = 0
        for char in self._buffer:
            scanner.push(char)
            size += 1
            if scanner.done or scanner.broken:
                break
            if not self._started and (scanner.name is not None or scanner.strange) and not self._is_call():
                break
        self._buffer = self._buffer[size:]
        if not self._started and (scanner.name is not None or scanner.strange):
            if not self._is_call():
                return self._no_call()
            if scanner.name is not None:
                self._start(scanner.name)
        if self._started:
            self._say_arguments(scanner.take())
        if scanner.done or scanner.broken:
            return self._end_call()
        return False

    def _is_call(self) -> bool:
        """Whether what is known of the JSON fits a call; without marks the function must be one of the tools."""
        scanner = self._scanner
        assert scanner is not None
        if not self._in_bare:
            return True
        return scanner.name in self._tools if scanner.name is not None else not scanner.strange

    def _end_call(self) -> bool:
        scanner = self._scanner
        assert scanner is not None
        if not self._started:
            return self._no_call()
        arguments = "".join(self._arguments)
        self._events.append(ToolCallEnd(self._index, scanner.done and is_object(arguments)))
        self._scanner, self._state, self._space = None, self._between, ""
        return True

    def _no_call(self) -> bool:
        """What looked like a call is content."""
        raw = "".join(self._scanner.raw) if self._scanner is not None else ""
        self._say_content(self._opened + raw)
        self._opened, self._scanner, self._bare, self._in_list, self._in_bare = "", None, False, False, False
        self._state = self._text
        return True

    def _between(self) -> bool:
        """After one call in JSON: another, or the end of the calls."""
        assert self._calls is not None
        text = self._buffer.lstrip(" \t\r\n,;" if self._in_list or self._in_bare else " \t\r\n")
        marks = (self._calls.close, "```" if self._in_bare else "", "]" if self._in_list else "")
        ends = [mark for mark in marks if mark]
        for mark in ends:
            if text.startswith(mark):
                self._buffer = text[len(mark) :]
                self._in_list = self._in_list and mark != "]"
                return True if mark != self._calls.close else self._leave()
        if text.startswith("{"):
            self._buffer = text
            return self._begin_object(None)
        if not text or any(mark.startswith(text) for mark in ends):
            return False
        return self._leave()

    def _leave(self) -> bool:
        self._in_list = self._in_bare = False
        self._state, self._after_mark, self._space, self._bare = self._text, True, "", False
        return True

    def _params(self) -> bool:
        """Arguments written one by one; their types are those of the function's schema."""
        assert self._calls is not None
        assert self._calls.param is not None
        while match := self._calls.param.match(self._buffer):
            self._buffer = self._buffer[match.end() :]
            value = typed(match["value"], self._schema_of(match["key"]))
            comma = ", " if self._arguments else "{"
            self._say_arguments(f"{comma}{json.dumps(match['key'], ensure_ascii=False)}: {value}")
        text = self._buffer.lstrip()
        close = self._calls.close or ")"
        if text.startswith(close):
            self._buffer = text[len(close) :]
            self._say_arguments("}" if self._arguments else "{}")
            self._events.append(ToolCallEnd(self._index, True))
            return self._leave()
        return False

    def _schema_of(self, key: str) -> Mapping[str, Any]:
        properties = self._tools.get(self._name, {}).get("properties")
        schema = properties.get(key) if isinstance(properties, Mapping) else None
        return schema if isinstance(schema, Mapping) else {}


def typed(text: str, schema: Mapping[str, Any]) -> str:
    """JSON of a value written as plain text: text where the schema says so or it is no JSON, else what it says."""
    kind = schema.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    if "string" not in kinds:
        try:
            return json.dumps(json.loads(text), ensure_ascii=False, allow_nan=False)
        except (ValueError, RecursionError):
            pass
    return json.dumps(text, ensure_ascii=False)


def _first(text: str, marks: tuple[str, ...]) -> tuple[int, str]:
    """The first of the marks in a text and its place, (-1, "") if there is none."""
    found = [(at, -len(mark), mark) for mark in marks if (at := text.find(mark)) >= 0]
    at, _, mark = min(found, default=(-1, 0, ""))
    return at, mark


def _held(text: str, marks: tuple[str, ...]) -> int:
    """How many characters at the end of a text may be the beginning of a mark."""
    longest = min(max(map(len, marks), default=1) - 1, len(text))
    ends = (size for size in range(longest, 0, -1) if any(mark.startswith(text[-size:]) for mark in marks))
    return next(ends, 0)
