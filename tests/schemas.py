"""Twenty JSON schemas of the kinds that people ask answers in. All are bounded, so that every answer can end."""

from __future__ import annotations

from typing import Any


def record(**properties: Any) -> dict[str, Any]:
    """An object that has exactly these properties."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


WORD = {"type": "string", "minLength": 1, "maxLength": 24}
SENTENCE = {"type": "string", "maxLength": 80}
COUNT = {"type": "integer", "minimum": 0, "maximum": 1000}


def some(items: Any, most: int, least: int = 0) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


SCHEMAS: dict[str, dict[str, Any]] = {
    "person": record(name=WORD, age={"type": "integer", "minimum": 0, "maximum": 120}, member={"type": "boolean"}),
    "order": record(
        customer=record(name=WORD, address=record(street=WORD, city=WORD)),
        lines=some(record(article=WORD, count=COUNT), 3, 1),
    ),
    "colour": {"enum": ["red", "green", "blue", 7, None, True, {"r": 1}]},
    "status": record(status={"enum": ["open", "closed", "waiting"]}, priority={"type": "integer", "enum": [1, 2, 3]}),
    "plate": {"type": "string", "pattern": "^[A-Z]{1,3}-[A-Z]{2} [1-9][0-9]{0,3}$"},
    "contact": record(
        phone={"type": "string", "pattern": r"^\+[0-9]{2} [0-9]{6,9}$"},
        code={"pattern": "^[a-f0-9]{8}$", "type": "string"},
    ),
    "tree": {
        "$ref": "#/$defs/node",
        "$defs": {"node": record(value=COUNT, children=some({"$ref": "#/$defs/leaf"}, 2)), "leaf": record(value=COUNT)},
    },
    "couple": {
        **record(a={"$ref": "#/definitions/p"}, b={"$ref": "#/definitions/p"}),
        "definitions": {"p": record(name=WORD)},
    },
    "either": {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 9}, record(error=SENTENCE), {"type": "null"}]},
    "event": record(at={"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]}, title=SENTENCE),
    "scores": some({"type": "integer", "minimum": -5, "maximum": 5}, 8, 3),
    "pair": {"type": "array", "prefixItems": [WORD, COUNT], "items": False, "minItems": 2},
    "matrix": some(some({"type": "integer", "minimum": 0, "maximum": 9}, 3, 3), 3, 2),
    "price": record(
        amount={"type": "number", "minimum": 0, "exclusiveMaximum": 100, "multipleOf": 0.01}, currency={"const": "EUR"}
    ),
    "point": record(
        x={"type": "number", "minimum": -1, "maximum": 1, "multipleOf": 0.001},
        y={"type": "integer", "exclusiveMinimum": 10, "exclusiveMaximum": 20},
    ),
    "optional": {
        "type": "object",
        "properties": {"a": WORD, "b": COUNT, "c": {"type": "boolean"}},
        "required": ["b"],
        "additionalProperties": False,
    },
    "shape": {
        "anyOf": [
            record(kind={"const": "circle"}, radius=COUNT),
            record(kind={"const": "box"}, width=COUNT, height=COUNT),
        ]
    },
    "all": {
        "allOf": [
            {"type": "object", "properties": {"a": COUNT}, "required": ["a"]},
            {"properties": {"b": WORD}, "required": ["b"]},
        ],
        "additionalProperties": False,
        "properties": {"a": True, "b": True},
    },
    "types": record(
        value={"type": ["string", "null", "boolean"], "maxLength": 12},
        id={"type": "string", "format": "uuid"},
        when={"type": "string", "format": "date-time"},
    ),
    "map": {
        "type": "object",
        "properties": {},
        "patternProperties": {"^[a-z]{1,6}$": COUNT},
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": 3,
    },
}
