"""Errors of requests, each in the form of the API that was asked: OpenAI's, Anthropic's or Ollama's."""

import json
from typing import Any

from fastapi import Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

import edgert

CODES = {
    400: ("invalid_request_error", "invalid_request_error"),
    401: ("invalid_request_error", "authentication_error"),
    403: ("invalid_request_error", "permission_error"),
    404: ("invalid_request_error", "not_found_error"),
    413: ("invalid_request_error", "request_too_large"),
    429: ("rate_limit_error", "rate_limit_error"),
    503: ("server_error", "overloaded_error"),
}  # status: (OpenAI's type, Anthropic's type)
RETRY_S = 2


class ApiError(Exception):
    """What a client is told: an HTTP status and one line. param: the field of the request that is wrong."""

    def __init__(self, status: int, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, " ".join(message.split()), code, param

    @property
    def headers(self) -> dict[str, str]:
        if self.status in (429, 503):
            return {"retry-after": str(RETRY_S)}
        return {"www-authenticate": "Bearer"} if self.status == 401 else {}


class UnknownField(ValueError):
    """A field of a request that would change the answer and is not supported."""

    def __init__(self, field: str) -> None:
        super().__init__(field)
        self.field = field


def api_error(error: Exception) -> ApiError:
    """What to tell of an error that came while a request was checked or prepared."""
    match error:
        case ApiError():
            return error
        case edgert.EngineBusy():
            return ApiError(429, str(error), code="engine_busy")
        case edgert.ContextLengthError():
            return ApiError(400, str(error), code="context_length_exceeded", param="messages")
        case edgert.EdgertError() | edgert.FormatError():
            return ApiError(400, str(error), param=_param(str(error)))
        case RequestValidationError():
            return _validation(error)
        case HTTPException():
            return ApiError(error.status_code, str(error.detail))
        case _:
            return ApiError(500, "internal error; the server's log has the details")


def _param(message: str) -> str | None:
    """`messages[0].role: missing` is about the field before the colon."""
    name, colon, _ = message.partition(": ")
    return name if colon and " " not in name else None


def _validation(error: RequestValidationError) -> ApiError:
    first = error.errors()[0]
    place = [str(part) for part in first["loc"] if part not in ("body", "query", "path")]
    wrong = first.get("ctx", {}).get("error")
    if isinstance(wrong, UnknownField):
        return ApiError(400, f"{'.'.join([*place, wrong.field])}: this field is not supported here", param=wrong.field)
    if first["type"] == "json_invalid" or not place:
        return ApiError(400, f"the body is not a JSON object as this route takes it: {first['msg']}")
    return ApiError(400, f"{'.'.join(place)}: {first['msg']}", param=place[0])


def body(path: str, error: ApiError) -> dict[str, Any]:
    """The error as the API of this path has it."""
    openai, anthropic = CODES.get(error.status, CODES[400] if error.status < 500 else ("server_error", "api_error"))
    if path.startswith("/v1/messages"):
        return {"type": "error", "error": {"type": anthropic, "message": error.message}}
    if path.startswith("/api/"):
        return {"error": error.message}
    return {"error": {"message": error.message, "type": openai, "param": error.param, "code": error.code}}


def response(path: str, error: ApiError) -> Response:
    return json_response(body(path, error), error.status, error.headers)


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(dumps(value), status, headers, "application/json")


def dumps(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
