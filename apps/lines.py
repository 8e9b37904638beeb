"""Reading messages: from a pipe, or from a terminal with editing, history and completion."""

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import edgert

if TYPE_CHECKING:
    from prompt_toolkit.completion import Completer

ReadLine = Callable[[str], str]  # prompt -> one line; EOFError at the end, KeyboardInterrupt for Ctrl-C
PROMPT, CONTINUED = ">>> ", "... "
FILE_COMMANDS = ("/save", "/load", "/file")


def read_message(read_line: ReadLine) -> str:
    """One message: a line, lines joined by a final backslash, or everything between two triple quotes.

    Ctrl-C in the middle of a message drops it; the end of the input ends it.
    """
    line = read_line(PROMPT)
    quoted = line.lstrip().startswith('"""')
    lines = [line.lstrip()[3:] if quoted else line]
    try:
        while quoted and not lines[-1].rstrip().endswith('"""'):
            lines.append(read_line(CONTINUED))
        while not quoted and lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            lines.append(read_line(CONTINUED))
    except KeyboardInterrupt:
        return ""
    except EOFError:
        return "\n".join(lines)
    if quoted:
        lines[-1] = lines[-1].rstrip()[:-3]
    return "\n".join(lines).strip("\n") if quoted else "\n".join(lines)


def piped_lines(_: str) -> str:
    """ReadLine for input that is no terminal; no prompts, so that the output is answers only."""
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.rstrip("\r\n")


def terminal_lines(words: Callable[[str], Iterable[str]]) -> ReadLine:
    """ReadLine with editing, a history in a file that only the user can read, and completion.

    words: what can follow the text of a line that begins with a /command; its file names are completed here.
    """
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import FileHistory
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    keys = KeyBindings()

    @keys.add("c-c")
    def _(event: KeyPressEvent) -> None:
        """Drop what has been typed; with nothing typed, leave."""
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt)

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    history = edgert.registry.home() / "chat_history"
    history.parent.mkdir(parents=True, exist_ok=True)
    history.touch(mode=0o600)
    session: PromptSession[str] = PromptSession(
        history=FileHistory(str(history)), key_bindings=keys, completer=completer(words), complete_while_typing=False
    )
    return session.prompt


def completer(words: Callable[[str], Iterable[str]]) -> "Completer":
    """Completes /commands, then what they take."""
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
    from prompt_toolkit.document import Document

    paths = PathCompleter(expanduser=True)

    class Commands(Completer):
        def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
            text = document.text_before_cursor
            command, space, rest = text.partition(" ")
            if not text.startswith("/"):
                return
            if space and command in FILE_COMMANDS:
                yield from paths.get_completions(Document(rest), complete_event)
                return
            typed = rest if space else text
            for word in words(command if space else ""):
                if word.startswith(typed):
                    yield Completion(word, start_position=-len(typed))

    return Commands()
