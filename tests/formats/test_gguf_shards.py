"""Models in several files: any of them opens all, and what does not fit together is refused by name."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from edgert.formats.errors import FormatError
from edgert.formats.gguf import Gguf
from gguf_bytes import GgufBytes, Tensor


def shards(folder: Path, n: int = 3) -> list[Path]:
    """A model of one tensor per shard."""
    paths = [folder / f"m-{i + 1:05}-of-{n:05}.gguf" for i in range(n)]
    for i, path in enumerate(paths):
        write_shard(path, i, n, n)
    return paths


def write_shard(path: Path, index: int, count: int, n_tensors: int, name: str = "") -> None:
    """One shard with a tensor t<index>; the first one has the model's metadata."""
    g = GgufBytes(tensors=[Tensor((name or f"t{index}").encode(), [4], 0, struct.pack("<4f", *[index] * 4))])
    if index == 0:
        g.set_str("general.architecture", "llama")
    g.set("split.no", 2, struct.pack("<H", index))
    g.set("split.count", 2, struct.pack("<H", count))
    g.set("split.tensors.count", 5, struct.pack("<i", n_tensors))
    path.write_bytes(g.build())


@pytest.mark.parametrize("named", [0, 1, 2])
def test_any_shard_opens_all(named: int, tmp_path: Path) -> None:
    paths = shards(tmp_path)
    with Gguf.open(paths[named]) as g:
        assert g.path == paths[named]
        assert g.shards == paths
        assert list(g.tensors) == ["t0", "t1", "t2"]
        assert [g.data(f"t{i}").view(np.float32)[0] for i in range(3)] == [0, 1, 2]
        assert g.metadata["general.architecture"] == "llama"


def test_one_file_with_split_keys(tmp_path: Path) -> None:
    path = tmp_path / "any name.gguf"
    write_shard(path, 0, 1, 1)
    with Gguf.open(path) as g:
        assert list(g.tensors) == ["t0"]


def test_missing_shard(tmp_path: Path) -> None:
    paths = shards(tmp_path)
    paths[1].unlink()
    with pytest.raises(FormatError, match=r"m-00003-of-00003.gguf: split.count: 3, .*m-00002-of-00003.gguf is missing"):
        Gguf.open(paths[2])
    for path in (paths[0], paths[2]):
        path.unlink()


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ((2, 3, 3), r"m-00002-of-00003.gguf: split.no: 2, "),
        ((1, 4, 3), r"m-00002-of-00003.gguf: split.count: 4, "),
        ((1, 3, 3, "t0"), r"m-00002-of-00003.gguf: tensor t0: is also in m-00001-of-00003.gguf"),
    ],
)
def test_wrong_shard(wrong: tuple[int, int, int], match: str, tmp_path: Path) -> None:
    paths = shards(tmp_path)
    write_shard(paths[1], *wrong)
    with pytest.raises(FormatError, match=match):
        Gguf.open(paths[0])


def test_wrong_tensor_count(tmp_path: Path) -> None:
    paths = shards(tmp_path)
    write_shard(paths[0], 0, 3, 7)
    with pytest.raises(FormatError, match=r"m-00001-of-00003.gguf: split.tensors.count: 7, .* hold 3 tensors"):
        Gguf.open(paths[2])


@pytest.mark.parametrize("name", ["model.gguf", "m-00001-of-00005.gguf"])
def test_renamed_shard(name: str, tmp_path: Path) -> None:
    path = shards(tmp_path)[0].rename(tmp_path / name)
    with pytest.raises(FormatError, match=r"gguf: split.count: 3, (so|but) the file"):
        Gguf.open(path)


def test_damaged_shard_is_named(tmp_path: Path) -> None:
    paths = shards(tmp_path)
    paths[1].write_bytes(paths[1].read_bytes()[:-1])
    with pytest.raises(FormatError, match=r"m-00002-of-00003.gguf: tensor t1"):
        Gguf.open(paths[0])
