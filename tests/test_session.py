"""Keys and values in files: they give the same answers, and no file can do harm."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import edgert
from edgert import session

GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "max_tokens": 12}
PROMPT = [20 + (i * i) % 60 for i in range(150)]
MUTATIONS = 10_000


@pytest.fixture(params=["llama", "gemma3"])
def path(request: pytest.FixtureRequest, arch_model: Callable[[str], Path]) -> Path:
    return arch_model(request.param)


@pytest.fixture
def saved(path: Path, tmp_path: Path) -> Iterator[tuple[Path, list[int]]]:
    """A session file, and the answer to its prompt and a little more."""
    with edgert.load(path, n_ctx=256) as model:
        model.save_session(tmp_path / "session", PROMPT)
        yield tmp_path / "session", model.generate([*PROMPT, 5], prompt_logprobs=0, **GREEDY).ids


def test_a_session_resumes_in_another_process(path: Path, saved: tuple[Path, list[int]]) -> None:
    """Without reading the prompt again, and with the same answer."""
    file, expected = saved
    code = f"""
import sys, edgert
with edgert.load(sys.argv[1], n_ctx=256) as model:
    prompt = model.load_session(sys.argv[2])
    answer = model.generate([*prompt, 5], temperature=0, ignore_eos=True, max_tokens=12)
    print(answer.ids == {expected}, answer.usage.cached_tokens, model.stats().prompt_tokens)
"""
    run = subprocess.run([sys.executable, "-c", code, str(path), str(file)], capture_output=True, text=True)
    assert run.stdout == "True 150 1\n", run.stderr


def test_a_session_is_for_one_model(path: Path, saved: tuple[Path, list[int]],
                                    arch_model: Callable[[str], Path]) -> None:  # fmt: skip
    file, expected = saved
    other = {"llama": "gemma3", "gemma3": "llama"}[path.stem]
    for name, settings in ((other, {}), (path.stem, {"precision": "exact"}), (path.stem, {"kv_type": "bf16"})):
        with (
            edgert.load(arch_model(name), n_ctx=256, **settings) as model,
            pytest.raises(edgert.SessionError, match="another model"),
        ):
            model.load_session(file)
    with edgert.load(path, n_ctx=64) as small:  # takes as much as fits
        small.load_session(file)
        cached = small.generate(PROMPT[:60], **{**GREEDY, "max_tokens": 4}).usage.cached_tokens
        assert cached == (59 if path.stem == "llama" else 0)  # gemma3's window had moved on when it was saved
    with edgert.load(path, n_ctx=256) as model:
        with pytest.raises(edgert.EdgertError, match="cannot read"):
            model.load_session(file.parent / "nothing")
        with pytest.raises(edgert.EdgertError, match="cannot write"):
            model.save_session(file.parent / "no" / "folder", PROMPT)
        assert model.load_session(file) == PROMPT
        assert model.generate([*PROMPT, 5], **GREEDY).ids == expected


def test_mutated_files_do_no_harm(saved: tuple[Path, list[int]], path: Path) -> None:
    """Any change is noticed; where the checksum is made to fit, what is left is a valid file or an error."""
    file, _ = saved
    data, choose = file.read_bytes(), random.Random(7)
    with edgert.load(path, n_ctx=256) as model:
        pool, made_for = model._runtime.pool, model._fingerprint

        def parse(changed: bytes) -> bool:
            try:
                _, found = session.decode(memoryview(changed), "f", made_for, pool, model.n_vocab)
            except edgert.SessionError:
                return False
            assert all(0 < len(r.tokens) <= 32 and len(r.pages) == len(pool.groups) for r in found)
            return True

        assert parse(data)
        head = 64 + 4 + 4 * 32 + 8
        for i in range(MUTATIONS):
            changed = bytearray(data[: choose.randrange(len(data))] if i % 5 == 0 else data)
            for _ in range(choose.randrange(1, 4)):
                if changed:
                    at = choose.randrange(min(head, len(changed))) if i % 2 else choose.randrange(len(changed))
                    changed[at] = choose.choice([0, 1, 0x7F, 0xFF, choose.randrange(256)])
            if i % 3:
                assert not parse(bytes(changed)) or bytes(changed) == data
            else:
                body = bytes(changed[:-32])
                parse(body + hashlib.blake2b(body, digest_size=32).digest())
        for _ in range(20):
            body = bytearray(data[:-32])
            body[choose.randrange(head, len(body))] ^= 1 << choose.randrange(8)
            file.write_bytes(bytes(body) + hashlib.blake2b(body, digest_size=32).digest())
            try:
                ids = model.load_session(file)
            except edgert.SessionError:
                continue
            model.generate([*ids, 5], **GREEDY)
        assert model.stats().pages_used == 0


CACHE_CODE = """
import sys, edgert
with edgert.load(sys.argv[1], n_ctx=256, prefix_cache=sys.argv[2]) as model:
    answer = model.generate(eval(sys.argv[3]), temperature=0, ignore_eos=True, max_tokens=12)
    print(answer.ids, answer.usage.cached_tokens)
"""


def test_prompts_are_found_on_the_disk(path: Path, tmp_path: Path) -> None:
    """By another process, also for a prompt that goes on differently; full pages of 32 tokens."""
    with edgert.load(path, n_ctx=256) as model:
        expected = [model.generate(p, prompt_logprobs=0, **GREEDY).ids for p in (PROMPT, [*PROMPT[:100], 9])]
    other = [*PROMPT[:100], 9]
    for prompt, ids, cached in ((PROMPT, expected[0], 0), (PROMPT, expected[0], 128), (other, expected[1], 96)):
        command = [sys.executable, "-c", CACHE_CODE, str(path), str(tmp_path / "cache"), str(prompt)]
        run = subprocess.run(command, capture_output=True, text=True)
        assert run.stdout == f"{ids} {cached}\n", run.stderr
    files = list(tmp_path.glob("cache/*/*.kv"))
    assert len(files) == 4
    for file in files:
        file.write_bytes(file.read_bytes()[:-40] + bytes(40))
    with edgert.load(path, n_ctx=256, prefix_cache=tmp_path / "cache") as model:  # damaged files do not help
        answer = model.generate(PROMPT, **GREEDY)
        assert (answer.ids, answer.usage.cached_tokens) == (expected[0], 0)
    (tmp_path / "file").write_text("")
    with pytest.raises(edgert.EdgertError, match="prefix_cache"):
        edgert.load(path, prefix_cache=tmp_path / "file")


def test_the_disk_cache_has_a_limit(path: Path, tmp_path: Path) -> None:
    limit = 200_000
    with edgert.load(path, n_ctx=256, prefix_cache=tmp_path, prefix_cache_bytes=limit) as model:
        for i in range(12):
            model.generate([30 + i, *PROMPT], **GREEDY)
    sizes = [file.stat().st_size for file in tmp_path.glob("*/*")]
    assert limit // 4 < sum(sizes) <= limit + max(sizes)
