"""How answers are formatted in a terminal."""

from __future__ import annotations

import io

import pytest
from edgert.apps import render
from rich.console import Console


@pytest.mark.parametrize(
    ("text", "done"),
    [
        ("", ""),
        ("one line", ""),
        ("one\ntwo\n\n", ""),
        ("one\ntwo\n\nthree", "one\ntwo\n\n"),
        ("one\n\ntwo\n\nthree", "one\n\ntwo\n\n"),
        ("1. one\n\n2. two\n\nend.", "1. one\n\n2. two\n\n"),
        ("1. one\n\n   more\n\n2. two", ""),
        ("```\na\n\nb\n", ""),
        ("```\na\n\nb\n```\n\nmore text", "```\na\n\nb\n```\n\n"),
        ("````\n```\n\nlater on", ""),
        ("text\n\n2", ""),
    ],
)
def test_blocks_that_cannot_change(text: str, done: str) -> None:
    """A block is complete when the next has begun that cannot belong to it; blank lines in code end nothing."""
    assert text[: render.complete(text)] == done


def shown(text: str) -> str:
    out = io.StringIO()
    Console(file=out, width=60, force_terminal=False).print(render.markdown(text))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def test_nothing_of_an_answer_is_lost() -> None:
    """HTML is shown as text, line ends stay, links show where they lead."""
    assert shown("Use <b>this</b>\nand <script>that</script>.") == "Use <b>this</b>\nand <script>that</script>."
    assert shown("<div>\nblock\n</div>") == "<div>\nblock\n</div>"
    assert "https://example.org" in shown("[click](https://example.org)")
    assert shown("**bold** and `code`") == "bold and code"


def test_pieces_become_the_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever the pieces, the text is printed once, without control characters, with its figures."""
    text = "First *part*\x1b[2J.\n\n```py\nx = 1\n\ny = 2\n```\n\n- a\n- b\n\nThe end of it."
    for size in (1, 7, len(text)):
        with render.Formatted() as view:
            for i in range(0, len(text), size):
                view.add(text[i : i + size])
            view.end("9 tokens, 1.0 tokens/s")
        out = capsys.readouterr().out
        assert "\x1b[2J" not in out
        for once in ("First part", "x = 1", "y = 2", " • a", "The end of it.", "9 tokens"):
            assert out.count(once) == 1, (size, once, out)
