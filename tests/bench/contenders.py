"""The parent's side of a comparison: starting measured programs, sending them jobs, keeping the idle ones still."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Protocol

import psutil

HERE = Path(__file__).parent
TIMEOUT = 1800.0  # seconds for one job

Job = dict[str, Any]


class ContenderError(RuntimeError):
    """A measured program failed; one line."""


class Session(Protocol):
    """A program with a model loaded."""

    facts: dict[str, Any]

    def measure(self, job: Job) -> tuple[int, float]:
        """(tokens, seconds) of one job."""

    def close(self) -> None: ...


class Contender(Protocol):
    """A program that can be measured."""

    name: str

    def can(self, work: str) -> bool: ...

    def open(self, setup: dict[str, Any]) -> Session: ...


class Child:
    """A worker process. It is stopped whenever it has no job, so that its threads cannot spin beside the others'."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str], setup: dict[str, Any]) -> None:
        self.name = name
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 (closed in close)
        start = time.perf_counter()
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, encoding="utf-8",
            env={**os.environ, **environment},
        )  # fmt: skip
        self._control = psutil.Process(self._process.pid)
        try:
            self.facts = self._ask(setup)
        except BaseException:
            self.close()
            raise
        self.start_seconds = time.perf_counter() - start
        if self.facts["peak_rss"] is None:
            self.facts["peak_rss"] = self._control.memory_info().peak_wset
        self._control.suspend()

    def measure(self, job: Job) -> tuple[int, float]:
        self._control.resume()
        answer = self._ask(job)
        self._control.suspend()
        return answer["tokens"], answer["seconds"]

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin
        assert self._process.stdout
        watchdog = threading.Timer(TIMEOUT, self._process.kill)
        watchdog.start()
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            watchdog.cancel()
        if not line:
            raise ContenderError(f"{self.name} ended with code {self._process.wait()}: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ContenderError(f"{self.name}: {answer['error']}")
        return answer

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = [line.strip() for line in self._log if line.strip()]
        return lines[-1] if lines else "it said nothing"

    def close(self) -> None:
        """End the process. Idempotent."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream:
                stream.close()


class Worker:
    """A contender that is one of the worker_*.py programs, run by the Python that has the package."""

    def __init__(self, name: str, script: str, python: str = sys.executable, *, works: tuple[str, ...],
                 environment: dict[str, str] | None = None) -> None:  # fmt: skip
        self.name, self._works, self._environment = name, works, environment or {}
        self._command = [python, str(HERE / script)]

    def can(self, work: str) -> bool:
        return work in self._works

    def open(self, setup: dict[str, Any]) -> Child:
        return Child(self.name, self._command, self._environment, setup)


class LlamaBench:
    """A contender that is a llama-bench binary: one process per measurement, loading not counted by its own clock."""

    def __init__(self, binary: str) -> None:
        self.name, self._binary = "llama-bench", binary

    def can(self, work: str) -> bool:
        return work in ("prefill", "decode")

    def open(self, setup: dict[str, Any]) -> LlamaBenchSession:
        return LlamaBenchSession(self._binary, setup)


class LlamaBenchSession:
    """Its prompts are its own random tokens; it warms up before it measures."""

    def __init__(self, binary: str, setup: dict[str, Any]) -> None:
        self._command = [binary, "-m", setup["model"], "-t", str(setup["threads"]), "-ngl", "0", "-r", "1", "-o",
                         "json"]  # fmt: skip
        self.facts: dict[str, Any] = {}

    def measure(self, job: Job) -> tuple[int, float]:
        if job["work"] == "prefill":
            tokens, arguments = len(job["prompt"]), ["-p", str(len(job["prompt"])), "-n", "0"]
        else:
            tokens, arguments = job["new"], ["-p", "0", "-n", str(job["new"]), "-d", str(len(job["prompt"]))]
        done = subprocess.run([*self._command, *arguments], capture_output=True, text=True, timeout=TIMEOUT)
        try:
            [result] = json.loads(done.stdout)
            seconds = result["avg_ns"] / 1e9
        except (ValueError, KeyError, TypeError):
            words = (done.stderr or done.stdout).strip().splitlines() or ["it said nothing"]
            raise ContenderError(f"llama-bench ended with code {done.returncode}: {words[-1]}") from None
        self.facts = {
            "version": f"{result.get('build_commit')} ({result.get('build_number')})",
            "build": result.get("cpu_info", ""),
        }
        return tokens, seconds

    def close(self) -> None:
        """Nothing stays alive between measurements."""
