"""Tokenizers against llama.cpp: ids of every golden string, bytes of every golden sequence of ids, special ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from edgert.formats.tok_bpe import BYTE_ALPHABET
from edgert.formats.tok_pre import NAMES
from edgert.formats.tokenizer import StreamDecoder, Tokenizer, load_tokenizer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from vocab_files import MANIFEST, REAL, cases, changed, metadata, metadata_of, packed, plain, small_bpe, small_spm

_loaded: dict[str, Tokenizer] = {}


@pytest.fixture
def tokenizer(request: pytest.FixtureRequest, tmp_path: Path) -> Tokenizer:
    """The tokenizer of the vocabulary the test is parametrized with, made once."""
    name = request.param
    if name not in _loaded:
        meta = metadata_of(request.getfixturevalue(REAL[name])) if name in REAL else metadata(name, tmp_path)
        _loaded[name] = load_tokenizer(meta)
    return _loaded[name]


each_vocab = pytest.mark.parametrize(("tokenizer", "name"), [
    pytest.param(n, n, marks=pytest.mark.big if n == "gemma3" else (), id=n) for n in MANIFEST
], indirect=["tokenizer"])  # fmt: skip


@each_vocab
def test_every_golden_string_gives_the_ids_of_llama_cpp(tokenizer: Tokenizer, name: str) -> None:
    golden = cases(name)
    assert len(golden) > 100
    wrong = [g["text"] for g in golden if tokenizer.encode(g["text"], g["add_special"], g["parse_special"]) != g["ids"]]
    assert wrong == []


@each_vocab
def test_every_golden_sequence_gives_the_bytes_of_llama_cpp(tokenizer: Tokenizer, name: str) -> None:
    golden = cases(f"{name}.detok")
    assert len(golden) > 40
    for g in golden:
        data = tokenizer.decode_bytes(g["ids"], g["remove_special"], g["unparse_special"])
        assert data.hex() == g["bytes_hex"]
        assert [tokenizer.token_bytes(i, g["unparse_special"]).hex() for i in g["ids"]] == g["pieces_hex"]
        if "text" in g:
            assert tokenizer.decode(g["ids"], g["remove_special"], g["unparse_special"]) == g["text"]


@each_vocab
def test_special_ids_are_those_llama_cpp_reports(tokenizer: Tokenizer, name: str) -> None:
    t = tokenizer
    assert {
        "n_tokens": t.n_vocab, "bos": t.bos_id, "eos": t.eos_id, "eot": t.eot_id, "sep": t.sep_id, "pad": t.pad_id,
        "add_bos": t.add_bos, "add_eos": t.add_eos, "nl": t.nl_id,
    } == {key: value for key, value in MANIFEST[name].items() if key != "type"}  # fmt: skip
    assert {i for i in (t.eos_id, t.eot_id) if i >= 0} <= t.eog_ids


@each_vocab
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=60))
def test_text_survives_the_way_to_ids_and_back(tokenizer: Tokenizer, name: str, text: str) -> None:
    ids = tokenizer.encode(text, add_special=False)
    assert all(0 <= i < tokenizer.n_vocab for i in ids)
    data = b"".join(map(tokenizer.token_bytes, ids))
    if name == "bert-bge":  # WordPiece drops white space and accents: what is left must be stable
        again = tokenizer.encode(data.decode(), add_special=False)
        assert again == ids or tokenizer.unk_id in ids
    elif tokenizer.vocab.is_bpe:  # some vocabularies have no token for bytes that text hardly ever has
        assert data == bytes(b for b in text.encode() if BYTE_ALPHABET[b] in tokenizer.vocab.token_to_id)
    else:
        assert data.decode().removeprefix(" " if tokenizer.add_space_prefix and text else "") == text


@each_vocab
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_stream_gives_the_text_of_all_ids_in_whole_characters(tokenizer: Tokenizer, name: str, data: Any) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.n_vocab - 1), max_size=20))
    stream = StreamDecoder(tokenizer, special=True)
    parts = [stream.feed(i) for i in ids]
    parts.append(stream.flush())
    raw = b"".join(map(tokenizer.token_bytes, ids))
    strip = tokenizer.add_space_prefix and bool(ids) and tokenizer.token_bytes(ids[0]).startswith(b" ")
    assert "".join(parts) == raw[1 if strip else 0 :].decode("utf-8", "replace")
    if not tokenizer.vocab.clean_spaces:
        assert "".join(parts) == tokenizer.decode(ids, unparse_special=True)


def test_a_stream_that_continues_a_text_keeps_its_leading_space() -> None:
    tokenizer = load_tokenizer(small_spm())
    (word,) = tokenizer.encode("hello", add_special=False)
    assert StreamDecoder(tokenizer).feed(word) == "hello"
    assert StreamDecoder(tokenizer, continues=True).feed(word) == " hello"


def test_a_stream_holds_back_the_bytes_of_an_unfinished_character() -> None:
    tokenizer = load_tokenizer(small_bpe())
    ids = tokenizer.encode("é€", add_special=False)
    stream = StreamDecoder(tokenizer)
    assert [stream.feed(i) for i in ids] == ["", "é", "", "", "€"]
    assert (stream.feed(ids[0]), stream.flush(), stream.flush()) == ("", "\ufffd", "")


_PRE = packed("pre-tokenizers")


@pytest.mark.parametrize("name", NAMES)
def test_every_pre_tokenizer_cuts_like_llama_cpp(name: str) -> None:
    """The vocabulary merges across all kinds of characters, so that a wrong cut changes the ids."""
    meta = small_bpe(tokens=_PRE["tokens"], merges=_PRE["merges"], pre=name, token_type=None)
    meta = changed(meta, bos_token_id=0, eos_token_id=0)
    tokenizer = load_tokenizer(meta)
    for text, ids in zip(_PRE["texts"], _PRE["results"][_PRE["result_of"][name]], strict=True):
        assert tokenizer.encode(text, add_special=False) == ids, text


@pytest.mark.parametrize("name", ["unigram", "spm-style-bpe"])
def test_small_trained_vocabularies_give_the_ids_and_bytes_of_llama_cpp(name: str) -> None:
    content = packed(name)
    for case in content["cases"]:
        tokenizer = load_tokenizer(plain(content["metadata"]) | case["change"])
        for text, add_special, parse_special, ids in case["encode"]:
            assert tokenizer.encode(text, add_special, parse_special) == ids, text
        for ids, remove_special, unparse_special, data in case["decode"]:
            assert tokenizer.decode_bytes(ids, remove_special, unparse_special).hex() == data
        assert (sorted(tokenizer.eog_ids), tokenizer.nl_id) == (case["eog"], case["nl"])


def test_merging_by_hand() -> None:
    tokenizer = load_tokenizer(small_bpe())
    ids = tokenizer.encode("hello whello", add_special=False)
    assert [tokenizer.tokens[i] for i in ids] == ["hello", "Ġw", "hello"]
    spm = load_tokenizer(small_spm())
    assert [spm.tokens[i] for i in spm.encode("hello né")] == ["<s>", "▁hello", "▁", "<0x6E>", "é"]


def test_user_defined_tokens_are_always_found_and_control_tokens_only_when_asked_for() -> None:
    tokenizer = load_tokenizer(small_bpe())
    start, tool = tokenizer.n_vocab - 3, tokenizer.n_vocab - 1
    text = "<|im_start|>a<tool>"
    plain_ids = tokenizer.encode(text, add_special=False)
    assert (start in plain_ids, plain_ids[-1]) == (False, tool)
    assert tokenizer.encode(text, add_special=False, parse_special=True) == [start, *tokenizer.encode("a"), tool]


@pytest.mark.parametrize("unit", ["a", " ", "\n", "1", "é", "中", "!", "a ", "aA", "<|im_start|>"])
@pytest.mark.parametrize("make", [small_bpe, small_spm])
def test_long_runs_take_time_in_proportion(make: Any, unit: str, benchmark_seconds: Any) -> None:
    tokenizer = load_tokenizer(make())
    short, long = unit * (20_000 // len(unit)), unit * (200_000 // len(unit))
    tokenizer.encode(short, parse_special=True)
    few = benchmark_seconds(lambda: tokenizer.encode(short, parse_special=True))
    many = benchmark_seconds(lambda: tokenizer.encode(long, parse_special=True))
    assert many < 40 * max(few, 0.002)


@pytest.fixture
def benchmark_seconds() -> Any:
    """Runs a function and gives the processor time it took."""
    from time import process_time

    def run(work: Any) -> float:
        begin = process_time()
        work()
        return process_time() - begin

    return run


def test_lone_surrogates_become_replacement_characters() -> None:
    tokenizer = load_tokenizer(small_bpe())
    assert tokenizer.decode(tokenizer.encode("a\ud800b\U0001f600", add_special=False)) == "a\ufffdb\U0001f600"
