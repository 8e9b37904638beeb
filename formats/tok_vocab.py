"""The vocabulary of a GGUF file: token texts, attributes, special ids and flags, checked and with llama.cpp's defaults.

Source of the rules: llama.cpp, src/llama-vocab.cpp (what a key means, what holds when it is absent, and which tokens
are special by their text because converters do not say so).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from edgert.formats.metadata import Metadata
from edgert.formats.tok_pre import PreTokenizer, pre_tokenizer

# Token attributes, one bit each. The file gives one type per token; text rules below add bits.
UNKNOWN, UNUSED, NORMAL, CONTROL, USER_DEFINED, BYTE, LSTRIP, RSTRIP = (1 << i for i in range(8))
_ATTR_OF_TYPE = bytes((0, NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE))  # index: tokenizer.ggml.token_type

NO_TOKEN = -1
_BAR = "\uff5c"  # the wide | in tokens of DeepSeek
_UNSET = 2**32 - 1  # -1 as the unsigned 32-bit value some converters write

# role -> (metadata keys, the last one present wins; texts that mark a token as having the role)
_ROLES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "bos": (("bos_token_id",), ()),
    "eos": (("eos_token_id",), ()),
    "unk": (("unknown_token_id",), ()),
    "sep": (("seperator_token_id", "separator_token_id"), ()),
    "pad": (("padding_token_id",), ()),
    "mask": (("mask_token_id",), ()),
    "eot": (
        ("eot_token_id",),
        ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>", "_<EOT>",
         "[EOT]", f"<{_BAR}end▁of▁sentence{_BAR}>", "<end_of_utterance>"),
    ),
    "eom": (("eom_token_id",), ("<|eom_id|>",)),
    "fim_pre": (
        ("fim_pre_token_id", "prefix_token_id"),
        ("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", f"<{_BAR}fim▁begin{_BAR}>", "<PRE>", "▁<PRE>",
         "<|code_prefix|>", "<|prefix|>"),
    ),
    "fim_suf": (
        ("fim_suf_token_id", "suffix_token_id"),
        ("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", f"<{_BAR}fim▁hole{_BAR}>", "<SUF>", "▁<SUF>",
         "<|code_suffix|>", "<|suffix|>"),
    ),
    "fim_mid": (
        ("fim_mid_token_id", "middle_token_id"),
        ("<|fim_middle|>", "<fim-middle>", "<fim_middle>", f"<{_BAR}fim▁end{_BAR}>", "<MID>", "▁<MID>",
         "<|code_middle|>", "<|middle|>"),
    ),
    "fim_pad": (("fim_pad_token_id",), ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]")),
    "fim_rep": (
        ("fim_rep_token_id",),
        ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    ),
    "fim_sep": (("fim_sep_token_id",), ("<|file_sep|>",)),
}  # fmt: skip

# Tokens that end a generation, whatever else they are.
_EOG_TEXTS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>",
    "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>",
    "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>", f"<{_BAR}end▁of▁sentence{_BAR}>", "[e~[",
)  # fmt: skip
# Parts of the gpt-oss message format that are always to be seen in the text.
_VISIBLE_TEXTS = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")

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
    tokens: list[str]
    attrs: bytearray  # attribute bits per token
    pre: PreTokenizer | None  # BPE only
    n_vocab: int
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
    def token_to_id(self) -> dict[str, int]:
        return dict(zip(self.tokens, range(len(self.tokens)), strict=True))

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
        return Vocab(model, md, [], bytearray(), None, md.get_int(f"{arch}.vocab_size", 0))
    tokens = _tokens(md)
    pre = None
    if model in ("gpt2", "gemma4"):
        name = "gemma4" if model == "gemma4" else md.get_str("tokenizer.ggml.pre", "default")
        pre = pre_tokenizer(md, name, allow_unknown=allow_unknown_pre)
    vocab = Vocab(model, md, tokens, _attrs(md, len(tokens)), pre, len(tokens))
    if len(vocab.token_to_id) != len(tokens):
        twice = next(i for i, t in enumerate(tokens) if vocab.token_to_id[t] != i)
        raise md.error(f"tokenizer.ggml.tokens[{twice}]", f"{tokens[twice]!r} occurs twice")
    _set_flags(vocab)
    _set_ids(vocab)
    _set_by_text(vocab)
    _set_strip(vocab)
    return vocab


def _tokens(md: Metadata) -> list[str]:
    key = "tokenizer.ggml.tokens"
    array = md.get_strings(key)
    tokens: list[str] = array.tolist() if hasattr(array, "tolist") else list(array)
    if not tokens:
        raise md.error(key, "is empty")
    if not all(tokens):
        tokens = [t or f"[EMPTY_{i}]" for i, t in enumerate(tokens)]
    return tokens


def _attrs(md: Metadata, n: int) -> bytearray:
    key = "tokenizer.ggml.token_type"
    if key not in md:
        return bytearray([NORMAL]) * n
    types = md.get_ints(key, length=n)
    if types.min() < 0 or types.max() >= len(_ATTR_OF_TYPE):
        bad = int(((types < 0) | (types >= len(_ATTR_OF_TYPE))).argmax())
        raise md.error(f"{key}[{bad}]", f"{types[bad]} is not within 0 to {len(_ATTR_OF_TYPE) - 1}")
    return bytearray(types.astype("u1").tobytes().translate(_ATTR_OF_TYPE.ljust(256, b"\0")))


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
    for role, (keys, _) in _ROLES.items():
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


def _set_by_text(v: Vocab) -> None:
    """Roles and end-of-generation tokens that are known by their text, and the exceptions llama.cpp makes."""
    find, attrs = v.token_to_id.get, v.attrs
    for role, (_, texts) in _ROLES.items():
        if texts and v.ids[role] == NO_TOKEN:
            found = [i for t in texts if (i := find(t)) is not None]
            if role == "eot":
                v.eot_candidates = found
            elif found:
                v.ids[role] = found[0]
                attrs[found[0]] |= CONTROL
    v.eog_ids = {v.ids[r] for r in ("fim_pad", "fim_rep", "fim_sep", "eos", "eot", "eom")} - {NO_TOKEN}
    for text in _EOG_TEXTS:
        if (i := find(text)) is not None:
            v.eog_ids.add(i)
            attrs[i] |= CONTROL
    for text in _VISIBLE_TEXTS:
        if (i := find(text)) is not None:
            attrs[i] = USER_DEFINED
    names = {v.tokens[i] for i in v.eog_ids}
    calls = names & {"<|call|>", "<|calls|>"}
    if "<|end|>" in names and calls and names & {"<|return|>", "<|flush|>"}:
        # gpt-oss and solar-open end a part of a message with <|end|> and the message with another token
        _not_eog(v, "<|end|>", USER_DEFINED)
    if {"<|tool_response>", "</s>"} <= names:  # gemma 4 has </s> as plain text
        _not_eog(v, "</s>", NORMAL)


def _not_eog(v: Vocab, text: str, attr: int) -> None:
    v.eog_ids.discard(v.token_to_id[text])
    v.attrs[v.token_to_id[text]] = attr


def _set_strip(v: Vocab) -> None:
    """White space that a special token swallows. Files do not say so: llama.cpp knows a few models by name."""
    md, ids = v.metadata, v.token_to_id
    arch, name = md.get_str("general.architecture", ""), md.get_str("general.name", "").lower()
    pre = md.get_str("tokenizer.ggml.pre", "")
    if any(s in pre for s in ("jina-v2-de", "jina-v2-es", "jina-v2-code")) or any(
        s in arch for s in ("nomic-bert-moe", "jina-bert-v3")
    ):
        if "<mask>" in ids:
            v.attrs[ids["<mask>"]] |= LSTRIP
    elif "phi-3" in name or "phi3" in name:
        for i in v.special_ids:
            v.attrs[i] |= RSTRIP
        if "</s>" in ids:
            v.attrs[ids["</s>"]] |= RSTRIP
        for text in ("<unk>", "<s>", "<|endoftext|>"):
            if text in ids:
                v.attrs[ids[text]] &= ~RSTRIP & 255
    elif "modern-bert" in name and "[MASK]" in ids:
        v.attrs[ids["[MASK]"]] |= LSTRIP
