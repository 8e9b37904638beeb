"""Text to token ids and back, from the metadata of a GGUF file, with llama.cpp's results.

`load_tokenizer` reads the vocabulary; what encoding needs besides is built at the first `encode`, so a program that
only decodes does not pay for it.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

from edgert.formats.metadata import Metadata
from edgert.formats.tok_roles import BYTE, CONTROL, NO_TOKEN, NORMAL, UNKNOWN, USER_DEFINED
from edgert.formats.tok_special import Partition
from edgert.formats.tok_vocab import DEFAULT_IDS, Vocab, load_vocab

__all__ = ["NO_TOKEN", "StreamDecoder", "Tokenizer", "load_tokenizer"]


class _Encoder(Protocol):
    def encode(self, text: str) -> list[int]: ...


def load_tokenizer(metadata: Mapping[str, Any], *, allow_unknown_pre: bool = False) -> Tokenizer:
    """Tokenizer from GGUF metadata (string arrays: any Sequence[str], read with `tolist` where there is one).

    FormatError names the key that is missing, of the wrong type, or does not fit the others. An unknown
    `tokenizer.ggml.pre` is one too, unless `allow_unknown_pre`: then the text is cut as for "default", which gives
    other ids than the model was trained with in places.
    """
    return Tokenizer(load_vocab(metadata, allow_unknown_pre=allow_unknown_pre))


class Tokenizer:
    """Encodes text to token ids and decodes ids to text. Safe to use from several threads.

    `model` is `tokenizer.ggml.model`; `add_bos`, `add_eos` say what `encode` adds; ids of special tokens are
    attributes (`bos_id`, `eos_id`, `eot_id`, ...), -1 when the vocabulary has none; `eog_ids` are all tokens that end
    a generation.
    """

    def __init__(self, vocab: Vocab) -> None:
        self.vocab = vocab
        self.model = vocab.model
        self.n_vocab = vocab.n_vocab
        self.tokens: Sequence[str] = vocab.tokens
        self.add_bos, self.add_eos = vocab.add_bos, vocab.add_eos
        self.add_space_prefix = vocab.add_space_prefix
        self.eog_ids = frozenset(vocab.eog_ids)
        ids = vocab.ids.get
        self.bos_id, self.eos_id, self.unk_id = ids("bos", NO_TOKEN), ids("eos", NO_TOKEN), ids("unk", NO_TOKEN)
        self.sep_id, self.pad_id, self.mask_id = ids("sep", NO_TOKEN), ids("pad", NO_TOKEN), ids("mask", NO_TOKEN)
        self.eom_id = ids("eom", NO_TOKEN)
        self.fim_pre_id, self.fim_suf_id = ids("fim_pre", NO_TOKEN), ids("fim_suf", NO_TOKEN)
        self.fim_mid_id, self.fim_pad_id = ids("fim_mid", NO_TOKEN), ids("fim_pad", NO_TOKEN)
        self.fim_rep_id, self.fim_sep_id = ids("fim_rep", NO_TOKEN), ids("fim_sep", NO_TOKEN)
        self._pieces: dict[int, bytes] = {}

    @cached_property
    def eot_id(self) -> int:
        """The token that ends a turn; where several could, one that is not EOS."""
        known = self.vocab.ids.get("eot", NO_TOKEN)
        others = [i for i in self.vocab.eot_candidates if i != self.eos_id]
        return known if known != NO_TOKEN else max(others or self.vocab.eot_candidates, default=NO_TOKEN)

    @cached_property
    def nl_id(self) -> int:
        """The first token of a newline; where there is none, the model family's usual padding token."""
        padding = DEFAULT_IDS[self.model].get("pad", NO_TOKEN)
        if self.model in ("no_vocab", "bert"):
            return padding
        if self.model == "llama":
            from edgert.formats.tok_spm import byte_id

            return byte_id(self.vocab.token_to_id, 10, padding)
        return next(iter(self._encoder.encode("\n")), padding)

    @cached_property
    def _encoder(self) -> _Encoder:
        vocab = self.vocab
        if vocab.pre is not None:
            from edgert.formats.tok_bpe import BpeEncoder

            return BpeEncoder(vocab, vocab.pre)
        if vocab.model == "llama":
            from edgert.formats.tok_spm import SpmEncoder

            return SpmEncoder(vocab)
        if vocab.model == "bert":
            from edgert.formats.tok_wordpiece import WordPieceEncoder

            return WordPieceEncoder(vocab)
        if vocab.model == "t5":
            from edgert.formats.tok_unigram import UnigramEncoder

            return UnigramEncoder(vocab)
        raise vocab.metadata.error("tokenizer.ggml.model", "the file has no vocabulary, so text cannot be tokenized")

    @cached_property
    def _partition(self) -> Partition:
        return Partition(self.vocab)

    def encode(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of `text`.

        `add_special` adds BOS, EOS and the like where the vocabulary asks for them; `parse_special` takes the text of
        control tokens in `text` for these tokens (user-defined tokens always are). FormatError for a model without a
        vocabulary.
        """
        encode = self._encoder.encode
        text = _well_formed(text)
        spm, bert = self.model == "llama", self.model == "bert"
        out = [self.bos_id] if add_special and (self.add_bos or bert) and self.bos_id != NO_TOKEN else []
        after_special = True
        for part in self._partition(text, parse_special):
            if isinstance(part, int):
                out.append(part)
            else:
                out += encode(" " + part if spm and self.add_space_prefix and after_special else part)
            after_special = isinstance(part, int)
        last = self.sep_id if bert else self.eos_id
        if add_special and (self.add_eos or bert) and last != NO_TOKEN:
            out.append(last)
        return out

    def token_bytes(self, token: int, special: bool = True) -> bytes:
        """The bytes token id `token` stands for; of a control token b"" unless `special`. ValueError for a bad id."""
        if not 0 <= token < self.n_vocab:
            raise ValueError(f"token id {token} is not within 0 to {self.n_vocab - 1}")
        if self.model == "no_vocab" or (not special and self.vocab.attrs[token] & (CONTROL | UNKNOWN)):
            return b""
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._piece(token)
        return piece

    def pieces(self) -> list[bytes]:
        """`token_bytes` of every token, in their order; made anew by each call."""
        if self.model == "no_vocab":
            return [b""] * self.n_vocab
        return [self._pieces.get(i) or self._piece(i) for i in range(self.n_vocab)]

    def _piece(self, token: int) -> bytes:
        text, attr, pre = self.vocab.tokens[token], self.vocab.attrs[token], self.vocab.pre
        if attr & (CONTROL | UNKNOWN | USER_DEFINED):
            return text.encode()
        if attr & NORMAL:
            return _spelled_bytes(text) if pre and pre.byte_level else text.replace("▁", " ").encode()
        if attr & BYTE:
            return bytes([int(text[3:5], 16)])
        return b""

    def token_text(self, token: int) -> str:
        """The text of a token as the vocabulary spells it, "" for `NO_TOKEN`."""
        return self.tokens[token] if token != NO_TOKEN else ""

    def decode_bytes(
        self, ids: Iterable[int], remove_special: bool = False, unparse_special: bool = False
    ) -> bytes:
        """The bytes of a sequence of ids.

        `remove_special` drops a leading BOS and a trailing EOS that `encode` would add; `unparse_special` shows the
        text of control tokens. Cleans spaces and drops the leading space where the vocabulary asks for it.
        """
        ids = list(ids)
        strip = self.add_space_prefix
        if remove_special and self.add_bos and ids and ids[0] == self.bos_id:
            strip, ids = False, ids[1:]
        if remove_special and self.add_eos and ids and ids[-1] == self.eos_id:
            ids = ids[:-1]
        pieces = [self.token_bytes(i, unparse_special) for i in ids]
        if strip and pieces:
            pieces[0] = pieces[0].removeprefix(b" ")
        data = b"".join(pieces)
        return _clean(data) if self.vocab.clean_spaces else data

    def decode(self, ids: Iterable[int], remove_special: bool = False, unparse_special: bool = False) -> str:
        """As `decode_bytes`, as text; bytes that are no UTF-8 become U+FFFD."""
        return self.decode_bytes(ids, remove_special, unparse_special).decode("utf-8", "replace")

    @property
    def metadata(self) -> Metadata:
        """The metadata the tokenizer was made from."""
        return self.vocab.metadata


class StreamDecoder:
    """Ids to text one at a time, never half a character: what `feed` and `flush` returned, joined, is the text.

    The text is that of `Tokenizer.decode` without the cleaning of spaces, which needs to look ahead and would harm
    code. `special` shows the text of control tokens, `shown` that of these ids. `continues` keeps the leading space
    that a vocabulary with add_space_prefix has at the start of a text; set it when the ids continue a text and do not
    start one.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, special: bool = False, shown: Collection[int] = (), continues: bool = False
    ) -> None:
        self._tokenizer = tokenizer
        self._special, self._shown = special, frozenset(shown)
        self._strip = tokenizer.add_space_prefix and not continues
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        """The text that became complete with id `token`, "" while a character is incomplete."""
        data = self._tokenizer.token_bytes(token, self._special or token in self._shown)
        if self._strip:
            self._strip, data = False, data.removeprefix(b" ")
        return self._utf8.decode(data)

    def flush(self) -> str:
        """The rest: U+FFFD if the ids ended within a character, else ""."""
        return self._utf8.decode(b"", True)


def _well_formed(text: str) -> str:
    """`text` with lone surrogates, which UTF-8 cannot carry, replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _spelled_bytes(text: str) -> bytes:
    """The bytes a token text spells in GPT-2's alphabet; other characters show up as llama.cpp shows them."""
    from edgert.formats.tok_bpe import BYTE_OF

    try:
        return bytes([BYTE_OF[c] for c in text])
    except KeyError:
        whole = text.encode()
        return b"".join(
            bytes([BYTE_OF[c]]) if c in BYTE_OF else b"[UNK_BYTE_0x" + c.encode().hex().encode() + whole + b"]"
            for c in text
        )


def _clean(data: bytes) -> bytes:
    """Three passes, as llama.cpp and before it Hugging Face's clean_up_tokenization_spaces."""
    data = re.sub(rb" (?=[?!.,])", b"", data)
    data = data.replace(b" ' ", b"'")
    return re.sub(rb" (?='(?:[sm]|re|ve))", b"", data)
