"""Well-formed files of models that cannot work: `edgert.verify` refuses them by name, without reading weights."""

from __future__ import annotations

import re
import time
import tracemalloc
from pathlib import Path

import malformed
import pytest
from edgert.formats.errors import FormatError
from gguf_bytes import small_llama

import edgert

MAX_SECONDS = 1.0
MAX_BYTES = 200 << 20


@pytest.fixture(scope="module", autouse=True)
def _imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Verify a good model first: its imports are no part of the time for a bad one, and it must not be refused."""
    path = tmp_path_factory.mktemp("good") / "good.gguf"
    path.write_bytes(small_llama().build())
    edgert.verify(path)


@pytest.mark.parametrize("name", malformed.CASES)
def test_verify_refuses(name: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(malformed.make(name))
    tracemalloc.start()
    start = time.perf_counter()
    try:
        with pytest.raises(FormatError) as caught:
            edgert.verify(path)
        seconds, peak = time.perf_counter() - start, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    message = str(caught.value)
    assert message.isprintable()
    assert str(path) in message
    assert re.search(malformed.CASES[name].match, message.removeprefix(str(path)))
    assert seconds < MAX_SECONDS
    assert peak < MAX_BYTES
