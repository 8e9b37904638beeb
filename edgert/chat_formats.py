"""How families of models mark their tool calls and their reasoning, as data."""

# ruff: noqa: RUF001  # the bars in DeepSeek's marks are wide
from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ToolFormat:
    """Calls as a family writes them: `open`, then JSON calls; or `open`, `head`, the arguments, `close`.

    open, close  open begins calls, close ends them ("": the end of the JSON does)
    head         between `open` and the arguments, with a group `name`; None: JSON objects hold name and arguments
    param        one argument, with groups `key` and `value`; None: the arguments are a JSON object
    drop         marks around the calls that carry nothing
    bare         JSON calls may also be all of the content, without marks
    keyed        a JSON call is {name: arguments}
    array        JSON calls stand in a list
    argument_key how the family names the arguments in a JSON call
    """

    name: str
    open: str
    close: str = ""
    head: re.Pattern[str] | None = None
    param: re.Pattern[str] | None = None
    drop: tuple[str, ...] = ()
    bare: bool = False
    keyed: bool = False
    array: bool = False
    argument_key: str = "arguments"

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts that the answer may hold as special tokens, which must be shown to the parser."""
        inner = ("[ARGS]", "[CALL_ID]", "<｜tool▁sep｜>", "<|tool_call_argument_begin|>")
        return tuple(
            m for m in (self.open, self.close.removeprefix("```"), *self.drop, *(inner if self.head else ())) if m
        )

    def write(self, calls: Sequence[Mapping[str, Any]]) -> str:
        """Calls ({"name", "arguments": object}) as text, for templates that do not write them."""
        texts = [json.dumps({"name": c["name"], self.argument_key: c["arguments"]}, ensure_ascii=False) for c in calls]
        if self.array:
            return f"{self.open}[{', '.join(texts)}]{self.close}"
        return "\n".join(f"{self.open}\n{text}\n{self.close}" if self.close else text for text in texts)


_NAME = r"(?P<name>[^\s\[\](){}<>]+)"
_TAG_PARAM = re.compile(
    r'\s*<(?:\w+:)?parameter(?:=| name=")(?P<key>[^>"\n]+)"?>\n?(?P<value>.*?)\n?</(?:\w+:)?parameter>', re.DOTALL
)
_PYTHON_PARAM = re.compile(r'\s*,?\s*(?P<key>\w+)\s*=\s*"(?P<value>(?:[^"\\]|\\.)*)"', re.DOTALL)
_GLM_PARAM = re.compile(r"\s*<arg_key>(?P<key>.*?)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>", re.DOTALL)
_DSML_PARAM = re.compile(
    r'\s*<｜DSML｜parameter name="(?P<key>[^"\n]+)"[^>]*>(?P<value>.*?)</｜DSML｜parameter>', re.DOTALL
)

HERMES = ToolFormat("hermes", "<tool_call>", "</tool_call>")
LLAMA3 = ToolFormat(
    "llama3", "<|python_tag|>", "", re.compile(rf"\s*{_NAME}\.call\("), _PYTHON_PARAM, bare=True,
    argument_key="parameters",
)  # fmt: skip
MISTRAL = ToolFormat(
    "mistral", "[TOOL_CALLS]", head=re.compile(rf"\s*{_NAME}\s*(?:\[CALL_ID\](?P<id>\w+))?\s*\[ARGS\]"), array=True
)
GRANITE = ToolFormat("granite", "<|tool_call|>", array=True)
GENERIC = ToolFormat("generic", "<tool_call>", "</tool_call>", bare=True)
_TOOLS_BEGIN, _TOOLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"

# The first that reads a template's own rendering of a call is taken, so more special ones come first.
FORMATS = (
    ToolFormat("function tag", "<function=", "</function>", re.compile(rf"\s*{_NAME}>"), _TAG_PARAM,
               drop=("<tool_call>", "</tool_call>", "<seed:tool_call>", "</seed:tool_call>")),
    ToolFormat("invoke", '<invoke name="', "</invoke>", re.compile(r'(?P<name>[^"]+)">'), _TAG_PARAM,
               drop=("<minimax:tool_call>", "</minimax:tool_call>")),
    ToolFormat("dsml", '<｜DSML｜invoke name="', "</｜DSML｜invoke>", re.compile(r'(?P<name>[^"]+)">'), _DSML_PARAM,
               drop=tuple(f"<{s}｜DSML｜{w}>" for s in ("", "/") for w in ("function_calls", "tool_calls"))),
    HERMES,
    ToolFormat("glm", "<tool_call>", "</tool_call>", re.compile(rf"\s*{_NAME}\s*(?=<arg_key>|</tool_call>)"),
               _GLM_PARAM),
    MISTRAL,
    GRANITE,
    ToolFormat("tool_calls", "<tool_calls>", "</tool_calls>", array=True),
    ToolFormat("toolcall", "<TOOLCALL>", "</TOOLCALL>", array=True),
    ToolFormat("cohere", "<|START_ACTION|>", "<|END_ACTION|>", array=True, argument_key="parameters"),
    ToolFormat("apertus", "<|tools_prefix|>", "<|tools_suffix|>", keyed=True, array=True),
    ToolFormat("deepseek", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>",
               re.compile(r"(?P<name>(?!function<)[^\s<{]+)<｜tool▁sep｜>"), drop=(_TOOLS_BEGIN, _TOOLS_END)),
    ToolFormat("deepseek r1", "<｜tool▁call▁begin｜>", "```<｜tool▁call▁end｜>",
               re.compile(r"function<｜tool▁sep｜>(?P<name>[^\s<{]+)\s*```json"), drop=(_TOOLS_BEGIN, _TOOLS_END)),
    ToolFormat("kimi", "<|tool_call_begin|>", "<|tool_call_end|>",
               re.compile(r"\s*(?:functions\.)?(?P<name>[^\s<:]+)(?::\d+)?\s*<\|tool_call_argument_begin\|>"),
               drop=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")),
    ToolFormat("functools", "functools", array=True),
)  # fmt: skip


@dataclass(frozen=True)
class ReasoningFormat:
    """The marks around what a model thinks before it answers; drop: marks that carry nothing."""

    open: str
    close: str
    drop: tuple[str, ...] = ()

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts that the answer may hold as special tokens, which must be shown to the parser."""
        return (self.open, self.close, *self.drop)


THINK = ReasoningFormat("<think>", "</think>")
REASONING = (
    ReasoningFormat("<|START_THINKING|>", "<|END_THINKING|>", ("<|START_RESPONSE|>", "<|END_RESPONSE|>")),
    ReasoningFormat("[THINK]", "[/THINK]"),
    ReasoningFormat("<seed:think>", "</seed:think>"),
    ReasoningFormat("<|inner_prefix|>", "<|inner_suffix|>"),
    ReasoningFormat("Here is my thought process:", "Here is my response:"),
    ReasoningFormat("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
    ReasoningFormat("<|channel>thought", "<channel|>"),
    ReasoningFormat("<think>", "</think>", ("<response>", "</response>")),
    THINK,
)
