"""`edgert COMMAND ...`: finds the command's file, parses its options, turns errors into one line and an exit code.

Options are parsed by argparse and a command's module is imported only when it is the one that runs: importing typer
and rich and declaring every command takes 0.15 s of the 0.3 s that `edgert --help` may take, this takes 0.03 s.

Exit codes: 0 success, 1 the command failed, 2 the command line was wrong, 130 interrupted by Ctrl-C.
"""

import _thread
import difflib
import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType

COMMANDS = {
    "run": "answer one prompt, to standard output",
    "chat": "have a conversation in the terminal",
    "serve": "serve models over HTTP: OpenAI's, Anthropic's and Ollama's API, a web page",
    "pull": "download a model and verify it",
    "list": "list the models that have names, and which of them are here",
    "show": "describe a model file: metadata, tensors, memory needed, --plan",
    "verify": "check a model file: its SHA-256 and its structure",
    "tokenize": "turn text into token ids",
    "doctor": "describe this computer as edgert sees it, and say what to improve",
    "bench": "measure prompt and generation speed, and memory",
}
OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="replace")  # whatever the console's code page is
    sys.unraisablehook = _keep_interrupts
    try:
        code = _dispatch(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second Ctrl-C ends a slow farewell, without a traceback
        return INTERRUPTED
    except BrokenPipeError:
        # the reader (`| head`) has enough; what is still buffered must not fail again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _keep_interrupts(lost: "sys.UnraisableHookArgs") -> None:
    """Ctrl-C that arrives within a finaliser or a weak reference's callback is dropped by Python: send it once more."""
    if issubclass(lost.exc_type, KeyboardInterrupt):
        threading.Timer(0.01, _thread.interrupt_main).start()
    else:
        sys.__unraisablehook__(lost)


def _dispatch(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(help_text())
        return OK if argv else USAGE
    if argv[0] in ("-V", "--version"):
        from importlib.metadata import version

        print(f"edgert {version('edgert')}")
        return OK
    name = argv[0]
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean 'edgert {close[0]}'?" if close else "see 'edgert --help'"
        print(f"edgert: no command {name!r}; {hint}", file=sys.stderr)
        return USAGE
    return _run(name, importlib.import_module(f"{__package__}.{name}"), argv[1:])


def _run(name: str, command: ModuleType, argv: list[str]) -> int:
    """Parse the options and run the command; what it raises on purpose becomes one line."""
    import edgert

    from .console import Parser, UsageError

    parser = Parser(prog=f"edgert {name}", description=command.__doc__)
    command.add_arguments(parser)
    execute: Callable[..., int] = command.execute
    try:
        return execute(parser.parse_args(argv))
    except UsageError as error:
        parser.error(str(error))
    except BrokenPipeError:
        raise
    except (edgert.EdgertError, edgert.FormatError, OSError, MemoryError) as error:
        if os.environ.get("EDGERT_DEBUG"):
            raise
        print(f"edgert {name}: {_one_line(error)}", file=sys.stderr)
        return FAILED


def _one_line(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "not enough memory for this; try a smaller --ctx or a smaller model"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split())


def help_text() -> str:
    """What `edgert --help` prints."""
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name:{width}}  {text}" for name, text in COMMANDS.items())
    return f"""\
Usage: edgert COMMAND ...

Run GGUF language models on this computer.

Commands:
{rows}

MODEL is a name from 'edgert list', the path of a .gguf file, or hf:OWNER/REPO/FILE.gguf.
'edgert COMMAND --help' describes a command; 'edgert --version' names the version."""
