"""The child's side of a comparison: one measured program in a process of its own, one job a line, JSON both ways.

The first line sets the program up: {"model", "threads", "n_ctx", "parallel", "first"}. Where `first` is a prompt, the
program generates one token of it before it answers, so that the time from the start of the process to the answer is
the time to the first token. Later lines are jobs:

    {"work": "prefill", "prompt": ids}              -> {"tokens", "seconds"}
    {"work": "decode", "prompt": ids, "new": n}     -> {"tokens": n, "seconds"}: n steps after the first token
    {"work": "batch", "prompts": [...], "new": n}   -> {"tokens": n * prompts, "seconds"}: the same, of all together

This file is imported by programs that run under other Pythons: standard library only.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any, Protocol


class Program(Protocol):
    """What a measured program offers; `works` names the jobs that it can do, `facts` describes it."""

    works: tuple[str, ...]
    facts: dict[str, Any]

    def first_token(self, prompt: list[int]) -> None: ...

    def prefill(self, prompt: list[int]) -> float: ...

    def decode(self, prompt: list[int], new: int) -> float: ...

    def batch(self, prompts: list[list[int]], new: int) -> float: ...


def serve(start: Callable[[dict[str, Any]], Program]) -> None:
    """Answer lines until there are no more, then end the process at once, whatever threads the program has."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not come between the answers
    program: Program | None = None
    for line in sys.stdin:
        try:
            job = json.loads(line)
            if program is None:
                program = start(job)
                if job["first"]:
                    program.first_token(job["first"])
                answer = {"works": program.works, "peak_rss": peak_rss(), **program.facts}
            else:
                answer = run(program, job)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    os._exit(0)


def run(program: Program, job: dict[str, Any]) -> dict[str, Any]:
    """Do one job."""
    if job["work"] == "prefill":
        return {"tokens": len(job["prompt"]), "seconds": program.prefill(job["prompt"])}
    if job["work"] == "decode":
        return {"tokens": job["new"], "seconds": program.decode(job["prompt"], job["new"])}
    return {"tokens": job["new"] * len(job["prompts"]), "seconds": program.batch(job["prompts"], job["new"])}


def peak_rss() -> int | None:
    """Largest resident set of this process in bytes; None where only the parent can tell (Windows)."""
    try:
        # getrusage would count what the parent had when it forked.
        with open("/proc/self/status", encoding="ascii") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))
    except OSError:
        pass
    if sys.platform == "win32":
        return None
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
