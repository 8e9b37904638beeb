"""OpenAI's /v1/responses, without memory: each request brings the whole conversation."""

from contextlib import AsyncExitStack
from typing import Annotated, Any, ClassVar, Literal

from fastapi import APIRouter, Response
from fastapi import Request as Http
from pydantic import Field

from . import errors, sse
from .errors import ApiError
from .fields import MAX_MESSAGES, Body, Name, Positive, Share, Tools
from .openai_chat import Effort, thinking
from .responses_answer import Answer
from .state import state_of

router = APIRouter()


class Reasoning(Body):
    harmless: ClassVar[frozenset[str]] = frozenset({"summary", "generate_summary"})
    effort: Effort | None = None


class TextForm(Body):
    format: dict[str, Any] | None = None
    verbosity: Literal["medium"] | None = None


class ResponsesBody(Body):
    harmless: ClassVar[frozenset[str]] = frozenset({
        "user", "metadata", "store", "service_tier", "prompt_cache_key", "prompt_cache_retention",
        "safety_identifier", "stream_options",
    })  # fmt: skip
    model: Name | None = None
    input: str | Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MAX_MESSAGES)]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    temperature: Positive | None = None
    top_p: Share | None = None
    stream: bool | None = None
    tools: Tools | None = None
    tool_choice: Literal["auto", "none", "required"] | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextForm | None = None
    reasoning: Reasoning | None = None
    truncation: Literal["disabled"] | None = None
    background: Literal[False] | None = None
    include: list[Literal["reasoning.encrypted_content"]] | None = None

    def settings(self) -> dict[str, Any]:
        """As arguments of `Model.submit_chat`."""
        settings = self.given("temperature", "top_p")
        if self.max_output_tokens is not None:
            settings["max_tokens"] = self.max_output_tokens
        if self.tools:
            settings["tools"] = [_tool(i, tool) for i, tool in enumerate(self.tools)]
            settings["tool_choice"] = self._choice()
        form = self.text.format if self.text is not None else None
        if form is not None and form.get("type") == "json_schema":
            form = {"type": "json_schema", "json_schema": {"schema": form.get("schema")}}
        if form is not None:
            settings["response_format"] = form
        if args := thinking(self.reasoning.effort if self.reasoning is not None else None):
            settings["template_args"] = args
        return settings

    def _choice(self) -> Any:
        if not isinstance(self.tool_choice, dict):
            return self.tool_choice or "auto"
        return {"type": self.tool_choice.get("type"), "function": {"name": self.tool_choice.get("name")}}

    def conversation(self) -> list[dict[str, Any]]:
        """The messages as chat completions have them."""
        out: list[dict[str, Any]] = []
        if self.instructions:
            out.append({"role": "system", "content": self.instructions})
        items = [{"role": "user", "content": self.input}] if isinstance(self.input, str) else self.input
        for i, item in enumerate(items):
            _add(out, f"input[{i}]", item)
        return out

    def echoed(self) -> dict[str, Any]:
        """What the answer repeats of the request."""
        form = self.text.format if self.text is not None and self.text.format else {"type": "text"}
        effort = self.reasoning.effort if self.reasoning is not None else None
        return {
            "instructions": self.instructions, "max_output_tokens": self.max_output_tokens,
            "temperature": self.temperature, "top_p": self.top_p, "tools": self.tools or [],
            "tool_choice": self.tool_choice or "auto", "parallel_tool_calls": self.parallel_tool_calls is not False,
            "text": {"format": form}, "reasoning": {"effort": effort, "summary": None}, "truncation": "disabled",
            "previous_response_id": None, "store": False, "background": False, "metadata": {},
        }  # fmt: skip


def _tool(index: int, tool: dict[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise ApiError(400, f"tools[{index}].type: {tool.get('type')!r} is not supported, only 'function'",
                       param="tools")  # fmt: skip
    return {"type": "function", "function": {k: tool[k] for k in ("name", "description", "parameters") if tool.get(k)}}


def _add(out: list[dict[str, Any]], where: str, item: dict[str, Any]) -> None:
    """Add an item of the input: a message, a call of the last answer, a call's result; thoughts are left out."""
    match item.get("type", "message"):
        case "message":
            out.append({"role": item.get("role"), "content": _content(f"{where}.content", item.get("content"))})
        case "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id") or "", "type": "function", "function": function}
            if not out or out[-1]["role"] != "assistant":
                out.append({"role": "assistant", "content": ""})
            out[-1].setdefault("tool_calls", []).append(call)
        case "function_call_output":
            content = _content(f"{where}.output", item.get("output"))
            out.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
        case "reasoning":
            pass
        case kind:
            raise ApiError(400, f"{where}.type: {kind!r} is not supported here", param="input")


def _content(where: str, content: Any) -> Any:
    """Text, or parts as chat completions have them."""
    if not isinstance(content, list):
        return content
    parts = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in ("input_text", "output_text", "text"):
            raise ApiError(400, f"{where}[{i}]: parts of type {kind!r} are not supported, only text", param="input")
        parts.append({"type": "text", "text": part.get("text")})
    return parts


@router.post("/v1/responses")
async def responses(http: Http, body: ResponsesBody) -> Response:
    """Answer a conversation."""
    return await sse.attended(http, _respond(http, body))


async def _respond(http: Http, body: ResponsesBody) -> Response:
    state = state_of(http)
    state.check_ready()
    async with AsyncExitStack() as held:
        entry = await held.enter_async_context(state.models.use(body.model))
        job = await state.submit(entry, entry.loaded.submit_chat, 1, body.conversation(), body.settings())
        held.callback(job.cancel)
        answer = Answer(entry.name, entry.loaded, job, body.echoed())
        if body.stream:
            return sse.Stream(answer.events(), held.pop_all(), answer.failed)
        return errors.json_response(answer.whole((await job.results())[0]))
