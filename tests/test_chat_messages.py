"""Messages and tools as OpenAI's API has them: made plain, and made to fit what a template can."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest
from edgert.formats.chat_fallback import FALLBACKS
from edgert.formats.chat_template import ChatTemplate

from edgert.chat import turn
from edgert.chat_events import collect
from edgert.chat_formats import MISTRAL
from edgert.chat_messages import ChatError, chosen, functions, plain
from edgert.chat_parser import ChatParser
from edgert.chat_tools import call_schema
from edgert.chat_traits import Traits

PACKED = Path(__file__).parent / "data" / "templates" / "templates.json.xz"
GOLDEN: dict[str, Any] = json.loads(lzma.decompress(PACKED.read_bytes()))
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Weather of a city", "parameters": {
    "type": "object", "properties": {"city": {"$ref": "#/$defs/city"}}, "required": ["city"],
    "$defs": {"city": {"type": "string"}}}}}  # fmt: skip
NOW = {"type": "function", "function": {"name": "now"}}


def call(id: str, name: str, arguments: Any) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


TALK: list[dict[str, Any]] = [
    {"role": "developer", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}]},
    {"role": "user", "content": "Weather?", "name": "Ann"},
    {"role": "assistant", "content": None, "refusal": None,
     "tool_calls": [call("call_1", "weather", '{"city": "Oslo"}'), call("call_2", "now", "")]},
    {"role": "tool", "tool_call_id": "call_1", "content": "cold"},
    {"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": "noon"}]},
    {"role": "user", "content": "And?"},
]  # fmt: skip


def traits(name: str) -> Traits:
    """Of a golden template, or of a usual one."""
    source = FALLBACKS[name] if name in FALLBACKS else GOLDEN[name]["template"]
    return Traits(ChatTemplate(source, bos_token="<s>", eos_token="</s>"))


def test_messages_are_made_plain() -> None:
    assert plain(TALK) == [
        {"role": "system", "content": "Be\nbrief."},
        {"role": "user", "content": "Weather?", "name": "Ann"},
        {"role": "assistant", "content": "",
         "tool_calls": [call("call_1", "weather", {"city": "Oslo"}), call("call_2", "now", {})]},
        {"role": "tool", "tool_call_id": "call_1", "content": "cold", "name": "weather"},
        {"role": "tool", "tool_call_id": "call_2", "content": "noon", "name": "now"},
        {"role": "user", "content": "And?"},
    ]  # fmt: skip
    assert TALK[0]["role"] == "developer"


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ([], "messages: there are none"),
        ("hello", "messages: not a list of messages"),
        (["hello"], r"messages\[0\]: a text, not an object with role and content"),
        ([{"content": "x"}], r"messages\[0\]\.role: missing"),
        ([{"role": "user"}], r"messages\[0\]\.content: missing"),
        ([{"role": "user", "content": 7}], r"messages\[0\]\.content: int, not a text or a list of parts"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], r"content\[0\]: parts of type 'image_url' are not"),
        ([{"role": "user", "content": [{"type": "text"}]}], r"messages\[0\]\.content\[0\]\.text: not a text"),
        ([{"role": "user", "content": "", "tool_calls": [1]}], r"messages\[0\]\.tool_calls: only an assistant"),
        ([{"role": "assistant", "tool_calls": [1]}], r"messages\[0\]\.tool_calls\[0\]\.function: not an object"),
        ([{"role": "assistant", "tool_calls": [call("a", "f", "[1]")]}], r"function\.arguments: list, not an object"),
        (
            [{"role": "assistant", "tool_calls": [call("a", "f", "{")]}],
            r"function\.arguments: not the JSON of an object",
        ),
        ([{"role": "tool", "tool_call_id": 1, "content": ""}], r"messages\[0\]\.tool_call_id: int, not a text"),
    ],
)
def test_bad_messages_are_named(messages: Any, error: str) -> None:
    with pytest.raises(ChatError, match=error):
        plain(messages)


@pytest.mark.parametrize(
    ("tools", "choice", "error"),
    [
        ({}, "auto", "tools: not a list"),
        ([{"type": "web"}], "auto", r"tools\[0\]: not of the form"),
        ([NOW, NOW], "auto", r"tools\[1\]\.function\.name: 'now' is there twice"),
        ([{"type": "function", "function": {"name": "f", "parameters": [1]}}], "auto", r"parameters: list, not a JSON"),
        (None, "required", "tool_choice: 'required', but there are no tools"),
        ([NOW], {"type": "function", "function": {"name": "then"}}, "tool_choice: 'then' is not one of the tools"),
        ([NOW], "maybe", "tool_choice: 'maybe' is not auto, none"),
    ],
)
def test_bad_tools_are_named(tools: Any, choice: Any, error: str) -> None:
    with pytest.raises(ChatError, match=error):
        chosen(choice, list(functions(tools)))


def test_a_system_message_goes_where_the_template_takes_it() -> None:
    two = [{"role": "system", "content": "S"}, {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
           {"role": "system", "content": "T"}, {"role": "user", "content": "c"}]  # fmt: skip
    assert traits("chatml").adapt(two) == two
    gemma = traits("google-gemma-2-2b-it").adapt(two)
    assert [m["content"] for m in gemma] == ["S\n\na", "b", "T\n\nc"]
    nemo = traits("mistralai-Mistral-Nemo-Instruct-2407").adapt([two[0], two[0], *two[1:]])
    assert [m["content"] for m in nemo] == ["S\n\nS", "a", "b", "T\n\nc"]
    assert traits("google-gemma-2-2b-it").adapt(two[:1]) == [{"role": "user", "content": "S"}]


def test_neighbours_of_one_role_are_merged_where_roles_must_alternate() -> None:
    twice = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    assert traits("chatml").adapt(twice) == twice
    assert traits("google-gemma-2-2b-it").adapt(twice) == [{"role": "user", "content": "a\n\nb"}]


def test_calls_are_changed_for_templates_with_limits() -> None:
    llama = traits("meta-llama-Llama-3.1-8B-Instruct").adapt(plain(TALK))
    assert [m["role"] for m in llama] == ["system", "user", "assistant", "tool", "assistant", "tool", "user"]
    nemo = traits("mistralai-Mistral-Nemo-Instruct-2407").adapt(plain(TALK))
    ids = [c["id"] for c in nemo[2]["tool_calls"]]
    assert ids == [m["tool_call_id"] for m in nemo[3:5]]
    assert all(len(id) == 9 and id.isalnum() for id in ids)
    granite = traits("ibm-granite-granite-3.3-2B-Instruct").adapt(plain(TALK))
    assert granite[2]["content"].startswith('<|tool_call|>[{"name": "weather", "arguments": {"city": "Oslo"}}, {')
    phi = traits("microsoft-Phi-3.5-mini-instruct").adapt(plain(TALK))
    assert phi[3] == {"role": "user", "content": "Result of weather: cold"}


def test_earlier_reasoning_is_dropped() -> None:
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nb"},
            {"role": "user", "content": "c"}]  # fmt: skip
    assert traits("HuggingFaceTB-SmolLM3-3B").adapt(talk)[1]["content"] == "b"
    assert traits("chatml").adapt(talk) == talk
    text = turn(traits("Qwen-Qwen3-0.6B"), talk).text
    assert "hm" not in text


@pytest.mark.parametrize("name", [n for n in GOLDEN if n != "openai-gpt-oss-120b"])
def test_a_conversation_with_tools_suits_every_template(name: str) -> None:
    """Nothing that was said gets lost, and the calls that a template writes are read back."""
    t = traits(name)
    if not t.usable:
        return
    prompt = turn(t, TALK, tools=[WEATHER, NOW], template_args={"current_date": "today"}).text
    for said in ("brief.", "Weather?", "Oslo", "cold", "noon", "And?", "Weather of a city"):
        assert said in prompt, (said, prompt)
    if t.calls and t.format.name != "generic":
        text = prompt[prompt.rindex("Weather?") + 8 : prompt.rindex("And?")]
        parser = ChatParser(functions_schema([WEATHER, NOW]), t.format)
        if t.format.bare:
            text = text[text.index('{"name"') :]
        calls = collect([*parser.feed(text), *parser.finish()]).tool_calls
        assert ("weather", {"city": "Oslo"}) in [(c.name, json.loads(c.arguments)) for c in calls if c.complete]


def functions_schema(tools: Any) -> dict[str, Any]:
    return {name: f["parameters"] for name, f in functions(tools).items()}


FAMILIES = {
    "Qwen-Qwen2.5-7B-Instruct": "hermes", "Qwen-Qwen3-0.6B": "hermes", "meta-llama-Llama-3.2-3B-Instruct": "llama3",
    "meta-llama-Llama-3.1-8B-Instruct": "llama3", "mistralai-Mistral-Nemo-Instruct-2407": "mistral",
    "unsloth-mistral-Devstral-Small-2507": "mistral", "ibm-granite-granite-3.3-2B-Instruct": "granite",
    "ibm-granite-granite-4.0": "hermes", "Qwen3-Coder": "function tag", "google-gemma-2-2b-it": "generic",
    "deepseek-ai-DeepSeek-V3.1": "deepseek", "GLM-4.6": "glm", "chatml": "generic",
}  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_the_family_is_known_from_the_template(name: str) -> None:
    assert traits(name).format.name == FAMILIES[name]


def test_a_forced_call_has_a_schema() -> None:
    ask = [{"role": "user", "content": "?"}]
    named = {"type": "function", "function": {"name": "weather"}}
    forced = turn(traits("Qwen-Qwen2.5-7B-Instruct"), ask, tools=[WEATHER, NOW], tool_choice=named)
    assert forced.text.endswith("<|im_start|>assistant\n<tool_call>")
    schema = forced.settings["json_schema"]
    assert schema["properties"]["name"] == {"const": "weather"}
    assert schema["properties"]["arguments"]["properties"]["city"] == {"$ref": "#/properties/arguments/$defs/city"}
    both = call_schema(functions([WEATHER, NOW]), ["weather", "now"], MISTRAL)
    assert both["type"] == "array"
    city = both["items"]["anyOf"][0]["properties"]["arguments"]["properties"]["city"]
    assert city == {"$ref": "#/items/anyOf/0/properties/arguments/$defs/city"}
    with pytest.raises(ChatError, match="no other form"):
        turn(traits("chatml"), ask, tools=[NOW], tool_choice="required", formed=True)


def test_tools_are_told_to_models_whose_template_does_not() -> None:
    ask = [{"role": "user", "content": "?"}]
    assert "Weather of a city" in turn(traits("chatml"), ask, tools=[WEATHER]).text
    assert "Weather of a city" not in turn(traits("chatml"), ask, tools=[WEATHER], tool_choice="none").text


def test_reasoning_that_the_prompt_opens() -> None:
    ask = [{"role": "user", "content": "?"}]
    begun = turn(traits("NVIDIA-Nemotron-Nano-v2"), ask)
    assert begun.text.endswith("<think>\n")
    reply = collect([*begun.parser.feed("hm</think>yes"), *begun.parser.finish()])
    assert (reply.reasoning, reply.content) == ("hm", "yes")
    formed = turn(traits("NVIDIA-Nemotron-Nano-v2"), ask, formed=True)
    assert formed.text.endswith("<think>\n</think>\n\n")
