"""One server on SmolLM2 for all tests that need nothing special of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from serving import Server, serve

ASK = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]


@pytest.fixture(scope="session")
def smollm2_file(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2 in a file whose name says so."""
    path = tmp_path_factory.mktemp("served") / "smollm2.gguf"
    path.symlink_to(smollm2_path)
    return path


@pytest.fixture(scope="session")
def server(edgert_command: str, smollm2_file: Path) -> Iterator[Server]:
    """A server that is patient for two seconds only."""
    with serve(edgert_command, str(smollm2_file), "--port", "0", "--receive-timeout", "2") as running:
        yield running
        assert running.process.poll() is None, running.said
        assert not [line for line in running.said if "Traceback" in line], running.said


@pytest.fixture
def ask() -> list[dict[str, str]]:
    """A conversation."""
    return [dict(message) for message in ASK]
