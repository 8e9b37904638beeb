"""Requests from several threads and event loops: they run together, end, fail and are cancelled each by itself."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import edgert
from edgert.chat_events import ContentDelta
from edgert.generation import Answer

PROMPTS = [f"{city} is the capital of" for city in ("Paris", "Rome", "Berlin", "Madrid", "Oslo", "Vienna")]
LONG = "Once upon a time there was a king who had three daughters. " * 30
ENDLESS = {"max_tokens": 400, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> Iterator[edgert.Model]:
    with edgert.load(smollm2_path, n_ctx=1024) as loaded:
        yield loaded


def idle(model: edgert.Model) -> edgert.Stats:
    """The engine's stats when it has nothing to do any more."""
    for _ in range(1000):
        stats = model.stats()
        if not stats.running and not stats.waiting:
            return stats
        time.sleep(0.01)
    raise AssertionError("the engine does not come to rest")


def test_requests_run_together_and_each_gets_its_own_answer(model: edgert.Model) -> None:
    """Joining at any step, beside a long prompt, changes nothing."""
    alone = [model.generate(prompt, max_tokens=12, temperature=0).ids for prompt in PROMPTS]
    first = model.submit("Once upon a time", **ENDLESS)
    next(first)
    requests = [model.submit(prompt, max_tokens=12, temperature=0) for prompt in PROMPTS[:3]]
    long = model.submit(LONG, max_tokens=4, temperature=0)
    requests += [model.submit(prompt, max_tokens=12, temperature=0) for prompt in PROMPTS[3:]]
    assert [request.result().ids for request in requests] == alone
    assert not first.done
    assert len(long.result().ids) == 4
    first.close()
    assert model.generate("Once upon a time", max_tokens=20, temperature=0).ids == first.completion.ids[:20]


def test_answers_go_on_while_a_long_prompt_is_read(model: edgert.Model) -> None:
    """A stretch of the prompt, then a token: many tokens come before the prompt has been read."""
    running = model.submit("Once upon a time", **ENDLESS)
    next(running)
    before = model.stats().generated_tokens
    long = model.submit(LONG + LONG, max_tokens=1, temperature=0)
    next(long)
    assert model.stats().generated_tokens - before >= 8
    running.close()


def test_pieces_come_on_threads_and_event_loops(model: edgert.Model) -> None:
    whole = model.generate(PROMPTS[0], max_tokens=16, temperature=0)

    async def pieces() -> list[str]:
        return [piece async for piece in model.submit(PROMPTS[0], max_tokens=16, temperature=0)]

    async def both() -> tuple[list[str], edgert.Completion]:
        return await asyncio.gather(pieces(), model.submit(PROMPTS[0], max_tokens=16, temperature=0))

    parts, awaited = asyncio.run(both())
    assert len(parts) > 3
    assert "".join(parts) == whole.text == awaited.text
    request = model.submit(PROMPTS[0], max_tokens=16, temperature=0)
    assert request.result().text == whole.text
    assert "".join(request) == whole.text
    assert list(request) == []
    assert request.progress == (len(model.tokenize(PROMPTS[0])),) * 2


def test_chat_events_come_on_event_loops(model: edgert.Model) -> None:
    ask = [{"role": "user", "content": "Name a colour."}]
    whole = model.chat(ask, max_tokens=12, temperature=0)

    async def both() -> tuple[str, str, str]:
        events = model.submit_chat(ask, max_tokens=12, temperature=0)
        text = "".join([event.text async for event in events if isinstance(event, ContentDelta)])
        stream = model.chat(ask, max_tokens=12, temperature=0, stream=True)
        awaited = await model.submit_chat(ask, max_tokens=12, temperature=0)
        return text, "".join([piece async for piece in stream]), awaited.text

    assert set(asyncio.run(both())) == {whole.text}


def test_several_answers_to_a_conversation(model: edgert.Model) -> None:
    ask = [{"role": "user", "content": "Name a colour."}]
    answers = model.chat(ask, n=3, seed=5, temperature=1.0, max_tokens=12)
    assert [a.text for a in answers] == [
        model.chat(ask, seed=5 + i, temperature=1.0, max_tokens=12).text for i in range(3)
    ]
    with pytest.raises(edgert.EdgertError, match="n: "):
        model.chat(ask, n=2, stream=True)  # type: ignore[call-overload]


def test_the_loop_runs_while_an_answer_is_awaited(model: edgert.Model) -> None:
    async def ticks() -> int:
        request = model.submit(LONG, max_tokens=8, temperature=0)
        count = 0
        while not request.done:
            await asyncio.sleep(0.001)
            count += 1
        return count

    assert asyncio.run(ticks()) > 10


def test_cancelling(model: edgert.Model) -> None:
    """While generating, while a prompt is read, and while waiting; cancelled tasks cancel what they wait for."""
    running = model.submit("Once upon a time", **ENDLESS)
    next(running)
    waiting = [model.submit(LONG, max_tokens=4, temperature=0) for _ in range(40)]
    for request in waiting:
        request.cancel()
    running.cancel()
    for request in (*waiting, running):
        assert request.result(timeout=20).finish_reason == "cancelled"
    assert running.result().text

    async def give_up() -> edgert.Request:
        request = model.submit("Once upon a time", **ENDLESS)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(request, 0.05)
        return request

    assert asyncio.run(give_up()).result(timeout=20).finish_reason == "cancelled"
    assert idle(model).pages_used == 0


def test_a_forgotten_request_is_cancelled(model: edgert.Model) -> None:
    before = idle(model).generated_tokens
    next(model.submit("Once upon a time", **ENDLESS))
    assert idle(model).generated_tokens - before < 390


def test_result_waits_no_longer_than_it_is_told(model: edgert.Model) -> None:
    request = model.submit("Once upon a time", **ENDLESS)
    with pytest.raises(TimeoutError):
        request.result(timeout=0.01)
    with pytest.raises(edgert.EdgertError, match="has not ended"):
        _ = request.completion
    assert not request.done
    request.close()


def test_one_failure_ends_one_request(model: edgert.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever an answer's own work raises reaches its caller, and no other."""
    alone = [model.generate(prompt, max_tokens=12, temperature=0).ids for prompt in PROMPTS]
    advance = Answer.advance

    def broken(self: Answer, logits: object) -> str:
        if self.generated == 3 and self.max_tokens == 13:
            raise ValueError("this one is broken")
        return advance(self, logits)  # type: ignore[arg-type]

    monkeypatch.setattr(Answer, "advance", broken)
    bad = model.submit(PROMPTS[0], max_tokens=13, temperature=0)
    good = [model.submit(prompt, max_tokens=12, temperature=0) for prompt in PROMPTS]
    with pytest.raises(ValueError, match="this one is broken"):
        "".join(bad)
    with pytest.raises(ValueError, match="this one is broken"):
        bad.result()
    assert [request.result().ids for request in good] == alone
    with pytest.raises(ValueError, match="this one is broken"):
        model.generate_many([PROMPTS[0], PROMPTS[1]], max_tokens=13, temperature=0)
    assert idle(model).pages_used == 0


def test_the_queue_is_bounded_and_keeps_its_order(smollm2_path: Path) -> None:
    with edgert.load(smollm2_path, n_ctx=512, max_waiting=3) as model:
        running = [model.submit("Once", **ENDLESS) for _ in range(1)]
        next(running[0])
        while len(running) < 32:  # as many as run together
            try:
                running.append(model.submit("Once", **ENDLESS))
            except edgert.EngineBusy:
                time.sleep(0.01)
        while model.stats().running < 32:
            time.sleep(0.01)
        done: list[int] = []
        waiting = [model.submit("Once", max_tokens=1, temperature=0, priority=p) for p in (0, -1, 1)]
        for i, request in enumerate(waiting):
            request._box.at_end(lambda i=i: done.append(i))  # type: ignore[misc]
        with pytest.raises(edgert.EngineBusy, match="3 requests wait"):
            model.submit("Once", max_tokens=1)
        running[0].close()
        for request in waiting:
            request.result()
        assert done == [2, 0, 1]
        with pytest.raises(edgert.EdgertError, match="priority"):
            model.submit("Once", priority="high")


def test_closing_ends_everything_with_the_error(smollm2_path: Path) -> None:
    model = edgert.load(smollm2_path, n_ctx=512)
    requests = [model.submit("Once upon a time", **ENDLESS) for _ in range(40)]
    next(requests[0])
    model.close()
    for request in requests:
        assert request.done
        with pytest.raises(edgert.EdgertError, match="the model is closed"):
            request.result()
    submit, logits = lambda: model.submit("Once"), lambda: model.logits([1])
    for call in (submit, logits, lambda: model.generate_many(["Once"]), model.stats):
        with pytest.raises(edgert.EdgertError, match="the model is closed"):
            call()


def test_a_forgotten_model_ends_its_threads(smollm2_path: Path) -> None:
    before = threading.active_count()
    for piece in edgert.load(smollm2_path, n_ctx=512).stream("Once upon a time", max_tokens=4, temperature=0):
        assert piece
    for _ in range(200):
        if threading.active_count() == before:
            return
        time.sleep(0.05)
    raise AssertionError(threading.enumerate())


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "model = None", "raise RuntimeError"])
def test_leaving_without_closing(smollm2_path: Path, end: str) -> None:
    """An interpreter that ends in the middle of answers and prompts does not hang or crash."""
    code = f"""
import sys, edgert
model = edgert.load(sys.argv[1], n_ctx=4096)
requests = [model.submit("Once upon a time", max_tokens=2000, ignore_eos=True) for _ in range(3)]
next(requests[0])
requests.append(model.submit("Once upon a time " * 900, max_tokens=4))
print("ready", flush=True)
{end}
"""
    run = subprocess.run([sys.executable, "-c", code, str(smollm2_path)], capture_output=True, text=True, timeout=120)
    assert run.stdout == "ready\n"
    assert run.returncode == {"": 0, "sys.exit(3)": 3, "model = None": 0, "raise RuntimeError": 1}[end], run.stderr
    assert ("Traceback" in run.stderr) == end.startswith("raise")


if os.name == "posix":  # elsewhere SIGINT cannot be sent to one thread

    def test_an_interrupt_cancels_what_the_caller_waits_for(model: edgert.Model) -> None:
        """... at once, and leaves everything whole."""
        expected = model.generate(PROMPTS[0], max_tokens=12, temperature=0).ids
        other = model.submit("Once upon a time", **ENDLESS)
        main = threading.main_thread().ident
        assert main is not None
        calls = (
            lambda: model.generate("Once upon a time", **ENDLESS),
            lambda: list(model.stream("Once upon a time", **ENDLESS)),
            lambda: model.generate_many(["Once upon a time"] * 20, **ENDLESS),
            lambda: model.logits([5] * 1000),
            lambda: model.chat([{"role": "user", "content": LONG}], max_tokens=300),
        )
        for call in calls:
            timer = threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT))
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                call()
            start = time.perf_counter()
            timer.join()
            assert model.generate(PROMPTS[0], max_tokens=12, temperature=0).ids == expected
            assert time.perf_counter() - start < 20
        assert not other.done or other.completion.finish_reason == "length"
        other.close()
        assert idle(model).pages_used == 0
