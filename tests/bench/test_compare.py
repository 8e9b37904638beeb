"""Comparing: jobs, turns and ratios; workers as processes that lie still between jobs; errors of one line."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path

import psutil
import pytest
from compare import Comparison, Result, Work, contenders, main, numbers, parse, table, turned, works
from contenders import ContenderError, LlamaBench, Worker
from mixes import Mix
from shapes import SHAPES
from synth import synthesise

EVERY = ("start", "prefill", "decode", "batch")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = dataclasses.replace(SHAPES["qwen3-0.6b"], n_embd=256, n_ff=256, heads=2, heads_kv=1)
    return synthesise(shape, Mix("Q4_K_M"), tmp_path_factory.mktemp("model") / "tiny.gguf", layers=1, n_vocab=512)


def test_every_program_begins_as_often_as_the_others() -> None:
    assert [turned(["a", "b"], i) for i in range(3)] == [["a", "b"], ["b", "a"], ["a", "b"]]
    orders = [turned(["a", "b", "c"], i) for i in range(6)]
    assert all(sorted(order) == ["a", "b", "c"] for order in orders)
    assert sorted(order[0] for order in orders) == ["a", "a", "b", "b", "c", "c"]
    assert len(set(map(tuple, orders))) == 6


def test_jobs_are_new_in_every_round_but_for_the_prompt_under_a_depth() -> None:
    assert Work("prefill", 64).job(1, 100) == Work("prefill", 64).job(1, 100)
    assert Work("prefill", 64).job(1, 100) != Work("prefill", 64).job(2, 100)
    assert Work("decode", 64, 8).job(1, 100) == Work("decode", 64, 8).job(2, 100)
    job = Work("batch", 4, 8, 3).job(1, 100)
    assert [len(prompt) for prompt in job["prompts"]] == [4, 4, 4]
    assert all(0 <= token < 100 for prompt in job["prompts"] for token in prompt)
    assert Work("batch", 16, 64, 8).setup(Path("m"), 2)["n_ctx"] == 8 * 256
    assert Work("decode", 2048, 64).setup(Path("m"), 2)["n_ctx"] == 2304


def test_ratios_are_taken_within_a_round() -> None:
    [row] = Result("decode 64", "tokens/s", {"edgert": [10.0, 30.0, 20.0], "peer": [5.0, 10.0, 20.0]}).rows()
    assert (row["edgert"], row["of_peer"]) == (20, 10)
    assert (row["ratio"], row["ratio_min"], row["ratio_max"], row["pairs"]) == (2, 1, 3, 3)
    lines = table([Result("decode 64", "tokens/s", {"edgert": [20.0], "peer": [10.0]})])
    assert lines[-1] == "| decode 64, tokens/s | peer | 20 | 10 | **2.00** | 2.00 to 2.00 | 1 |"


def test_command_line_names_what_is_measured(tiny: Path) -> None:
    options = parse([str(tiny), "-p", "512,2048", "-n", "64", "-d", "2048", "-b", "0", "--isa", "avx2",
                     "--xllamacpp-python", "python", "--llama-bench", "llama-bench"])  # fmt: skip
    titles = ["prefill 512", "prefill 2048", "decode 64", "decode 64 at depth 2048"]
    assert [work.title for work in works(options)] == titles
    assert [contender.name for contender in contenders(options)] == ["edgert", "xllamacpp", "llama-bench"]
    assert numbers("0") == []
    with pytest.raises(ValueError, match="-1"):
        numbers("1,-1")


def test_edgert_beside_itself(tiny: Path) -> None:
    names = ("edgert", "twin")
    comparison = Comparison(tiny, 1, 1, [Worker(name, "worker_edgert.py", works=EVERY) for name in names])
    comparison.describe()
    for work in (Work("prefill", 40), Work("decode", 64, 3), Work("batch", 4, 3, 2)):
        comparison.rates(work)
    comparison.starts()
    titles = ["prefill 40", "decode 3 at depth 64", "2 sequences, 3 tokens each", "start to first token", "peak memory"]
    assert [result.title for result in comparison.results] == titles
    for result in comparison.results:
        assert list(result.values) == list(names)
        assert all(value > 0 for values in result.values.values() for value in values)
    seconds, memory = (result.values["twin"][0] for result in comparison.results[-2:])
    assert seconds < 60
    assert 30 < memory < 2000
    assert comparison.n_vocab == 512


def test_a_program_without_a_job_uses_no_time(tiny: Path) -> None:
    work = Work("decode", 16, 4)
    session = Worker("edgert", "worker_edgert.py", works=EVERY).open(work.setup(tiny, 2))
    try:
        assert session.measure(work.job(1, 512))[0] == 4
        [child] = [p for p in psutil.Process().children() if p.is_running() and "worker_edgert.py" in p.cmdline()[1]]
        before = child.cpu_times()
        time.sleep(0.3)
        assert child.status() == psutil.STATUS_STOPPED
        assert child.cpu_times()[:2] == before[:2]
        assert session.measure(work.job(2, 512))[1] > 0
    finally:
        session.close()
    assert not child.is_running()


def test_a_program_that_fails_or_dies_is_one_line(tiny: Path, tmp_path: Path) -> None:
    setup = Work("prefill", 16).setup(tmp_path / "none.gguf", 1)
    with pytest.raises(ContenderError, match=r"edgert: .*none\.gguf"):
        Worker("edgert", "worker_edgert.py", works=EVERY).open(setup)
    with pytest.raises(ContenderError, match=r"peer ended with code 2: .*no_such_worker"):
        Worker("peer", "no_such_worker.py", works=EVERY).open(setup)
    session = Worker("edgert", "worker_edgert.py", works=EVERY).open(Work("prefill", 16).setup(tiny, 1))
    with pytest.raises(ContenderError, match="edgert: EdgertError: token 9999 is not in the vocabulary of 512"):
        session.measure({"work": "prefill", "prompt": [9999]})
    session.close()


def test_llama_bench_is_asked_for_one_repetition_and_its_own_clock_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # `-m MODEL` also tells Python which module to run, so a module can play the program.
    lines = [
        "import json, sys",
        "given = dict(zip(sys.argv[1::2], sys.argv[2::2]))",
        "if given['-n'] == '13': sys.exit('error: unlucky')",
        "print(json.dumps([{'avg_ns': 5e8, 'build_commit': 'abc', 'build_number': 7, 'cpu_info': repr(given)}]))",
    ]
    (tmp_path / "stand_in.py").write_text("\n".join(lines))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    bench = LlamaBench(sys.executable)
    assert [work for work in EVERY if bench.can(work)] == ["prefill", "decode"]
    session = bench.open({"model": "stand_in", "threads": 3})
    assert session.measure(Work("prefill", 20).job(1, 100)) == (20, 0.5)
    assert session.facts["version"] == "abc (7)"
    assert session.facts["build"] == repr({"-t": "3", "-ngl": "0", "-r": "1", "-o": "json", "-p": "20", "-n": "0"})
    assert session.measure(Work("decode", 30, 9).job(1, 100)) == (9, 0.5)
    assert "'-n': '9', '-d': '30'" in session.facts["build"]
    with pytest.raises(ContenderError, match="llama-bench ended with code 1: error: unlucky"):
        session.measure(Work("decode", 30, 13).job(1, 100))


def test_report_and_json(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    assert main([str(tiny), "-p", "20", "-n", "0", "--no-start", "-r", "1", "-t", "1", "--json", str(out)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("tiny.gguf, ")
    assert "1 threads, 1 rounds" in text
    content = json.loads(out.read_text(encoding="utf-8"))
    assert list(content["values"]) == ["prefill 20"]
    assert content["facts"]["edgert"]["n_vocab"] == 512
    assert content["rows"] == []  # no peer was named
