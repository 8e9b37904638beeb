"""OpenAI's other routes by its own client: completions, responses, embeddings; and the server's own routes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

import edgert
from serving import Server

PROMPT = "The capital of France is"
TOOL = {
    "type": "function", "name": "get_weather", "description": "The weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}  # fmt: skip


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as made:
        yield made


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> Iterator[edgert.Model]:
    with edgert.load(smollm2_path) as loaded:
        yield loaded


def test_completions(client: openai.OpenAI, model: edgert.Model) -> None:
    """Text and ids go on alike, whole and streamed, one and several."""
    ids = model.tokenize(PROMPT)
    expected = model.generate(ids, max_tokens=8, temperature=0).text
    settings: dict[str, Any] = {"model": "smollm2", "max_tokens": 8, "temperature": 0}
    for prompt in (PROMPT, ids, [PROMPT, PROMPT], [ids]):
        answer = client.completions.create(prompt=prompt, **settings)  # type: ignore[arg-type]
        assert {choice.text for choice in answer.choices} == {expected}
        assert len(answer.choices) == (2 if isinstance(prompt[0], str) and isinstance(prompt, list) else 1)
    pieces = [chunk.choices[0].text for chunk in client.completions.create(prompt=PROMPT, stream=True, **settings)]
    assert "".join(pieces) == expected
    assert len(pieces) > 3
    assert len(client.completions.create(model="smollm2", prompt=PROMPT, seed=1).choices[0].text) > 4


def test_echo_and_logprobs(client: openai.OpenAI, model: edgert.Model) -> None:
    """With max_tokens 0, as scoring programs ask: the log-probabilities of the prompt, from the library's logits."""
    ids = model.tokenize(PROMPT)
    rows = model.logits(ids).astype(np.float64)
    table = rows - np.logaddexp.reduce(rows, axis=1, keepdims=True)
    for tokens in (0, 2):
        choice = client.completions.create(
            model="smollm2", prompt=PROMPT, max_tokens=tokens, echo=True, logprobs=2, temperature=0
        ).choices[0]
        assert choice.text.startswith(PROMPT)
        assert (choice.text == PROMPT) == (tokens == 0)
        scores = choice.logprobs
        assert scores
        assert scores.tokens is not None
        assert scores.token_logprobs is not None
        assert scores.text_offset is not None
        assert "".join(scores.tokens) == choice.text
        assert len(scores.tokens) == len(scores.token_logprobs) == len(ids) + tokens
        assert scores.token_logprobs[0] is None
        expected = [table[i, token] for i, token in enumerate(ids[1:])]
        assert scores.token_logprobs[1 : len(ids)] == pytest.approx(expected, abs=0.02)
        for text, offset in zip(scores.tokens, scores.text_offset, strict=True):
            assert choice.text[offset : offset + len(text)] == text


def test_suffix(client: openai.OpenAI) -> None:
    """SmolLM2 has tokens for filling in: what comes depends on the suffix; a prompt of ids cannot have one."""
    settings: dict[str, Any] = {"model": "smollm2", "max_tokens": 8, "temperature": 0}
    try:
        texts = [
            client.completions.create(prompt="def add(a, b):\n", suffix=suffix, **settings).choices[0].text
            for suffix in ("\nprint(add(1, 2))", "\nclass A:")
        ]
    except openai.BadRequestError as error:
        assert "no tokens for filling in" in str(error)  # noqa: PT017
    else:
        assert all(texts)
    with pytest.raises(openai.BadRequestError, match="suffix"):
        client.completions.create(prompt=[1, 2, 3], suffix="x", **settings)


def test_embeddings(client: openai.OpenAI, model: edgert.Model) -> None:
    """The library's vectors, in both encodings; near for near texts."""
    texts = ["a cat sat on the mat", "a cat is sitting on a mat", "stock markets fell sharply"]
    expected = model.embed(texts)
    for encoding in ("float", "base64"):
        answer = client.with_raw_response.embeddings.create(model="smollm2", input=texts, encoding_format=encoding)  # type: ignore[call-overload]
        rows = [entry.embedding for entry in answer.parse().data]
        if isinstance(rows[0], str):
            import base64

            rows = [np.frombuffer(base64.b64decode(row), "<f4") for row in rows]
        np.testing.assert_allclose(np.array(rows), np.array(expected), atol=2e-3)
    usual = client.embeddings.create(model="smollm2", input=texts[0])
    assert len(usual.data[0].embedding) == len(expected[0])
    assert usual.usage.prompt_tokens == len(model.tokenize(texts[0]))
    with pytest.raises(openai.BadRequestError, match="vectors have 576"):
        client.embeddings.create(model="smollm2", input="x", dimensions=3)


def test_responses(client: openai.OpenAI, model: edgert.Model, ask: list[Any]) -> None:
    """Whole and streamed; instructions are the system's message; the answer may come back in the input."""
    talk = [{"role": "system", "content": "Be brief."}, *ask]
    expected = model.chat(talk, max_tokens=16, temperature=0)
    settings: dict[str, Any] = {"model": "smollm2", "temperature": 0, "max_output_tokens": 16}
    answer = client.responses.create(input=ask[0]["content"], instructions="Be brief.", **settings)
    assert answer.output_text == expected.text
    assert answer.status == ("incomplete" if expected.finish_reason == "length" else "completed")
    assert answer.usage
    assert answer.usage.output_tokens == len(expected.ids)
    with client.responses.stream(input=ask, instructions="Be brief.", **settings) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == expected.text
    assert final.output_text == expected.text
    assert [event.sequence_number for event in events] == sorted({event.sequence_number for event in events})
    items = [*ask, *[item.model_dump(exclude_none=True) for item in answer.output], *ask]
    assert client.responses.create(input=items, **settings).output_text
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        client.responses.create(input="x", model="smollm2", previous_response_id="resp_1")


def test_responses_with_tools_and_forms(client: openai.OpenAI, ask: list[Any]) -> None:
    """A forced call, whole and streamed, its result in the next input; a JSON schema."""
    settings: dict[str, Any] = {"model": "smollm2", "temperature": 0, "tools": [TOOL], "max_output_tokens": 60}
    call = client.responses.create(input=ask, tool_choice="required", **settings).output[0]
    assert call.type == "function_call"
    assert call.name == "get_weather"
    with client.responses.stream(input=ask, tool_choice="required", **settings) as stream:
        streamed = stream.get_final_response().output[0]
    assert streamed.type == "function_call"
    assert json.loads(streamed.arguments) == json.loads(call.arguments)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    items = [*ask, call.model_dump(exclude_none=True), result]
    assert client.responses.create(input=items, tool_choice="none", **settings).output_text
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 99}}, "required": ["n"],
              "additionalProperties": False}  # fmt: skip
    form = {"format": {"type": "json_schema", "name": "n", "schema": schema}}
    answer = client.responses.create(model="smollm2", input="How many?", text=form, temperature=0)
    assert isinstance(json.loads(answer.output_text)["n"], int)


def test_own_routes(server: Server, model: edgert.Model, ask: list[Any]) -> None:
    """Tokens and the template, as the library has them."""
    ids = server.post("/tokenize", {"content": PROMPT}).json()["tokens"]
    assert ids == model.tokenize(PROMPT, add_special=False)
    assert server.post("/detokenize", {"tokens": ids}).json() == {"content": PROMPT}
    pieces = server.post("/tokenize", {"content": "é 🙂", "with_pieces": True}).json()["tokens"]
    assert (
        b"".join(p.encode() if isinstance(p, str) else bytes(p) for p in (x["piece"] for x in pieces))
        == "é 🙂".encode()
    )
    text, prompt = model.chat_prompt(ask)
    assert server.post("/apply-template", {"messages": ask}).json() == {"prompt": text, "tokens": len(prompt)}
    assert server.post("/detokenize", {"tokens": [10**6]}).status_code == 400


def test_metrics(server: Server, ask: list[Any]) -> None:
    """What Prometheus reads: an answer more, its tokens, its times."""
    names = ("edgert_requests_total", "edgert_engine_generated_tokens_total",
             "edgert_time_to_first_token_seconds_count", "edgert_time_per_output_token_seconds_count")  # fmt: skip
    before = [server.metric(name) for name in names]
    used = server.post("/v1/chat/completions", {"messages": ask, "max_tokens": 5, "ignore_eos": True}).json()["usage"]
    assert [server.metric(name) - value for name, value in zip(names, before, strict=True)] == [1, 5, 1, 1]
    assert used["completion_tokens"] == 5
    text = server.get("/metrics").text
    for name in ("prefix_hits_total", "prefix_misses_total", "pages_used", "running", "waiting", "steps_total"):
        assert f"\nedgert_engine_{name}{{" in text
