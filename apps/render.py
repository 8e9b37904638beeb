"""How an answer is shown while it comes: as plain text, or in a terminal as formatted Markdown with its speed."""

import re
import sys
import time
from types import TracebackType
from typing import Any, Protocol, Self

from .console import visible

ITEM = re.compile(r"\s|[-*+] |\d+[.)] ")  # beginnings of lines that may go on with the block before
MAX_GROWING = 4000  # characters of a block that grows
FENCE = re.compile(r"\s{0,3}(```+|~~~+)")


class View(Protocol):
    """Shows one answer: pieces, then its end."""

    def __enter__(self) -> Self: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 tb: TracebackType | None) -> None: ...  # fmt: skip
    def add(self, piece: str) -> None: ...
    def end(self, figures: str) -> None: ...


class Plain:
    """Text as it comes; in a terminal without control characters."""

    def __init__(self, terminal: bool) -> None:
        self._terminal = terminal

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        pass

    def add(self, piece: str) -> None:
        sys.stdout.write(visible(piece) if self._terminal else piece)
        sys.stdout.flush()

    def end(self, figures: str) -> None:
        self.add("\n")


class Formatted:
    """Markdown. Blocks that are complete are printed for good; the one that grows, and the speed, are drawn anew."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.spinner import Spinner

        self._text = ""  # of the block that grows
        self._printed = False
        self._pieces = 0
        self._first = 0.0
        self._reading = Spinner("dots", "reading", style="dim")
        self._console = Console(highlight=False)
        self._live = Live(console=self._console, get_renderable=self._growing, transient=True, refresh_per_second=10)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._live.stop()

    def add(self, piece: str) -> None:
        self._pieces += 1
        self._first = self._first or time.monotonic()
        self._text += visible(piece)
        done = complete(self._text)
        if done:
            block, self._text = self._text[:done], self._text[done:]
            self._print(block)

    def end(self, figures: str) -> None:
        rest, self._text = self._text, ""
        self._live.stop()
        if rest.strip():
            self._print(rest)
        if figures:
            self._console.print(figures, style="dim")

    def _print(self, text: str) -> None:
        if self._printed:
            self._console.print()
        self._printed = True
        self._console.print(markdown(text))

    def _growing(self) -> Any:
        from rich.console import Group
        from rich.text import Text

        if not self._pieces:
            return self._reading
        seconds = time.monotonic() - self._first
        rate = f"{(self._pieces - 1) / seconds:.1f} tokens/s" if seconds > 0.3 else ""
        between = [Text("")] if self._printed else []
        text = self._text  # formatting much of it at every frame would take the processor from the model
        growing = markdown(text) if len(text) <= MAX_GROWING else Text(text[-MAX_GROWING:])
        return Group(*between, _Tail(growing, self._console.height - 3), Text(rate, style="dim"))


class _Tail:
    """The last lines of something that may be higher than the terminal."""

    def __init__(self, whole: Any, height: int) -> None:
        self._whole, self._height = whole, max(1, height)

    def __rich_console__(self, console: Any, options: Any) -> Any:
        from rich.segment import Segment

        for line in console.render_lines(self._whole, options.update(height=None), pad=False)[-self._height :]:
            yield from line
            yield Segment.line()


def markdown(text: str) -> Any:
    """For rich's console: HTML is text, and the ends of lines stay."""
    from rich.markdown import Markdown, MarkdownIt  # type: ignore[attr-defined]  # the parser that rich uses

    made = Markdown("", hyperlinks=False)
    made.parsed = MarkdownIt("commonmark", {"html": False}).enable("strikethrough").enable("table").parse(text)
    for token in made.parsed:
        for child in token.children or ():
            if child.type == "softbreak":
                child.type = "hardbreak"
    return made


def complete(text: str) -> int:
    """Characters at the beginning of a Markdown text that are blocks that no further text can change; 0 for none."""
    done = at = 0
    fence, blank = "", False
    for line in text.splitlines(keepends=True):
        whole = line.endswith("\n")
        if blank and not fence and len(line) > 3 and not ITEM.match(line):
            done = at
        mark = FENCE.match(line)
        if not fence:
            fence = mark[1] if mark else ""
        elif whole and line.strip().startswith(fence) and not line.strip().strip(fence[0]):
            fence = ""
        blank = not line.strip()
        at += len(line)
    return done
