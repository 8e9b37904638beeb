"""What the commands share: option types, one-line usage errors, progress on stderr."""

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

MODEL_HELP = "a name from 'edgert list', the path of a .gguf file, or hf:OWNER/REPO/FILE.gguf"
KV_TYPES = ("f16", "bf16", "f32", "q8_0", "q4_0")
PATIENCE = 0.7  # seconds of work before anything is shown about it
LINE_EVERY = 10.0  # seconds between plain progress lines


_CONTROLS = {i: "\N{REPLACEMENT CHARACTER}" for i in range(0xA0) if (i < 0x20 or i > 0x7E) and chr(i) not in "\n\t"}


class UsageError(Exception):
    """The command line asks for something that cannot be; one line, exit code 2."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line that says where the help is."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {' '.join(message.split())}; see '{self.prog} --help'\n")


def integer(low: int, high: int = 2**31 - 1) -> Callable[[str], int]:
    """An argparse type: an integer from `low` to `high`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{value} is not between {low} and {high}")
        return value

    return parse


def number(low: float, high: float) -> Callable[[str], float]:
    """An argparse type: a number from `low` to `high`."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text} is not between {low:g} and {high:g}")
        return value

    return parse


def add_load_options(parser: argparse.ArgumentParser) -> None:
    """The options of every command that loads a model, for `loading`."""
    parser.add_argument("--ctx", type=integer(1), metavar="N", help="context in tokens (default: the model's)")
    parser.add_argument("-t", "--threads", type=integer(1, 1024), metavar="N", help="threads (see 'edgert doctor')")
    parser.add_argument("--precision", choices=("fast", "exact"), default="fast", help="exact: everything in float32")
    parser.add_argument("--kv-type", choices=KV_TYPES, default="f16", help="of keys and values in the cache")


def loading(options: argparse.Namespace) -> dict[str, Any]:
    """What these options ask of `edgert.load`."""
    return {
        "threads": options.threads, "n_ctx": options.ctx, "precision": options.precision, "kv_type": options.kv_type,
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Setting:
    """A sampling option: its name on the command line and in the chat, generate's argument, its type and meaning."""

    argument: str
    parse: Callable[[str], float]
    meaning: str
    metavar: str = "X"


SETTINGS = {
    "temp": Setting("temperature", number(0, 100), "temperature; 0 always takes the likeliest token"),
    "top-k": Setting("top_k", integer(0), "sample from the N likeliest tokens; 0: all", "N"),
    "top-p": Setting("top_p", number(0, 1), "sample from the likeliest tokens that together have this probability"),
    "min-p": Setting("min_p", number(0, 1), "sample from tokens at least this many times as likely as the likeliest"),
    "typical": Setting("typical_p", number(0, 1), "sample from the most typical tokens that have this probability"),
    "top-nsigma": Setting("top_n_sigma", number(-1, 1000), "sample within X standard deviations of the best logit"),
    "repeat-penalty": Setting("repeat_penalty", number(0.01, 100), "above 1: avoid repeating recent tokens"),
    "frequency-penalty": Setting("frequency_penalty", number(-100, 100), "avoid tokens by how often they came"),
    "presence-penalty": Setting("presence_penalty", number(-100, 100), "avoid tokens that came at all"),
    "repeat-last-n": Setting("penalty_last_n", integer(-1), "recent tokens that penalties look at; -1: all", "N"),
    "dry-multiplier": Setting("dry_multiplier", number(0, 100), "above 0: avoid repeating sequences (DRY)"),
    "dry-base": Setting("dry_base", number(1, 100), "how fast the DRY penalty grows with the length"),
    "dry-allowed-length": Setting("dry_allowed_length", integer(0), "tokens that DRY lets be repeated", "N"),
    "dry-penalty-last-n": Setting("dry_penalty_last_n", integer(-1), "recent tokens DRY looks at; -1: all", "N"),
    "xtc-probability": Setting("xtc_probability", number(0, 1), "how often to drop the likeliest choices (XTC)"),
    "xtc-threshold": Setting("xtc_threshold", number(0, 1), "probability from which XTC counts a choice as likely"),
    "dynatemp-range": Setting("dynatemp_range", number(0, 100), "vary the temperature by X with the entropy"),
    "dynatemp-exp": Setting("dynatemp_exponent", number(0, 100), "how the varied temperature follows the entropy"),
    "mirostat": Setting("mirostat", integer(0, 2), "1 or 2: hold the surprise of the tokens constant", "N"),
    "mirostat-ent": Setting("mirostat_tau", number(0, 100), "the surprise that mirostat aims at, in bits"),
    "mirostat-lr": Setting("mirostat_eta", number(0, 100), "how fast mirostat adapts"),
    "seed": Setting("seed", integer(0, 2**63 - 1), "the same seed gives the same answer", "N"),
}


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """The options of every command that samples: --temp, --top-k, ..."""
    for name, setting in SETTINGS.items():
        parser.add_argument(
            f"--{name}", type=setting.parse, metavar=setting.metavar, dest=setting.argument, help=setting.meaning
        )


def sampling(options: argparse.Namespace) -> dict[str, Any]:
    """The sampling options that were given, as arguments of generate; the library's defaults hold for the others."""
    values = {setting.argument: getattr(options, setting.argument) for setting in SETTINGS.values()}
    return {argument: value for argument, value in values.items() if value is not None}


class Progress:
    """A progress callback for anything that may take over a second: bars in a terminal, otherwise a line now and then.

    Use it as a context manager, so that the bars are gone before other output starts. Nothing is shown of work that is
    done within `PATIENCE` seconds.
    """

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._bars: RichProgress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._started: dict[str, float] = {}
        self._printed: dict[str, float] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def __call__(self, what: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if now - self._started.setdefault(what, now) < PATIENCE and what not in self._tasks:
            return
        if self._terminal:
            self._show_bar(what, done, total)
        elif now - self._printed.get(what, -LINE_EVERY) >= LINE_EVERY:
            self._printed[what] = now
            part = f" {100 * done // total} %" if total else ""
            print(f"{what}{part}", file=sys.stderr, flush=True)

    def _show_bar(self, what: str, done: int, total: int | None) -> None:
        if self._bars is None:
            self._bars = _bars()
            self._bars.start()
        if what not in self._tasks:
            self._tasks[what] = self._bars.add_task(what, total=total, amount="")
        self._bars.update(self._tasks[what], completed=done, total=total, amount=_amount(done, total))


def _amount(done: int, total: int | None) -> str:
    """`12.3 of 98.4 MB`; small totals are counts of things and no bytes."""
    if total is None:
        return ""
    return f"{done / 1e6:.1f} of {total / 1e6:.1f} MB" if total >= 100_000 else f"{done} of {total}"


def _bars() -> "RichProgress":
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    what, amount = TextColumn("{task.description}"), TextColumn("{task.fields[amount]}")
    console = Console(stderr=True)
    return Progress(what, BarColumn(), amount, TimeRemainingColumn(), console=console, transient=True)


def human_bytes(count: float) -> str:
    """`98362432` -> `98.4 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def visible(text: str) -> str:
    """Text without control characters: a model's answer or a loaded file must not steer the terminal."""
    return text.translate(_CONTROLS)


def print_json(value: Any) -> None:
    """One JSON object on standard output."""
    json.dump(value, sys.stdout, ensure_ascii=False, indent=2)
    print()
