"""Tokenizer metadata that is missing, wrong or odd: every mistake is a one-line FormatError that names the key."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from edgert.formats.errors import FormatError
from edgert.formats.tokenizer import NO_TOKEN, load_tokenizer
from vocab_files import changed, packed, plain, small_bpe, small_spm

N = len(small_bpe()["tokenizer.ggml.tokens"])
N_SPM = len(small_spm()["tokenizer.ggml.tokens"])

BAD_BPE: dict[str, tuple[dict[str, Any], str]] = {
    "no model": ({"model": None}, "tokenizer.ggml.model"),
    "unknown model": ({"model": "words"}, "'words' is not supported"),
    "model is a number": ({"model": 1}, "tokenizer.ggml.model"),
    "no tokens": ({"tokens": None}, "tokenizer.ggml.tokens"),
    "empty tokens": ({"tokens": [], "token_type": None}, "tokenizer.ggml.tokens"),
    "tokens are a string": ({"tokens": "abc"}, "tokenizer.ggml.tokens"),
    "token twice": ({"tokens": ["a", "b", "a"], "token_type": None}, "occurs twice"),
    "fewer types than tokens": ({"token_type": np.ones(N - 1, "i4")}, "tokenizer.ggml.token_type"),
    "more types than tokens": ({"token_type": np.ones(N + 1, "i4")}, "tokenizer.ggml.token_type"),
    "unknown type": ({"token_type": np.full(N, 7, "i4")}, r"token_type\[0\]: 7"),
    "negative type": ({"token_type": np.full(N, -1, "i4")}, r"token_type\[0\]: -1"),
    "float types": ({"token_type": np.ones(N, "f4")}, "tokenizer.ggml.token_type"),
    "unknown pre-tokenizer": ({"pre": "nobody-knows"}, "'nobody-knows'"),
    "no merges": ({"merges": None}, "tokenizer.ggml.merges"),
    "merge without a space": ({"merges": ["h e", "ll"]}, r"merges\[1\]: 'll'"),
    "merge with one part": ({"merges": [" e"]}, r"merges\[0\]"),
    "bos beyond the vocabulary": ({"bos_token_id": N}, "tokenizer.ggml.bos_token_id"),
    "eos is negative": ({"eos_token_id": -2}, "tokenizer.ggml.eos_token_id"),
    "eos is a string": ({"eos_token_id": "2"}, "tokenizer.ggml.eos_token_id"),
    "padding beyond the vocabulary": ({"padding_token_id": 10**6}, "tokenizer.ggml.padding_token_id"),
    "bos wanted but there is none": (
        {"pre": "glm4", "bos_token_id": None, "add_bos_token": True},
        "tokenizer.ggml.bos_token_id",
    ),
    "flag is a number": ({"add_bos_token": 1}, "tokenizer.ggml.add_bos_token"),
}
BAD_SPM: dict[str, tuple[dict[str, Any], str]] = {
    "no scores": ({"scores": None}, "tokenizer.ggml.scores"),
    "fewer scores than tokens": ({"scores": np.zeros(N_SPM - 1, "f4")}, "tokenizer.ggml.scores"),
    "score not a number": ({"scores": np.full(N_SPM, np.nan, "f4")}, "tokenizer.ggml.scores"),
    "score infinite": ({"scores": np.full(N_SPM, np.inf, "f4")}, "tokenizer.ggml.scores"),
    "byte token that is no byte": ({"token_type": np.full(N_SPM, 6, "i4")}, "is no byte"),
}


@pytest.mark.parametrize(("changes", "message"), BAD_BPE.values(), ids=BAD_BPE)
def test_bad_bpe_metadata(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError, match=message) as error:
        load_tokenizer(small_bpe(**changes))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("changes", "message"), BAD_SPM.values(), ids=BAD_SPM)
def test_bad_spm_metadata(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError, match=message) as error:
        load_tokenizer(small_spm(**changes))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("blob", [b"", b"\1\0\0", b"\xff\xff\xff\xff\0", b"\4\0\0\0\1\2\3\4", b"\3\0\0\0abcd\0"])
def test_bad_character_maps(blob: bytes) -> None:
    meta = plain(packed("unigram")["metadata"])
    meta["tokenizer.ggml.precompiled_charsmap"] = np.frombuffer(blob, "u1")
    with pytest.raises(FormatError, match="precompiled_charsmap"):
        load_tokenizer(meta)


@pytest.mark.parametrize("root", [0xFFFFFFFF, 0])
def test_a_character_map_that_points_outside_of_itself(root: int) -> None:
    """To a node beyond the trie, and to a replacement beyond the texts."""
    meta = plain(packed("unigram")["metadata"])
    nodes = np.zeros(256, "<u4")
    nodes[0] = root
    nodes[97] = 97 | 1 << 8 | 100 << 10  # "a" is a key; the number of its replacement is in node 97 ^ 100
    nodes[97 ^ 100] = 0x7FFFFFFF
    blob = nodes.nbytes.to_bytes(4, "little") + nodes.tobytes() + b"text\0"
    meta["tokenizer.ggml.precompiled_charsmap"] = np.frombuffer(blob, "u1")
    with pytest.raises(FormatError, match="precompiled_charsmap"):
        load_tokenizer(meta).encode("a")


def test_an_unknown_pre_tokenizer_is_taken_for_default_on_request() -> None:
    text = "Hello, world! 12345"
    guessed = load_tokenizer(small_bpe(pre="nobody-knows"), allow_unknown_pre=True)
    assert guessed.encode(text) == load_tokenizer(small_bpe(pre="default")).encode(text)


def test_no_vocabulary() -> None:
    tokenizer = load_tokenizer({"general.architecture": "llama", "tokenizer.ggml.model": "no_vocab"})
    assert (tokenizer.n_vocab, tokenizer.bos_id, tokenizer.nl_id) == (0, NO_TOKEN, NO_TOKEN)
    assert tokenizer.eog_ids == frozenset()
    sized = {"general.architecture": "llama", "llama.vocab_size": 128, "tokenizer.ggml.model": "none"}
    assert load_tokenizer(sized).decode([0, 127]) == ""
    with pytest.raises(FormatError, match="no vocabulary"):
        tokenizer.encode("text")


def test_an_id_that_is_no_token_is_refused() -> None:
    tokenizer = load_tokenizer(small_bpe())
    for token in (-1, tokenizer.n_vocab):
        with pytest.raises(ValueError, match=f"token id {token}"):
            tokenizer.token_bytes(token)


def test_flags_and_defaults() -> None:
    spm = load_tokenizer(small_spm())
    assert (spm.bos_id, spm.eos_id, spm.unk_id, spm.add_bos, spm.add_eos) == (1, 2, 0, True, False)
    both = load_tokenizer(small_spm(add_eos_token=True, add_space_prefix=False))
    assert [both.tokens[i] for i in both.encode("hello")] == ["<s>", "hello", "</s>"]
    assert both.decode(both.encode("hello"), remove_special=True, unparse_special=True) == "hello"
    assert load_tokenizer(small_bpe(padding_token_id=2**32 - 1)).pad_id == NO_TOKEN
    assert load_tokenizer(small_bpe(pre="llama-bpe")).add_bos
    assert not load_tokenizer(small_bpe(pre="llama-bpe", add_bos_token=False)).add_bos


def test_white_space_that_special_tokens_swallow() -> None:
    meta = small_spm()
    meta["general.name"] = "Phi-3 mini"
    tokens = meta["tokenizer.ggml.tokens"]
    ids = load_tokenizer(meta).encode("<turn>  \n hello", add_special=False)
    assert [tokens[i] for i in ids] == ["<turn>", "▁hello"]
    masked = small_bpe(pre="jina-v2-de", tokens=[*small_bpe()["tokenizer.ggml.tokens"][:-1], "<mask>"])
    tokenizer = load_tokenizer(masked)
    assert [tokenizer.tokens[i] for i in tokenizer.encode("h  <mask>", add_special=False)] == ["h", "<mask>"]


def test_tokens_that_end_a_message_part_of_gpt_oss_do_not_end_the_generation() -> None:
    names = ["<|end|>", "<|return|>", "<|call|>", "<|channel|>"]
    tokens = small_bpe()["tokenizer.ggml.tokens"][:-4] + names
    types = np.array([1] * (len(tokens) - 4) + [3] * 4, "i4")
    tokenizer = load_tokenizer(changed(small_bpe(), tokens=tokens, token_type=types, eos_token_id=len(tokens) - 3))
    end, ret, call, channel = range(len(tokens) - 4, len(tokens))
    assert {ret, call} <= tokenizer.eog_ids
    assert end not in tokenizer.eog_ids
    assert tokenizer.token_bytes(channel, special=False) == b"<|channel|>"
