"""The commands that look: show, verify, tokenize, doctor, bench."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

Run = Callable[..., "CompletedProcess[str]"]


def test_tokenize(run: Run, smollm2_path: Path) -> None:
    """Ids and pieces, one per line or as JSON; special tokens by option."""
    done = run("tokenize", str(smollm2_path), "Hello 🦜<|im_end|>", "--json")
    answer = json.loads(done.stdout)
    assert "".join(answer["pieces"][:1]) == "Hello"
    assert 2 not in answer["ids"]
    parsed = json.loads(run("tokenize", str(smollm2_path), "Hello 🦜<|im_end|>", "--json", "--parse-special").stdout)
    assert parsed["ids"][-1] == 2
    plain = run("tokenize", str(smollm2_path), stdin="Hello")
    assert plain.stdout.split()[1] == "'Hello'"
    assert plain.stderr == "1 tokens\n"


def test_verify(run: Run, smollm2_path: Path, tmp_path: Path) -> None:
    """A known file has the known hash, a copy under another name has none to compare with, a damaged one fails."""
    done = run("verify", "smollm2-135m", "--golden")
    assert done.returncode == 0, done.stderr
    assert "as expected" in done.stdout
    assert "golden: 8 tokens" in done.stdout
    copy = tmp_path / "copy.gguf"
    shutil.copy(smollm2_path, copy)
    assert "nothing is known" in run("verify", str(copy)).stdout
    with copy.open("r+b") as file:
        file.truncate(50_000_000)
    damaged = run("verify", str(copy))
    assert damaged.returncode == 1
    assert damaged.stderr.count("\n") == 1
    assert "copy.gguf" in damaged.stderr


def test_show(run: Run, smollm2_path: Path) -> None:
    """Architecture, tensors by type, memory at a context, and the plan."""
    text = run("show", str(smollm2_path), "--ctx", "1024").stdout
    assert "llama" in text
    assert "Q4_1" in text
    small, large = (
        json.loads(run("show", str(smollm2_path), "--json", "--ctx", n).stdout)["memory"]["kv_bytes"]
        for n in ("1024", "8192")
    )
    assert large == 8 * small
    plan = run("show", str(smollm2_path), "--plan")
    assert plan.returncode == 0, plan.stderr
    assert "rmsnorm" in plan.stdout
    assert "blk.29.ffn_down" in plan.stdout


def test_doctor(run: Run) -> None:
    """Every section that a report of a problem needs, as text and as JSON."""
    text = run("doctor")
    assert text.returncode == 0, text.stderr
    report = json.loads(run("doctor", "--json").stdout)
    assert report["models"]["default"].startswith("smollm2-135m")
    assert all(f"{section}\n" in text.stdout for section in report)


def test_bench(run: Run, smollm2_path: Path) -> None:
    """Rates with their spread, load time and peak memory."""
    arguments = ["bench", str(smollm2_path), "-p", "64", "-n", "8", "-d", "32", "-r", "2", "-t", "1"]
    report = json.loads(run(*arguments, "--json").stdout)
    for phase in ("prompt", "decode"):
        rates = report[phase]
        assert len(rates["all"]) == 2
        assert 0 < rates["min"] <= rates["median"] <= rates["max"]
    assert report["threads"] == 1
    assert report["peak_rss_bytes"] > smollm2_path.stat().st_size / 2
    assert 0 < report["decode"]["gb_per_s"] < 10 * report["decode"]["bandwidth_gb_per_s"]
    text = run("bench", str(smollm2_path), "-p", "16", "-n", "4", "-r", "1").stdout
    assert "tokens/s" in text
    assert "% of the" in text
