"""The conversation of `edgert chat`: reading messages, answering, and the /commands."""

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import edgert

from . import transcript
from .console import SETTINGS, Setting, integer, visible
from .lines import PROMPT, ReadLine, read_message
from .models import Source, Talker
from .render import Plain, View

CHAT_SETTINGS = SETTINGS | {"max-tokens": Setting("max_tokens", integer(1), "longest answer in tokens")}
MAX_FILE = 1_000_000  # bytes
HELP = """\
/system [TEXT]     show or set the system message ('/system -' removes it)
/set [NAME VALUE]  show or change a setting ('/set NAME default' for the default)
/model [NAME]      list the models, or go on with another
/file FILE         send a text file along with the next message
/stats             speed and tokens of the last answer
/regen             answer the last message again
/save FILE         write the conversation to a file
/load FILE         go on with a saved conversation
/clear             forget the conversation
/exit              leave (so do Ctrl-D, and Ctrl-C at the prompt)
A line that ends in \\ goes on in the next; \"\"\" begins and ends a message of several lines.
A message that begins with / is written with two: //etc is what? asks "/etc is what?"."""


class CommandError(Exception):
    """A /command that cannot be done; one line for the user."""


class Repl:
    """One conversation. source: the models that /model can change to; view: shows an answer as it comes."""

    def __init__(
        self, model: Talker, name: str, settings: dict[str, Any], system: str | None, *, terminal: bool,
        source: Source | None = None, view: Callable[[], View] | None = None,
    ) -> None:  # fmt: skip
        self.model = model
        self.name = name
        self.settings = settings  # argument of chat -> value
        self.system = system
        self.messages: list[dict[str, str]] = []
        self.last_answer: edgert.Completion | None = None
        self.tries = 0  # how often the last message was answered again
        self.files: list[str] = []  # that go with the next message, as parts of it
        self.terminal = terminal
        self.source = source
        self.view = view or (lambda: Plain(terminal))

    def loop(self, read_line: ReadLine) -> None:
        """Read and answer until the input ends, /exit, or Ctrl-C at the prompt."""
        self._note(f"{self.title()}; /help lists the commands")
        while True:
            try:
                message = read_message(read_line)
            except (EOFError, KeyboardInterrupt):
                return
            if message.strip() in ("/exit", "/quit"):
                return
            try:
                self._handle(message)
            except (CommandError, transcript.TranscriptError, edgert.EdgertError, OSError) as error:
                self._note(" ".join(visible(str(error)).split()))

    def title(self) -> str:
        """The model, and its context if that is known."""
        return f"{self.name}: context of {self.model.n_ctx} tokens" if self.model.n_ctx else self.name

    def words(self, command: str) -> list[str]:
        """What can follow a /command; the commands themselves if there is none yet."""
        match command:
            case "":
                return [line.split()[0] for line in HELP.splitlines() if line.startswith("/")]
            case "/set":
                return list(CHAT_SETTINGS)
            case "/model" if self.source is not None:
                return self.source.names()
        return []

    def _handle(self, message: str) -> None:
        if not message.strip():
            return
        if not message.startswith("/") or message.startswith("//"):
            self.tries = 0
            return self._answer(message.removeprefix("/"))
        word, _, rest = message.partition(" ")
        command = getattr(self, f"do_{word[1:]}", None)
        if command is None:
            raise CommandError(f"no command {word}; /help lists them")
        command(rest.strip())

    def _answer(self, message: str) -> None:
        """Stream the answer; Ctrl-C keeps what has been said so far, a failure leaves the conversation as it was."""
        self.messages.append({"role": "user", "content": "".join(self.files) + message})
        pieces: list[str] = []
        try:
            stream = self.model.chat(self._with_system(), stream=True, reasoning="keep", **self._options())
            with self.view() as view:
                try:
                    for piece in stream:
                        pieces.append(piece)
                        view.add(piece)
                except KeyboardInterrupt:
                    stream.close()
                    view.end("")
                    self._note("(stopped)")
                else:
                    view.end(_rate(stream.completion))
            if stream.completion.finish_reason == "length":
                self._note("(cut off: max-tokens or the context is used up; see /stats)")
            self.last_answer = stream.completion
            self.files = []
        finally:
            if pieces:
                self.messages.append({"role": "assistant", "content": "".join(pieces)})
            else:
                self.messages.pop()

    def do_help(self, _: str) -> None:
        self._print(HELP)

    def do_system(self, text: str) -> None:
        if text:
            self.system = None if text == "-" else text
        self._print(f"system: {self.system}" if self.system is not None else "system: the model's default")

    def do_set(self, text: str) -> None:
        name, _, value = (part.strip() for part in text.partition(" "))
        if not name:
            for each, setting in CHAT_SETTINGS.items():
                now = self.settings.get(setting.argument, "default")
                self._print(f"{each:18} {now!s:8} {setting.meaning}")
            return
        chosen = CHAT_SETTINGS.get(name.replace("_", "-"))
        if chosen is None:
            raise CommandError(f"no setting {name!r}; there are {', '.join(CHAT_SETTINGS)}")
        if value == "default":
            self.settings.pop(chosen.argument, None)
        elif value:
            self.settings[chosen.argument] = _checked(name, chosen, value)
        self._print(f"{name}: {self.settings.get(chosen.argument, 'default')}")

    def do_model(self, name: str) -> None:
        if self.source is None:
            raise CommandError("there is one model only")
        if not name:
            names = self.source.names()
            for each in names if self.name in names else [self.name, *names]:
                self._print(f"{'*' if each == self.name else ' '} {each}")
            return
        self.model = self.source.open(name)
        self.name, self.last_answer = name, None
        self._print(self.title())

    def do_file(self, text: str) -> None:
        path = _path(text, "/file")
        if not path.is_file():
            raise CommandError(f"{path} is no file")
        if path.stat().st_size > MAX_FILE:
            raise CommandError(f"{path} is larger than {MAX_FILE // 10**6} MB")
        try:
            content = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise CommandError(f"{path} is no text in UTF-8") from None
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", content)), default=0))
        self.files.append(f"{path.name}:\n{fence}\n{content.rstrip()}\n{fence}\n\n")
        self._print(f"{path.name} ({len(content)} characters) goes with the next message")

    def do_stats(self, _: str) -> None:
        if self.last_answer is None:
            raise CommandError("there is no finished answer yet")
        usage, timings = self.last_answer.usage, self.last_answer.timings
        fresh = usage.prompt_tokens - usage.cached_tokens
        self._print(
            f"prompt {usage.prompt_tokens} tokens ({usage.cached_tokens} reused), {fresh} read in "
            f"{timings.prompt_s:.2f} s\nanswer {usage.completion_tokens} tokens in {timings.decode_s:.2f} s, "
            f"{timings.decode_rate:.1f} tokens/s\n"
            f"context {usage.prompt_tokens + usage.completion_tokens} of {self.model.n_ctx or 'unknown'} tokens"
        )

    def do_regen(self, _: str) -> None:
        if not self.messages:
            raise CommandError("there is nothing to answer again")
        before, self.files = self.messages[-2:], []
        del self.messages[-2:]
        self.tries += 1
        self._answer(before[0]["content"])
        if not self.messages or self.messages[-2] != before[0]:
            self.messages += before  # no new answer: the old one stays

    def do_save(self, text: str) -> None:
        path = _path(text, "/save")
        transcript.save(path, self.name, transcript.Conversation(self.messages, self.system, self.settings))
        self._print(f"saved {len(self.messages)} messages to {path}")

    def do_load(self, text: str) -> None:
        path = _path(text, "/load")
        loaded = transcript.load(path)
        by_argument = {setting.argument: (name, setting) for name, setting in CHAT_SETTINGS.items()}
        settings = {}
        for argument, value in loaded.settings.items():
            if argument not in by_argument:
                raise CommandError(f"{path}: settings.{argument[:40]} is no setting")
            settings[argument] = _checked(*by_argument[argument], str(value))
        self.messages, self.system, self.settings = loaded.messages, loaded.system, settings
        self.last_answer = None
        for message in self.messages[-2:]:
            self._print(("" if message["role"] == "assistant" else PROMPT) + message["content"])
        self._print(f"loaded {len(self.messages)} messages from {path}")

    def do_clear(self, _: str) -> None:
        self.messages, self.files = [], []
        self.last_answer = None
        self._print("forgotten")

    def _with_system(self) -> list[dict[str, str]]:
        first = [] if self.system is None else [{"role": "system", "content": self.system}]
        return first + self.messages

    def _options(self) -> dict[str, Any]:
        """The settings; with a fixed seed each /regen still gets a different answer, the same one every time."""
        seed = {"seed": self.settings["seed"] + self.tries} if "seed" in self.settings else {}
        return self.settings | seed

    def _say(self, text: str) -> None:
        sys.stdout.write(visible(text) if self.terminal else text)
        sys.stdout.flush()

    def _print(self, text: str) -> None:
        self._say(text + "\n")

    def _note(self, text: str) -> None:
        """Something about the conversation rather than of it: on stderr in a pipe, whose output is answers only."""
        print(text, file=sys.stdout if self.terminal else sys.stderr, flush=True)


def _checked(name: str, setting: Setting, text: str) -> float:
    try:
        return setting.parse(text)
    except argparse.ArgumentTypeError as error:
        raise CommandError(f"{name}: {error}") from error


def _rate(answer: "edgert.Completion") -> str:
    return f"{answer.usage.completion_tokens} tokens, {answer.timings.decode_rate:.1f} tokens/s"


def _path(text: str, command: str) -> Path:
    if not text:
        raise CommandError(f"{command} needs the name of a file")
    return Path(text).expanduser()
