"""One tool call written as JSON, read character by character, so that its arguments can be handed on as they come."""

from __future__ import annotations

import json

NAME_KEYS = frozenset(("name", "tool_name", "function"))
ARGUMENT_KEYS = frozenset(("arguments", "parameters", "args"))
_KNOWN_KEYS = NAME_KEYS | ARGUMENT_KEYS | {"id", "type", "tool_call_id"}
_CLOSES = {"{": "}", "[": "]"}


class CallScanner:
    """Reads one JSON object. `push` takes a character; `done` at the end of the object, `broken` if it is none.

    name        of the function, None until it is known
    strange     the object has keys that calls do not have
    raw         all characters so far
    take()      the characters of the arguments that came since, once the name is known
    """

    def __init__(self, name: str | None = None, *, keyed: bool = False) -> None:
        """name: the object is the arguments of this function. keyed: the object is {name: arguments}."""
        self.name = name
        self.done = self.broken = self.strange = False
        self.raw: list[str] = []
        self.has_arguments = name is not None
        self._whole = name is not None
        self._keyed = keyed
        self._stack: list[str] = []
        self._level = 1  # depth at which the keys of the call stand
        self._string = self._escape = False
        self._key: str | None = None  # of the value being read
        self._token: list[str] = []  # characters of the key or value being read
        self._streams = False  # this value is the arguments, an object
        self._out: list[str] = []

    def push(self, char: str) -> None:
        """Take the next character, the first of which must be `{`."""
        if self._string and char < " ":
            char = json.dumps(char)[1:-1]  # models write line breaks into strings, which JSON does not allow
        self.raw.append(char)
        depth = len(self._stack)
        if not self._string and char in "}]":
            self._close(char, depth)
            return
        if self._string:
            self._string = self._escape or char != '"'
            self._escape = char == "\\" and not self._escape
        elif char == '"':
            self._string = True
        elif char in "{[":
            self._stack.append(char)
        elif depth == self._level and not self._whole and char in ":,":
            self._key_ends() if char == ":" else self._value_ends()
            return
        if self._whole:
            self._out.append(char)
        elif depth >= self._level:
            self._keep(char, depth)

    def _keep(self, char: str, depth: int) -> None:
        """A character of a key or a value."""
        if not self._token and char.isspace():
            return
        if not self._token and char == "{" and self._key is not None:
            if self._key == "function" and self._level == 1:  # {"function": {"name": ..., "arguments": ...}}
                self._level, self._key = 2, None
                return
            self._streams = self._is_arguments()
        if self._streams and (depth > self._level or not self._token):
            self._out.append(char)
        self._token.append(char)

    def _close(self, char: str, depth: int) -> None:
        if not depth or _CLOSES[self._stack[-1]] != char:
            self.broken = True
            return
        self._stack.pop()
        if self._whole:
            self._out.append(char)
        elif depth > self._level:
            self._token.append(char)
            if self._streams:
                self._out.append(char)
        else:
            self._value_ends()
            self._level = 1
        if not self._stack:
            self._end()

    def _is_arguments(self) -> bool:
        return not self.has_arguments and (self._keyed or self._key in ARGUMENT_KEYS)

    def _key_ends(self) -> None:
        key = _loads("".join(self._token))
        self._token = []
        self._key = key if isinstance(key, str) else ""
        if self._keyed and self.name is None:
            self.name = self._key
        self.strange |= not self._keyed and self._key not in _KNOWN_KEYS

    def _value_ends(self) -> None:
        key, text = self._key, "".join(self._token)
        self._key, self._token = None, []
        if self._streams:
            self._streams, self.has_arguments = False, True
        elif key in NAME_KEYS and self.name is None and text.startswith('"'):
            name = _loads(text)
            self.name = name if isinstance(name, str) and name else None
            self.broken |= self.name is None
        elif key in ARGUMENT_KEYS and not self.has_arguments and text:
            self.has_arguments = True
            value = _loads(text)
            self._out.append("{}" if value is None and text == "null" else value if isinstance(value, str) else text)

    def _end(self) -> None:
        self.done = True
        self.broken |= not isinstance(_loads("".join(self.raw)), dict)
        if self.name is not None and not self.has_arguments:
            self._out.append("{}")

    def take(self) -> str:
        """Characters of the arguments since the last call, "" until the name is known."""
        if self.name is None:
            return ""
        text = "".join(self._out)
        self._out = []
        return text


def _loads(text: str) -> object:
    """The value of JSON text, None if it is none."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return None


def is_object(text: str) -> bool:
    """Whether text is a JSON object."""
    return isinstance(_loads(text), dict)


def _no_constant(name: str) -> None:
    """NaN and Infinity are no JSON, although Python reads them."""
    raise ValueError(name)
