"""The vocabulary of a GGUF file: token texts, attributes, special ids and flags, checked and with llama.cpp's defaults.

Source of the rules: llama.cpp, src/llama-vocab.cpp (what a key means, what holds when it is absent, and which tokens
are special by their text because converters do not say so).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from edgert.formats.metadata import Metadata
from edgert.formats.strings import StringArray
from edgert.formats.texts import BATCH, Index, Texts
from edgert.formats.tok_pre import PreTokenizer, pre_tokenizer
from edgert.formats.tok_roles import (
    BYTE,
    CONTROL,
    NO_TOKEN,
    NORMAL,
    ROLES,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    set_by_text,
    set_strip,
)

# index: tokenizer.ggml.token_type
_ATTR_OF_TYPE = bytes((0, NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE))

_UNSET = 2**32 - 1  # -1 as the unsigned 32-bit value some converters write

DEFAULT_IDS: dict[str, dict[str, int]] = {
    "llama": {"bos": 1, "eos": 2, "unk": 0},
    "gpt2": {"bos": 11, "eos": 11},
    "gemma4": {},
    "bert": {"bos": 101, "unk": 100, "sep": 102, "pad": 0, "mask": 103},
    "t5": {"eos": 1, "unk": 2, "pad": 0},
    "no_vocab": {},
}
MODELS = tuple(DEFAULT_IDS)


@dataclass
class Vocab:
    """Token texts and everything about them that the metadata says or implies. `NO_TOKEN` (-1) = there is none."""

    model: str  # "llama" (SPM), "gpt2" or "gemma4" (BPE), "bert" (WordPiece), "t5" (Unigram), "no_vocab"
    metadata: Metadata
    tokens: Texts
    attrs: bytearray  # attribute bits per token
    pre: PreTokenizer | None  # BPE only
    n_vocab: int
    merges: Texts = field(default_factory=lambda: Texts([]))  # BPE only, the best first
    scores: Any = None  # SPM and Unigram only: float32 (n_vocab,)
    charsmap: bytes = b""  # Unigram only: size of the trie (4 bytes, little-endian), trie, replacement texts
    ids: dict[str, int] = field(default_factory=dict)  # role -> token id; "eot" is in `eot_candidates` when not here
    eot_candidates: list[int] = field(default_factory=list)
    eog_ids: set[int] = field(default_factory=set)
    add_bos: bool = False
    add_eos: bool = False
    add_sep: bool = False
    add_space_prefix: bool = False
    clean_spaces: bool = False
    remove_extra_whitespaces: bool = False
    escape_whitespaces: bool = True

    @cached_property
    def token_to_id(self) -> Index:
        return Index(self.tokens)

    @property
    def is_bpe(self) -> bool:
        return self.model in ("gpt2", "gemma4")

    @cached_property
    def special_ids(self) -> list[int]:
        """Ids of control, user-defined and unknown tokens, longest text (in bytes) first: the order of matching."""
        wanted = CONTROL | USER_DEFINED | UNKNOWN
        table = bytes(1 if a & wanted else 0 for a in range(256))
        marks = self.attrs.translate(table)
        found, at = [], marks.find(1)
        while at >= 0:
            found.append(at)
            at = marks.find(1, at + 1)
        return sorted(found, key=lambda i: -len(self.tokens[i].encode()))


def load_vocab(metadata: Mapping[str, Any], *, allow_unknown_pre: bool = False) -> Vocab:
    """Vocab from GGUF metadata. FormatError names the key when one is missing, of a wrong type or out of range."""
    md = metadata if isinstance(metadata, Metadata) else Metadata(metadata)
    model = md.get_str("tokenizer.ggml.model")
    if model == "none":
        model = "no_vocab"
    if model not in MODELS:
        raise md.error("tokenizer.ggml.model", f"{model!r} is not supported (supported: {', '.join(MODELS)})")
    if model == "no_vocab":
        arch = md.get_str("general.architecture", "")
        return Vocab(model, md, Texts([]), bytearray(), None, md.get_int(f"{arch}.vocab_size", 0))
    tokens = _tokens(md)
    pre = None
    if model in ("gpt2", "gemma4"):
        name = "gemma4" if model == "gemma4" else md.get_str("tokenizer.ggml.pre", "default")
        pre = pre_tokenizer(md, name, allow_unknown=allow_unknown_pre)
    vocab = Vocab(model, md, tokens, _attrs(md, len(tokens)), pre, len(tokens))
    if pre is not None:
        vocab.merges = _merges(md)
    elif model != "bert":
        vocab.scores = _scores(md, len(tokens))
    if model == "t5":
        vocab.charsmap = _charsmap(md)
    _check_bytes(vocab)
    if (twice := vocab.token_to_id.repeated()) is not None:
        raise md.error(f"tokenizer.ggml.tokens[{twice}]", f"{tokens[twice]!r} occurs twice")
    _set_flags(vocab)
    _set_ids(vocab)
    set_by_text(vocab)
    set_strip(vocab)
    return vocab


def _tokens(md: Metadata) -> Texts:
    key = "tokenizer.ggml.tokens"
    strings = md.get_strings(key)
    if not strings:
        raise md.error(key, "is empty")
    return _texts(strings, empty=b"[EMPTY_%d]")


def _attrs(md: Metadata, n: int) -> bytearray:
    key = "tokenizer.ggml.token_type"
    if key not in md:
        return bytearray([NORMAL]) * n
    types = md.get_ints(key, length=n)
    if types.min() < 0 or types.max() >= len(_ATTR_OF_TYPE):
        bad = int(((types < 0) | (types >= len(_ATTR_OF_TYPE))).argmax())
        raise md.error(f"{key}[{bad}]", f"{types[bad]} is not within 0 to {len(_ATTR_OF_TYPE) - 1}")
    return bytearray(types.astype("u1").tobytes().translate(_ATTR_OF_TYPE.ljust(256, b"\0")))


def _merges(md: Metadata) -> Texts:
    key = "tokenizer.ggml.merges"
    if key not in md and md.get_str("tokenizer.ggml.pre", "") == "kimi-k2":
        return Texts([])  # made from a tiktoken vocabulary, which has none
    merges = _texts(md.get_strings(key))
    bad = next((i for i, m in enumerate(merges.raw()) if b" " not in m[1:]), None)
    if bad is not None:
        raise md.error(f"{key}[{bad}]", f"{merges[bad]!r} is not two parts with a space between")
    return merges


def _scores(md: Metadata, n: int) -> Any:
    key = "tokenizer.ggml.scores"
    integers = key in md and getattr(getattr(md[key], "dtype", None), "kind", "") == "i"
    return (md.get_ints if integers else md.get_floats)(key, length=n).astype("f4")


def _charsmap(md: Metadata) -> bytes:
    key = "tokenizer.ggml.precompiled_charsmap"
    if key not in md:
        return b""
    blob: bytes = md.get_ints(key).astype("u1").tobytes()
    size = int.from_bytes(blob[:4], "little")
    if len(blob) < 5 or size < 4 or size % 4 or size + 4 >= len(blob):
        raise md.error(key, f"has {len(blob)} bytes, which does not fit the trie of {size} bytes it announces")
    return blob


def _check_bytes(v: Vocab) -> None:
    at = v.attrs.find(BYTE)
    while at >= 0:
        text = v.tokens[at]
        if len(text) != 6 or not text.startswith("<0x") or not text.endswith(">") or not _is_hex(text[3:5]):
            raise v.metadata.error(f"tokenizer.ggml.tokens[{at}]", f"{text!r} is no byte (<0x00> to <0xFF>)")
        at = v.attrs.find(BYTE, at + 1)


def _is_hex(text: str) -> bool:
    return all(c in "0123456789abcdefABCDEF" for c in text)


def _texts(strings: Sequence[str], empty: bytes = b"") -> Texts:
    """The strings of an array; `empty` (with %d, its position) stands for one that is empty."""

    def batches() -> Iterator[list[bytes]]:
        if isinstance(strings, StringArray):
            yield from strings.batches(BATCH)
        else:
            yield [text.encode() for text in strings]

    def filled() -> Iterator[list[bytes]]:
        at = 0
        for batch in batches():
            yield batch if not empty or all(batch) else [t or empty % i for i, t in enumerate(batch, at)]
            at += len(batch)

    try:
        return Texts(filled())
    except UnicodeDecodeError:
        if isinstance(strings, StringArray):
            strings.tolist()  # names the one that is wrong
        raise


def _set_flags(v: Vocab) -> None:
    md, pre = v.metadata, v.pre
    if pre is not None:
        v.clean_spaces, v.add_bos, v.add_sep = pre.clean_spaces, pre.add_bos, pre.add_sep
        v.escape_whitespaces = pre.escape_whitespaces
    elif v.model == "llama":
        v.add_bos = v.add_space_prefix = True
    elif v.model == "bert":
        v.clean_spaces = v.add_bos = v.add_sep = True
    else:
        v.add_eos = True
    v.add_space_prefix = md.get_bool("tokenizer.ggml.add_space_prefix", v.add_space_prefix)
    v.remove_extra_whitespaces = md.get_bool("tokenizer.ggml.remove_extra_whitespaces", False)
    v.add_bos = md.get_bool("tokenizer.ggml.add_bos_token", v.add_bos)
    v.add_eos = md.get_bool("tokenizer.ggml.add_eos_token", v.add_eos)
    v.add_sep = md.get_bool("tokenizer.ggml.add_sep_token", v.add_sep)
    if pre is not None and pre.always_bos:
        v.add_bos = True


def _set_ids(v: Vocab) -> None:
    md, n = v.metadata, v.n_vocab
    defaults = DEFAULT_IDS[v.model]
    for role, (keys, _) in ROLES.items():
        default = defaults.get(role, NO_TOKEN)
        if role == "bos" and v.pre is not None and v.pre.no_default_bos:
            default = NO_TOKEN
        v.ids[role] = default if default < n else NO_TOKEN
        for key in keys:
            key = f"tokenizer.ggml.{key}"
            if key in md and (value := md.get_int(key)) != _UNSET:
                if value >= n:
                    raise md.error(key, f"{value} is not a token of this vocabulary of {n}")
                v.ids[role] = value
    for flag, role in (("add_bos", "bos"), ("add_eos", "eos")):
        if getattr(v, flag) and v.ids[role] == NO_TOKEN:
            raise md.error(f"tokenizer.ggml.{role}_token_id", f"is missing, but {flag}_token is true")
