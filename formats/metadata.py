"""Metadata of a model file: a read-only mapping with typed reads that fail by name."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from edgert.formats.errors import FormatError, format_error, quote
from edgert.formats.mapped import MappedFile

if TYPE_CHECKING:
    from numpy.typing import NDArray


class NumericArray(NamedTuple):
    """Where a numeric array lies in its file. `Metadata` makes the view when it is asked for, so that opening a file
    needs no numpy and an unread array keeps no page of the file in use."""

    file: MappedFile
    dtype: str
    offset: int
    length: int


class Metadata(Mapping[str, Any]):
    """Key -> value. Scalars are Python int, float, bool or str, numeric arrays read-only zero-copy numpy views
    (possibly unaligned), string arrays `StringArray`.

    The `get_*` methods return a value of the named type. They raise FormatError, naming the file and the key, when the
    value has another type, and when the key is missing and `default` is None. int is never taken for float or bool,
    nor the other way round.
    """

    def __init__(self, values: Mapping[str, Any], source: str | os.PathLike[str] = "metadata") -> None:
        """`source` is the file that errors name."""
        self._values = dict(values)
        self.source = source

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        return value.file.array(value.dtype, value.offset, value.length) if isinstance(value, NumericArray) else value

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def error(self, key: str, problem: str) -> FormatError:
        """FormatError about `key`, to raise where a value is of the right type but does not make sense."""
        return format_error(self.source, key, problem)

    def get_int(self, key: str, default: int | None = None, *, at_least: int = 0, at_most: int = 2**63 - 1) -> int:
        """An integer within [`at_least`, `at_most`]."""
        value = self._get(key, default)
        if type(value) is not int:
            raise self._wrong_type(key, value, "an integer")
        if not at_least <= value <= at_most:
            raise self.error(key, f"{value} is not within {at_least} to {at_most}")
        return value

    def get_float(self, key: str, default: float | None = None) -> float:
        """A finite float."""
        value = self._get(key, default)
        if type(value) is not float:
            raise self._wrong_type(key, value, "a float")
        if not math.isfinite(value):
            raise self.error(key, f"{value} is not finite")
        return value

    def get_bool(self, key: str, default: bool | None = None) -> bool:
        """A bool."""
        value = self._get(key, default)
        if type(value) is not bool:
            raise self._wrong_type(key, value, "a bool")
        return value

    def get_str(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self._get(key, default)
        if type(value) is not str:
            raise self._wrong_type(key, value, "a string")
        return value

    def get_strings(self, key: str, default: Sequence[str] | None = None) -> Sequence[str]:
        """An array of strings (a `StringArray` when it comes from a file)."""
        value = self._get(key, default)
        if isinstance(value, str | bytes) or not isinstance(value, Sequence):
            raise self._wrong_type(key, value, "an array of strings")
        return value

    def get_ints(self, key: str, default: Sequence[int] | None = None, *, length: int | None = None) -> NDArray[Any]:
        """An array of integers, of `length` values if that is given."""
        return self._get_array(key, default, "iu", "an array of integers", length)

    def get_floats(
        self, key: str, default: Sequence[float] | None = None, *, length: int | None = None
    ) -> NDArray[Any]:
        """An array of finite floats, of `length` values if that is given."""
        import numpy as np

        values = self._get_array(key, default, "f", "an array of floats", length)
        if not np.isfinite(values).all():
            raise self.error(key, "holds values that are not finite")
        return values

    def get_per_layer(self, key: str, n_layer: int, default: int | None = None, *, at_least: int = 0) -> list[int]:
        """One integer per layer, for keys that hold either an integer for all layers or an array of `n_layer`."""
        if not self._is_array(self._get(key, default)):
            return [self.get_int(key, default, at_least=at_least)] * n_layer
        values = [int(v) for v in self.get_ints(key, length=n_layer)]
        for i, value in enumerate(values):
            if value < at_least:
                raise self.error(f"{key}[{i}]", f"{value} is less than {at_least}")
        return values

    def _get(self, key: str, default: Any) -> Any:
        value = self.get(key, default)
        if value is None:
            raise self.error(key, "is missing")
        return value

    def _get_array(self, key: str, default: Any, kinds: str, wanted: str, length: int | None) -> NDArray[Any]:
        import numpy as np

        value = self._get(key, default)
        values = np.asarray(value) if self._is_array(value) or isinstance(value, list | tuple) else None
        if values is None or (values.dtype.kind not in kinds and values.size):
            raise self._wrong_type(key, value, wanted)
        if length is not None and len(values) != length:
            raise self.error(key, f"has {len(values)} values, must have {length}")
        return values

    def _is_array(self, value: object) -> bool:
        return hasattr(value, "dtype")

    def _wrong_type(self, key: str, value: Any, wanted: str) -> FormatError:
        if isinstance(value, Sequence) and not isinstance(value, str):
            return self.error(key, f"is an array of {len(value)} strings, must be {wanted}")
        if self._is_array(value):
            return self.error(key, f"is an array of {len(value)} {value.dtype.name} values, must be {wanted}")
        return self.error(key, f"{quote(value)} is {type(value).__name__}, must be {wanted}")
