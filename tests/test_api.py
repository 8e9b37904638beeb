"""The public API on SmolLM2: what the calls return, how they stop, and how they fail."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import edgert

PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> Iterator[edgert.Model]:
    """One loaded model for the whole file."""
    with edgert.load(smollm2_path, n_ctx=512) as loaded:
        yield loaded


def test_tokens(model: edgert.Model) -> None:
    """Text to ids and back, with special tokens parsed or taken as text."""
    ids = model.tokenize(PROMPT)
    assert model.detokenize(ids) == PROMPT
    assert b"".join(model.token_bytes(i) for i in ids) == PROMPT.encode()
    assert len(model.tokenize("<|im_start|>", parse_special=True)) == 1
    assert len(model.tokenize("<|im_start|>", parse_special=False)) > 1


def test_tokenizer_alone(smollm2_path: Path, model: edgert.Model) -> None:
    """load_tokenizer gives the model's tokenizer and chat template."""
    tokenizer = edgert.load_tokenizer(smollm2_path)
    assert tokenizer.tokenize(PROMPT) == model.tokenize(PROMPT)
    assert tokenizer.detokenize(tokenizer.tokenize(PROMPT)) == PROMPT
    assert tokenizer.token_bytes(504) == model.token_bytes(504)
    messages = [{"role": "user", "content": "Hello"}]
    assert "<|im_start|>user\nHello<|im_end|>" in tokenizer.chat_template.render(messages)


def test_logits(model: edgert.Model) -> None:
    """float32 [tokens, vocabulary], where row i depends on the tokens up to i only."""
    ids = model.tokenize("The capital of France is Paris, and the capital of Italy is Rome.")
    logits = model.logits(ids)
    assert logits.dtype == np.float32
    assert logits.shape == (len(ids), 49152)
    np.testing.assert_array_equal(model.logits(ids[:5]), logits[:5])
    assert model.detokenize([int(logits[4].argmax())]) == " Paris"


def test_generate(model: edgert.Model) -> None:
    """Greedy text, its ids and the counts agree with one another; ids as prompt give the same."""
    answer = model.generate(PROMPT, max_tokens=8, temperature=0)
    assert answer.text.startswith(" Paris")
    assert model.detokenize(answer.ids) == answer.text
    assert answer.finish_reason == "length"
    assert len(answer.ids) == 8
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 8)
    assert answer.timings.decode_rate > 0
    assert model.generate(model.tokenize(PROMPT), max_tokens=8, temperature=0).ids == answer.ids


def test_stop_strings(model: edgert.Model) -> None:
    """Text ends before the first stop string, also where it spans tokens."""
    whole = model.generate(PROMPT, max_tokens=24, temperature=0).text
    stop = whole[9:14]
    answer = model.generate(PROMPT, max_tokens=24, temperature=0, stop=[stop, "never seen"])
    assert answer.text == whole[: whole.index(stop)]
    assert answer.finish_reason == "stop"
    pieces = "".join(model.stream(PROMPT, max_tokens=24, temperature=0, stop=[stop]))
    assert pieces == answer.text


def test_chat_ends_by_itself(model: edgert.Model) -> None:
    """An end-of-turn token ends the answer, and is not part of the text."""
    answer = model.chat([{"role": "user", "content": "Reply with the word yes."}], max_tokens=200, temperature=0)
    assert answer.finish_reason == "stop"
    assert answer.text
    assert "<|im_end|>" not in answer.text


def test_chat_streams_the_same_text(model: edgert.Model) -> None:
    """chat(stream=True) yields the text that chat returns."""
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    whole = model.chat(messages, max_tokens=24, temperature=0)
    assert "".join(model.chat(messages, max_tokens=24, temperature=0, stream=True)) == whole.text


def test_stream(model: edgert.Model) -> None:
    """Pieces join to the text of generate."""
    options = {"max_tokens": 16, "temperature": 0}
    pieces = list(model.stream(PROMPT, **options))
    assert len(pieces) > 3
    assert "".join(pieces) == model.generate(PROMPT, **options).text


def test_stream_never_splits_a_character(model: edgert.Model) -> None:
    """An emoji of several byte tokens arrives whole: no piece has a replacement character."""
    prompt = "Repeat exactly: 🦜🧭🪁🦜🧭🪁🦜🧭🪁🦜🧭🪁 🦜🧭🪁🦜🧭🪁"
    pieces = list(model.stream(prompt, max_tokens=40, temperature=0))
    assert any(ord(char) > 0xFFFF for char in "".join(pieces)), "the model wrote no emoji, so this test shows nothing"
    assert "\ufffd" not in "".join(pieces[:-1])


def test_closing_a_stream_stops_the_work(model: edgert.Model) -> None:
    """After close() the next call starts at once and gives what it gives on its own."""
    expected = model.generate(PROMPT, max_tokens=8, temperature=0).ids
    stream = model.stream("Once upon a time", max_tokens=400, temperature=0)
    assert next(iter(stream))
    stream.close()
    answer = model.generate(PROMPT, max_tokens=8, temperature=0)
    assert answer.ids == expected


def test_seeds(model: edgert.Model) -> None:
    """The same seed gives the same text, and other seeds give others."""
    options = {"max_tokens": 24, "temperature": 1.0}
    texts = [model.generate("Once upon a time, in a", seed=seed, **options).text for seed in (1, 1, 2, 3)]
    assert texts[0] == texts[1]
    assert len(set(texts)) == 3


def test_calls_from_several_threads(model: edgert.Model) -> None:
    """Calls queue: each thread gets its own prompt's answer."""
    prompts = [f"{city} is the capital of" for city in ("Paris", "Rome", "Berlin", "Madrid")]
    expected = [model.generate(prompt, max_tokens=12, temperature=0).ids for prompt in prompts]
    answers: dict[int, list[int]] = {}

    def ask(i: int) -> None:
        answers[i] = model.generate(prompts[i], max_tokens=12, temperature=0).ids

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answers[i] for i in range(len(prompts))] == expected


def test_reused_prefix_changes_nothing(smollm2_path: Path) -> None:
    """A second turn gives the same answer whether the first one's KV is still there or not."""
    turn = [{"role": "user", "content": "Name a colour."}]
    with edgert.load(smollm2_path, n_ctx=512) as warm:
        first = warm.chat(turn, max_tokens=16, temperature=0).text
        conversation = [*turn, {"role": "assistant", "content": first}, {"role": "user", "content": "Another one?"}]
        reused = warm.chat(conversation, max_tokens=16, temperature=0)
    with edgert.load(smollm2_path, n_ctx=512) as cold:
        fresh = cold.chat(conversation, max_tokens=16, temperature=0)
    assert reused.usage.cached_tokens > 0
    assert fresh.usage.cached_tokens == 0
    assert reused.ids == fresh.ids


def test_context_length(model: edgert.Model) -> None:
    """A prompt beyond the context is an error with both counts."""
    with pytest.raises(edgert.ContextLengthError, match=r"600.*512|512.*600"):
        model.generate([504] * 600, max_tokens=4)


def test_bad_tokens(model: edgert.Model) -> None:
    """An id that the vocabulary does not have is named, and nothing reads beyond the embedding."""
    for bad in (-1, 49152):
        with pytest.raises(edgert.EdgertError, match=str(bad)):
            model.logits([1, bad])


@pytest.mark.parametrize("prompt", [[1.5], ["1"], b"hi", None, 5, [[1, 2]]])
def test_prompts_that_are_neither_text_nor_ids(model: edgert.Model, prompt: Any) -> None:
    with pytest.raises(edgert.EdgertError, match="token ids"):
        model.generate(prompt, max_tokens=1)


def test_unknown_model() -> None:
    """A name that is neither known nor a file is said to be so."""
    with pytest.raises(edgert.ModelNotFoundError, match="no-such-model"):
        edgert.load("no-such-model")


def test_close_gives_memory_back(smollm2_path: Path) -> None:
    """close() may be called twice, later calls fail, and loading again and again does not grow the process."""
    sizes = []
    for _ in range(4):
        loaded = edgert.load(smollm2_path, n_ctx=2048)
        loaded.generate(PROMPT, max_tokens=2, temperature=0)
        loaded.close()
        loaded.close()
        sizes.append(psutil.Process().memory_info().rss)
    with pytest.raises(edgert.EdgertError, match="closed"):
        loaded.generate(PROMPT)
    assert sizes[-1] - sizes[0] < 16e6, sizes


def test_generate_many_gives_what_each_gets_alone(model: edgert.Model) -> None:
    """More prompts than fit in a step, of different lengths and with different ends; seeds count per answer."""
    prompts = [f"{city} is the capital of" for city in ("Paris", "Rome", "Berlin", "Madrid", "Oslo")] * 8
    prompts[3] = "Once upon a time, in a land far away where nobody had ever seen a clock, there lived"
    for settings in ({"temperature": 0}, {"temperature": 1.0, "seed": 5}):
        alone = {p: model.generate(p, max_tokens=10, **settings).ids for p in set(prompts)}
        together = model.generate_many(prompts, max_tokens=10, **settings)
        assert [answer.ids for answer in together] == [alone[p] for p in prompts]


def test_a_full_cache_drops_what_is_kept_for_reuse(arch_model: Callable[[str], Path]) -> None:
    """Answers that together need every page get them, though earlier prompts are still cached."""
    with edgert.load(arch_model("llama"), n_ctx=64) as small:
        for i in range(4):
            small.generate([10 + i] * 60, max_tokens=2, temperature=0, ignore_eos=True)
        assert small.stats().pages_cached > 4
        answers = small.generate_many([[20 + i] * 30 for i in range(32)], max_tokens=34, temperature=0, ignore_eos=True)
        assert [len(answer.ids) for answer in answers] == [34] * 32


@pytest.mark.parametrize("settings", [{"max_tokens": 0}, {"max_tokens": 2.5}, {"stop": [""]}, {"temperatur": 0}])
def test_bad_settings(model: edgert.Model, settings: dict[str, Any]) -> None:
    with pytest.raises(edgert.EdgertError):
        model.generate(PROMPT, **settings)


@pytest.mark.parametrize("chunk", [0, -1, 1.5, True])
def test_bad_chunk(model: edgert.Model, chunk: Any) -> None:
    with pytest.raises(edgert.EdgertError, match="chunk"):
        model.logits([1, 2], chunk=chunk)
