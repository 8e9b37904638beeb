"""WordPiece (`bert`): words by white space, punctuation and Chinese characters, then the longest tokens from the left.

GGUF vocabularies mark the start of a word with ▁ where BERT's own files mark the continuation with ##.
"""

from __future__ import annotations

import unicodedata

from edgert.formats.tok_roles import NO_TOKEN
from edgert.formats.tok_unicode import WHITESPACE
from edgert.formats.tok_vocab import Vocab

_CHINESE = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip
_SPACE = " "


class _Normal(dict[int, str]):
    """Translation table that fills itself: what becomes of a character, between spaces when it is a word by itself."""

    def __init__(self, lowercase: bool, strip_accents: bool) -> None:
        super().__init__()
        self.lowercase, self.strip_accents = lowercase, strip_accents

    def __missing__(self, cp: int) -> str:
        char = chr(cp)
        if self.strip_accents:
            char = unicodedata.normalize("NFD", char)[0]
        kind = unicodedata.category(char)
        if char in WHITESPACE:
            out = _SPACE
        elif char in "\0\ufffd" or (kind[0] == "C" and kind != "Cn") or (self.strip_accents and kind[0] == "M"):
            out = ""
        else:
            sign = kind[0] == "P" or (char < "\x7f" and kind[0] == "S")
            out = char.lower()[0] if self.lowercase else char
            if sign or any(a <= ord(char) <= b for a, b in _CHINESE):
                out = f"{_SPACE}{out}{_SPACE}"
        self[cp] = out
        return out


class WordPieceEncoder:
    """Plain text (no special tokens) to ids."""

    def __init__(self, vocab: Vocab) -> None:
        md = vocab.metadata
        lowercase = md.get_bool("tokenizer.ggml.normalizer.lowercase", True)
        self._table = _Normal(lowercase, md.get_bool("tokenizer.ggml.normalizer.strip_accents", lowercase))
        self._ids = dict(zip(vocab.tokens, range(len(vocab.tokens)), strict=True))  # asked for every prefix of a word
        self._unk = [vocab.ids["unk"]] if vocab.ids["unk"] != NO_TOKEN else []
        self._longest = max(map(len, vocab.tokens))
        self._cache: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        """Ids of `text`."""
        cache, out = self._cache, []
        for word in text.translate(self._table).split(_SPACE):
            if word:
                ids = cache.get(word)
                if ids is None:
                    ids = self._encode_word("▁" + word)
                    if len(cache) < 1 << 16 and len(word) <= 64:
                        cache[word] = ids
                out += ids
        return out

    def _encode_word(self, word: str) -> list[int]:
        ids, start, out = self._ids, 0, []
        while start < len(word):
            for end in range(min(len(word), start + self._longest), start, -1):
                token = ids.get(word[start:end])
                if token is not None:
                    out.append(token)
                    start = end
                    break
            else:
                return self._unk
        return out
