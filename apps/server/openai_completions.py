"""OpenAI's /v1/completions: text that goes on, with the prompt's own log-probabilities if wanted."""

import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import Annotated, Any, ClassVar

from fastapi import APIRouter, Response
from fastapi import Request as Http
from pydantic import Field

import edgert

from . import errors, sse
from .fields import MAX_ANSWERS, Name, Sampling
from .logprobs import text_logprobs
from .openai_chat import IGNORED, StreamOptions, timings
from .state import Job, new_id, several, state_of

router = APIRouter()
Ids = Annotated[list[Annotated[int, Field(ge=0, le=2**31 - 1)]], Field(min_length=1, max_length=1 << 20)]
Prompts = str | Annotated[list[str], Field(min_length=1, max_length=64)] | Ids
USUAL_TOKENS = 16  # OpenAI's


class CompletionBody(Sampling):
    harmless: ClassVar[frozenset[str]] = IGNORED
    model: Name | None = None
    prompt: Prompts | Annotated[list[Ids], Field(min_length=1, max_length=64)]
    suffix: str | None = None
    max_tokens: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_ANSWERS)] | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_ANSWERS)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    def prompts(self) -> list[str | list[int]]:
        if isinstance(self.prompt, str) or isinstance(self.prompt[0], int):
            return [self.prompt]
        return self.prompt  # type: ignore[return-value]

    def check(self) -> None:
        """ApiError for fields that do not go together."""
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise errors.ApiError(400, "best_of: only the value of n is supported", param="best_of")
        if self.max_tokens == 0 and not self.echo:
            raise errors.ApiError(400, "max_tokens: 0 needs echo", param="max_tokens")
        if self.suffix is not None and self.echo:
            raise errors.ApiError(400, "suffix: it cannot be had with echo", param="suffix")
        if len(self.prompts()) * (self.n or 1) > 64:
            raise errors.ApiError(400, "prompt: more than 64 answers at once", param="prompt")


@router.post("/v1/completions")
async def completions(http: Http, body: CompletionBody) -> Response:
    """Continue a text, or fill in between it and a suffix."""
    return await sse.attended(http, _complete(http, body))


async def _complete(http: Http, body: CompletionBody) -> Response:
    state = state_of(http)
    state.check_ready()
    body.check()
    async with AsyncExitStack() as held:
        entry = await held.enter_async_context(state.models.use(body.model))
        model = entry.loaded
        settings = body.settings()
        settings["max_tokens"] = USUAL_TOKENS if body.max_tokens is None else max(1, body.max_tokens)
        if body.logprobs is not None:
            settings |= {"logprobs": body.logprobs} | ({"prompt_logprobs": body.logprobs} if body.echo else {})

        def submit() -> list[tuple[list[int], edgert.Request]]:
            out = []
            for prompt in body.prompts():
                ids = prompt_ids(model, prompt, body.suffix)
                out += [(ids, model.submit(ids, **one)) for one in several(body.n or 1, settings)]
            return out

        parts = await state.run(submit)
        job = Job(state, entry, [request for _, request in parts])
        held.callback(job.cancel)
        answer = Answer(entry.name, model, job, [ids for ids, _ in parts], body)
        if body.stream:
            return sse.Stream(answer.chunks(), held.pop_all(), lambda e: sse.event(errors.body(http.url.path, e)))
        return errors.json_response(answer.whole(await job.results()))


def prompt_ids(model: edgert.Model, prompt: str | list[int], suffix: str | None) -> list[int]:
    """Token ids of a prompt; between it and a suffix in the order prefix, suffix, middle."""
    if isinstance(prompt, list):
        if suffix is not None:
            raise errors.ApiError(400, "suffix: the prompt must be text then", param="suffix")
        return prompt
    if suffix is None:
        return model.tokenize(prompt, parse_special=True)
    marks = [model.tokenizer.vocab.ids[role] for role in ("fim_pre", "fim_suf", "fim_mid")]
    if min(marks) < 0:
        raise errors.ApiError(400, "suffix: this model has no tokens for filling in", param="suffix")
    pre, suf, mid = marks
    plain = [model.tokenize(text, add_special=False) for text in (prompt, suffix)]
    bos = model.tokenize("", add_special=True)
    return [*bos[:1], pre, *plain[0], suf, *plain[1], mid]


class Answer:
    """The answers to one request, as OpenAI's API has them."""

    def __init__(self, name: str, model: edgert.Model, job: Job, ids: list[list[int]], body: CompletionBody) -> None:
        """ids: of the prompt of each answer."""
        self._model, self._job, self._ids, self._body = model, job, ids, body
        self._head = {"id": new_id("cmpl-"), "object": "text_completion", "created": int(time.time()), "model": name}

    def whole(self, results: list[edgert.Completion]) -> dict[str, Any]:
        choices = []
        for i, result in enumerate(results):
            text = self._echoed(i) + ("" if self._body.max_tokens == 0 else result.text)
            choices.append({"index": i, "text": text, "logprobs": self._scores(i, result),
                            "finish_reason": result.finish_reason})  # fmt: skip
        return {**self._head, "choices": choices, "usage": self._usage(results), "timings": timings(results[0])}

    def _echoed(self, index: int) -> str:
        """The prompt, if it is wanted."""
        if not self._body.echo:
            return ""
        prompt = self._body.prompts()[index // (self._body.n or 1)]
        return prompt if isinstance(prompt, str) else self._model.detokenize(prompt)

    def _scores(self, index: int, result: edgert.Completion) -> dict[str, Any] | None:
        if result.logprobs is None:
            return None
        new = 0 if self._body.max_tokens == 0 else len(result.logprobs)
        before = self._ids[index] if result.prompt_logprobs is not None else []
        ids = [*before, *(score.token for score in result.logprobs[:new])]
        return text_logprobs(self._model, ids, [*(result.prompt_logprobs or []), *result.logprobs[:new]])

    def _usage(self, results: list[edgert.Completion]) -> dict[str, Any]:
        prompts = results[:: self._body.n or 1]
        prompt = sum(result.usage.prompt_tokens for result in prompts)
        new = 0 if self._body.max_tokens == 0 else sum(result.usage.completion_tokens for result in results)
        cached = sum(result.usage.cached_tokens for result in prompts)
        return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new,
                "prompt_tokens_details": {"cached_tokens": cached}}  # fmt: skip

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Pieces of text; log-probabilities of all tokens come with the end of each answer."""
        results: dict[int, edgert.Completion] = {}
        for i in range(len(self._job.parts)):
            if text := self._echoed(i):
                yield self._chunk(i, text)
        async for i, piece in self._job.pieces():
            if isinstance(piece, edgert.Completion):
                results[i] = piece
                yield self._chunk(i, "", piece.finish_reason, self._scores(i, piece), timings=timings(piece))
            elif self._body.max_tokens != 0:
                yield self._chunk(i, piece)
        if self._body.stream_options is not None and self._body.stream_options.include_usage:
            usage = self._usage([results[i] for i in sorted(results)])
            yield sse.event({**self._head, "choices": [], "usage": usage})
        yield sse.DONE

    def _chunk(self, index: int, text: str, reason: str | None = None, scores: dict[str, Any] | None = None,
               **more: Any) -> bytes:  # fmt: skip
        choice = {"index": index, "text": text, "logprobs": scores, "finish_reason": reason}
        return sse.event({**self._head, "choices": [choice], **more})
