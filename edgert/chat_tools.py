"""Forced tool calls, and tools for models whose template knows none."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .chat_formats import GENERIC, ToolFormat

_INSTRUCTIONS = """\
You can call functions. To call one, answer with nothing but a JSON object of its name and its arguments:
{"name": "FUNCTION", "arguments": {"ARGUMENT": VALUE}}
The result is then given to you. Answer in plain text when no function is needed. The functions:
"""


def instructions(functions: Mapping[str, Mapping[str, Any]]) -> str:
    """What a system message says of the functions where the template says nothing."""
    return _INSTRUCTIONS + "\n".join(json.dumps(function, ensure_ascii=False) for function in functions.values())


def forced_format(format: ToolFormat, *, instructed: bool) -> ToolFormat:
    """The format in which a call can be forced: the family's if its calls are JSON with names, else plain JSON."""
    plain_json = not instructed and not format.keyed and format.param is None
    return format if plain_json and (format.head is None or format.array) else GENERIC


def call_schema(functions: Mapping[str, Mapping[str, Any]], names: Sequence[str], format: ToolFormat) -> dict[str, Any]:
    """JSON schema of a call of one of the named functions, as the format has it; a list of calls where that is usual.

    functions: {"name", "parameters": JSON schema} by name. References within the parameters are kept.
    """
    one = len(names) == 1
    root = "#/items" if format.array else "#"
    shapes = []
    for i, name in enumerate(names):
        place = f"{root}{'' if one else f'/anyOf/{i}'}/properties/{format.argument_key}"
        arguments = _moved(_closed(functions[name]["parameters"]), place)
        shapes.append({
            "type": "object",
            "properties": {"name": {"const": name}, format.argument_key: arguments},
            "required": ["name", format.argument_key],
            "additionalProperties": False,
        })  # fmt: skip
    shape = shapes[0] if one else {"anyOf": shapes}
    return {"type": "array", "items": shape, "minItems": 1} if format.array else shape


def _closed(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of arguments without room for arguments that it does not name, unless it says otherwise."""
    if parameters.keys() & {"$ref", "allOf", "anyOf", "oneOf", "patternProperties"} or "properties" not in parameters:
        return parameters
    return {"additionalProperties": False, **parameters}


def _moved(schema: Any, place: str) -> Any:
    """A schema whose references to its own parts hold where it stands now."""
    if isinstance(schema, Mapping):
        return {
            key: place + value.removeprefix("#")
            if key == "$ref" and isinstance(value, str) and value.startswith("#")
            else _moved(value, place)
            for key, value in schema.items()
        }
    return [_moved(item, place) for item in schema] if isinstance(schema, list) else schema
