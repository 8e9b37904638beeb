"""Answers that must have a form have it, and forms that cannot be enforced are refused by name."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator
from concurrent.futures import wait
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

import edgert
from edgert.constrain import Constrainer
from schemas import SCHEMAS

ANSWERS = int(os.environ.get("EDGERT_TEST_JSON_ANSWERS", "40"))  # over all schemas
THINGS = ("a cat", "a bridge", "a train to Rome", "soup", "Ada", "the sea", "a small shop", "winter", "a song", "chess")


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> Iterator[edgert.Model]:
    with edgert.load(smollm2_path, n_ctx=1024) as loaded:
        yield loaded


def prompts(model: edgert.Model, name: str, count: int) -> list[list[int]]:
    assert model.chat_template is not None
    asked = (f"Write JSON for {name} about {THINGS[i % len(THINGS)]}, version {i}." for i in range(count))
    return [
        model.tokenize(model.chat_template.render([{"role": "user", "content": text}]), parse_special=True)
        for text in asked
    ]


def validate(text: str, schema: dict[str, Any]) -> None:
    """In decimal numbers: in binary ones 0.07 is no multiple of 0.01."""
    exact = json.loads(json.dumps(schema), parse_float=Decimal)
    jsonschema.validate(json.loads(text, parse_float=Decimal), exact, format_checker=jsonschema.FormatChecker())


@pytest.mark.parametrize("name", SCHEMAS)
def test_answers_validate(model: edgert.Model, name: str) -> None:
    """Nested, enum, pattern, $ref, anyOf, arrays, bounded numbers: every answer parses, validates and ends itself."""
    schema = SCHEMAS[name]
    count = -(-ANSWERS // len(SCHEMAS))
    answers = model.generate_many(
        prompts(model, name, count), json_schema=schema, max_tokens=600, temperature=1.0, seed=4
    )
    for answer in answers:
        assert answer.finish_reason == "stop", answer.text
        validate(answer.text, schema)


def test_alone_or_together(model: edgert.Model) -> None:
    """A constrained answer is the same in a batch, and streaming says the same."""
    some = prompts(model, "person", 3)
    settings: dict[str, Any] = {"json_schema": SCHEMAS["person"], "max_tokens": 200, "seed": 3}
    together = [answer.text for answer in model.generate_many(some, **settings)]
    assert [model.generate(prompt, **settings).text for prompt in some] == together
    assert "".join(model.stream(some[0], **settings)) == together[0]


def test_cut_off(model: edgert.Model) -> None:
    """Too few tokens: the answer is a beginning, and says so."""
    answer = model.generate("A list:", json_schema={"type": "array", "minItems": 50, "items": {"type": "integer"}},
                            max_tokens=8, seed=1)  # fmt: skip
    assert answer.finish_reason == "length"
    assert answer.text.startswith("[")
    assert len(answer.ids) == 8


def test_other_forms(model: edgert.Model) -> None:
    """Regular expression, choices, Lark and GBNF, to the end of each, and with ignore_eos too."""
    for ignore_eos in (False, True):
        settings: dict[str, Any] = {"seed": 1, "max_tokens": 40, "ignore_eos": ignore_eos}
        phone = model.generate("Call", regex=r" \+\d{2} \d{3,5}", **settings)
        assert re.fullmatch(r" \+\d{2} \d{3,5}", phone.text)
        choices = [' "green"', "\\blue\n", "é🦜", " [a-z]/"]
        assert model.generate("Grass is", choices=choices, **settings).text in choices
        for grammar in (
            'start: " " ("yes" | "no") "!é"',
            'root ::= " " answer "\\x21\\u00e9"\nanswer ::= "yes" | "no"',
        ):
            answer = model.generate("Is it?", grammar=grammar, **settings)
            assert answer.text in (" yes!é", " no!é")
            assert answer.finish_reason == "stop"


def test_gbnf(model: edgert.Model) -> None:
    """llama.cpp's grammar of arithmetic: repetition, groups, character classes, comments."""
    grammar = r"""
    # sums only
    root ::= (expr "=" ws num "\n")
    expr ::= term ([-+*/] term){1,3}
    term ::= num | "(" ws expr ")" ws
    num  ::= [0-9] [0-9]? ws
    ws   ::= [ \t]?
    """
    text = model.generate("Sums:\n", grammar=re.sub("(?m)^    ", "", grammar), max_tokens=300, seed=2).text
    assert re.fullmatch(r"[-+*/() \t\d]+=[ \t]?\d\d?[ \t]?\n", text)


def test_response_format(model: edgert.Model) -> None:
    """OpenAI's forms."""
    ask = [{"role": "user", "content": "Describe a cat."}]
    free = model.chat(ask, response_format={"type": "text"}, max_tokens=8, temperature=0)
    assert free.text == model.chat(ask, max_tokens=8, temperature=0).text
    wanted = {"type": "json_schema", "json_schema": {"name": "cat", "schema": SCHEMAS["person"], "strict": True}}
    answer = model.chat(ask, response_format=wanted, max_tokens=300, seed=1)
    jsonschema.validate(json.loads(answer.text), SCHEMAS["person"])
    text = model.chat(ask, response_format={"type": "json_object"}, max_tokens=300, temperature=0).text
    assert text.startswith("{")


def test_no_special_token_inside(model: edgert.Model) -> None:
    """Where any text may follow, every token may but special ones; ends may where the text may end."""
    constraint = Constrainer(model.tokenizer, model.n_vocab).constraint(regex=r"(?s:.*)")
    assert constraint is not None
    logits = np.zeros(model.n_vocab, np.float32)
    constraint.mask(logits)
    ends = model.tokenizer.eog_ids
    assert all(logits[end] == 0 for end in ends)
    special = [i for i in range(model.n_vocab) if not model.tokenizer.token_bytes(i, special=False) and i not in ends]
    assert len(special) > 10
    assert all(logits[i] == -np.inf for i in special)
    assert np.count_nonzero(logits == 0) > 0.99 * model.n_vocab
    constraint = Constrainer(model.tokenizer, model.n_vocab).constraint(regex="x+")
    assert constraint is not None
    logits[:] = 0
    constraint.mask(logits)
    assert all(logits[i] == -np.inf for i in (*special, *ends))


def test_dates_and_times(model: edgert.Model) -> None:
    """Days that the calendar has, times that the clock shows; with a pattern besides, both hold."""
    days = [date(1000, 1, 1) + timedelta(i) for i in range(0, 3287182, 20011)] + [date(2024, 2, 29), date(2000, 2, 29)]
    good = {
        "date": [f"{day:%Y-%m-%d}" for day in days],
        "time": ["00:00:00Z", "23:59:59.123456+23:59"],
        "date-time": ["2024-02-29T12:00:00.5-01:00"],
    }
    bad = {
        "date": ["2023-02-29", "1900-02-29", "2100-02-29", "2024-02-30", "2024-04-31", "2024-13-01", "2024-00-01",
                 "2024-01-00", "2024-1-1"],
        "time": ["24:00:00Z", "12:60:00Z", "12:00:00", "12:00:00.1234567Z"],
        "date-time": ["2023-02-29T12:00:00Z", "2023-02-28 12:00:00Z"],
    }  # fmt: skip
    for name, texts in good.items():
        assert all(fits(model, {"format": name, "type": "string"}, text) for text in texts)
        assert not any(fits(model, {"format": name, "type": "string"}, text) for text in bad[name])
    both = {"type": "array", "items": {"type": "string", "format": "date", "pattern": "^2024"}}
    assert fits(model, both, ["2024-02-29"])
    assert not fits(model, both, ["2023-02-28"])
    assert not fits(model, both, ["2024-02-30"])


def fits(model: edgert.Model, schema: dict[str, Any], value: Any) -> bool:
    """Whether a value could be the answer."""
    constraint = model._answering._constrainer.constraint(json_schema=schema)
    assert constraint is not None
    logits = np.zeros(model.n_vocab, np.float32)
    for token in model.tokenize(json.dumps(value), add_special=False):
        logits[:] = 0
        constraint.mask(logits)
        if logits[token] < 0:
            return False
        if constraint.accept(token):
            return True
    logits[:] = 0
    constraint.mask(logits)
    return bool(logits[model.tokenizer.eos_id] == 0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"json_schema": {"properties": {"a": {"uniqueItems": True}}}}, r"/properties/a/uniqueItems: "),
        ({"json_schema": {"properties": {"a/b": {"items": {"minLength": -1}}}}}, "/properties/a~1b/items/minLength: "),
        ({"json_schema": {"anyOf": [{"type": "string"}, {"type": "strin"}]}}, "/anyOf/1/type: Invalid type"),
        ({"json_schema": {"items": {"pattern": "(?=a)"}}}, "/items/pattern: .*look-ahead"),
        ({"json_schema": {"$ref": "#/$defs/a"}}, r"/\$ref: "),
        ({"json_schema": {"properties": {"x": {"$ref": "#/$defs/a"}},
                          "$defs": {"ok": {}, "a": {"allOf": [{"pattern": "(b"}]}}}}, r"/\$defs/a/allOf/0/pattern: "),
        ({"json_schema": {"properties": {"x": {"$ref": "https://example.com/a"}}}}, r"/properties/x/\$ref: "),
        ({"json_schema": {"items": {"oneOf": [{"type": "string"}, {"maxLength": 3}]}}}, "/items/oneOf: "),
        ({"json_schema": {"type": "object", "properties": {"n": {"minimum": 5, "maximum": 2, "type": "integer"}},
                          "required": ["n"]}}, "json_schema: /properties/n"),
        ({"json_schema": {"not": {}, "x-guidance": {"lenient": True}}}, "/not: "),
        ({"json_schema": {"enum": []}}, "/enum: "),
        ({"json_schema": {"properties": {"a": 5}}}, "/properties/a: "),
        ({"json_schema": '{"type":'}, "not JSON"),
        ({"json_schema": False}, "False is not a schema"),
        ({"json_schema": [1]}, "is not a schema"),
        ({"json_schema": {"const": object()}}, "not JSON serializable"),
        ({"json_schema": {"properties": {f"p{i}": {"type": "string"} for i in range(1500)} | {"z": {"not": {}}}}},
         "/properties/z/not: "),
        ({"json_schema": {"$ref": "#"}}, "json_schema: no answer can have this form"),
        ({"json_schema": {"const": "\ud800"}}, "json_schema: "),
        ({"regex": "\ud800"}, "is not text"),
        ({"choices": ["\ud800"]}, "choices"),
        ({"grammar": 'start: <|im_end|> "a"'}, "grammar: no answer can have this form"),
        ({"grammar": 'start: <|im_start|> "a"'}, "grammar: no answer can have this form"),
        ({"grammar": 'root ::= ' + "(" * 5000 + '"a"' + ")" * 5000}, "grammar: "),
        ({"regex": "(a"}, "unclosed group"),
        ({"regex": 5}, "5 is not text"),
        ({"choices": []}, "choices"),
        ({"choices": "abc"}, "choices"),
        ({"choices": ["a", ""]}, "choices"),
        ({"grammar": "start: foo"}, "unknown name"),
        ({"grammar": "root ::= foo"}, "foo"),
        ({"grammar": 'root ::= "a'}, "line 1"),
        ({"grammar": " "}, "grammar"),
        ({"regex": "a", "choices": ["b"]}, "regex and choices: give one"),
        ({"response_format": {"type": "xml"}}, "/type is 'xml'"),
        ({"response_format": "json"}, "/type is None"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "/json_schema/schema is missing"),
        ({"response_format": {"type": "json_object"}, "json_schema": {}}, "give one of them"),
    ],
)  # fmt: skip
def test_refused(model: edgert.Model, given: dict[str, Any], message: str) -> None:
    """One line that names the place."""
    with pytest.raises(edgert.ConstraintError, match=message) as caught:
        model.generate("Hello", max_tokens=4, **given)
    assert "\n" not in str(caught.value)


def test_deep_schemas(model: edgert.Model) -> None:
    """Nesting that could exhaust a stack is refused before anything descends into it."""
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(2000):
        schema = {"items": schema}
    with pytest.raises(edgert.ConstraintError, match="nested more than"):
        model.generate("Hello", json_schema=schema, max_tokens=4)


def test_masks_are_made_while_the_model_runs(model: edgert.Model) -> None:
    """After a token the next mask is worked out without anybody waiting for it."""
    constraint = model._answering._constrainer.constraint(json_schema=SCHEMAS["person"])
    assert constraint is not None
    constraint.mask(np.zeros(model.n_vocab, np.float32))
    assert not constraint.accept(model.tokenize("{", add_special=False)[0])
    assert wait([constraint._next], timeout=30).done
    assert any(thread.name.startswith("edgert-grammar") for thread in threading.enumerate())
