"""Help, and what a user's mistakes lead to: one line on stderr and an exit code, never a traceback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from edgert.apps.main import COMMANDS

Run = Callable[..., "CompletedProcess[str]"]


def one_line(text: str) -> bool:
    """Whether a program said exactly one line."""
    return text.endswith("\n") and text.count("\n") == 1


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str, run: Run) -> None:
    """`edgert COMMAND --help` describes the command and exits with 0."""
    done = run(name, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: edgert {name}")


def test_help_and_version(run: Run) -> None:
    """`edgert --help` names every command; `edgert` alone is a usage error that shows the same."""
    text = run("--help").stdout
    assert all(f"\n  {name} " in text for name in COMMANDS)
    bare = run()
    assert (bare.returncode, bare.stdout) == (2, text)
    assert run("--version").stdout.startswith("edgert 0.")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["chatt"], "did you mean 'edgert chat'"),
        (["xyzzy"], "see 'edgert --help'"),
        (["run"], "MODEL"),
        (["run", "smollm2-135m"], "the prompt is empty"),
        (["run", "smollm2-135m", "-p", ""], "the prompt is empty"),
        (["run", "smollm2-135m", "-p", "x", "--temp", "-1"], "--temp"),
        (["run", "smollm2-135m", "-p", "x", "--temp", "nan"], "--temp"),
        (["run", "smollm2-135m", "-p", "x", "--top-p", "2"], "--top-p"),
        (["run", "smollm2-135m", "-p", "x", "-n", "0"], "-n"),
        (["run", "smollm2-135m", "-p", "x", "--ctx", "many"], "'many' is not a whole number"),
        (["run", "smollm2-135m", "-p", "x", "--precision", "double"], "--precision"),
        (["run", "smollm2-135m", "-p", "x", "--raw", "--system", "y"], "--raw"),
        (["run", "smollm2-135m", "-p", "x", "--nosuch"], "--nosuch"),
        (["bench", "smollm2-135m", "-r", "0"], "-r"),
    ],
)
def test_usage_errors(arguments: list[str], says: str, run: Run) -> None:
    """What is wrong with the command line itself: exit code 2."""
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert one_line(done.stderr), done.stderr
    assert says in done.stderr


@pytest.mark.parametrize("command", ["run", "chat", "show", "verify", "tokenize", "bench"])
@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("smollm2-135", "did you mean smollm2-135m"),
        ("missing.gguf", "no file missing.gguf"),
        ("hf:only/two", "hf:OWNER/REPO/FILE.gguf"),
        (".", "is a folder"),
        ("empty.gguf", "empty.gguf"),
        ("letter.gguf", "letter.gguf"),
    ],
)
def test_models_that_cannot_be_used(
    command: str, model: str, says: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No such model, or a file that is none: exit code 1, and the line names it."""
    monkeypatch.chdir(tmp_path)
    Path("empty.gguf").write_bytes(b"")
    Path("letter.gguf").write_bytes(b"Dear all, this is no model. " * 100)
    more = {"run": ["-p", "x"], "tokenize": ["x"]}.get(command, [])
    done = run(command, model, *more)
    assert done.returncode == 1, done.stderr
    assert done.stdout == ""
    assert one_line(done.stderr), done.stderr
    assert done.stderr.startswith(f"edgert {command}: ")
    assert says in done.stderr


@pytest.mark.parametrize("arguments", [["doctor"], ["run", "smollm2-135m", "-p", "x"]], ids=lambda a: a[0])
def test_unknown_isa_level(arguments: list[str], run: Run, smollm2_path: Path) -> None:
    """EDGERT_ISA with a name that is no level is a mistake like any other."""
    done = run(*arguments, EDGERT_ISA="mmx")
    assert (done.returncode, done.stdout) == (1, "")
    assert one_line(done.stderr), done.stderr
    assert "mmx" in done.stderr
