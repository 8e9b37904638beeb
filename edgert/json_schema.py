"""JSON schemas on their way to llguidance: where a fault lies that it does not locate, formats that it leaves open."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Check = Callable[[Any], str]  # a schema -> what is wrong with it, "" if nothing

DEFINITIONS = ("$defs", "definitions")
OF_NAMES = (*DEFINITIONS, "properties", "patternProperties", "dependentSchemas")  # keyword -> {name: schema}
OF_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")  # keyword -> [schema]
OF_ONE = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames", "additionalItems")
HINTS = {  # word of a message -> keywords that it may be about
    "regex": ("pattern", "patternProperties"), "Pointer": ("$ref",), "Resource": ("$ref",), "empty": ("enum",),
}  # fmt: skip
MOST_CHECKS = 1000
_REFERENCE = re.compile(r"\s*while processing json-schema:///#(/\S*)$")


# RFC 3339, where llguidance lets February have 31 days and fractions of seconds go on for ever. No year before 1000.
_DATE = (
    r"([1-9][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    r"|02-(0[1-9]|1[0-9]|2[0-8]))|([1-9][0-9](0[48]|[2468][048]|[13579][26])|([2468][048]|[13579][26])00)-02-29)"
)
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_FORMATS = {"date": f"^{_DATE}$", "time": f"^{_TIME}$", "date-time": f"^{_DATE}T{_TIME}$"}


def bounded(schema: Any) -> Any:
    """A copy that says what dates and times are by a pattern."""
    if not isinstance(schema, Mapping):
        return schema
    out = dict(schema)
    for keyword, value in schema.items():
        if keyword in OF_NAMES and isinstance(value, Mapping):
            out[keyword] = {name: bounded(child) for name, child in value.items()}
        elif keyword in OF_LISTS and isinstance(value, list):
            out[keyword] = [bounded(child) for child in value]
        elif keyword in OF_ONE:
            out[keyword] = bounded(value)
    if isinstance(out.get("format"), str) and out["format"] in _FORMATS:
        pattern = {"pattern": _FORMATS[out.pop("format")]}
        out.update({"allOf": [*out.get("allOf", []), pattern]} if "pattern" in out else pattern)
    return out


def pointer(schema: Mapping[str, Any], check: Check) -> str:
    """JSON pointer ("" is the whole) to the innermost part that a compiler refuses, given that it refuses the whole."""
    definitions = {name: schema[name] for name in DEFINITIONS if name in schema}
    node, path, message, checks = schema, "", check(schema), 0
    if (named := _REFERENCE.search(message)) and isinstance(target := _resolve(schema, named[1]), Mapping):
        node, path, message = target, named[1], message[: named.start()]
    while True:
        faults: list[tuple[str, Any, str]] = []
        words = [f'"{word}"' for word in re.findall(r"[\"']([$\w]+)[\"']", message)]
        likely = sorted(_children(node), key=lambda part: not any(word in json.dumps(part[1]) for word in words))
        for step, child in likely:
            checks += 1
            wrong = check({**definitions, **child} if isinstance(child, Mapping) else child)
            if wrong:
                faults.append((step, child, wrong))
            if wrong == message or checks > MOST_CHECKS:
                break
        # The same fault first. A definition with another fault may be one that nothing refers to.
        same = [f for f in faults if f[2] == message]
        others = [f for f in faults if not f[0].startswith(tuple(f"/{name}/" for name in DEFINITIONS))]
        if checks > MOST_CHECKS or not (same or others):
            return path + _keyword(node, message)
        step, node, message = (same or others)[0]
        path += step
        if not isinstance(node, Mapping):
            return path


def _resolve(schema: Any, path: str) -> Any:
    """What a JSON pointer points to; None if nothing is there."""
    for step in path.split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(schema, list) and step.isdecimal() and int(step) < len(schema):
            schema = schema[int(step)]
        elif isinstance(schema, Mapping):
            schema = schema.get(step)
        else:
            return None
    return schema


def _children(node: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """(path from here, schema) of the schemas within a schema."""
    for keyword in OF_NAMES:
        if isinstance(node.get(keyword), Mapping):
            for name, child in node[keyword].items():
                yield f"/{_escaped(keyword)}/{_escaped(str(name))}", child
    for keyword in OF_LISTS:
        if isinstance(node.get(keyword), list):
            for i, child in enumerate(node[keyword]):
                yield f"/{keyword}/{i}", child
    for keyword in OF_ONE:
        if isinstance(node.get(keyword), Mapping):
            yield f"/{keyword}", node[keyword]


def _keyword(node: Mapping[str, Any], message: str) -> str:
    """The keyword of a schema that a message is about, as the last step of a pointer."""
    words = re.findall(r"[$\w]+", message)
    hinted = [keyword for word in words for keyword in HINTS.get(word, ())]
    folded = {str(key).lower(): str(key) for key in node}
    for word in (*hinted, *words):
        if word.lower() in folded:
            return f"/{_escaped(folded[word.lower()])}"
    return ""


def _escaped(name: str) -> str:
    """RFC 6901."""
    return name.replace("~", "~0").replace("/", "~1")
