"""What tokens mean by their text: which end a generation, which are for infilling, which swallow white space.

GGUF files do not say all of it; the rules are those of llama.cpp, src/llama-vocab.cpp.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgert.formats.tok_vocab import Vocab

# Token attributes, one bit each. The file gives one type per token; text rules below add bits.
UNKNOWN, UNUSED, NORMAL, CONTROL, USER_DEFINED, BYTE, LSTRIP, RSTRIP = (1 << i for i in range(8))

NO_TOKEN = -1
_BAR = "\uff5c"  # the wide | in tokens of DeepSeek

# role -> (metadata keys, the last one present wins; texts that mark a token as having the role)
ROLES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
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


def set_by_text(v: Vocab) -> None:
    """Roles and end-of-generation tokens that are known by their text, and the exceptions llama.cpp makes."""
    find, attrs = v.token_to_id.get, v.attrs
    for role, (_, texts) in ROLES.items():
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


def set_strip(v: Vocab) -> None:
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
