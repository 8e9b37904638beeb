"""Texts in one block, and the index over them, against a list and a dict of str."""

from __future__ import annotations

import pytest
from edgert.formats.texts import Index, Texts

WORDS = [f"{c}{i}" for i in range(3000) for c in ("a", "é", "▁", "🙂", "\n")]


def of(words: list[str]) -> Texts:
    raw = [word.encode() for word in words]
    return Texts(raw[i : i + 1000] for i in range(0, len(raw), 1000))


def test_texts_are_those_given() -> None:
    texts = of(WORDS)
    assert list(texts) == WORDS
    assert len(texts) == len(WORDS)
    assert texts[-1] == WORDS[-1]
    assert texts[995:1005] == WORDS[995:1005]
    assert texts == of(WORDS)
    assert texts != of(WORDS[:-1])
    with pytest.raises(IndexError):
        texts[len(WORDS)]


def test_index_finds_what_a_dict_finds() -> None:
    index = Index(of(WORDS))
    assert [index[word] for word in WORDS] == list(range(len(WORDS)))
    assert index.repeated() is None
    for absent in ("", "zz", "a30000", "\ud800"):
        assert index.get(absent) is None
        assert absent not in index
        with pytest.raises(KeyError):
            index[absent]


def test_the_first_of_equal_texts_counts() -> None:
    index = Index(of(["x", "a", "b", "a", "b", "b"]))
    assert index.repeated() == 1
    assert (index["a"], index["b"]) == (1, 2)


def test_a_text_cut_within_a_character_is_refused() -> None:
    whole = "é".encode()
    with pytest.raises(UnicodeDecodeError):
        Texts([[whole[:1], whole[1:]]])
