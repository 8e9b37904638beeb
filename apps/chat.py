"""Have a conversation in the terminal; with input from a pipe, one message per line.

Ctrl-C stops an answer and keeps the conversation, at the prompt it leaves. /help lists the commands.
"""

import argparse
import sys

import edgert

from .console import MODEL_HELP, Progress, add_load_options, add_sampling_options, integer, loading, sampling
from .repl import Repl, piped_lines, terminal_lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", nargs="?", help=f"{MODEL_HELP} (default: the default model)")
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument("-n", type=integer(1), metavar="N", dest="max_tokens", help="answers of at most N tokens")
    add_sampling_options(parser)
    add_load_options(parser)


def execute(options: argparse.Namespace) -> int:
    name = options.model or edgert.registry.default_model()
    with Progress() as progress:
        model = edgert.load(name, progress=progress, **loading(options))
    with model:
        if model.chat_template is None:
            raise edgert.EdgertError(f"{name} has no chat template; it continues text: edgert run {name} -p TEXT")
        settings = sampling(options)
        if options.max_tokens is not None:
            settings["max_tokens"] = options.max_tokens
        terminal = sys.stdin.isatty() and sys.stdout.isatty()
        repl = Repl(model, name, settings, options.system, terminal=terminal)
        repl.loop(terminal_lines() if terminal else piped_lines)
    return 0
