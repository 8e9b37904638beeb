"""Anthropic's /v1/messages and /v1/messages/count_tokens."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import Annotated, Any, ClassVar

from fastapi import APIRouter, Response
from fastapi import Request as Http
from pydantic import Field

import edgert

from . import errors, sse
from .anthropic_messages import arguments, choice, conversation, functions
from .fields import Body, Last, Messages, Name, Share, Stops, Tools
from .models import Entry
from .state import Job, new_id, state_of

router = APIRouter()
REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class CountBody(Body):
    harmless: ClassVar[frozenset[str]] = frozenset({"metadata", "service_tier", "betas", "cache_control", "thinking"})
    model: Name | None = None
    messages: Messages
    system: str | list[dict[str, Any]] | None = None
    tools: Tools | None = None
    tool_choice: dict[str, Any] | None = None

    def prompt(self) -> dict[str, Any]:
        """tools and tool_choice as arguments of `Model.submit_chat`."""
        tools = functions(self.tools)
        return {"tools": tools, "tool_choice": choice(self.tool_choice)} if tools else {}


class MessagesBody(CountBody):
    harmless: ClassVar[frozenset[str]] = CountBody.harmless - {"thinking"}
    max_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)]
    stop_sequences: Stops | None = None
    stream: bool | None = None
    temperature: Share | None = None
    top_p: Share | None = None
    top_k: Last | None = None
    thinking: dict[str, Any] | None = None

    def settings(self) -> dict[str, Any]:
        settings = self.prompt() | self.given("max_tokens", "temperature", "top_p")
        if self.top_k is not None:
            settings["top_k"] = max(0, self.top_k)
        if self.stop_sequences:
            settings["stop"] = self.stop_sequences
        kind = None if self.thinking is None else self.thinking.get("type")
        if kind not in (None, "enabled", "disabled", "adaptive"):
            raise errors.ApiError(400, f"thinking.type: {kind!r} is not enabled, disabled or adaptive")
        if kind in ("enabled", "disabled"):
            settings["template_args"] = {"enable_thinking": kind == "enabled"}
        return settings


@router.post("/v1/messages")
async def messages(http: Http, body: MessagesBody) -> Response:
    """Answer a conversation."""
    return await sse.attended(http, _messages(http, body))


async def _messages(http: Http, body: MessagesBody) -> Response:
    state = state_of(http)
    state.check_ready()
    async with AsyncExitStack() as held:
        entry = await held.enter_async_context(state.models.use(body.model))
        talk = conversation(body.system, body.messages)
        job = await state.submit(entry, entry.loaded.submit_chat, 1, talk, body.settings())
        held.callback(job.cancel)
        answer = Answer(entry, job, body)
        if body.stream:
            return sse.Stream(answer.events(), held.pop_all(), _failed)
        return errors.json_response(answer.whole((await job.results())[0]))


def _failed(error: errors.ApiError) -> bytes:
    return sse.event(errors.body("/v1/messages", error), "error")


@router.post("/v1/messages/count_tokens")
async def count_tokens(http: Http, body: CountBody) -> Response:
    """Tokens of the prompt that a conversation becomes."""
    state = state_of(http)
    state.check_ready()
    async with state.models.use(body.model) as entry:
        talk = conversation(body.system, body.messages)
        _, ids = await state.run(entry.loaded.chat_prompt, talk, **body.prompt())
        return errors.json_response({"input_tokens": len(ids)})


class Answer:
    """The answer to one request, as Anthropic's API has it."""

    def __init__(self, entry: Entry, job: Job, body: MessagesBody) -> None:
        self._model, self._job, self._stops = entry.loaded, job, body.stop_sequences or []
        self._head = {"id": new_id("msg_"), "type": "message", "role": "assistant", "model": entry.name}
        self._one_call = bool((body.tool_choice or {}).get("disable_parallel_tool_use"))
        self._index, self._open = -1, ""  # of content blocks: the last one's number and, while it is open, its kind

    def whole(self, result: edgert.ChatCompletion) -> dict[str, Any]:
        content: list[dict[str, Any]] = []
        if result.reasoning:
            content.append({"type": "thinking", "thinking": result.reasoning, "signature": ""})
        if result.text:
            content.append({"type": "text", "text": result.text})
        for call in result.tool_calls[: 1 if self._one_call else None]:
            content.append({"type": "tool_use", "id": call.id, "name": call.name, "input": arguments(call.arguments)})
        return {**self._head, "content": content, **self._end(result), "usage": _usage(result)}

    def _end(self, result: edgert.ChatCompletion) -> dict[str, Any]:
        """Why it ended, and at which stop sequence: the first that is in the text of the tokens."""
        said = self._model.detokenize(result.ids) if self._stops and result.finish_reason == "stop" else ""
        found = [stop for stop in self._stops if stop in said]
        if found:
            return {"stop_reason": "stop_sequence", "stop_sequence": min(found, key=said.index)}
        return {"stop_reason": REASONS.get(result.finish_reason, "end_turn"), "stop_sequence": None}

    async def events(self) -> AsyncGenerator[bytes, None]:
        count = self._job.parts[0].progress[1]
        usage = {"input_tokens": count, "output_tokens": 0}
        start: dict[str, Any] = {**self._head, "content": [], "stop_reason": None, "stop_sequence": None}
        yield _event("message_start", message={**start, "usage": usage})
        async for _, piece in self._job.pieces():
            if isinstance(piece, edgert.ChatCompletion):
                for event in self._close():
                    yield event
                yield _event("message_delta", delta=self._end(piece), usage=_usage(piece))
                yield _event("message_stop")
            elif not self._one_call or getattr(piece, "index", 0) == 0:
                for event in self._piece(piece):
                    yield event

    def _piece(self, piece: Any) -> list[bytes]:
        match piece:
            case edgert.ContentDelta(text):
                return [*self._begin("text", text=""), self._delta("text_delta", text=text)]
            case edgert.ReasoningDelta(text):
                return [*self._begin("thinking", thinking="", signature=""),
                        self._delta("thinking_delta", thinking=text)]  # fmt: skip
            case edgert.ToolCallStart(_, id, name):
                return [*self._close(), *self._begin("tool_use", id=id, name=name, input={})]
            case edgert.ToolCallDelta(_, text):
                return [self._delta("input_json_delta", partial_json=text)]
        return self._close()  # a call's end

    def _begin(self, kind: str, **empty: Any) -> list[bytes]:
        """Open a block of this kind, unless it is open."""
        if self._open == kind:
            return []
        before = self._close()
        self._index, self._open = self._index + 1, kind
        return [*before, _event("content_block_start", index=self._index, content_block={"type": kind, **empty})]

    def _close(self) -> list[bytes]:
        if not self._open:
            return []
        self._open = ""
        return [_event("content_block_stop", index=self._index)]

    def _delta(self, kind: str, **change: str) -> bytes:
        return _event("content_block_delta", index=self._index, delta={"type": kind, **change})


def _event(name: str, **data: Any) -> bytes:
    return sse.event({"type": name, **data}, name)


def _usage(result: edgert.ChatCompletion) -> dict[str, int]:
    used = result.usage
    return {"input_tokens": used.prompt_tokens - used.cached_tokens, "cache_read_input_tokens": used.cached_tokens,
            "cache_creation_input_tokens": 0, "output_tokens": used.completion_tokens}  # fmt: skip
