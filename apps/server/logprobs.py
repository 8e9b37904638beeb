"""Log-probabilities as OpenAI's two APIs have them."""

from collections.abc import Sequence
from typing import Any

import edgert

LEAST = -9999.0  # instead of minus infinity, which JSON has not


def token_text(model: edgert.Model, token: int) -> str:
    return model.token_bytes(token).decode("utf-8", "replace")


def chat_logprobs(model: edgert.Model, scores: Sequence[edgert.TokenLogprob]) -> dict[str, Any]:
    """Of chat completions: `logprobs` of a choice."""

    def one(token: int, logprob: float) -> dict[str, Any]:
        raw = model.token_bytes(token)
        return {"token": raw.decode("utf-8", "replace"), "logprob": max(logprob, LEAST), "bytes": list(raw)}

    content = [{**one(s.token, s.logprob), "top_logprobs": [one(*top) for top in s.top]} for s in scores]
    return {"content": content, "refusal": None}


def text_logprobs(model: edgert.Model, ids: Sequence[int], scores: Sequence[edgert.TokenLogprob | None],
                  offset: int = 0) -> dict[str, Any]:  # fmt: skip
    """Of completions: `logprobs` of a choice. scores: of each of ids, None for the first of a prompt.

    offset: characters of the text before these tokens.
    """
    tokens = [token_text(model, token) for token in ids]
    offsets, at = [], offset
    for text in tokens:
        offsets.append(at)
        at += len(text)
    return {
        "tokens": tokens,
        "token_logprobs": [None if s is None else max(s.logprob, LEAST) for s in scores],
        "top_logprobs": [None if s is None else _top(model, s) for s in scores],
        "text_offset": offsets,
    }


def _top(model: edgert.Model, score: edgert.TokenLogprob) -> dict[str, float]:
    """Alternatives by their texts; of several tokens with one text the likeliest counts."""
    out: dict[str, float] = {}
    for token, logprob in score.top:
        out.setdefault(token_text(model, token), max(logprob, LEAST))
    return out
