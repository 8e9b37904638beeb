"""Running the console script, in a pipe or in a pseudo-terminal."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import hub_server

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(edgert_command: str) -> Run:
    """Runs `edgert ARGUMENTS` to its end with the given standard input and extra environment."""

    def run_edgert(*arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [edgert_command, *arguments],
            input=stdin,
            capture_output=True,
            encoding="utf-8",
            env=os.environ | environment,
            timeout=120,
        )

    return run_edgert


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[hub_server.Hub]:
    """A local hub that child processes use, and an empty EDGERT_HOME for them."""
    with hub_server.serve() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("EDGERT_HOME", str(tmp_path / "home"))
        yield server
