"""Parser of one GGUF file: header, metadata and tensor table, every field checked before it is used.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Version 1 has 32-bit counts, lengths and dimensions
where versions 2 and 3 have 64-bit ones; version 3 also allows big-endian files, which are refused here.
"""

from __future__ import annotations

import math
import struct
from typing import Any, NamedTuple

from edgert.formats.errors import quote
from edgert.formats.mapped import MappedFile
from edgert.formats.metadata import NumericArray
from edgert.formats.quants import GGML_TYPES, REMOVED_TYPES, GgmlType
from edgert.formats.strings import StringArray, skip_strings

VERSIONS = (1, 2, 3)
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 16
MAX_DIMS = 4
MAX_NAME = 64  # bytes of a tensor name, by the format's specification
MAX_KEY = (1 << 16) - 1  # bytes of a key, by the specification

# Bounds far above real files, which keep the time and memory for a hostile one small.
MAX_KEYS = 1 << 14
MAX_TENSORS = 1 << 16
MAX_STRINGS = 1 << 22  # strings in all arrays together; a vocabulary of 262144 with its merges has 800 k
MAX_STRING_ARRAY = 1 << 27  # bytes of one string array
MAX_TEXT = 1 << 25  # bytes of all scalar strings together

_UINT32, _BOOL, _STRING, _ARRAY = 4, 7, 8, 9
_SCALARS: dict[int, tuple[str, struct.Struct]] = {
    0: ("u1", struct.Struct("<B")),
    1: ("i1", struct.Struct("<b")),
    2: ("<u2", struct.Struct("<H")),
    3: ("<i2", struct.Struct("<h")),
    _UINT32: ("<u4", struct.Struct("<I")),
    5: ("<i4", struct.Struct("<i")),
    6: ("<f4", struct.Struct("<f")),
    _BOOL: ("?", struct.Struct("<B")),
    10: ("<u8", struct.Struct("<Q")),
    11: ("<i8", struct.Struct("<q")),
    12: ("<f8", struct.Struct("<d")),
}
_TYPE_NAMES = ("u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64")
_KNOWN_TYPES = {"general.architecture": _STRING, "general.alignment": _UINT32}
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class TensorInfo(NamedTuple):
    """One row of the tensor table. `shape` is in GGUF order: the first dimension is contiguous in memory."""

    name: str
    shape: tuple[int, ...]
    type: GgmlType
    nbytes: int
    offset: int  # of the first byte, from the start of its file
    shard: int = 0  # index of its file


class GgufFile:
    """One parsed file. The mapping is open when the constructor returns, and closed if it raises."""

    def __init__(self, file: MappedFile) -> None:
        self.file = file
        self.alignment = DEFAULT_ALIGNMENT
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, TensorInfo] = {}
        self._pos = 0
        self._n_strings = 0
        self._n_text = 0
        try:
            n_tensors, n_keys = self._read_header()
            self._read_metadata(n_keys)
            self._read_tensors(n_tensors)
        except BaseException:
            file.close()
            raise

    # -- primitive reads: each passes span() and moves on ------------------------------------------------------------

    def _number(self, number: struct.Struct, field: str) -> Any:
        self.file.span(self._pos, number.size, field)
        (value,) = number.unpack_from(self.file.map, self._pos)
        self._pos += number.size
        return value

    def _text(self, field: str, limit: int) -> str:
        length = self._number(self._size, f"{field} length")
        self.file.span(self._pos, length, field)
        if length > limit:
            raise self.file.error(field, f"{length} bytes long, at most {limit} are supported")
        raw = self.file.map[self._pos : self._pos + length]
        self._pos += length
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self.file.error(field, f"{quote(raw)} is not UTF-8") from None

    def _count(self, number: struct.Struct, each: int, limit: int, field: str) -> int:
        """A count of things that take at least `each` bytes; the file must have that many left."""
        count: int = self._number(number, field)
        left = self.file.size - self._pos
        if count * each > left:
            raise self.file.error(field, f"{count} cannot fit into the {left} bytes that are left")
        if count > limit:
            raise self.file.error(field, f"{count} is more than the {limit} supported")
        return count

    # -- header ------------------------------------------------------------------------------------------------------

    def _read_header(self) -> tuple[int, int]:
        self.file.span(0, 8, "header")
        magic = self.file.map[:4]
        if magic != b"GGUF":
            raise self.file.error("magic", f"{quote(magic)} is not b'GGUF'")
        self._pos = 4
        self.version: int = self._number(_U32, "version")
        swapped = int.from_bytes(self.version.to_bytes(4, "little"), "big")
        if swapped in VERSIONS:
            raise self.file.error("version", f"{swapped} stored big-endian; only little-endian files are supported")
        if self.version not in VERSIONS:
            raise self.file.error("version", f"{self.version} is not supported (1, 2 and 3 are)")
        self._size = _U32 if self.version == 1 else _U64
        size = self._size.size
        # least bytes of a tensor: name length, one byte, n_dims, one dimension, type, offset
        n_tensors = self._count(self._size, size + 1 + 4 + size + 4 + 8, MAX_TENSORS, "tensor count")
        # least bytes of a key: its length, one byte, type, a value of one byte
        n_keys = self._count(self._size, size + 1 + 4 + 1, MAX_KEYS, "metadata count")
        return n_tensors, n_keys

    # -- metadata ----------------------------------------------------------------------------------------------------

    def _read_metadata(self, n_keys: int) -> None:
        for i in range(n_keys):
            key = self._text(f"key {i}", MAX_KEY)
            if not key:
                raise self.file.error(f"key {i}", "is empty")
            if key in self.metadata:
                raise self.file.error(key, "is there twice")
            kind = self._number(_U32, f"{key} type")
            wanted = _KNOWN_TYPES.get(key, kind)
            if kind != wanted:
                raise self.file.error(key, f"has type {_type_name(kind)}, must be {_type_name(wanted)}")
            self.metadata[key] = self._read_value(kind, key)
        self.alignment = self.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not 0 < self.alignment <= MAX_ALIGNMENT or self.alignment & (self.alignment - 1):
            problem = f"{self.alignment} is not a power of two from 1 to {MAX_ALIGNMENT}"
            raise self.file.error("general.alignment", problem)

    def _read_value(self, kind: int, key: str) -> Any:
        if kind == _STRING:
            text = self._text(key, MAX_TEXT - self._n_text)
            self._n_text += len(text)
            return text
        if kind == _ARRAY:
            return self._read_array(key)
        if kind not in _SCALARS:
            raise self.file.error(key, f"unknown value type {kind}")
        value = self._number(_SCALARS[kind][1], key)
        if kind != _BOOL:
            return value
        if value > 1:
            raise self.file.error(key, f"bool has value {value}, must be 0 or 1")
        return bool(value)

    def _read_array(self, key: str) -> NumericArray | StringArray:
        kind = self._number(_U32, f"{key} element type")
        if kind == _STRING:
            return self._read_strings(key)
        if kind == _ARRAY:
            raise self.file.error(key, "is an array of arrays, which is not supported")
        if kind not in _SCALARS:
            raise self.file.error(key, f"unknown element type {kind}")
        dtype, number = _SCALARS[kind]
        count = self._count(self._size, number.size, self.file.size, f"{key} length")
        start = self._pos
        self._pos += count * number.size
        if kind == _BOOL:
            self._check_bools(key, start, count)
        return NumericArray(self.file, dtype, start, count)

    def _read_strings(self, key: str) -> StringArray:
        count = self._count(self._size, self._size.size, MAX_STRINGS - self._n_strings, f"{key} length")
        self._n_strings += count
        start = self._pos
        self._pos = skip_strings(self.file, start, count, self._size, key)
        if self._pos - start > MAX_STRING_ARRAY:
            raise self.file.error(key, f"{self._pos - start} bytes long, at most {MAX_STRING_ARRAY} are supported")
        return StringArray(self.file, key, start, self._pos, count, self._size)

    def _check_bools(self, key: str, start: int, count: int) -> None:
        for pos in range(start, start + count, 1 << 20):
            bad = self.file.map[pos : min(pos + (1 << 20), start + count)].translate(None, b"\0\1")
            if bad:
                raise self.file.error(key, f"array of bool holds {bad[0]}, must be 0 or 1")

    # -- tensor table ------------------------------------------------------------------------------------------------

    def _read_tensors(self, n_tensors: int) -> None:
        rows = [self._read_tensor(i) for i in range(n_tensors)]
        data_start = -(-self._pos // self.alignment) * self.alignment
        for name, shape, kind, offset in rows:
            if name in self.tensors:
                raise self.file.error(f"tensor {name}", "is there twice")
            nbytes = kind.row_bytes(shape[0]) * math.prod(shape[1:])
            if offset % self.alignment:
                raise self.file.error(f"tensor {name} offset", f"{offset} is not a multiple of {self.alignment}")
            self.file.span(data_start + offset, nbytes, f"tensor {name}")
            self.tensors[name] = TensorInfo(name, shape, kind, nbytes, data_start + offset)
        self._check_overlap()

    def _read_tensor(self, i: int) -> tuple[str, tuple[int, ...], GgmlType, int]:
        name = self._text(f"tensor {i} name", MAX_NAME)
        if not name:
            raise self.file.error(f"tensor {i} name", "is empty")
        field = f"tensor {name}"
        n_dims = self._number(_U32, f"{field} n_dims")
        if not 1 <= n_dims <= MAX_DIMS:
            raise self.file.error(f"{field} n_dims", f"{n_dims} is not within 1 to {MAX_DIMS}")
        shape = tuple(self._number(self._size, f"{field} dimension {d}") for d in range(n_dims))
        if min(shape) < 1 or math.prod(shape) >= 1 << 63:
            raise self.file.error(f"{field} shape", f"{list(shape)} must have from 1 to 2^63 - 1 values")
        kind = self._tensor_type(self._number(_U32, f"{field} type"), field)
        if shape[0] % kind.block_size:
            problem = f"row of {shape[0]} values is not a multiple of {kind.name}'s block of {kind.block_size}"
            raise self.file.error(f"{field} shape", problem)
        return name, shape, kind, self._number(_U64, f"{field} offset")

    def _tensor_type(self, number: int, field: str) -> GgmlType:
        if number in REMOVED_TYPES:
            raise self.file.error(f"{field} type", f"{number} ({REMOVED_TYPES[number]}) was removed from the format")
        if number not in GGML_TYPES:
            raise self.file.error(f"{field} type", f"{number} is not a known type")
        return GGML_TYPES[number]

    def _check_overlap(self) -> None:
        end, before = 0, ""
        for t in sorted(self.tensors.values(), key=lambda t: t.offset):
            if t.offset < end:
                raise self.file.error(f"tensor {t.name}", f"data at offset {t.offset} overlaps tensor {before}")
            end, before = t.offset + t.nbytes, t.name


def _type_name(kind: int) -> str:
    return _TYPE_NAMES[kind] if kind < len(_TYPE_NAMES) else f"{kind} (unknown)"
