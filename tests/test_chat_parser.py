"""Answers taken apart: every family's tool calls and reasoning, however the text is cut, and whatever it is."""

# ruff: noqa: RUF001  # the bars in DeepSeek's marks are wide
from __future__ import annotations

import json
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgert.chat_events import Event, Reply, ToolCallDelta, collect
from edgert.chat_formats import FORMATS, GENERIC, GRANITE, HERMES, LLAMA3, MISTRAL, REASONING, THINK, ToolFormat
from edgert.chat_parser import ChatParser
from edgert.chat_scan import CallScanner

TOOLS: dict[str, Any] = {
    "weather": {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    "add": {"properties": {"a": {"type": "number"}, "b": {"type": "number"}}},
}
BY_NAME = {f.name: f for f in (*FORMATS, GENERIC, LLAMA3)}
OSLO, SUM = ("weather", {"city": "Oslo"}), ("add", {"a": 2, "b": 3})


def parser(format: ToolFormat | None = None, **options: Any) -> ChatParser:
    ids = count()
    return ChatParser(TOOLS, format, options.pop("thinks", THINK), new_id=lambda: f"id{next(ids)}", **options)


def parse(text: str, format: ToolFormat | None = None, cuts: list[int] | None = None, **options: Any) -> Reply:
    """The reply of a text fed in pieces that end at `cuts`; None: character by character."""
    p = parser(format, **options)
    edges = range(len(text) + 1) if cuts is None else sorted({0, len(text), *(c for c in cuts if c < len(text))})
    events: list[Event] = []
    for a, b in zip(edges, list(edges)[1:], strict=False):
        events += p.feed(text[a:b])
    return collect(events + p.finish())


def calls_of(reply: Reply) -> list[tuple[str, Any]]:
    assert all(call.complete for call in reply.tool_calls)
    return [(call.name, json.loads(call.arguments)) for call in reply.tool_calls]


H1, H2 = '{"name": "weather", "arguments": {"city": "Oslo"}}', '{"name": "add", "arguments": {"a": 2, "b": 3}}'
BOTH = {
    "hermes": f"<tool_call>\n{H1}\n</tool_call>\n<tool_call>\n{H2}\n</tool_call>",
    "mistral": f"[TOOL_CALLS] [{H1}, {H2}]",
    "granite": f"<|tool_call|>[{H1}, {H2}]",
    "tool_calls": f"<tool_calls>\n{H1}\n{H2}\n</tool_calls>",
    "toolcall": f"<TOOLCALL>[{H1}, {H2}]</TOOLCALL>",
    "functools": f" functools[{H1}, {H2}]",
    "generic": f"{H1}\n{H2}",
    "llama3": f"{H1}; {H2}".replace("arguments", "parameters"),
    "cohere": '<|START_ACTION|>[\n  {"tool_call_id": "0", "tool_name": "weather", "parameters": {"city": "Oslo"}},\n'
              '  {"tool_call_id": "1", "tool_name": "add", "parameters": {"a": 2, "b": 3}}\n]<|END_ACTION|>',
    "apertus": '<|tools_prefix|>[{"weather": {"city": "Oslo"}}, {"add": {"a": 2, "b": 3}}]<|tools_suffix|>',
    "function tag": "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>\n"
                    "<tool_call>\n<function=add>\n<parameter=a>\n2\n</parameter>\n<parameter=b>3</parameter>\n"
                    "</function>\n</tool_call>",
    "invoke": '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Oslo</parameter>\n</invoke>\n'
              '<invoke name="add">\n<parameter name="a">2</parameter>\n<parameter name="b">3</parameter>\n</invoke>\n'
              "</minimax:tool_call>",
    "dsml": '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="weather">\n<｜DSML｜parameter name="city" string="true">Oslo'
            '</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name="add">\n<｜DSML｜parameter name="a" '
            'string="false">2</｜DSML｜parameter>\n<｜DSML｜parameter name="b" string="false">3</｜DSML｜parameter>\n'
            "</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
    "glm": "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n</tool_call>\n<tool_call>add\n"
           "<arg_key>a</arg_key>\n<arg_value>2</arg_value>\n<arg_key>b</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
    "deepseek": '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Oslo"}<｜tool▁call▁end｜>'
                '<｜tool▁call▁begin｜>add<｜tool▁sep｜>{"a": 2, "b": 3}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "deepseek r1": '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n'
                   '{"city": "Oslo"}\n'
                   '```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{"a": 2, "b": 3}\n'
                   "```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "kimi": "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
            '{"city": "Oslo"}<|tool_call_end|><|tool_call_begin|>functions.add:1<|tool_call_argument_begin|>'
            '{"a": 2, "b": 3}<|tool_call_end|><|tool_calls_section_end|>',
}  # fmt: skip


@pytest.mark.parametrize("name", BY_NAME)
def test_every_family_s_parallel_calls(name: str) -> None:
    for cuts in ([], None):
        reply = parse(BOTH[name], BY_NAME[name], cuts)
        assert calls_of(reply) == [OSLO, SUM]
        assert (reply.content.strip(), reply.reasoning) == ("", "")
    reply = parse("<think>\nWhich?\n</think>\n\n" + BOTH[name], BY_NAME[name])
    assert calls_of(reply) == [OSLO, SUM]
    assert (reply.content.strip(), reply.reasoning) == ("", "Which?")


@pytest.mark.parametrize(
    ("format", "text", "calls"),
    [
        (MISTRAL, '[TOOL_CALLS]weather[ARGS]{"city": "Oslo"}[TOOL_CALLS]add[CALL_ID]abcdefghi[ARGS]{"a": 2, "b": 3}',
         [OSLO, SUM]),
        (LLAMA3, '<|python_tag|>{"name": "weather", "parameters": {"city": "Oslo"}}', [OSLO]),
        (LLAMA3, '<|python_tag|>weather.call(city="Oslo")', [OSLO]),
        (LLAMA3, '{"type": "function", "function": "weather", "parameters": {"city": "Oslo"}}', [OSLO]),
        (GENERIC, f"```json\n{H1}\n```", [OSLO]),
        (GENERIC, f"[{H1},\n {H2}]", [OSLO, SUM]),
        (GENERIC, f'{{"type": "function", "function": {H1}}}', [OSLO]),
        (HERMES, '<tool_call>{"arguments": {"city": "Oslo"}, "name": "weather"}</tool_call>', [OSLO]),
        (HERMES, '<tool_call>{"name": "weather", "arguments": "{\\"city\\": \\"Oslo\\"}"}</tool_call>', [OSLO]),
        (HERMES, '<tool_call>{"name": "weather"}</tool_call>', [("weather", {})]),
        (HERMES, '<tool_call>{"name": "weather", "arguments": null}</tool_call>', [("weather", {})]),
        (HERMES, '<tool_call>{"name": "other", "arguments": {"t": "a\nb", "n": [{"}": "]"}]}}</tool_call>',
         [("other", {"t": "a\nb", "n": [{"}": "]"}]})]),
        (BY_NAME["function tag"], '<function=weather>{"city": "Oslo"}</function>', [OSLO]),
        (BY_NAME["function tag"], "<function=weather>\n<parameter=city>7</parameter>\n<parameter=days>7</parameter>"
         "</function>", [("weather", {"city": "7", "days": 7})]),
        (BY_NAME["function tag"], "<function=weather></function>", [("weather", {})]),
    ],
)  # fmt: skip
def test_other_forms_of_calls(format: ToolFormat, text: str, calls: list[Any]) -> None:
    for cuts in ([], None):
        reply = parse(text, format, cuts)
        assert calls_of(reply) == calls
        assert reply.content == ""


def test_arguments_come_as_they_are_written() -> None:
    p = parser(HERMES)
    events = [
        p.feed(piece) for piece in ('I look.\n<tool_call>{"name": "weather", "arg', 'uments": {"city": "Os', 'lo"}')
    ]
    assert [type(e).__name__ for e in events[0]] == ["ContentDelta", "ToolCallStart"]
    assert events[1:] == [[ToolCallDelta(0, '{"city": "Os')], [ToolCallDelta(0, 'lo"}')]]
    reply = collect(e for some in [*events, p.feed("}</tool_call>"), p.finish()] for e in some)
    assert reply.content == "I look."
    function = {"name": "weather", "arguments": '{"city": "Oslo"}'}
    call = {"id": "id0", "type": "function", "function": function}
    assert reply.as_message() == {"role": "assistant", "content": "I look.", "tool_calls": [call]}


@pytest.mark.parametrize(
    ("format", "text"),
    [
        (HERMES, "<tool_call>what?</tool_call> no"),
        (HERMES, '<tool_call>{"no": "name"}</tool_call>'),
        (HERMES, '<tool_call>{"na'),
        (HERMES, "a <tool_cal"),
        (HERMES, '<tool_call>{"name": ["x"]}'),
        (MISTRAL, "[TOOL_CALLS]" + "x" * 300),
        (MISTRAL, "[TOOL_CALLS]weather"),
        (LLAMA3, "<|python_tag|>print(1)"),
        (LLAMA3, '{"answer": 42}'),
        (LLAMA3, '{"name": "unknown", "parameters": {}}'),
        (GENERIC, "[1, 2]"),
        (GENERIC, "```json\n{}\n```\nx"),
        (GENERIC, "```python\nprint()\n```"),
        (None, H1),
        (None, BOTH["hermes"]),
        (HERMES, "a < b <t <tool> \n\n done\n"),
        (HERMES, "Use <think> in text"),
    ],
)
def test_what_is_no_call_stays_content(format: ToolFormat | None, text: str) -> None:
    for cuts in ([], None):
        reply = parse(text, format, cuts)
        assert not reply.tool_calls
        assert reply.content.replace("</tool_call>", "") == text.replace("</tool_call>", "")


@pytest.mark.parametrize(
    "text",
    ['<tool_call>{"name": "weather", "arguments": {"city": "Os', '<tool_call>{"name": "weather", "arguments": [1]}'],
)  # fmt: skip
def test_a_broken_call_is_marked(text: str) -> None:
    (call,) = parse(text, HERMES).tool_calls
    assert call.name == "weather"
    assert not call.complete
    assert call.arguments in text


@pytest.mark.parametrize("thinks", REASONING, ids=lambda f: f.open)
def test_reasoning_is_split_kept_or_dropped(thinks: Any) -> None:
    text = f"{thinks.open}\nWell, 2 < 3.\n{thinks.close}\n\nYes."
    for cuts in ([], None):
        split = parse(text, None, cuts, thinks=thinks)
        assert (split.reasoning, split.content) == ("Well, 2 < 3.", "Yes.")
        inside = parse(text[len(thinks.open) :], None, cuts, thinks=thinks, thinking=True)
        assert (inside.reasoning, inside.content) == ("Well, 2 < 3.", "Yes.")
        assert parse(text, None, cuts, thinks=thinks, reasoning="keep").content == text
        dropped = parse(text, None, cuts, thinks=thinks, reasoning="drop")
        assert (dropped.reasoning, dropped.content) == ("", "Yes.")
    cut = parse(f"{thinks.open}never ends", None, thinks=thinks)
    assert (cut.reasoning, cut.content) == ("never ends", "")
    assert cut.as_message()["reasoning_content"] == "never ends"


def test_a_forced_call_begins_after_its_mark() -> None:
    assert calls_of(parse(f"[{H1}, {H2}]", MISTRAL, calling=True)) == [OSLO, SUM]
    assert calls_of(parse(H1, GRANITE, calling=True)) == [OSLO]


SNIPPETS = sorted({
    *(mark for f in BY_NAME.values() for mark in f.marks), *(mark for f in REASONING for mark in f.marks),
    *BOTH.values(), H1, H2, "{", "}", "[", "]", '"', "\\", ",", ":", " ", "\n", "x", "weather", "<",
    '{"name": "weather"', "[ARGS]", "```",
    "</function>", "<parameter=a>", ">", '"arguments": {', "é", '{"a": NaN}',
})  # fmt: skip
TEXTS = st.lists(st.sampled_from(SNIPPETS) | st.text(max_size=5), max_size=12).map("".join)


@settings(max_examples=400, deadline=None)
@given(TEXTS, st.sampled_from(list(BY_NAME.values())), st.sampled_from(REASONING), st.lists(st.integers(0, 200)),
       st.booleans(), st.sampled_from(["split", "keep", "drop"]))  # fmt: skip
def test_cuts_do_not_matter_and_nothing_raises(
    text: str, format: ToolFormat, thinks: Any, cuts: list[int], inside: bool, reasoning: str
) -> None:
    options = {"thinks": thinks, "thinking": inside, "reasoning": reasoning}
    whole = parse(text, format, [], **options)
    assert parse(text, format, cuts, **options) == whole
    assert parse(text, format, None, **options) == whole


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.text(max_size=4), st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    max_leaves=8,
), max_size=3), st.sampled_from([HERMES, GENERIC, LLAMA3, *(f for f in FORMATS if f.array)]))  # fmt: skip
def test_what_a_format_writes_it_reads(arguments: dict[str, Any], format: ToolFormat) -> None:
    if format.keyed:
        text = f"{format.open}[{json.dumps({'weather': arguments})}]{format.close}"
    else:
        text = format.write([{"name": "weather", "arguments": arguments}])
    assert calls_of(parse(text, format)) == [("weather", arguments)]


@given(st.text(alphabet='{}[]",:\\ an1'))
def test_the_scanner_ends_where_json_ends(text: str) -> None:
    scanner = CallScanner("f")
    for char in "{" + text:
        scanner.push(char)
        if scanner.done or scanner.broken:
            break
    if scanner.done and not scanner.broken:
        assert isinstance(json.loads("".join(scanner.raw)), dict)
        assert scanner.take() == "".join(scanner.raw)
