"""`edgert chat` on SmolLM2: piped, and in a pseudo-terminal with Ctrl-C."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from edgert.kernels_cpu.jit import cache_root

Run = Callable[..., "CompletedProcess[str]"]


def test_piped_conversation(run: Run, smollm2_path: Path, tmp_path: Path) -> None:
    """Each line gets an answer on standard output; a saved conversation goes on as it would have."""
    saved = tmp_path / "talk.json"
    first, second = "What is the capital of France, and what is it known for?", "Tell me more about its museums."
    arguments = ["chat", str(smollm2_path), "--temp", "0", "-n", "12"]
    done = run(*arguments, stdin=f"{first}\n/save {saved}\n/nosuch\n{second}\n/stats\n")
    assert done.returncode == 0, done.stderr
    answer, note, more, *stats = done.stdout.splitlines()
    assert answer.startswith("The capital of France is Paris")
    assert note == f"saved 2 messages to {saved}"
    assert "no command /nosuch" in done.stderr
    assert re.search(r"prompt \d+ tokens \([1-9]\d* reused\)", stats[0])
    assert run(*arguments, stdin=f"/load {saved}\n{second}\n").stdout.splitlines()[-1] == more


@pytest.mark.big
def test_models_without_a_template_do_not_chat(run: Run, gemma3_path: Path) -> None:
    """A pretrained model is refused with the command that works."""
    done = run("chat", str(gemma3_path), stdin="hi\n")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no chat template" in done.stderr
    assert "edgert run" in done.stderr


if os.name == "posix":

    class Terminal:
        """A program in a pseudo-terminal: type into it and wait for what it shows."""

        def __init__(self, command: list[str], **environment: str) -> None:
            import fcntl
            import pty
            import struct
            import termios

            self.ours, theirs = pty.openpty()
            fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))

            def take_terminal() -> None:
                os.setsid()
                fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that Ctrl-C becomes SIGINT of this program

            self.process = subprocess.Popen(
                command,
                stdin=theirs,
                stdout=theirs,
                stderr=theirs,
                preexec_fn=take_terminal,
                env=os.environ | {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"} | environment,
            )
            os.close(theirs)
            os.set_blocking(self.ours, False)
            self.shown = ""

        def type(self, text: str) -> None:
            os.write(self.ours, text.encode())

        def wait_for(self, pattern: str, seconds: float = 60) -> str:
            """Everything shown since the last wait up to the match of `pattern`."""
            deadline = time.monotonic() + seconds
            while (match := re.search(pattern, self.shown)) is None:
                assert time.monotonic() < deadline, self.shown
                try:
                    self.shown += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", os.read(self.ours, 65536).decode())
                except BlockingIOError:
                    time.sleep(0.01)
                except OSError:
                    break  # Linux: the program has closed its end
            assert match, self.shown
            seen, self.shown = self.shown[: match.end()], self.shown[match.end() :]
            return seen

        def wait(self) -> int:
            """The exit code."""
            return self.process.wait(timeout=20)

        def end(self) -> None:
            """End the program if it has not ended, and give the terminal back."""
            self.process.kill()
            self.process.wait()
            os.close(self.ours)

    @pytest.fixture
    def terminal(edgert_command: str, smollm2_path: Path, tmp_path: Path) -> Iterator[Terminal]:
        """A chat with SmolLM2 at its first prompt, with a home of its own for the history."""
        command = [edgert_command, "chat", str(smollm2_path), "--temp", "0"]
        program = Terminal(command, EDGERT_HOME=str(tmp_path), EDGERT_CACHE=str(cache_root().parent))
        try:
            program.wait_for(r"/help lists the commands\s+>>>")
            yield program
        finally:
            program.end()

    def test_ctrl_c_stops_the_answer_then_leaves(terminal: Terminal) -> None:
        """Ctrl-C during an answer stops it and asks for the next message; at the prompt it leaves with 0."""
        terminal.type("Write a very long story about a lighthouse.\r")
        terminal.wait_for(r"\n\S+ \S+ \S+ ")
        terminal.type("\x03")
        terminal.wait_for(r"\(stopped\)\s+>>>", 5)
        terminal.type("/set max-tokens 24\r")
        terminal.wait_for(r"max-tokens: 24\s+>>>")
        terminal.type("What is the capital of France, and what is it known for?\r")
        assert "The capital of France is Paris" in terminal.wait_for(r"Paris(.|\n)*>>>")
        terminal.type("half a message\x03")
        terminal.type("\x03")
        assert terminal.wait() == 0
        assert "Traceback" not in terminal.shown

    def test_lines_history_and_exit(terminal: Terminal, tmp_path: Path) -> None:
        """A backslash continues the line, and the history is kept where only the user can read it."""
        terminal.type("/set max-tokens 4\r")
        terminal.wait_for(r"max-tokens: 4\s+>>>")
        terminal.type("first line\\\r")
        terminal.wait_for(r"\.\.\.")
        terminal.type("second line\r")
        terminal.wait_for(r"\(cut off.*\s+>>>")
        terminal.type("/exit\r")
        assert terminal.wait() == 0
        history = tmp_path / "chat_history"
        assert "first line" in history.read_text(encoding="utf-8")
        assert history.stat().st_mode & 0o077 == 0

    def test_answers_are_formatted_with_their_speed(terminal: Terminal, tmp_path: Path) -> None:
        """A file goes with the message; the answer ends with its tokens and speed; Tab completes commands and files."""
        (tmp_path / "notes.txt").write_text("The capital of France is Paris.")
        terminal.type("/fi\t")
        terminal.wait_for("/file")
        terminal.type(f" {tmp_path}/no\t")
        terminal.wait_for("tes.txt")
        terminal.type("\r")
        terminal.wait_for(r"notes.txt \(31 characters\) goes with the next message\s+>>>")
        terminal.type("/set max-tokens 12\r")
        terminal.wait_for(r"max-tokens: 12\s+>>>")
        terminal.type("Repeat this file.\r")
        terminal.wait_for(r"12 tokens, [\d.]+ tokens/s\s+\(cut off.*\s+>>>")
        terminal.type("/model nosuch\r")
        terminal.wait_for(r"nosuch.*\s+>>>")
        terminal.type("/model\r")
        terminal.wait_for(r">>>")
        terminal.type("\x04")
        assert terminal.wait() == 0
