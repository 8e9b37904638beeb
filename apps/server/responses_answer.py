"""Answers of /v1/responses: items of output, as a whole and as events."""

import time
from collections.abc import AsyncGenerator
from typing import Any

import edgert

from . import sse
from .errors import ApiError
from .state import Job, new_id


class Answer:
    """The answer to one request, as OpenAI's API has it. echoed: what it repeats of the request."""

    def __init__(self, name: str, model: edgert.Model, job: Job, echoed: dict[str, Any]) -> None:
        self._model, self._job = model, job
        self._head = {"id": new_id("resp_"), "object": "response", "created_at": int(time.time()), "model": name,
                      "error": None, **echoed}  # fmt: skip
        self._one_call = not echoed["parallel_tool_calls"]
        self._output: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None  # the item that is being made
        self._number = -1  # of the last event

    def whole(self, result: edgert.ChatCompletion) -> dict[str, Any]:
        if result.reasoning:
            self._output.append(_thoughts(result.reasoning))
        if result.text or not result.tool_calls:
            self._output.append(_message(result.text))
        for call in result.tool_calls[: 1 if self._one_call else None]:
            self._output.append(_call(call.id, call.name, call.arguments))
        for item in self._output:
            item["status"] = "completed"
        return self._response(result)

    def _response(self, result: edgert.ChatCompletion | None) -> dict[str, Any]:
        """The object of the response; in progress without a result."""
        if result is None:
            return {**self._head, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
        cut = result.finish_reason == "length"
        used = result.usage
        thought = len(self._model.tokenize(result.reasoning, add_special=False)) if result.reasoning else 0
        return {
            **self._head, "status": "incomplete" if cut else "completed", "output": self._output,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "usage": {
                "input_tokens": used.prompt_tokens, "input_tokens_details": {"cached_tokens": used.cached_tokens},
                "output_tokens": used.completion_tokens, "output_tokens_details": {"reasoning_tokens": thought},
                "total_tokens": used.prompt_tokens + used.completion_tokens,
            },
        }  # fmt: skip

    # ---- as events ----

    async def events(self) -> AsyncGenerator[bytes, None]:
        yield self._event("response.created", response=self._response(None))
        yield self._event("response.in_progress", response=self._response(None))
        async for _, piece in self._job.pieces():
            if isinstance(piece, edgert.ChatCompletion):
                if not self._output:
                    for event in self._begin(_message("")):
                        yield event
                for event in self._close():
                    yield event
                response = self._response(piece)
                yield self._event(f"response.{response['status']}", response=response)
            elif not self._one_call or getattr(piece, "index", 0) == 0:
                for event in self._piece(piece):
                    yield event

    def failed(self, error: ApiError) -> bytes:
        """The event that tells of an error."""
        told = {"code": error.code or "server_error", "message": error.message}
        response = {**self._response(None), "status": "failed", "error": told, "output": self._output}
        return self._event("response.failed", response=response)

    def _piece(self, piece: Any) -> list[bytes]:
        match piece:
            case edgert.ContentDelta(text):
                before = [] if self._is("message") else self._begin(_message(""))
                self._item["content"][0]["text"] += text
                return [*before, self._change("output_text.delta", content_index=0, delta=text, logprobs=[])]
            case edgert.ReasoningDelta(text):
                before = [] if self._is("reasoning") else self._begin(_thoughts(""))
                self._item["content"][0]["text"] += text
                return [*before, self._change("reasoning_text.delta", content_index=0, delta=text)]
            case edgert.ToolCallStart(_, id, name):
                return self._begin(_call(id, name, ""))
            case edgert.ToolCallDelta(_, text):
                self._item["arguments"] += text
                return [self._change("function_call_arguments.delta", delta=text)]
        return self._close()  # a call's end

    @property
    def _item(self) -> dict[str, Any]:
        assert self._open is not None
        return self._open

    def _is(self, kind: str) -> bool:
        return self._open is not None and self._open["type"] == kind

    def _begin(self, item: dict[str, Any]) -> list[bytes]:
        """Add an item to the output and open it."""
        events = self._close()
        self._open = item
        self._output.append(item)
        shown = {**item, "content": []} if "content" in item else dict(item)
        events.append(self._event("response.output_item.added", output_index=len(self._output) - 1, item=shown))
        if "content" in item:
            events.append(self._change("content_part.added", content_index=0, part=dict(item["content"][0])))
        return events

    def _close(self) -> list[bytes]:
        """End the open item, if there is one."""
        if self._open is None:
            return []
        item, events = self._open, []
        if item["type"] == "function_call":
            events.append(self._change("function_call_arguments.done", name=item["name"], arguments=item["arguments"]))
        else:
            part = item["content"][0]
            said = item["type"] == "message"
            kind = "output_text" if said else "reasoning_text"
            more: dict[str, Any] = {"logprobs": []} if said else {}
            events.append(self._change(f"{kind}.done", content_index=0, text=part["text"], **more))
            events.append(self._change("content_part.done", content_index=0, part=part))
        item["status"] = "completed"
        events.append(self._event("response.output_item.done", output_index=len(self._output) - 1, item=item))
        self._open = None
        return events

    def _change(self, kind: str, /, **data: Any) -> bytes:
        return self._event(f"response.{kind}", item_id=self._item["id"], output_index=len(self._output) - 1, **data)

    def _event(self, kind: str, /, **data: Any) -> bytes:
        self._number += 1
        return sse.event({"type": kind, "sequence_number": self._number, **data}, kind)


def _message(text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "message", "id": new_id("msg_"), "role": "assistant", "status": "in_progress", "content": [part]}


def _thoughts(text: str) -> dict[str, Any]:
    part = {"type": "reasoning_text", "text": text}
    return {"type": "reasoning", "id": new_id("rs_"), "status": "in_progress", "summary": [], "content": [part]}


def _call(id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"type": "function_call", "id": new_id("fc_"), "call_id": id, "name": name, "arguments": arguments,
            "status": "in_progress"}  # fmt: skip
