"""Typed reads of metadata: right values pass, everything else is refused by file and key."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edgert.formats.errors import FormatError, format_error, quote
from edgert.formats.gguf import Gguf, Metadata
from gguf_bytes import ARRAY, F32, U32, GgufBytes

Read = Callable[[Metadata], Any]

PLAIN = Metadata(
    {
        "int": 7, "negative": -1, "float": 0.5, "nan": math.nan, "bool": True, "str": "x", "strings": ["a", "b"],
        "ints": np.array([1, 2, 3], np.uint32), "floats": np.array([0.5, 1.5], np.float32),
        "infinite": np.array([0.5, math.inf], np.float32), "list": [4, 5], "empty": [],
    },
    "model.gguf",
)  # fmt: skip


def test_right_types() -> None:
    m = PLAIN
    assert (m.get_int("int"), m.get_float("float"), m.get_bool("bool"), m.get_str("str")) == (7, 0.5, True, "x")
    assert m.get_int("negative", at_least=-1) == -1
    assert list(m.get_strings("strings")) == ["a", "b"]
    assert m.get_ints("ints", length=3).tolist() == [1, 2, 3]
    assert m.get_ints("list").tolist() == [4, 5]
    assert m.get_floats("floats").tolist() == [0.5, 1.5]
    assert m.get_per_layer("int", 2) == [7, 7]
    assert m.get_per_layer("ints", 3) == [1, 2, 3]
    assert len(m) == 12
    assert "int" in m
    assert "none" not in m


def test_defaults() -> None:
    m = PLAIN
    assert (m.get_int("none", 3), m.get_float("none", 2.0), m.get_bool("none", False)) == (3, 2.0, False)
    assert (m.get_str("none", "d"), m.get_strings("none", [])) == ("d", [])
    assert m.get_ints("none", [1]).tolist() == [1]
    assert m.get_floats("none", [1.0]).tolist() == [1.0]
    assert m.get_per_layer("none", 2, 5) == [5, 5]
    assert m.get("none") is None


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda m: m.get_int("none"), "none: is missing"),
        (lambda m: m.get_int("float"), "float: 0.5 is float, must be an integer"),
        (lambda m: m.get_int("bool"), "bool: True is bool, must be an integer"),
        (lambda m: m.get_int("str"), "str: 'x' is str, must be an integer"),
        (lambda m: m.get_int("strings"), "strings: is an array of 2 strings, must be an integer"),
        (lambda m: m.get_int("ints"), "ints: is an array of 3 uint32 values, must be an integer"),
        (lambda m: m.get_int("negative"), "negative: -1 is not within 0 to 9223372036854775807"),
        (lambda m: m.get_int("int", at_least=8), "int: 7 is not within 8 to 9223372036854775807"),
        (lambda m: m.get_int("int", at_most=6), "int: 7 is not within 0 to 6"),
        (lambda m: m.get_float("int"), "int: 7 is int, must be a float"),
        (lambda m: m.get_float("nan"), "nan: nan is not finite"),
        (lambda m: m.get_bool("int"), "int: 7 is int, must be a bool"),
        (lambda m: m.get_str("int"), "int: 7 is int, must be a string"),
        (lambda m: m.get_strings("str"), "str: 'x' is str, must be an array of strings"),
        (lambda m: m.get_strings("ints"), "ints: is an array of 3 uint32 values, must be an array of strings"),
        (lambda m: m.get_ints("floats"), "floats: is an array of 2 float32 values, must be an array of integers"),
        (lambda m: m.get_ints("int"), "int: 7 is int, must be an array of integers"),
        (lambda m: m.get_ints("strings"), "strings: is an array of 2 strings, must be an array of integers"),
        (lambda m: m.get_ints("ints", length=4), "ints: has 3 values, must have 4"),
        (lambda m: m.get_floats("ints"), "ints: is an array of 3 uint32 values, must be an array of floats"),
        (lambda m: m.get_floats("infinite"), "infinite: holds values that are not finite"),
        (lambda m: m.get_per_layer("ints", 2), "ints: has 3 values, must have 2"),
        (lambda m: m.get_per_layer("ints", 3, at_least=2), "ints[0]: 1 is less than 2"),
        (lambda m: m.get_per_layer("str", 3), "str: 'x' is str, must be an integer"),
    ],
)
def test_wrong_types(read: Read, message: str) -> None:
    with pytest.raises(FormatError, match=f"^{re.escape(f'model.gguf: {message}')}$"):
        read(PLAIN)


def test_from_a_file(tmp_path: Path) -> None:
    made = GgufBytes()
    made.set("odd", 7, b"\1")  # one byte, so that what follows is not aligned
    made.set("ints", ARRAY, made.array(U32, struct.pack("<3I", 5, 6, 7), 3))
    made.set("floats", ARRAY, made.array(F32, struct.pack("<2f", 0.25, math.nan), 2))
    made.set_strings("strings", [b"a", b"b"])
    path = tmp_path / "m.gguf"
    path.write_bytes(made.build())
    with Gguf.open(path) as g:
        assert g.metadata.source == path
        assert g.metadata.get_ints("ints").tolist() == [5, 6, 7]
        assert list(g.metadata.get_strings("strings")) == ["a", "b"]
        for read, key in [(g.metadata.get_floats, "floats"), (g.metadata.get_ints, "strings")]:
            with pytest.raises(FormatError, match=f"^{re.escape(str(path))}: {key}: "):
                read(key)


def test_messages_stay_on_one_line() -> None:
    message = str(format_error("a\nb.gguf", "key\u2028\x1b[31m" + "k" * 1000, "is\r\nwrong"))
    assert message.isprintable()
    assert len(message) < 200
    assert message.startswith(r"a\nb.gguf: key\u2028\x1b[31mkkk")
    assert message.endswith(r"...: is\r\nwrong")
    assert quote("x" * 1000) == "'" + "x" * 76 + "..."
    assert quote(b"\0a") == r"b'\x00a'"
    assert quote(12) == "12"
