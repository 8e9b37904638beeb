"""Routes of no foreign API: health, metrics, tokens, the chat template, and OpenAI's list of models."""

from typing import Annotated, Any, ClassVar, Literal

from fastapi import APIRouter, Response
from fastapi import Request as Http
from pydantic import Field
from starlette.exceptions import HTTPException

import edgert

from .errors import json_response
from .fields import Args, Body, Messages, Name, Tools, limited
from .models import Entry
from .state import state_of

router = APIRouter()


class TokenizeBody(Body):
    harmless: ClassVar[frozenset[str]] = frozenset({"with_pieces_details"})
    model: Name | None = None
    content: str
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeBody(Body):
    model: Name | None = None
    tokens: Annotated[list[Annotated[int, Field(ge=0, le=2**31 - 1)]], Field(max_length=1 << 20)]


class TemplateBody(Body):
    model: Name | None = None
    messages: Messages
    tools: Tools | None = None
    tool_choice: Literal["auto", "none", "required"] | dict[str, Any] | None = None
    chat_template_kwargs: Args | None = None


@router.get("/health")
async def health(http: Http) -> Response:
    """200 when the server can answer at once, 503 while it loads or shuts down."""
    state = state_of(http)
    status = "shutting down" if state.draining else "ok" if state.ready else "loading"
    return json_response({"status": status}, 200 if status == "ok" else 503)


@router.get("/metrics")
async def metrics(http: Http) -> Response:
    """What Prometheus reads."""
    return Response(state_of(http).metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


@router.post("/tokenize")
async def tokenize(http: Http, body: TokenizeBody) -> Response:
    """Text to token ids."""
    state = state_of(http)
    state.check_ready()
    async with state.models.use(body.model) as entry:
        model = entry.loaded

        def call() -> list[Any]:
            ids = model.tokenize(body.content, add_special=body.add_special, parse_special=body.parse_special)
            return [{"id": i, "piece": _piece(model.token_bytes(i))} for i in ids] if body.with_pieces else ids

        return json_response({"tokens": await state.run(call)})


def _piece(raw: bytes) -> str | list[int]:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)


@router.post("/detokenize")
async def detokenize(http: Http, body: DetokenizeBody) -> Response:
    """Token ids to text."""
    state = state_of(http)
    state.check_ready()
    async with state.models.use(body.model) as entry:
        return json_response({"content": await state.run(entry.loaded.detokenize, body.tokens)})


@router.post("/apply-template")
async def apply_template(http: Http, body: TemplateBody) -> Response:
    """The prompt that a conversation becomes."""
    state = state_of(http)
    state.check_ready()
    async with state.models.use(body.model) as entry:
        args = limited("chat_template_kwargs", body.chat_template_kwargs or {}, 16 << 10)
        given = body.given("tools", "tool_choice") | {"template_args": args}
        text, ids = await state.run(entry.loaded.chat_prompt, body.messages, **given)
        return json_response({"prompt": text, "tokens": len(ids)})


@router.get("/v1/models")
async def models(http: Http) -> Response:
    """The models that are offered, loaded or not."""
    state = state_of(http)
    data = [await state.run(_card, entry) for entry in state.models.entries.values()]
    return json_response({"object": "list", "data": data, "has_more": False})


@router.get("/v1/models/{name:path}")
async def model(http: Http, name: str) -> Response:
    """One of them."""
    state = state_of(http)
    return json_response(await state.run(_card, state.models.find(name)))


@router.get("/favicon.ico")
async def no_icon() -> Response:
    """Browsers ask for it."""
    raise HTTPException(404, "there is no icon")


def _card(entry: Entry) -> dict[str, Any]:
    """As OpenAI's API has it, with what Anthropic's has beside."""
    path = entry.path()
    created = int(path.stat().st_mtime) if path else 0
    card: dict[str, Any] = {"id": entry.name, "object": "model", "type": "model", "display_name": entry.name,
                            "created": created, "owned_by": "edgert", "loaded": entry.model is not None}  # fmt: skip
    if isinstance(entry.model, edgert.Model):
        card["meta"] = {"n_ctx": entry.model.n_ctx, "n_vocab": entry.model.n_vocab}
    return card
