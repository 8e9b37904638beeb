"""A tokenizer without a model: vocabulary-only files, or any GGUF without touching its weights."""

from __future__ import annotations

import os
from collections.abc import Sequence

from .errors import EdgertError
from .formats.chat_template import ChatTemplate, chat_template_from_metadata
from .formats.gguf import Gguf
from .formats.tokenizer import Tokenizer
from .formats.tokenizer import load_tokenizer as _load


class Vocabulary:
    """tokenize, detokenize, token_bytes and chat_template as `Model` has them."""

    def __init__(self, tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
        self.tokenizer, self.chat_template = tokenizer, chat_template
        self.n_vocab = tokenizer.n_vocab

    def tokenize(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of text."""
        return self.tokenizer.encode(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""
        return self.tokenizer.decode(self._checked(ids))

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token stands for."""
        return self.tokenizer.token_bytes(self._checked([token])[0])

    def _checked(self, ids: Sequence[int]) -> Sequence[int]:
        for i in ids:
            if not 0 <= i < self.n_vocab:
                raise EdgertError(f"token {i} is not in the vocabulary of {self.n_vocab}")
        return ids


def load_tokenizer(path: str | os.PathLike[str], *, allow_unknown_pre: bool = False) -> Vocabulary:
    """The vocabulary of a GGUF file (or of a model's name). FormatError if it has none that is known.

    allow_unknown_pre: treat an unknown pre-tokenizer as the default one, which gives other ids in places.
    """
    from .registry import local_path

    with Gguf.open(local_path(path)) as gguf:
        tokenizer = _load(gguf.metadata, allow_unknown_pre=allow_unknown_pre)
        return Vocabulary(tokenizer, chat_template_from_metadata(gguf.metadata, tokenizer))
