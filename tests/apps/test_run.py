"""`edgert run` on SmolLM2: templates, pipes, JSON, sampling options, and a prompt that does not fit."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

Run = Callable[..., "CompletedProcess[str]"]
DATA = Path(__file__).parent.parent / "data"
QUESTION = "What is the capital of France, and what is it known for?"


@pytest.fixture
def ask(run: Run, smollm2_path: Path) -> Run:
    """`edgert run` on SmolLM2, greedy unless asked otherwise."""

    def ask_model(*arguments: str, stdin: str = "") -> CompletedProcess[str]:
        return run("run", str(smollm2_path), "--temp", "0", *arguments, stdin=stdin)

    return ask_model


def test_answer(ask: Run) -> None:
    """The chat template is applied, and the answer alone is on standard output."""
    done = ask("-p", QUESTION, "-n", "12")
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    assert done.stdout.endswith("\n")


def test_prompt_from_a_pipe(ask: Run) -> None:
    """No -p and `-p -` both read standard input, as UTF-8."""
    expected = ask("-p", "Qu'est-ce que « l'été » ?", "-n", "8").stdout
    assert ask("-n", "8", stdin="Qu'est-ce que « l'été » ?").stdout == expected
    assert ask("-p", "-", "-n", "8", stdin="Qu'est-ce que « l'été » ?").stdout == expected


def test_json(ask: Run) -> None:
    """One object, with the text that would have been streamed."""
    done = ask("-p", QUESTION, "-n", "12", "--json")
    answer = json.loads(done.stdout)
    assert answer["text"] + "\n" == ask("-p", QUESTION, "-n", "12").stdout
    assert len(answer["ids"]) == answer["usage"]["completion_tokens"] <= 12
    assert answer["finish_reason"] in ("stop", "length")
    assert answer["timings"]["decode_s"] > 0


def test_raw_continues_the_text(ask: Run) -> None:
    """--raw uses no template; special tokens in the text count, so the template can be written by hand."""
    assert ask("-p", "The capital of France is", "-n", "4", "--raw").stdout.startswith(" Paris")
    system, user = "Answer briefly.", QUESTION
    written = f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n"
    raw = ask("-p", written, "-n", "12", "--raw").stdout
    assert raw == ask("-p", user, "--system", system, "-n", "12").stdout


def test_seed(run: Run, smollm2_path: Path) -> None:
    """The same seed, the same answer; another seed, another one."""
    arguments = ["run", str(smollm2_path), "-p", "Tell me a story.", "-n", "24", "--temp", "1", "--top-k", "50"]
    first, again, other = (run(*arguments, "--seed", seed).stdout for seed in ("1", "1", "2"))
    assert first == again
    assert first != other


def test_prompt_that_does_not_fit(ask: Run) -> None:
    """One line with both counts, exit code 1, nothing on standard output."""
    text = (DATA / "text" / "eval.txt").read_text(encoding="utf-8")[:3000]
    done = ask("-p", "-", "--ctx", "128", stdin=text)
    assert (done.returncode, done.stdout) == (1, "")
    assert "Traceback" not in done.stderr
    assert "128" in done.stderr.splitlines()[-1]


def test_reader_that_has_enough(edgert_command: str, smollm2_path: Path) -> None:
    """`edgert run ... | head` ends quietly."""
    command = [edgert_command, "run", str(smollm2_path), "-p", "Count to one hundred.", "-n", "64", "--temp", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout
    assert process.stderr
    process.stdout.read(1)
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=30) == 1
    assert said == b""


def test_forms(ask: Run, tmp_path: Path) -> None:
    """The answer has the form that is asked for, given as text or in a file."""
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    (tmp_path / "schema.json").write_text(json.dumps(schema | {"additionalProperties": False}), encoding="utf-8")
    done = ask("-p", "Is it?", "--json-schema", f"@{tmp_path / 'schema.json'}")
    assert list(json.loads(done.stdout)) == ["ok"], done.stderr
    assert ask("-p", "Is it?", "--choice", "maybe", "--choice", "perhaps").stdout in ("maybe\n", "perhaps\n")
    assert ask("-p", "How many?", "--regex", "[0-9]{3}").stdout.strip().isdecimal()
    assert ask("-p", "Is it?", "--grammar", 'root ::= "yes" | "no"').stdout in ("yes\n", "no\n")


def test_forms_that_cannot_be_had(ask: Run) -> None:
    """One line that names the fault, and no answer."""
    for arguments, message in (
        (["--json-schema", '{"items": {"uniqueItems": true}}'], "json_schema: /items/uniqueItems: "),
        (["--json-schema", "@no-such-file"], "--json-schema: cannot read no-such-file"),
        (["--samplers", "top_k;magic"], "samplers: 'magic' is not one of penalties"),
        (["--regex", "a", "--choice", "b"], "not allowed with"),
        (["--logprobs", "3"], "--logprobs needs --json"),
    ):
        done = ask("-p", "Hello", "-n", "4", *arguments)
        assert done.returncode != 0
        assert message in done.stderr
        assert done.stderr.count("\n") == 1
        assert not done.stdout


def test_every_sampler_and_logprobs(ask: Run) -> None:
    """All sampling options together; log-probabilities are part of the JSON."""
    options = {
        "temp": 0.9, "typical": 0.95, "top-nsigma": 2, "frequency-penalty": 0.1, "presence-penalty": 0.1,
        "repeat-last-n": 32, "dry-multiplier": 0.8, "dry-base": 2, "dry-allowed-length": 3, "dry-penalty-last-n": 64,
        "xtc-probability": 0.5, "xtc-threshold": 0.2, "dynatemp-range": 0.2, "dynatemp-exp": 1.5, "seed": 4,
        "samplers": "dry;top_k;xtc;temperature",
    }  # fmt: skip
    given = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    done = ask("-p", QUESTION, "-n", "8", "--json", "--logprobs", "2", *given)
    answer = json.loads(done.stdout)
    assert [entry["token"] for entry in answer["logprobs"]] == answer["ids"]
    assert all(len(entry["top"]) == 2 for entry in answer["logprobs"])
    assert ask("-p", QUESTION, "-n", "8", "--mirostat", "2", "--mirostat-ent", "3", "--mirostat-lr", "0.2").stdout
