"""Many short texts in one block of memory, and where each is found: a third of what lists and dicts of str take."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import overload

BATCH = 4096  # texts that are objects at the same time while all are read


class Texts(Sequence[str]):
    """A sequence of texts kept as UTF-8; each access makes a str anew."""

    def __init__(self, batches: Iterable[list[bytes]]) -> None:
        """batches: the texts in their order. UnicodeDecodeError unless all are UTF-8."""
        blob, ends = bytearray(), array("Q", [0])
        for batch in batches:
            b"\n".join(batch).decode()  # a text cannot become valid by its neighbours: \n ends every character
            ends.extend(list(accumulate(map(len, batch), initial=len(blob)))[1:])
            blob += b"".join(batch)
        self._blob, self._ends = bytes(blob), ends

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        i = index + len(self) if index < 0 else index
        if not 0 <= i < len(self):
            raise IndexError(f"there is no text {index} in {len(self)}")
        return self._blob[self._ends[i] : self._ends[i + 1]].decode()

    def __iter__(self) -> Iterator[str]:
        return map(bytes.decode, self.raw())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Texts) and self._blob == other._blob and self._ends == other._ends

    __hash__ = None  # type: ignore[assignment]  # as of any sequence that compares by its items

    def raw(self) -> Iterator[bytes]:
        """All texts as UTF-8."""
        return map(self._blob.__getitem__, map(slice, self._ends, memoryview(self._ends)[1:]))


class Index(Mapping[str, int]):
    """Text -> its first position in `texts`: 12 bytes a text, some microseconds a look-up."""

    def __init__(self, texts: Texts) -> None:
        import numpy as np

        self._texts = texts
        hashes = np.fromiter(map(hash, texts.raw()), np.int64, len(texts))
        order = np.argsort(hashes, kind="stable").astype(np.uint32)
        self._hashes, self._order = memoryview(hashes[order]), memoryview(order)  # type: ignore[arg-type]

    def __getitem__(self, text: str) -> int:
        found = self.get(text)
        if found is None:
            raise KeyError(text)
        return found

    def get(self, text: str, default: int | None = None) -> int | None:  # type: ignore[override]
        """The position, or `default`."""
        try:
            wanted = hash(text.encode())
        except UnicodeEncodeError:  # lone surrogates
            return default
        hashes = self._hashes
        at = bisect_left(hashes, wanted)
        while at < len(hashes) and hashes[at] == wanted:
            if self._texts[self._order[at]] == text:
                return self._order[at]
            at += 1
        return default

    def __contains__(self, text: object) -> bool:
        return isinstance(text, str) and self.get(text) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)

    def repeated(self) -> int | None:
        """Position of the first text that occurs again, None if all differ."""
        import numpy as np

        hashes = np.asarray(self._hashes)
        alike = np.flatnonzero(hashes[1:] == hashes[:-1]).tolist()
        pairs = [(self._order[at], self._order[at + 1]) for at in alike]
        return min((a for a, b in pairs if self._texts[a] == self._texts[b]), default=None)
