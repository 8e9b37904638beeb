"""A memory-mapped file with one bounds check for every read."""

from __future__ import annotations

import mmap
import os
import stat
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from edgert.formats.errors import FormatError, format_error

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class MappedFile:
    """A read-only mapping of a whole file.

    Views made by `array` are zero-copy and stay valid after `close`: the pages are given back when the last view goes.
    On Windows the file cannot be replaced or removed until then.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Map `path`. FormatError for an empty file or one that is not a regular file, OSError as `open` raises it."""
        self.path = Path(path)
        if not stat.S_ISREG(os.stat(self.path).st_mode):  # opening a pipe would wait for a writer
            raise format_error(self.path, "file", "is not a regular file")
        with open(self.path, "rb") as f:
            self.size = os.fstat(f.fileno()).st_size
            if self.size == 0:
                raise format_error(self.path, "file", "is empty (0 bytes)")
            self._map: mmap.mmap | None = mmap.mmap(f.fileno(), self.size, access=mmap.ACCESS_READ)

    @property
    def map(self) -> mmap.mmap:
        """The mapping. ValueError once closed."""
        if self._map is None:
            raise ValueError(f"{self.path}: file is closed")
        return self._map

    def error(self, field: str, problem: str) -> FormatError:
        """FormatError naming this file and `field`."""
        return format_error(self.path, field, problem)

    def span(self, offset: int, length: int, field: str) -> None:
        """FormatError unless the `length` bytes at `offset`, which are to hold `field`, lie inside the file."""
        if offset < 0 or length < 0 or offset + length > self.size:
            raise self.error(field, f"{length} bytes at offset {offset} end beyond the file ({self.size} bytes)")

    def array(self, dtype: str, offset: int, count: int) -> NDArray[np.generic]:
        """`count` values of `dtype` at `offset` as a read-only numpy view; the span was checked when it was found."""
        import numpy as np

        return np.frombuffer(self.map, dtype=dtype, count=count, offset=offset)

    @cached_property
    def address(self) -> int:
        """Where the file lies in memory, until it is closed."""
        return int(self.array("u1", 0, 1).ctypes.data)

    def close(self) -> None:
        """Unmap. Views that are still in use keep the pages until they go. Safe to call again."""
        mapping, self._map = self._map, None
        if mapping is not None:
            with suppress(BufferError):  # by design: views are alive, and the mapping goes with the last of them
                mapping.close()
