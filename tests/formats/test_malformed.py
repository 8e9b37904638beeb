"""Every malformed file ends in a one-line FormatError that names file and field, in little time and memory."""

from __future__ import annotations

import os
import re
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import malformed
import pytest
from edgert.formats.errors import FormatError
from edgert.formats.gguf import Gguf, StringArray
from gguf_bytes import ARRAY, STRING, GgufBytes, small_llama

READER_CASES = [name for name, case in malformed.CASES.items() if case.needs != "architecture"]
OPENING_CASES = [name for name in READER_CASES if malformed.CASES[name].needs != "strings"]
MAX_SECONDS = 1.0
MAX_BYTES = 200 << 20
FUZZ_SECONDS = 5.0


def read_all(path: Path) -> None:
    """Open a file and read all of its metadata and the first byte of every tensor."""
    with Gguf.open(path) as g:
        for value in g.metadata.values():
            if isinstance(value, StringArray):
                value.tolist()
        for name in g.tensors:
            assert g.data(name)[:1].size == 1


@contextmanager
def bounded() -> Iterator[None]:
    """Fail if the block takes too long or allocates too much."""
    tracemalloc.start()
    start = time.perf_counter()
    try:
        yield
        seconds, (_, peak) = time.perf_counter() - start, tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert seconds < MAX_SECONDS
    assert peak < MAX_BYTES


def check_message(error: FormatError, path: Path) -> None:
    message = str(error)
    assert message.isprintable()
    assert str(path) in message
    assert len(message) < len(str(path)) + 300


def test_the_undamaged_file_is_read(tmp_path: Path) -> None:
    for version in (1, 2, 3):
        path = tmp_path / f"v{version}.gguf"
        path.write_bytes(small_llama(version=version).build())
        read_all(path)


def test_there_are_enough_cases() -> None:
    assert len(READER_CASES) >= 40
    assert len({malformed.make(name) for name in malformed.CASES}) == len(malformed.CASES)
    assert malformed.make("header: data truncated", 1) == malformed.make("header: data truncated", 1)


@pytest.mark.parametrize("name", READER_CASES)
def test_malformed_file_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    for seed in (1, 2, 3):
        path.write_bytes(malformed.make(name, seed))
        with bounded(), pytest.raises(FormatError) as caught:
            Gguf.open(path) if name in OPENING_CASES else read_all(path)
        check_message(caught.value, path)
        assert re.search(malformed.CASES[name].match, str(caught.value).removeprefix(str(path)))


@pytest.mark.parametrize("name", [n for n in READER_CASES if not re.search("2\\^|-1|version|big-endian|32", n)])
def test_malformed_file_of_version_1_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(malformed.make(name, version=1))
    with bounded(), pytest.raises(FormatError) as caught:
        read_all(path)
    check_message(caught.value, path)


def test_what_is_found_when(tmp_path: Path) -> None:
    """The reader refuses no file for what only the architecture can tell, and strings are decoded only when read."""
    path = tmp_path / "bad.gguf"
    for name in malformed.CASES.keys() - set(OPENING_CASES):
        path.write_bytes(malformed.make(name))
        with Gguf.open(path) as g:
            assert len(g.tensors) >= 11


def test_truncated_anywhere(tmp_path: Path) -> None:
    g = small_llama()
    good = g.build()
    structure = len(g.head() + g.metadata() + g.table())
    path = tmp_path / "bad.gguf"
    for n in [*range(structure + 32), *range(structure + 32, len(good), 997)]:
        path.write_bytes(good[:n])
        with pytest.raises(FormatError) as caught:
            Gguf.open(path)
        check_message(caught.value, path)


def test_random_damage_raises_nothing_else(tmp_path: Path) -> None:
    """No exception but FormatError, no slow file, no big allocation, for as many files as fit into the time."""
    g = small_llama()
    structure = len(g.head() + g.metadata() + g.table())
    path = tmp_path / "bad.gguf"
    end = time.perf_counter() + FUZZ_SECONDS
    n_refused = n_files = 0
    tracemalloc.start()
    try:
        for raw in malformed.damaged(g.build(), 1, structure):
            path.write_bytes(raw)
            start = time.perf_counter()
            try:
                read_all(path)
            except FormatError as error:
                n_refused += 1
                check_message(error, path)
            n_files += 1
            assert time.perf_counter() - start < MAX_SECONDS
            if time.perf_counter() > end:
                break
        assert tracemalloc.get_traced_memory()[1] < MAX_BYTES
    finally:
        tracemalloc.stop()
    assert n_files > 100
    assert n_refused > n_files // 2


def huge_strings(path: Path, count: int) -> None:
    """A file with an array of `count` empty strings."""
    g = GgufBytes()
    g.set("x", ARRAY, g.array(STRING, b"", count))
    path.write_bytes(g.build())
    with open(path, "r+b") as f:
        f.truncate(path.stat().st_size + 8 * count)


def test_strings_without_end_are_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    huge_strings(path, (1 << 22) + 1)
    with bounded(), pytest.raises(FormatError, match="x length: 4194305 is more than"):
        Gguf.open(path)


def test_one_huge_string_is_refused_before_it_is_read(tmp_path: Path) -> None:
    g = GgufBytes()
    g.set("x", STRING, g.text(b"", (1 << 25) + 1))
    path = tmp_path / "bad.gguf"
    path.write_bytes(g.build())
    with open(path, "r+b") as f:
        f.truncate(path.stat().st_size + (1 << 25) + 1)
    with bounded(), pytest.raises(FormatError, match="x: 33554433 bytes long"):
        Gguf.open(path)


@pytest.mark.parametrize("raw", [b"", b"\0", b"GGUF"])
def test_something_that_is_no_model(raw: bytes, tmp_path: Path) -> None:
    path = tmp_path / "line\nbreak.gguf" if raw == b"GGUF" and _can_have_newlines() else tmp_path / "bad.gguf"
    path.write_bytes(raw)
    with pytest.raises(FormatError) as caught:
        Gguf.open(path)
    assert str(caught.value).isprintable()


def _can_have_newlines() -> bool:
    return os.name != "nt"


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="not a regular file"):
        Gguf.open(tmp_path)
