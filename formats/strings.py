"""String arrays of a GGUF file: found in one quick pass, decoded only when asked for."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from typing import overload

from edgert.formats.errors import quote
from edgert.formats.mapped import MappedFile


def skip_strings(file: MappedFile, start: int, count: int, prefix: struct.Struct, field: str) -> int:
    """Offset behind `count` strings at `start`, each a length (`prefix`, one unsigned integer) and that many bytes.

    About 0.1 µs per string: where the next string lies is known only from the one before it, so a file with a
    vocabulary of 262144 tokens takes this loop that often to open. struct checks each length's own span; a text that
    ends beyond the file makes the next length or the end fail, and the slow pass then says which string it was.
    """
    mapping, length_at, size = file.map, prefix.unpack_from, prefix.size
    pos = start
    try:
        for _ in range(count):
            pos += size + length_at(mapping, pos)[0]
    except (struct.error, IndexError, OverflowError):
        pos = file.size + 1
    if pos > file.size:
        _check_each(file, start, count, prefix, field)
    return pos


def _check_each(file: MappedFile, start: int, count: int, prefix: struct.Struct, field: str) -> None:
    pos = start
    for i in range(count):
        file.span(pos, prefix.size, f"{field}[{i}]")
        length = prefix.unpack_from(file.map, pos)[0]
        pos += prefix.size
        file.span(pos, length, f"{field}[{i}]")
        pos += length


class StringArray(Sequence[str]):
    """A lazy sequence of the strings of one metadata array; nothing is copied or decoded until it is read.

    Reading raises FormatError for a string that is not UTF-8 (`tobytes_list` and `bytes_at` do not decode), and
    ValueError once the file is closed.
    """

    def __init__(self, file: MappedFile, key: str, start: int, end: int, count: int, prefix: struct.Struct) -> None:
        self._file = file
        self._key = key
        self._start = start
        self._end = end
        self._count = count
        self._prefix = prefix
        self._offsets: array[int] | None = None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        """One string, or a list of them for a slice. The first random access makes an index (8 bytes per string)."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        return self._decode(index, self.bytes_at(index))

    def __iter__(self) -> Iterator[str]:
        return iter(self.tolist())

    def bytes_at(self, index: int) -> bytes:
        """The bytes of string `index`."""
        i = index + self._count if index < 0 else index
        if not 0 <= i < self._count:
            raise IndexError(f"{self._key}[{index}]: the array has {self._count} strings")
        if self._offsets is None:
            self._offsets = self._index()
        size, mapping = self._prefix.size, self._file.map
        pos = self._offsets[i] + size
        return mapping[pos : pos + self._prefix.unpack_from(mapping, pos - size)[0]]

    def tobytes_list(self) -> list[bytes]:
        """All strings as bytes."""
        return [text for batch in self.batches(self._count) for text in batch]

    def batches(self, size: int) -> Iterator[list[bytes]]:
        """All strings as bytes, so many at a time."""
        mapping, length_at, prefix, pos = self._file.map, self._prefix.unpack_from, self._prefix.size, self._start
        for first in range(0, self._count, size):
            out = []
            for _ in range(min(size, self._count - first)):
                begin = pos + prefix
                pos = begin + length_at(mapping, pos)[0]
                out.append(mapping[begin:pos])
            yield out

    def tolist(self) -> list[str]:
        """All strings decoded."""
        raw = self.tobytes_list()
        try:
            return list(map(bytes.decode, raw))
        except UnicodeDecodeError:
            return [self._decode(i, text) for i, text in enumerate(raw)]  # raises at the one that is wrong

    def _decode(self, index: int, text: bytes) -> str:
        try:
            return text.decode()
        except UnicodeDecodeError:
            raise self._file.error(f"{self._key}[{index}]", f"{quote(text)} is not UTF-8") from None

    def _index(self) -> array[int]:
        mapping, length_at, size = self._file.map, self._prefix.unpack_from, self._prefix.size
        pos, offsets = self._start, array("Q")
        for _ in range(self._count):
            offsets.append(pos)
            pos += size + length_at(mapping, pos)[0]
        return offsets
