"""Chat templates: every golden prompt, the helpers templates rely on, fall-backs, and templates that mean harm."""

from __future__ import annotations

import json
import lzma
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from edgert.formats.chat_fallback import FALLBACKS, fallback_name
from edgert.formats.chat_template import ChatTemplate, TemplateError, chat_template_from_metadata
from edgert.formats.errors import FormatError
from edgert.formats.tokenizer import load_tokenizer
from vocab_files import small_bpe, small_spm

PACKED = Path(__file__).parents[1] / "data" / "templates" / "templates.json.xz"
GOLDEN: dict[str, Any] = json.loads(lzma.decompress(PACKED.read_bytes()))
DAY_OF_GOLDEN = datetime(2026, 11, 30)
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "Bye"},
]


def render(source: str, messages: list[dict[str, Any]] | None = None, **extra: Any) -> str:
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>").render(messages or [], **extra)


def rendered(name: str) -> Iterator[tuple[dict[str, Any], str | None, str]]:
    """Every case of a template with the text it gives (or None) and the error it ends in (or "")."""
    template = ChatTemplate(GOLDEN[name]["template"])
    for case in GOLDEN[name]["cases"]:
        template.bos_token, template.eos_token = case["bos_token"], case["eos_token"]
        try:
            text = template.render(
                case["messages"],
                tools=case["tools"],
                add_generation_prompt=case["add_generation_prompt"],
                now=DAY_OF_GOLDEN,
            )
        except TemplateError as error:
            yield case, None, str(error)
        else:
            yield case, text, ""


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_prompts(name: str) -> None:
    n = 0
    for case, text, error in rendered(name):
        n += 1
        assert text == case.get("prompt"), case["name"] + error
        if "error" in case:
            assert error
            assert "\n" not in error
            own_words = not error.startswith("chat template")
            assert own_words == (case["error"] == "TemplateError")
    assert n > 10


def test_a_template_refuses_in_its_own_words() -> None:
    with pytest.raises(TemplateError) as error:
        render("{{ raise_exception('Only one system message, please!') }}")
    assert str(error.value) == "Only one system message, please! (chat template, line 1)"
    assert isinstance(error.value, FormatError)


@pytest.mark.parametrize("what", ["raise_exception('No!')", "m.content + 1"])
def test_mistakes_name_the_message(what: str) -> None:
    source = "{% set first = messages[0] %}{% for m in messages %}\n{% if m.role == 'assistant' %}\n{{ " + what + " }}"
    with pytest.raises(TemplateError, match=r"line 3, messages\[2\] of role 'assistant'"):
        render(source + "{% endif %}{% endfor %}", TALK)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("a\n{% if %}", "chat template, line 2: Expected an expression"),
        ("a\n\n{{ x.y }}", "chat template, line 3: 'x' is undefined"),
        ("{{ 'a'\n | nosuch }}", "chat template, line 2: No filter named 'nosuch'"),
        ("\n{% macro m() %}\n{{ none + 1 }}{% endmacro %}\n{{ m() }}", "chat template, line 3: TypeError"),
        ("{% include 'file' %}", "chat template, line 1: TypeError: no loader"),
        ("{{ ''.__class__.__mro__ }}", "chat template, line 1: access to attribute '__class__'"),
        ("\n{% set l = [] %}{{ l.append(1) }}", "chat template, line 2: access to attribute 'append'"),
        ("x" * 200_000, "chat template: it has 200000 characters"),
    ],
)
def test_mistakes_name_their_line(source: str, message: str) -> None:
    with pytest.raises(TemplateError, match="^" + message.replace("(", r"\(")) as error:
        render(source)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ [{'b': '<é>', 'a': none}] | tojson }}", '[{"b": "<é>", "a": null}]'),
        ("{{ {'b': 1, 'a': [1]} | tojson(indent=2, sort_keys=true) }}", '{\n  "a": [\n    1\n  ],\n  "b": 1\n}'),
        ("{{ 'é' | tojson(ensure_ascii=true) }}", '"\\u00e9"'),
        ("{{ {'a': 1} | tojson(separators=(',', ':')) }}", '{"a":1}'),
        ("{{ strftime_now('%d %b %Y') }}", "30 Nov 2026"),
        ("{% generation %}a{{ 1 }}{% endgeneration %}b", "a1b"),
        ("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% if i == 3 %}{% break %}{% endif %}"
         "{% endfor %}", "023"),
        ("a\n    {% if true %}\n  b\n    {% endif %}\nc\n", "a\n  b\nc"),
        ("{% set ns = namespace(n=0) %}{% for i in [1, 2] %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}", "3"),
        ("{{ bos_token }}|{{ eos_token }}|{{ tools is none }}|{{ missing is defined }}", "<s>|</s>|True|False"),
        ("{{ 'a' ~ 1 ~ none ~ [1] }}{% set x %}b{% endset %}{{ x ~ x }}", "a1None[1]bb"),
        ("{{ [1, 'x'] | join(', ') }} {{ [{'n': 1}, {'n': 2}] | map(attribute='n') | join('+') }}", "1, x 1+2"),
        ("{{ 'aXbX' | replace('X', '-') }}{{ 'aXbX' | replace('X', '-', 1) }}", "a-b-a-bX"),
        ("{{ 'a\nb' | indent(2) }}{{ 'a' | center(3) }}", "a\n  b a "),
        ("{{ '%s=%d' % ('a', 1) }} {{ '{}:{}'.format(1, 'b') }} {{ 'a%s' | format(2) }}", "a=1 1:b a2"),
        ("{{ {'a': 1} | items | list }}{% for k, v in {'x': 2}.items() if v > 1 %}{{ k }}{% endfor %}", "[('a', 1)]x"),
        ("{% macro m(x) %}<{{ caller() }}{{ x }}>{% endmacro %}{% call m(2) %}1{% endcall %}", "<12>"),
        ("{{ messages[0].content }}{{ enable_thinking }}", "HiTrue"),
    ],
)  # fmt: skip
def test_what_templates_rely_on(source: str, text: str) -> None:
    assert render(source, TALK[1:2], now=DAY_OF_GOLDEN, enable_thinking=True) == text


def grown(start: str, step: str) -> str:
    """A template that takes 60 times a step from `ns.v` to a new `ns.v`."""
    loop = "{% for i in range(60) %}{% set ns.v = " + step + " %}{% endfor %}"
    return "{% set ns = namespace(v=" + start + ") %}" + loop + "{{ ns.v }}"


HARMFUL = {
    "text doubled by ~": grown("'aaaa'", "ns.v ~ ns.v"),
    "text doubled by +": grown("'aaaa'", "ns.v + ns.v"),
    "list doubled": grown("[1]", "ns.v + ns.v"),
    "list of itself twice": grown("[1]", "[ns.v, ns.v]"),
    "dict of itself twice": grown("{}", "dict(a=ns.v, b=ns.v)"),
    "number squared": grown("3", "ns.v * ns.v"),
    "text multiplied": "{{ 'a' * 10**9 }}",
    "list multiplied": "{{ ([1] * 10**9) | length }}",
    "large power": "{{ 2 ** (2 ** 70) }}",
    "wide center": "{{ 'a' | center(10**9) }}",
    "wide ljust": "{{ 'a'.ljust(10**9) }}",
    "wide tabs": "{{ ('\t' * 10**6).expandtabs(1000) }}",
    "wide %": "{{ '%1000000000d' % 1 }}",
    "computed %": "{{ '%*d' | format(10**9, 1) }}",
    "wide format": "{{ '{:1000000000}'.format(1) }}",
    "computed format": "{{ '{:{}}'.format(1, 10**9) }}",
    "wide indent": "{{ 'a' | indent(10**9, first=true) }}",
    "wide json": "{{ [1] | tojson(indent=10**9) }}",
    "replaced by itself": "{% set s = 'a' * 10**6 %}{{ s | replace('a', s) }}",
    "method replaced": "{% set s = 'a' * 10**6 %}{{ s.replace('a', s) }}",
    "joined": "{% set s = 'a' * 10**6 %}{{ ([s] * 10**5) | join }}",
    "joined by": "{% set s = 'a' * 10**6 %}{{ range(99999) | join(s) }}",
    "method joined": "{% set s = 'a' * 10**6 %}{{ ''.join([s] * 10**5) }}",
    "mapped": "{% set s = 'a' * 10**6 %}{{ range(99999) | map('replace', '', s) | list }}",
    "captured": "{% set s = 'a' * 10**6 %}{% set x %}{% for i in range(999) %}{{ s }}{% endfor %}{% endset %}",
    "printed": "{% set s = 'a' * 10**6 %}{% for i in range(999) %}{{ s }}{% endfor %}",
    "recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "argument doubled": "{% macro m(l, n) %}{{ m([l, l], n - 1) if n else l }}{% endmacro %}{{ m([1], 40) }}",
    "large range": "{{ range(10**9) | list }}",
    "nested parentheses": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "nested blocks": "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
    "nested loops": "{% for i in range(2) %}" * 30 + "{% endfor %}" * 30,
    "long sum": "{{ " + "1+" * 30000 + "1 }}",
}
ENDLESS = {
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "loops that print": "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
    "loops that select": "{% set l = range(99999) | list %}{% for x in range(99999) if -x in l %}a{% endfor %}",
    "filters that select": "{% set l = range(99999) | list %}{{ range(-99999, 0) | select('in', l) | list }}",
    "macros": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "growing list": "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{% set ns.l = ns.l + [i] %}{% endfor %}",
}


@pytest.mark.parametrize("source", HARMFUL.values(), ids=HARMFUL)
def test_a_template_cannot_grow_without_end(source: str) -> None:
    begin = time.process_time()
    with pytest.raises(TemplateError):
        render(source)
    assert time.process_time() - begin < 4


@pytest.mark.parametrize("source", ENDLESS.values(), ids=ENDLESS)
def test_a_template_cannot_run_without_end(source: str) -> None:
    begin = time.monotonic()
    with pytest.raises(TemplateError, match="it takes too long"):
        ChatTemplate(source, seconds=0.2).render([])
    assert time.monotonic() - begin < 3


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("chatml", "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
         "Hello<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"),
        ("llama3", "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|><|start_header_id|>user"
         "<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nHello<|eot_id|>"
         "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"),
        ("gemma", "<s><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\nHello<end_of_turn>\n"
         "<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n"),
        ("phi3", "<|system|>\nBe brief.<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\nHello<|end|>\n"
         "<|user|>\nBye<|end|>\n<|assistant|>\n"),
        ("llama2", "<s>[INST] Be brief.\n\nHi [/INST] Hello</s>[INST] Bye [/INST]"),
        ("plain", "<s>Be brief.\n\nUser: Hi\nAssistant: Hello\nUser: Bye\nAssistant:"),
    ],
)  # fmt: skip
def test_fall_backs(name: str, text: str) -> None:
    assert render(FALLBACKS[name], TALK) == text
    assert text.startswith(render(FALLBACKS[name], TALK, add_generation_prompt=False))


def test_the_fall_back_follows_the_vocabulary() -> None:
    assert chat_template_from_metadata({}, load_tokenizer(small_bpe())).name == "chatml"
    plain = chat_template_from_metadata({}, load_tokenizer(small_spm()))
    assert (plain.name, plain.bos_token, plain.eos_token) == ("plain", "<s>", "</s>")
    assert fallback_name({"<start_of_turn>", "<end_of_turn>"}) == "gemma"


def test_the_file_s_own_template_and_the_one_for_tools() -> None:
    tokenizer = load_tokenizer(small_spm())
    key = "tokenizer.chat_template"
    template = chat_template_from_metadata({key: "talk", f"{key}.tool_use": "{{ tools | length }}"}, tokenizer)
    assert template.name == "file"
    assert template.render(TALK) == "talk"
    assert template.render(TALK, tools=[{"type": "function"}]) == "1"
    with pytest.raises(FormatError, match=r"tokenizer\.chat_template"):
        chat_template_from_metadata({key: 1}, tokenizer)
    with pytest.raises(TemplateError, match="line 1"):
        ChatTemplate("{% else %}").check()


def test_jinja_is_imported_with_the_first_render_only() -> None:
    code = "import sys, edgert.formats.chat_template as c; print('jinja2' in sys.modules); c.ChatTemplate('x').check()"
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert result.stdout == "False\n"
