"""Special tokens in a text: the text cut where their texts occur, as llama.cpp cuts it."""

from __future__ import annotations

from edgert.formats.tok_roles import CONTROL, LSTRIP, RSTRIP, UNKNOWN
from edgert.formats.tok_vocab import Vocab

_SPACES = " \t\n\v\f\r"


class Partition:
    """`partition(text, parse_special)` -> pieces of plain text and ids of special tokens, in order."""

    def __init__(self, vocab: Vocab) -> None:
        self._special: list[tuple[str, int, int]] = []  # text, id, attributes; longest text first
        self._plain: list[tuple[str, int, int]] = []  # of these, those that are matched without parse_special too
        for i in vocab.special_ids:
            entry = vocab.tokens[i], i, vocab.attrs[i]
            self._special.append(entry)
            if not entry[2] & (CONTROL | UNKNOWN):
                self._plain.append(entry)

    def __call__(self, text: str, parse_special: bool) -> list[str | int]:
        """A longer special token wins over a shorter one, wherever in the text they overlap."""
        parts: list[str | int] = [text] if text else []
        for special, token, attr in self._special if parse_special else self._plain:
            if special in text:
                cut: list[str | int] = []
                for part in parts:
                    if isinstance(part, str):
                        cut += _cut(part, special, token, attr)
                    else:
                        cut.append(part)
                parts = cut
        return parts


def _cut(text: str, special: str, token: int, attr: int) -> list[str | int]:
    out: list[str | int] = []
    pieces = text.split(special)
    for i, piece in enumerate(pieces):
        if i and attr & RSTRIP:
            piece = piece.lstrip(_SPACES)
        if i < len(pieces) - 1 and attr & LSTRIP:
            piece = piece.rstrip(_SPACES)
        if piece:
            out.append(piece)
        if i < len(pieces) - 1:
            out.append(token)
    return out
