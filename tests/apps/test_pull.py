"""`edgert pull` and `edgert list` as processes, against a local hub: progress, interruption, resumption."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

import hub_server

Run = Callable[..., "CompletedProcess[str]"]
CONTENT = bytes(range(256)) * 8192  # 2 MiB
REF = "hf:owner/repo/model.gguf"


@pytest.fixture
def home(hub: hub_server.Hub, tmp_path: Path) -> Path:
    """The EDGERT_HOME of the child processes; the hub has one model."""
    hub.files["owner/repo/model.gguf"] = CONTENT
    return tmp_path / "home"


def models(home: Path) -> list[Path]:
    """Files under a final name."""
    return [path for path in home.rglob("*.gguf") if path.is_file() and ".partial" not in path.parts]


def test_pull_prints_the_path(run: Run, hub: hub_server.Hub, home: Path) -> None:
    """The path alone is on standard output, for use in scripts; a second pull asks the network nothing."""
    done = run("pull", REF)
    assert (done.returncode, done.stderr) == (0, "")
    path = Path(done.stdout.strip())
    assert path.read_bytes() == CONTENT
    hub.log.clear()
    assert run("pull", REF).stdout == done.stdout
    assert hub.log == []
    listed = json.loads(run("list", "--json", "--here").stdout)["models"]
    assert [(row["name"], row["path"]) for row in listed] == [(REF, str(path))]
    assert REF in run("list").stdout


def test_wrong_hash_is_an_error(run: Run, hub: hub_server.Hub, home: Path) -> None:
    """One line, exit code 1, nothing kept."""
    hub.wrong_hash = True
    done = run("pull", REF)
    assert done.returncode == 1
    assert done.stderr.startswith(f"edgert pull: {REF}: sha256 is ")
    assert done.stderr.count("\n") == 1
    assert models(home) == []


def test_slow_downloads_say_so(run: Run, hub: hub_server.Hub, home: Path) -> None:
    """Without a terminal the progress is plain lines, on stderr, and few."""
    hub.delay = 0.015
    done = run("pull", REF)
    assert done.returncode == 0
    assert done.stderr.startswith("downloading model.gguf ")
    assert "\x1b" not in done.stderr
    assert done.stderr.count("\n") <= 3


if os.name == "posix":

    def start_and_wait(command: str, home: Path, size: int) -> subprocess.Popen[str]:
        """Start a pull and wait until more than `size` bytes have arrived."""
        process = subprocess.Popen([command, "pull", REF], stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 20
        while sum(path.stat().st_size for path in home.rglob("*.part")) <= size:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return process

    @pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
    def test_interrupted_pull(
        how: signal.Signals, edgert_command: str, run: Run, hub: hub_server.Hub, home: Path
    ) -> None:
        """Whatever ends a pull, no file has the final name, and the next pull continues where it stopped."""
        hub.delay = 0.02
        process = start_and_wait(edgert_command, home, 100_000)
        process.send_signal(how)
        _, err = process.communicate(timeout=5)
        assert process.returncode == (130 if how is signal.SIGINT else -how)
        assert "Traceback" not in err
        assert models(home) == []
        hub.delay = 0
        hub.log.clear()
        assert run("pull", REF).returncode == 0
        (continued,) = hub.ranges()
        assert int(continued.removeprefix("bytes=").rstrip("-")) > 100_000
        assert models(home)[0].read_bytes() == CONTENT

    def test_progress_bar_in_a_terminal(edgert_command: str, hub: hub_server.Hub, home: Path) -> None:
        """In a terminal a bar with the amount is drawn, and taken away at the end."""
        import pty

        hub.delay = 0.015
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [edgert_command, "pull", REF], stderr=theirs, stdout=subprocess.PIPE, env=os.environ | {"TERM": "xterm"}
        )
        os.close(theirs)
        drawn = b""
        while True:
            try:
                drawn += os.read(ours, 4096)
            except OSError:  # Linux: the other end is closed
                break
        out, _ = process.communicate()
        os.close(ours)
        assert process.returncode == 0
        assert Path(out.decode().strip()).read_bytes() == CONTENT
        assert "downloading model.gguf" in drawn.decode()
        assert "of 2.1 MB" in drawn.decode()
