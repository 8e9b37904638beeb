"""The desktop example: its thread with a scripted model, and its window on a virtual screen."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
from edgert.apps.desktop import Talk

import edgert


class Scripted:
    """A model that answers word by word for ever, or with an error."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.closed = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed += 1

    def chat(self, messages: list[dict[str, Any]], *, stream: bool) -> Any:
        assert stream
        self.asked.append(messages)
        if messages[-1]["content"] == "too long":
            raise edgert.ContextLengthError("it does not fit")
        return Words()


class Words(Iterator[str]):
    said = 0
    completion = SimpleNamespace(message={"role": "assistant", "content": "x"}, finish_reason="cancelled")

    def __next__(self) -> str:
        time.sleep(0.001)
        self.said += 1
        return "word "

    def close(self) -> None:
        assert self.said


def test_the_thread_answers_stops_and_ends() -> None:
    model = Scripted()
    talk = Talk(lambda: model)
    assert talk.happened.get(timeout=10) == ("ready", "")
    talk.ask("too long")
    assert talk.happened.get(timeout=10) == ("error", "it does not fit")
    talk.ask("hello")
    assert talk.happened.get(timeout=10) == ("piece", "word ")
    talk.stop()
    while (last := talk.happened.get(timeout=10))[0] == "piece":
        pass
    assert last == ("end", "cancelled")
    talk.ask("again")
    assert talk.happened.get(timeout=10) == ("piece", "word ")
    assert talk.close()
    assert model.closed == 1
    assert [m["content"] for m in model.asked[-1]] == ["hello", "x", "again"]
    assert all(thread.name != "model" for thread in threading.enumerate())


def test_a_model_that_cannot_be_loaded_is_reported(tmp_path: Path) -> None:
    talk = Talk(lambda: edgert.load(tmp_path / "none.gguf"))
    what, text = talk.happened.get(timeout=20)
    assert what == "error"
    assert "none.gguf" in text
    assert talk.close()


@pytest.fixture
def screen() -> Iterator[str]:
    """DISPLAY of a virtual screen."""
    program = shutil.which("Xvfb")
    assert program, "Xvfb is not installed (apt install xvfb)"
    read, write = os.pipe()
    server = subprocess.Popen([program, "-displayfd", str(write), "-screen", "0", "800x600x24", "-nolisten", "tcp"],
                              pass_fds=[write], stderr=subprocess.DEVNULL)  # fmt: skip
    os.close(write)
    with os.fdopen(read) as number:
        yield f":{number.readline().strip()}"
    server.terminate()
    server.wait(10)


PROGRAM = """
import json, sys, time, tkinter
import edgert
from edgert.apps.desktop import Talk, Window

root = tkinter.Tk()
window = Window(root, Talk(lambda: edgert.load(sys.argv[1], n_ctx=1024), ignore_eos=True))
ticks, seen = [], []

def tick():
    text = window.text.get("1.0", "end")
    if "Ready." in text and not seen:
        seen.append(time.perf_counter())
        window.ask("Tell me a long story.")
    answer = text.partition("story.\\n")[2]
    if answer.strip():
        ticks.append(time.perf_counter())
    if len(ticks) > 1 and ticks[-1] - ticks[0] > 3:
        gaps = sorted(b - a for a, b in zip(ticks, ticks[1:]))
        window.close()
        print(json.dumps({"answer": len(answer), "ticks": len(ticks), "late": gaps[len(gaps) * 99 // 100],
                          "closed": time.perf_counter()}), flush=True)
        return
    root.after(5, tick)

tick()
root.mainloop()
"""


@pytest.mark.desktop
def test_the_window_stays_responsive_and_closes(screen: str, smollm2_path: Path) -> None:
    """While an answer streams, 99 % of turns of the event loop come within 50 ms; closing amid it ends the program."""
    result = subprocess.run([sys.executable, "-c", PROGRAM, str(smollm2_path)], env=os.environ | {"DISPLAY": screen},
                            capture_output=True, text=True, timeout=120)  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    measured = json.loads(result.stdout)
    assert measured["answer"] > 100
    assert measured["ticks"] > 60
    assert measured["late"] < 0.05
