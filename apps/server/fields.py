"""What bodies of requests have in common: strict types, ranges, and no field that is silently left out."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from .errors import ApiError, UnknownField

MAX_FORM = 64 << 10  # characters of a schema or grammar
MAX_REGEX = 4 << 10
MAX_MESSAGES = 4096
MAX_ANSWERS = 16

Name = Annotated[str, Field(max_length=512)]
Messages = Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MAX_MESSAGES)]
Tools = Annotated[list[dict[str, Any]], Field(max_length=256)]
Stop = Annotated[str, Field(min_length=1, max_length=1024)]
Stops = Annotated[list[Stop], Field(max_length=16)]
Bias = Annotated[float, Field(ge=-100, le=100)]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
Last = Annotated[int, Field(ge=-1, le=2**31 - 1)]
Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(ge=0, le=100)]
Signed = Annotated[float, Field(ge=-2, le=2)]
Args = Annotated[dict[str, Any], Field(max_length=64)]


class Body(BaseModel):
    """harmless: fields that clients send and that do not change the answer here. Any other unknown one is refused."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)
    harmless: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="after")
    def _known(self) -> "Body":
        for name, value in (self.model_extra or {}).items():
            if name not in self.harmless and value is not None:
                raise UnknownField(name[:200])
        return self

    def given(self, *names: str) -> dict[str, Any]:
        """Those of these fields that have a value."""
        return {name: value for name in names if (value := getattr(self, name)) is not None}


class Sampling(Body):
    """How tokens are chosen: OpenAI's fields and llama.cpp's further ones, by their names."""

    temperature: Positive | None = None
    top_p: Share | None = None
    top_k: Last | None = None
    min_p: Share | None = None
    typical_p: Share | None = None
    top_n_sigma: Annotated[float, Field(ge=-1, le=1000)] | None = None
    presence_penalty: Signed | None = None
    frequency_penalty: Signed | None = None
    repeat_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    repeat_last_n: Last | None = None
    dry_multiplier: Positive | None = None
    dry_base: Annotated[float, Field(ge=1, le=100)] | None = None
    dry_allowed_length: Count | None = None
    dry_penalty_last_n: Last | None = None
    dry_sequence_breakers: Stops | None = None
    xtc_probability: Share | None = None
    xtc_threshold: Share | None = None
    dynatemp_range: Positive | None = None
    dynatemp_exponent: Positive | None = None
    mirostat: Annotated[int, Field(ge=0, le=2)] | None = None
    mirostat_tau: Positive | None = None
    mirostat_eta: Positive | None = None
    samplers: Stops | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    logit_bias: Annotated[dict[str, Bias], Field(max_length=1024)] | None = None
    stop: Stop | Stops | None = None
    ignore_eos: bool | None = None
    context: Literal["error", "shift", "truncate_middle"] | None = None
    priority: Annotated[int, Field(ge=-100, le=100)] | None = None
    grammar: Annotated[str, Field(max_length=MAX_FORM)] | None = None
    regex: Annotated[str, Field(max_length=MAX_REGEX)] | None = None
    choices: Annotated[list[Stop], Field(min_length=1, max_length=1000)] | None = None
    json_schema: dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None

    def settings(self) -> dict[str, Any]:
        """As arguments of `Model.submit`."""
        settings = self.given(*SAME)
        if self.top_k is not None:
            settings["top_k"] = max(0, self.top_k)
        if self.repeat_last_n is not None:
            settings["penalty_last_n"] = self.repeat_last_n
        if self.seed is not None:
            settings["seed"] = self.seed % 2**64
        if self.logit_bias:
            settings["logit_bias"] = {_token(key): value for key, value in self.logit_bias.items()}
        for name in ("json_schema", "response_format"):
            if name in settings:
                limited(name, settings[name])
        return settings


SAME = tuple(set(Sampling.model_fields) - {"top_k", "repeat_last_n", "seed", "logit_bias"})


def _token(key: str) -> int:
    if not key.isascii() or not key.isdecimal() or len(key) > 9:
        raise ApiError(400, f"logit_bias: {key[:50]!r} is not a token id", param="logit_bias")
    return int(key)


def limited(name: str, value: Mapping[str, Any], limit: int = MAX_FORM) -> Mapping[str, Any]:
    """A JSON object, refused if it is too large."""
    try:
        size = len(json.dumps(value))
    except RecursionError:
        size = limit + 1
    if size > limit:
        raise ApiError(400, f"{name}: it is larger than {limit} bytes or nested too deeply", param=name)
    return value
