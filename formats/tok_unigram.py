"""Unigram (`t5`): the most probable cut into tokens (Viterbi), on text normalized by the model's own character map.

Source: Kudo, "Subword Regularization" (2018); the map is a double-array trie as sentencepiece writes it (Kanda,
"Space- and Time-Efficient String Dictionaries", 2018).
"""

from __future__ import annotations

from edgert.formats.tok_roles import NORMAL, UNUSED, USER_DEFINED
from edgert.formats.tok_vocab import Vocab

_UNKNOWN_PENALTY = 10.0


class CharMap:
    """Longest-prefix replacement of byte strings: `tokenizer.ggml.precompiled_charsmap`, False where there is none."""

    def __init__(self, vocab: Vocab) -> None:
        import numpy as np

        blob = vocab.charsmap
        size = int.from_bytes(blob[:4], "little")
        self._nodes: list[int] = np.frombuffer(blob, "<u4", size // 4, 4).tolist() if blob else []
        self._texts = blob[4 + size :]
        self._error = vocab.metadata.error(
            "tokenizer.ggml.precompiled_charsmap", "has a node or a text that lies outside of it"
        )

    def __bool__(self) -> bool:
        return bool(self._nodes)

    def longest(self, data: bytes, start: int) -> tuple[bytes, int] | None:
        """(replacement, number of bytes it replaces) for the longest mapped prefix of data[start:], None if none is."""
        found = self._walk(data, start)[0]
        if found is None:
            return None
        at, length = found
        end = self._texts.find(b"\0", at)
        if end < 0:
            raise self._error
        return self._texts[at:end], length

    def inert(self, pair: bytes) -> bool:
        """Whether the first of two bytes maps to itself whatever follows the second one."""
        return self._walk(pair, 0) == (None, False)

    def _walk(self, data: bytes, start: int) -> tuple[tuple[int, int] | None, bool]:
        """((offset of the replacement, length) of the longest mapped prefix, whether the walk reached the end)."""
        nodes, found = self._nodes, None
        try:
            node = _base(nodes[0])
            for end in range(start, len(data)):
                byte = data[end]
                node ^= byte
                unit = nodes[node]
                if byte == 0 or unit & 0x800000FF != byte:
                    return found, False
                node ^= _base(unit)
                if unit >> 8 & 1:
                    found = nodes[node] & 0x7FFFFFFF, end + 1 - start
        except IndexError:
            raise self._error from None
        return found, True


def _base(unit: int) -> int:
    return (unit >> 10) << ((unit & 0x200) >> 6)


def _width(lead: int) -> int:
    """Bytes of the UTF-8 character that starts with `lead`, 0 if none does."""
    return 1 if lead < 0x80 else 0 if lead < 0xC0 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4


class UnigramEncoder:
    """Plain text (no special tokens) to ids."""

    def __init__(self, vocab: Vocab) -> None:
        self._unk = vocab.ids["unk"]
        self._space = "▁" if vocab.escape_whitespaces else " "
        self._prepend, self._squeeze = vocab.add_space_prefix, vocab.remove_extra_whitespaces
        self._map = CharMap(vocab)
        score, attrs = vocab.scores.tolist(), vocab.attrs
        normal = [s for s, a in zip(score, attrs, strict=True) if a & NORMAL]
        self._unknown_score = min(normal, default=0.0) - _UNKNOWN_PENALTY
        self._tokens: dict[str, tuple[int, float]] = {}
        self._user_prefixes: set[bytes] = set()
        self._inert: set[bytes] = set()  # pairs of bytes whose first one is ASCII and maps to itself
        for i, (text, attr) in enumerate(zip(vocab.tokens, attrs, strict=True)):
            if attr & (NORMAL | USER_DEFINED | UNUSED):
                self._tokens[text] = i, 0.0 if attr & USER_DEFINED else score[i]
            if attr & USER_DEFINED:
                raw = text.encode()
                self._user_prefixes.update(raw[: n + 1] for n in range(len(raw)))
        self._longest: dict[str, int] = {}  # first character -> length of the longest token that starts with it
        for text in self._tokens:
            if len(text) > self._longest.get(text[0], 0):
                self._longest[text[0]] = len(text)

    def encode(self, text: str) -> list[int]:
        """Ids of `text`."""
        return self._best(self.normalize(text))

    def normalize(self, text: str) -> str:
        """`text` mapped by the character map, white space squeezed and escaped as the vocabulary wants it."""
        mapped = self._mapped(text) if self._map else text
        space, out, in_word, started = self._space, [], False, False
        for char in mapped:
            if char != " ":
                if not in_word:
                    in_word = True
                    if self._squeeze or (self._prepend and not started):
                        out.append(space)
                        started = True
                out.append(char)
            else:
                in_word = False
                if not self._squeeze:
                    out.append(space)
        return "".join(out)

    def _mapped(self, text: str) -> str:
        """`text` with the longest mapped prefix replaced, again and again; what no prefix maps stays as it is."""
        data, out, at = text.encode(), bytearray(), 0
        inert, users, longest = self._inert, self._user_prefixes, self._map.longest
        while at < len(data):
            pair = data[at : at + 2]
            if pair in inert:
                out.append(pair[0])
                at += 1
                continue
            n = 0
            while data[at : at + n + 1] in users and at + n < len(data):  # a user-defined token, or the start of one
                n += 1
            if n:
                out += data[at : at + n]
                at += n
            elif (found := longest(data, at)) is not None:
                out += found[0]
                at += found[1]
            else:
                if len(pair) == 2 and pair[0] < 128 and self._map.inert(pair):
                    inert.add(pair)
                n = _width(data[at])
                out += data[at : at + n] if n else b"\xef\xbf\xbd"
                at += n or 1
        return out.decode("utf-8", "replace")

    def _best(self, text: str) -> list[int]:
        n = len(text)
        best, token, origin = [float("-inf")] * (n + 1), [self._unk] * (n + 1), [0] * (n + 1)
        best[0] = 0.0
        tokens, longest = self._tokens, self._longest
        for i in range(n):
            here, alone = best[i], False
            for j in range(i + 1, min(n, i + longest.get(text[i], 0)) + 1):
                found = tokens.get(text[i:j])
                if found is not None:
                    alone = alone or j == i + 1
                    if here + found[1] > best[j]:
                        best[j], token[j], origin[j] = here + found[1], found[0], i
            if not alone and here + self._unknown_score > best[i + 1]:
                best[i + 1], token[i + 1], origin[i + 1] = here + self._unknown_score, self._unk, i
        out: list[int] = []
        while n:
            if not (out and out[-1] == token[n] == self._unk):  # unknown characters in a row are one token
                out.append(token[n])
            n = origin[n]
        return out[::-1]
