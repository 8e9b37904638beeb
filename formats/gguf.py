"""GGUF model files: memory-mapped, lazy, one file or several shards.

Opening reads the header, the metadata and the tensor table; weights are never touched, arrays become views and strings
are decoded only when asked for. Everything in a file is untrusted: see `gguf_read`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from edgert.formats.errors import FormatError, format_error
from edgert.formats.gguf_read import GgufFile, TensorInfo
from edgert.formats.mapped import MappedFile
from edgert.formats.metadata import Metadata
from edgert.formats.strings import StringArray

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Gguf", "Metadata", "StringArray", "TensorInfo"]

_SHARD_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
_N_SHARDS, _SHARD_INDEX, _N_TENSORS = "split.count", "split.no", "split.tensors.count"


class Gguf:
    """An open GGUF model.

    path      the file that was asked for
    shards    all files of the model in order (one for a model that is not sharded)
    version   1, 2 or 3
    alignment of tensor data, in bytes
    metadata  `Metadata` (of the first shard)
    tensors   name -> `TensorInfo`, in file order
    """

    def __init__(self, path: Path, files: list[GgufFile]) -> None:
        """Use `Gguf.open`."""
        self._files = files
        self.path = path
        self.shards = [f.file.path for f in files]
        self.version = files[0].version
        self.alignment = files[0].alignment
        self.metadata = Metadata(files[0].metadata, files[0].file.path)
        self.tensors: dict[str, TensorInfo] = {}
        for i, f in enumerate(files):
            for name, info in f.tensors.items():
                if name in self.tensors:
                    other = self.shards[self.tensors[name].shard].name
                    raise f.file.error(f"tensor {name}", f"is also in {other}")
                self.tensors[name] = info._replace(shard=i) if i else info

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Gguf:
        """Open a model by its file, or by any one of its shards.

        FormatError for a file that is malformed or not supported and for a missing shard; OSError if `path` itself
        cannot be opened.
        """
        path = Path(path)
        with _closing_on_error() as files:
            first = GgufFile(MappedFile(path))
            files.append(first)
            n_shards = Metadata(first.metadata, path).get_int(_N_SHARDS, 1, at_most=99999)
            if n_shards > 1:
                files[:] = _open_shards(path, first, n_shards)
            gguf = cls(path, files)
            if n_shards > 1:
                gguf._check_tensor_count()
            return gguf

    def data(self, name: str) -> NDArray[np.uint8]:
        """The stored bytes of a tensor: uint8 [nbytes], read-only, zero-copy. FormatError if there is no such tensor,
        ValueError once closed. The view stays valid after `close`; the file stays mapped as long as there are any."""
        info = self.tensor(name)
        return self._files[info.shard].file.array("u1", info.offset, info.nbytes)  # type: ignore[return-value]

    def address(self, name: str) -> int:
        """Where the stored bytes of a tensor lie in memory; good until `close`. FormatError if there is none."""
        info = self.tensor(name)
        return self._files[info.shard].file.address + info.offset

    def tensor(self, name: str, shape: tuple[int, ...] | None = None) -> TensorInfo:
        """The row of a tensor. FormatError if it is missing, or not of `shape` (GGUF order) when that is given."""
        info = self.tensors.get(name)
        if info is None:
            raise self.error(f"tensor {name}", "is missing")
        if shape is not None and info.shape != shape:
            raise self.error(f"tensor {name}", f"has shape {list(info.shape)}, must be {list(shape)}")
        return info

    def error(self, field: str, problem: str) -> FormatError:
        """FormatError that names this model's file and `field`."""
        return format_error(self.path, field, problem)

    def close(self) -> None:
        """Unmap the files. Views that are still in use stay valid and keep their file mapped until they go."""
        for f in self._files:
            f.file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _check_tensor_count(self) -> None:
        wanted = self.metadata.get_int(_N_TENSORS, len(self.tensors))
        if wanted != len(self.tensors):
            raise self.metadata.error(_N_TENSORS, f"{wanted}, but the shards hold {len(self.tensors)} tensors")


@contextmanager
def _closing_on_error() -> Iterator[list[GgufFile]]:
    files: list[GgufFile] = []
    try:
        yield files
    except BaseException:
        for f in files:
            f.file.close()
        raise


def _open_shards(path: Path, opened: GgufFile, n_shards: int) -> list[GgufFile]:
    """All shards in order; `opened` is the one at `path`, whose metadata says that there are `n_shards`."""
    match = _SHARD_NAME.fullmatch(path.name)
    if match is None:
        problem = f"{n_shards}, so the file must be named like model-00001-of-{n_shards:05}.gguf"
        raise opened.file.error(_N_SHARDS, problem)
    if int(match[3]) != n_shards:
        raise opened.file.error(_N_SHARDS, f"{n_shards}, but the file's name says {int(match[3])}")
    with _closing_on_error() as files:
        for i in range(n_shards):
            shard = path.with_name(f"{match[1]}-{i + 1:05}-of-{n_shards:05}.gguf")
            try:
                f = opened if shard == path else GgufFile(MappedFile(shard))
            except FileNotFoundError:
                raise format_error(path, _N_SHARDS, f"{n_shards}, but shard {shard.name} is missing") from None
            files.append(f)
            _check_shard(f, i, n_shards)
    return files


def _check_shard(f: GgufFile, index: int, n_shards: int) -> None:
    meta = Metadata(f.metadata, f.file.path)
    count = meta.get_int(_N_SHARDS)
    if count != n_shards:
        raise meta.error(_N_SHARDS, f"{count}, but the other shards say {n_shards}")
    number = meta.get_int(_SHARD_INDEX)
    if number != index:
        raise meta.error(_SHARD_INDEX, f"{number}, but the file's name says {index} (counted from 0)")
