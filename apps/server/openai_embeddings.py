"""OpenAI's /v1/embeddings."""

import asyncio
import base64
from typing import Annotated, Any, ClassVar, Literal

from fastapi import APIRouter, Response
from fastapi import Request as Http
from pydantic import Field

import edgert

from . import errors
from .fields import Body, Name
from .openai_completions import Ids
from .state import state_of

router = APIRouter()
MAX_INPUTS = 2048


class EmbeddingsBody(Body):
    harmless: ClassVar[frozenset[str]] = frozenset({"user"})
    model: Name | None = None
    input: (
        str
        | Annotated[list[str], Field(min_length=1, max_length=MAX_INPUTS)]
        | Ids
        | Annotated[list[Ids], Field(min_length=1, max_length=MAX_INPUTS)]
    )
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1, le=1 << 20)] | None = None
    pooling: Literal["mean", "cls", "last"] = "mean"

    def inputs(self) -> list[str | list[int]]:
        if isinstance(self.input, str) or isinstance(self.input[0], int):
            return [self.input]
        return self.input  # type: ignore[return-value]


@router.post("/v1/embeddings")
async def embeddings(http: Http, body: EmbeddingsBody) -> Response:
    """Vectors of length 1, one per text."""
    state = state_of(http)
    state.check_ready()
    async with state.models.use(body.model) as entry:
        return await asyncio.to_thread(_embed, entry.name, entry.loaded, body)


def _embed(name: str, model: edgert.Model, body: EmbeddingsBody) -> Response:
    ids = [model.tokenize(text) if isinstance(text, str) else text for text in body.inputs()]
    rows = model.embed(ids, pooling=body.pooling)
    size = len(rows[0])
    if body.dimensions not in (None, size):
        raise errors.ApiError(400, f"dimensions: this model's vectors have {size}", param="dimensions")
    data: list[dict[str, Any]] = []
    for i, row in enumerate(rows):
        value = base64.b64encode(row.astype("<f4").tobytes()).decode() if body.encoding_format == "base64" else None
        data.append({"object": "embedding", "index": i, "embedding": row.tolist() if value is None else value})
    tokens = sum(map(len, ids))
    return errors.json_response({"object": "list", "model": name, "data": data,
                                 "usage": {"prompt_tokens": tokens, "total_tokens": tokens}})  # fmt: skip
