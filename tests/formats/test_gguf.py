"""The GGUF reader on good files: values, views, shards, and the time to open."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from edgert.formats.errors import FormatError
from edgert.formats.gguf import Gguf, StringArray
from edgert.formats.quants import BY_NAME, GGML_TYPES, REMOVED_TYPES
from gguf_bytes import ARRAY, BOOL, STRING, U32, GgufBytes, Tensor, small_llama

MAX_OPEN_SECONDS = 0.15


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A file from the `gguf` package's writer, with every type of value."""
    path = tmp_path / "written.gguf"
    w = gguf.GGUFWriter(path, "llama")
    w.add_uint8("u8", 200)
    w.add_int8("i8", -100)
    w.add_uint16("u16", 60000)
    w.add_int16("i16", -30000)
    w.add_uint32("u32", 4_000_000_000)
    w.add_int32("i32", -2_000_000_000)
    w.add_uint64("u64", 2**64 - 1)
    w.add_int64("i64", -(2**63))
    w.add_float32("f32", 0.5)
    w.add_float64("f64", 0.1)
    w.add_bool("yes", True)
    w.add_bool("no", False)
    w.add_string("text", "héllo ▁ 🙂")
    w.add_array("strings", ["a", "", "▁the", "🙂" * 100])
    w.add_array("ints", [1, -2, 3])
    w.add_array("floats", [0.5, -1.5])
    w.add_array("bools", [True, False, True])
    w.add_custom_alignment(64)
    w.add_tensor("a", np.arange(12, dtype=np.float32).reshape(3, 4))
    w.add_tensor("b", np.arange(5, dtype=np.float16))
    w.add_tensor(
        "q", np.arange(2 * 3 * 34, dtype=np.uint8).reshape(2, 3 * 34), raw_dtype=gguf.GGMLQuantizationType.Q8_0
    )
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


def test_scalars(written: Path) -> None:
    with Gguf.open(written) as g:
        assert (g.version, g.alignment, g.path, g.shards) == (3, 64, written, [written])
        got = {k: v for k, v in g.metadata.items() if isinstance(v, int | float | str)}
    assert got == {
        "general.architecture": "llama", "general.alignment": 64, "u8": 200, "i8": -100, "u16": 60000, "i16": -30000,
        "u32": 4_000_000_000, "i32": -2_000_000_000, "u64": 2**64 - 1, "i64": -(2**63), "f32": 0.5, "f64": 0.1,
        "yes": True, "no": False, "text": "héllo ▁ 🙂",
    }  # fmt: skip
    assert got["yes"] is True
    assert got["no"] is False
    assert type(got["u8"]) is int


def test_arrays(written: Path) -> None:
    with Gguf.open(written) as g:
        for key, expected, dtype in [
            ("ints", [1, -2, 3], np.int32),
            ("floats", [0.5, -1.5], np.float32),
            ("bools", [True, False, True], np.bool_),
        ]:
            value = g.metadata[key]
            assert value.dtype == dtype
            assert value.tolist() == expected
            assert not value.flags.writeable
            assert not value.flags.owndata
            del value


def test_string_array(written: Path) -> None:
    expected = ["a", "", "▁the", "🙂" * 100]
    with Gguf.open(written) as g:
        strings = g.metadata["strings"]
        assert isinstance(strings, StringArray)
        assert len(strings) == 4
        assert strings.tolist() == list(strings) == expected
        assert strings.tobytes_list() == [s.encode() for s in expected]
        assert [strings[i] for i in range(-4, 4)] == expected * 2
        assert strings[1:] == expected[1:]
        assert strings.bytes_at(-1) == expected[-1].encode()
        assert strings.index("▁the") == 2
        assert "b" not in strings
        for i in (4, -5):
            with pytest.raises(IndexError, match=r"strings\[-?\d\]: the array has 4"):
                strings[i]


def test_a_bad_string_is_found_when_it_is_read(tmp_path: Path) -> None:
    g = GgufBytes()
    g.set_strings("s", [b"ok", b"\xff", b"fine"])
    path = tmp_path / "bad.gguf"
    path.write_bytes(g.build())
    with Gguf.open(path) as opened:
        strings = opened.metadata["s"]
        assert (strings[0], strings[2], strings.bytes_at(1)) == ("ok", "fine", b"\xff")
        for read in (strings.tolist, lambda: strings[1]):
            with pytest.raises(FormatError, match=r"bad\.gguf: s\[1\]: b'\\xff' is not UTF-8"):
                read()


def test_tensors_are_views(written: Path) -> None:
    with Gguf.open(written) as g:
        assert {t.name: (t.shape, t.type.name, t.nbytes) for t in g.tensors.values()} == {
            "a": ((4, 3), "F32", 48), "b": ((5,), "F16", 10), "q": ((96, 2), "Q8_0", 204),
        }  # fmt: skip
        a = g.data("a")
        assert a.dtype == np.uint8
        assert not a.flags.writeable
        assert a.ctypes.data % 64 == 0
        assert a.view(np.float32).tolist() == list(range(12))
        assert g.data("b").view(np.float16).tolist() == list(range(5))
        assert g.data("q").tolist() == list(range(204))
        assert g.data("a").ctypes.data == a.ctypes.data
        del a


def test_tensor_by_name_and_shape(written: Path) -> None:
    with Gguf.open(written) as g:
        assert g.tensor("a", (4, 3)).nbytes == 48
        with pytest.raises(FormatError, match=r"written\.gguf: tensor a: has shape \[4, 3\], must be \[3, 4\]"):
            g.tensor("a", (3, 4))
        for read in (g.tensor, g.data):
            with pytest.raises(FormatError, match=r"written\.gguf: tensor z: is missing"):
                read("z")


def test_close_keeps_views_and_gives_the_file_back(written: Path) -> None:
    g = Gguf.open(written)
    view, ints = g.data("a"), g.metadata["ints"]
    g.close()
    g.close()
    assert view.view(np.float32).tolist() == list(range(12))
    assert ints.tolist() == [1, -2, 3]
    for read in (lambda: g.data("a"), lambda: g.metadata["ints"], lambda: g.metadata["strings"].tolist()):
        with pytest.raises(ValueError, match="file is closed"):
            read()
    assert g.metadata["text"] == "héllo ▁ 🙂"
    del view, ints
    gc.collect()
    written.unlink()  # on Windows this fails while anything maps the file


def test_a_refused_file_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(small_llama().build()[:-1])
    with pytest.raises(FormatError):
        Gguf.open(path)
    path.unlink()


@pytest.mark.parametrize("version", [1, 2, 3])
def test_versions(version: int, tmp_path: Path) -> None:
    path = tmp_path / "v.gguf"
    made = small_llama(version=version)
    made.set("x", ARRAY, made.array(BOOL, b"\1\0", 2))
    path.write_bytes(made.build())
    with Gguf.open(path) as g:
        assert g.version == version
        assert g.metadata["llama.block_count"] == 1
        assert g.metadata["tokenizer.ggml.tokens"][3:5] == ["▁", "a"]
        assert g.metadata["x"].tolist() == [True, False]
        assert [t.name for t in g.tensors.values()] == [t.name.decode() for t in made.tensors]
        assert all(g.data(t.name.decode()).tobytes() == t.data for t in made.tensors)


def test_unknown_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Gguf.open(tmp_path / "none.gguf")


def test_vocabulary_only_file(tmp_path: Path) -> None:
    made = small_llama()
    made.tensors.clear()
    (tmp_path / "vocab.gguf").write_bytes(made.build())
    with Gguf.open(str(tmp_path / "vocab.gguf")) as g:
        assert g.tensors == {}
        assert len(g.metadata["tokenizer.ggml.tokens"]) == 32


# -- types -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", gguf.GGML_QUANT_SIZES)
def test_type_table_agrees_with_the_gguf_package(kind: gguf.GGMLQuantizationType) -> None:
    not_ours = {"Q1_0"}
    if kind.name in not_ours:
        assert kind.value not in GGML_TYPES
        return
    ours = GGML_TYPES[kind.value]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    # ggml's block_q8_1 has two halves in front; the package's table still has the two floats of 2023
    expected = (32, 36) if kind.name == "Q8_1" else (block, size)
    assert (ours.name, ours.block_size, ours.type_size) == (kind.name, *expected)
    assert BY_NAME[kind.name] is ours


def test_type_table_is_complete() -> None:
    floats_and_ints = {"F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64"}
    blocks = {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q8_1", "MXFP4", "NVFP4", "TQ1_0", "TQ2_0"}
    k_quants = {"Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_K"}
    i_quants = {"IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS"}
    assert set(BY_NAME) == floats_and_ints | blocks | k_quants | i_quants
    assert not GGML_TYPES.keys() & REMOVED_TYPES.keys()
    assert BY_NAME["Q4_K"].row_bytes(512) == 288


@pytest.mark.parametrize("name", BY_NAME)
def test_every_type_is_read(name: str, tmp_path: Path) -> None:
    kind = BY_NAME[name]
    data = bytes(i % 251 for i in range(kind.type_size * 2 * 3))
    made = GgufBytes(tensors=[Tensor(b"t", [2 * kind.block_size, 3], kind.id, data)])
    (tmp_path / "t.gguf").write_bytes(made.build())
    with Gguf.open(tmp_path / "t.gguf") as g:
        assert g.tensors["t"].type is kind
        assert g.data("t").tobytes() == data


# -- speed -----------------------------------------------------------------------------------------------------------


def big_vocabulary(path: Path, n: int = 262_144) -> None:
    """A file with `n` tokens and twice as many merges, as the largest vocabularies have."""
    g = small_llama()
    g.set_strings("tokenizer.ggml.tokens", [b"token %d" % i for i in range(n)])
    g.set("tokenizer.ggml.scores", ARRAY, g.array(6, bytes(4 * n), n))
    g.set("tokenizer.ggml.token_type", ARRAY, g.array(U32, bytes(4 * n), n))
    g.set("tokenizer.ggml.merges", ARRAY, g.array(STRING, g.text(b"ab cd") * 2 * n, 2 * n))
    path.write_bytes(g.build())


def test_opening_a_large_vocabulary_is_quick(tmp_path: Path) -> None:
    """Import of the reader and opening, in a fresh interpreter, best of five; neither needs numpy."""
    path = tmp_path / "big.gguf"
    big_vocabulary(path)
    code = f"""
import time
start = time.perf_counter()
from edgert.formats.gguf import Gguf
with Gguf.open({str(path)!r}) as g:
    n = len(g.metadata["tokenizer.ggml.tokens"])
print(time.perf_counter() - start, n)
"""
    seconds = []
    for _ in range(5):
        out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
        assert out[1] == "262144"
        seconds.append(float(out[0]))
    assert min(seconds) < MAX_OPEN_SECONDS, seconds
