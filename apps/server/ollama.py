"""Ollama's /api/chat, /api/generate, /api/tags, /api/show and /api/version."""

import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from importlib.metadata import version
from typing import Annotated, Any, ClassVar, Literal

from fastapi import APIRouter, Response
from fastapi import Request as Http
from pydantic import Field

import edgert

from . import errors, sse
from .anthropic_messages import arguments
from .fields import MAX_FORM, MAX_MESSAGES, Body, Name, Sampling, Tools
from .models import Entry
from .ollama_models import shown, tag
from .openai_completions import prompt_ids
from .state import Job, State, state_of

router = APIRouter()


class OllamaOptions(Sampling):
    harmless: ClassVar[frozenset[str]] = frozenset({
        "num_thread", "num_gpu", "main_gpu", "num_batch", "num_keep", "numa", "low_vram", "use_mmap", "use_mlock",
        "f16_kv", "vocab_only", "logits_all", "penalize_newline", "embedding_only",
    })  # fmt: skip
    num_predict: Annotated[int, Field(ge=-2, le=2**31 - 1)] | None = None
    num_ctx: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None


class AskBody(Body):
    harmless: ClassVar[frozenset[str]] = frozenset({"truncate", "shift"})
    model: Name
    stream: bool = True
    format: Literal["json", ""] | dict[str, Any] | None = None
    options: OllamaOptions | None = None
    keep_alive: int | float | Annotated[str, Field(max_length=32)] | None = None
    think: bool | Literal["low", "medium", "high"] | None = None

    def settings(self, model: edgert.Model) -> dict[str, Any]:
        """As arguments of `Model.submit`."""
        options = self.options or OllamaOptions()
        if options.num_ctx is not None and options.num_ctx > model.n_ctx:
            raise errors.ApiError(400, f"options.num_ctx: {options.num_ctx} is more than the context of {model.n_ctx}; "
                                       "start the server with a larger --ctx")  # fmt: skip
        settings = options.settings()
        if options.num_predict is not None and options.num_predict > 0:
            settings["max_tokens"] = options.num_predict
        if self.format == "json":
            settings["response_format"] = {"type": "json_object"}
        elif self.format:
            if len(errors.dumps(self.format)) > MAX_FORM:
                raise errors.ApiError(400, f"format: larger than {MAX_FORM} bytes")
            settings["json_schema"] = self.format
        return settings

    def thinking(self) -> dict[str, Any]:
        if self.think is None:
            return {}
        effort = {"reasoning_effort": self.think} if isinstance(self.think, str) else {}
        return {"template_args": {"enable_thinking": bool(self.think)} | effort}


class OllamaChatBody(AskBody):
    messages: Annotated[list[dict[str, Any]], Field(max_length=MAX_MESSAGES)] | None = None
    tools: Tools | None = None

    def conversation(self) -> list[dict[str, Any]]:
        """The messages as OpenAI's API has them."""
        out = []
        for i, message in enumerate(self.messages or ()):
            if message.get("images"):
                raise errors.ApiError(400, f"messages[{i}].images: pictures are not supported")
            changed: dict[str, Any] = {
                key: message[key] for key in ("role", "content", "tool_calls", "name") if key in message
            }
            if message.get("thinking"):
                changed["reasoning_content"] = message["thinking"]
            if message.get("tool_name"):
                changed["name"] = message["tool_name"]
            out.append(changed)
        return out


class GenerateBody(AskBody):
    prompt: str = ""
    suffix: str | None = None
    system: str | None = None
    raw: bool = False
    images: Annotated[list[Any], Field(max_length=0)] | None = None
    context: Annotated[list[int], Field(max_length=0)] | None = None


class ShowBody(Body):
    model: Name | None = None
    name: Name | None = None
    verbose: bool | None = None


@router.post("/api/chat")
async def chat(http: Http, body: OllamaChatBody) -> Response:
    """Answer a conversation."""

    def submit(model: edgert.Model) -> edgert.ChatRequest:
        given = body.settings(model) | body.thinking() | ({"tools": body.tools} if body.tools else {})
        return model.submit_chat(body.conversation(), **given)

    return await sse.attended(http, _ask(http, body, submit if body.messages else None, "message"))


@router.post("/api/generate")
async def generate(http: Http, body: GenerateBody) -> Response:
    """Answer one prompt, or continue it (raw), or fill in between it and a suffix."""

    def submit(model: edgert.Model) -> edgert.ChatRequest | edgert.Request:
        if body.raw or body.suffix is not None:
            return model.submit(prompt_ids(model, body.prompt, body.suffix), **body.settings(model))
        first = [{"role": "system", "content": body.system}] if body.system else []
        messages = [*first, {"role": "user", "content": body.prompt}]
        return model.submit_chat(messages, **body.settings(model), **body.thinking())

    return await sse.attended(http, _ask(http, body, submit if body.prompt else None, "response"))


async def _ask(http: Http, body: AskBody, submit: Any, kind: str) -> Response:
    """submit: asks the model; None to load it, or to unload it. kind: the field that holds the answer."""
    state = state_of(http)
    state.check_ready()
    start = time.perf_counter()
    async with AsyncExitStack() as held:
        entry = await held.enter_async_context(state.models.use(body.model))
        if submit is None:
            reason = await _hold(state, entry, body)
            answer = {"message": {"role": "assistant", "content": ""}} if kind == "message" else {"response": ""}
            return errors.json_response({**_head(body.model), **answer, "done": True, "done_reason": reason})
        loaded = time.perf_counter()
        job = Job(state, entry, [await state.run(submit, entry.loaded)])
        held.callback(job.cancel)
        answer_of = Answer(body.model, job, kind, start, loaded)
        if body.stream:
            return sse.Stream(answer_of.lines(), held.pop_all(), _failed, "application/x-ndjson", None)
        return errors.json_response(answer_of.whole((await job.results())[0]))


async def _hold(state: State, entry: Entry, body: AskBody) -> str:
    if body.keep_alive not in (0, "0", "0s") or entry.users > 1:
        return "load"
    await state.models.unload(entry)
    return "unload"


def _failed(error: errors.ApiError) -> bytes:
    return errors.dumps({"error": error.message}) + b"\n"


def _head(model: str) -> dict[str, Any]:
    now = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
    return {"model": model, "created_at": f"{stamp}.{int(now % 1 * 1e6):06d}Z"}


class Answer:
    """The answer to one request, as Ollama's API has it."""

    def __init__(self, model: str, job: Job, kind: str, start: float, loaded: float) -> None:
        self._model, self._job, self._kind, self._start, self._loaded = model, job, kind, start, loaded

    def whole(self, result: edgert.Completion) -> dict[str, Any]:
        calls, reasoning = getattr(result, "tool_calls", []), getattr(result, "reasoning", "")
        return self._line(result.text, reasoning, [_call(c.name, c.arguments) for c in calls]) | self._end(result)

    async def lines(self) -> AsyncGenerator[bytes, None]:
        calls: list[list[str]] = []  # name and arguments of each
        async for _, piece in self._job.pieces():
            line = None
            match piece:
                case edgert.Completion():
                    line = self._line() | self._end(piece)
                case str(text) | edgert.ContentDelta(text):
                    line = self._line(text)
                case edgert.ReasoningDelta(text):
                    line = self._line("", text)
                case edgert.ToolCallStart(_, _, name):
                    calls.append([name, ""])
                case edgert.ToolCallDelta(_, text):
                    calls[-1][1] += text
                case edgert.ToolCallEnd():
                    line = self._line("", "", [_call(*calls[-1])])
            if line is not None:
                yield errors.dumps(line) + b"\n"

    def _line(self, text: str = "", thinking: str = "", calls: list[dict[str, Any]] | None = None) -> dict[str, Any]:
        thoughts = {"thinking": thinking} if thinking else {}
        if self._kind == "response":
            return {**_head(self._model), "response": text, **thoughts, "done": False}
        message = {"role": "assistant", "content": text, **thoughts, **({"tool_calls": calls} if calls else {})}
        return {**_head(self._model), "message": message, "done": False}

    def _end(self, result: edgert.Completion) -> dict[str, Any]:
        """How it ended, tokens, and times in nanoseconds."""
        used, times = result.usage, result.timings
        return {
            "done": True, "done_reason": "length" if result.finish_reason == "length" else "stop",
            "total_duration": int((time.perf_counter() - self._start) * 1e9),
            "load_duration": int((self._loaded - self._start) * 1e9),
            "prompt_eval_count": used.prompt_tokens, "prompt_eval_duration": int(times.prompt_s * 1e9),
            "eval_count": used.completion_tokens, "eval_duration": int(times.decode_s * 1e9),
        }  # fmt: skip


def _call(name: str, text: str) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": arguments(text)}}


@router.get("/api/tags")
async def tags(http: Http) -> Response:
    """The models that are offered and on this computer."""
    state = state_of(http)
    models = [await state.run(tag, entry) for entry in state.models.entries.values()]
    return errors.json_response({"models": [model for model in models if model is not None]})


@router.post("/api/show")
async def show(http: Http, body: ShowBody) -> Response:
    """What a model's file says of itself."""
    state = state_of(http)
    entry = state.models.find(body.model or body.name)
    return errors.json_response(await state.run(shown, entry, bool(body.verbose)))


@router.get("/api/version")
async def show_version() -> Response:
    """This program's version."""
    return errors.json_response({"version": version("edgert")})
