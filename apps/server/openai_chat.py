"""OpenAI's /v1/chat/completions."""

import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import Annotated, Any, ClassVar, Literal

from fastapi import APIRouter, Response
from fastapi import Request as Http
from pydantic import Field

import edgert

from . import errors, sse
from .fields import MAX_ANSWERS, Args, Body, Messages, Name, Sampling, Tools, limited
from .logprobs import chat_logprobs
from .state import Job, new_id, state_of

router = APIRouter()
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
IGNORED = frozenset({
    "user", "metadata", "store", "service_tier", "prompt_cache_key", "prompt_cache_retention", "safety_identifier",
    "prediction", "cache_prompt", "return_progress", "timings_per_token", "chat_id", "session_id", "id",
})  # fmt: skip


class StreamOptions(Body):
    harmless: ClassVar[frozenset[str]] = frozenset({"include_obfuscation", "continuous_usage_stats"})
    include_usage: bool | None = None


class ChatBody(Sampling):
    harmless: ClassVar[frozenset[str]] = IGNORED
    model: Name | None = None
    messages: Messages
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_ANSWERS)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: Tools | None = None
    tool_choice: Literal["auto", "none", "required"] | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    modalities: list[Literal["text"]] | None = None
    reasoning_effort: Effort | None = None
    reasoning_format: Literal["auto", "none", "deepseek"] | None = None
    chat_template_kwargs: Args | None = None

    def chat_settings(self) -> dict[str, Any]:
        """As arguments of `Model.submit_chat`."""
        if self.top_logprobs is not None and not self.logprobs:
            raise errors.ApiError(400, "top_logprobs: it needs logprobs", param="top_logprobs")
        settings = self.settings() | self.given("tools", "tool_choice")
        limit = self.max_completion_tokens or self.max_tokens
        if limit is not None:
            settings["max_tokens"] = limit
        if self.logprobs:
            settings["logprobs"] = self.top_logprobs or 0
        if self.reasoning_format == "none":
            settings["reasoning"] = "keep"
        if template_args := thinking(self.reasoning_effort) | (self.chat_template_kwargs or {}):
            settings["template_args"] = limited("chat_template_kwargs", template_args, 16 << 10)
        return settings


def thinking(effort: str | None) -> dict[str, Any]:
    """Variables by which templates know how much a model shall think."""
    if effort is None:
        return {}
    return {"enable_thinking": False} if effort == "none" else {"enable_thinking": True, "reasoning_effort": effort}


@router.post("/v1/chat/completions")
async def chat(http: Http, body: ChatBody) -> Response:
    """Answer a conversation."""
    return await sse.attended(http, _chat(http, body))


async def _chat(http: Http, body: ChatBody) -> Response:
    state = state_of(http)
    state.check_ready()
    async with AsyncExitStack() as held:
        entry = await held.enter_async_context(state.models.use(body.model))
        job = await state.submit(entry, entry.loaded.submit_chat, body.n or 1, body.messages, body.chat_settings())
        held.callback(job.cancel)
        answer = Answer(entry.name, entry.loaded, job, body)
        if body.stream:
            return sse.Stream(answer.chunks(), held.pop_all(), lambda e: sse.event(errors.body(http.url.path, e)))
        return errors.json_response(answer.whole(await job.results()))


class Answer:
    """The answers to one request, as OpenAI's API has them."""

    def __init__(self, name: str, model: edgert.Model, job: Job, body: ChatBody) -> None:
        self._model, self._job, self._body = model, job, body
        self._head = {"id": new_id("chatcmpl-"), "created": int(time.time()), "model": name}
        self._one_call = body.parallel_tool_calls is False
        self._scored = [0] * len(job.parts)  # tokens whose log-probabilities have been sent

    def whole(self, results: list[edgert.ChatCompletion]) -> dict[str, Any]:
        choices = []
        for i, result in enumerate(results):
            message = {"role": "assistant", "content": None, **result.message}
            if self._one_call and "tool_calls" in message:
                message["tool_calls"] = message["tool_calls"][:1]
            scores = None if result.logprobs is None else chat_logprobs(self._model, result.logprobs)
            choices.append({"index": i, "message": message, "logprobs": scores, "finish_reason": result.finish_reason})
        return {**self._head, "object": "chat.completion", "choices": choices, "usage": usage(results),
                "timings": timings(results[0])}  # fmt: skip

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        for i in range(len(self._job.parts)):
            yield self._chunk(i, {"role": "assistant", "content": ""})
        results: list[edgert.ChatCompletion] = []
        async for i, piece in self._job.pieces():
            if isinstance(piece, edgert.ChatCompletion):
                results.append(piece)
                yield self._chunk(i, {}, piece.finish_reason, timings=timings(piece))
            elif (change := self._delta(piece)) is not None:
                yield self._chunk(i, change)
        if self._body.stream_options is not None and self._body.stream_options.include_usage:
            head = {**self._head, "object": "chat.completion.chunk"}
            yield sse.event({**head, "choices": [], "usage": usage(results)})
        yield sse.DONE

    def _chunk(self, index: int, delta: dict[str, Any], reason: str | None = None, **more: Any) -> bytes:
        choice: dict[str, Any] = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
        if self._body.logprobs and (scores := self._job.parts[index].logprobs(self._scored[index])):
            self._scored[index] += len(scores)
            choice["logprobs"] = chat_logprobs(self._model, scores)
        return sse.event({**self._head, "object": "chat.completion.chunk", "choices": [choice], **more})

    def _delta(self, piece: Any) -> dict[str, Any] | None:
        """What a chunk says of a piece, None for nothing."""
        if self._one_call and getattr(piece, "index", 0) > 0:
            return None
        match piece:
            case edgert.ContentDelta(text):
                return {"content": text}
            case edgert.ReasoningDelta(text):
                return {"reasoning_content": text}
            case edgert.ToolCallStart(index, id, name):
                function = {"name": name, "arguments": ""}
                return {"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]}
            case edgert.ToolCallDelta(index, arguments):
                return {"tool_calls": [{"index": index, "function": {"arguments": arguments}}]}
        return None


def usage(results: list[Any]) -> dict[str, Any]:
    """Tokens of answers to one prompt, which counts once."""
    prompt, cached = results[0].usage.prompt_tokens, results[0].usage.cached_tokens
    new = sum(result.usage.completion_tokens for result in results)
    return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new,
            "prompt_tokens_details": {"cached_tokens": cached}}  # fmt: skip


def timings(result: edgert.Completion) -> dict[str, Any]:
    """llama.cpp's: tokens, milliseconds and tokens per second of the prompt and of the answer."""
    used, times = result.usage, result.timings
    return {
        "cache_n": used.cached_tokens, "prompt_n": used.prompt_tokens - used.cached_tokens,
        "prompt_ms": times.prompt_s * 1e3, "prompt_per_second": times.prompt_rate,
        "predicted_n": used.completion_tokens, "predicted_ms": times.decode_s * 1e3,
        "predicted_per_second": times.decode_rate,
    }  # fmt: skip
