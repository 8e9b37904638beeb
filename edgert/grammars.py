"""What a caller asks an answer's form to be, as a grammar for llguidance."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .errors import EdgertError
from .json_schema import bounded, pointer

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

WHITESPACE = r" |\n{1,2}[ \t]{0,20}"  # between the parts of JSON; small models would go on with it for ever
MAX_DEPTH = 100  # of a schema
MAX_MESSAGE = 300  # characters
_GBNF_RULE = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)
_GBNF_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)


class ConstraintError(EdgertError):
    """A schema, regular expression or grammar that is broken, or that cannot be enforced."""


def schema_of_format(given: Mapping[str, Any]) -> Mapping[str, Any] | str | bool | None:
    """The schema that OpenAI's response_format asks for; None for free text."""
    kind = given.get("type") if isinstance(given, Mapping) else None
    if kind == "text":
        return None
    if kind == "json_object":
        schema = given.get("schema")
        return {"type": "object"} if schema is None else schema
    if kind == "json_schema":
        inner = given.get("json_schema")
        schema = inner.get("schema") if isinstance(inner, Mapping) else None
        if schema is None:
            raise ConstraintError("response_format: /json_schema/schema is missing")
        return schema  # type: ignore[no-any-return]
    raise ConstraintError(f"response_format: /type is {kind!r}, not 'text', 'json_object' or 'json_schema'")


def from_schema(given: Any) -> str:
    """ConstraintError names the JSON pointer of what is broken or cannot be enforced."""
    from llguidance import LLMatcher

    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError) as error:
            raise ConstraintError(f"json_schema: not JSON: {line(str(error))}") from None
    if given is True:
        given = {}
    if not isinstance(given, Mapping):
        raise ConstraintError(f"json_schema: {given!r} is not a schema that an answer could have")

    def compiled(schema: Any) -> str:
        options: JsonCompileOptions = {"whitespace_pattern": WHITESPACE}
        text = json.dumps(bounded(schema))
        return LLMatcher.grammar_from_json_schema(text, defaults=options, overrides={"lenient": False})

    def check(schema: Any) -> str:
        return LLMatcher.validate_grammar(compiled(schema)) if isinstance(schema, Mapping) else _no_schema(schema)

    _check_depth(given)
    try:
        if wrong := check(given):
            where = pointer(given, check) or "the whole schema"
            raise ConstraintError(f"json_schema: {where}: {line(wrong)}")
        return compiled(given)
    except (TypeError, ValueError) as error:
        raise ConstraintError(f"json_schema: {line(str(error))}") from None


def _no_schema(given: Any) -> str:
    return "" if isinstance(given, bool) else "schema must be an object or boolean"


def _check_depth(schema: Any) -> None:
    level, depth = [schema], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise ConstraintError(f"json_schema: nested more than {MAX_DEPTH} deep")
        inner: list[Any] = []
        for value in level:
            inner += value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
        level = inner


def from_regex(given: Any) -> str:
    """A regular expression for the whole answer."""
    from llguidance import LLMatcher

    if not isinstance(given, str) or not _utf8(given):
        raise ConstraintError(f"regex: {given!r} is not text")
    return LLMatcher.grammar_from_regex(given)


def from_choices(given: Any) -> str:
    """Texts of which the answer is one."""
    from llguidance import LLMatcher

    if not isinstance(given, Sequence) or isinstance(given, str) or not given:
        raise ConstraintError("choices: not a list of texts")
    if not all(isinstance(text, str) and text and _utf8(text) for text in given):
        raise ConstraintError("choices: every one must be text that is not empty")
    return LLMatcher.grammar_from_lark("start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in given))


def from_grammar(given: Any) -> str:
    """Lark, or GBNF if a line begins as a rule of it."""
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import gbnf_to_lark

    if not isinstance(given, str) or not given.strip() or not _utf8(given):
        raise ConstraintError("grammar: not the text of a grammar")
    if _GBNF_RULE.search(given):
        try:
            given = gbnf_to_lark(_GBNF_ESCAPE.sub(_plain, given))
        except Exception as error:  # the converter raises bare exceptions
            raise ConstraintError(f"grammar: {line(str(error))}") from None
    return LLMatcher.grammar_from_lark(given)


def _plain(escape: re.Match[str]) -> str:
    """A character of GBNF for its \\x, \\u or \\U escape, which the converter to Lark gets wrong."""
    digits = escape[1] or escape[2] or escape[3]
    if digits is None or int(digits, 16) > 0x10FFFF or 0xD800 <= int(digits, 16) < 0xE000:
        return escape[0]
    character = chr(int(digits, 16))
    named = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return named.get(character) or ("\\" + character if character in '"\\[]' else character)


def _utf8(text: str) -> bool:
    """Whether a text has no lone surrogates, which llguidance cannot take."""
    return not any(0xD800 <= ord(character) < 0xE000 for character in text)


def line(message: str) -> str:
    """A message of several lines in one, and not too long."""
    text = " ".join(message.replace("<non-verbose/>", "").split())
    return text if len(text) <= MAX_MESSAGE else text[:MAX_MESSAGE] + "..."
