"""Have a conversation in the terminal; with input from a pipe, one message per line.

Ctrl-C stops an answer and keeps the conversation, at the prompt it leaves. /help lists the commands.
"""

import argparse
import os
import sys
from contextlib import closing

import edgert

from .console import MODEL_HELP, UsageError, add_load_options, add_sampling_options, integer, loading, sampling
from .lines import piped_lines, terminal_lines
from .models import Local, Source
from .render import Formatted
from .repl import Repl


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", nargs="?", help=f"{MODEL_HELP} (default: the default model)")
    parser.add_argument("--connect", metavar="URL", help="use a running server ('edgert serve', or another that has "
                        "OpenAI's API); its API key is in EDGERT_API_KEY, MODEL is one of its models")  # fmt: skip
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument("-n", type=integer(1), metavar="N", dest="max_tokens", help="answers of at most N tokens")
    parser.add_argument("--plain", action="store_true", help="show answers as they are, without formatting Markdown")
    add_sampling_options(parser)
    add_load_options(parser)


def execute(options: argparse.Namespace) -> int:
    if options.connect is None:
        return _talk(options, Local(options), options.model or edgert.registry.default_model())
    if loading(options) != loading(argparse.Namespace(ctx=None, threads=None, precision="fast", kv_type="f16")):
        raise UsageError("--ctx, --threads, --precision and --kv-type are the server's with --connect")
    from .remote import Server

    server = Server(options.connect)
    return _talk(options, server, options.model or server.first())


def _talk(options: argparse.Namespace, source: Source, name: str) -> int:
    settings = sampling(options)
    if options.max_tokens is not None:
        settings["max_tokens"] = options.max_tokens
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    formatted = terminal and not options.plain and os.environ.get("TERM") != "dumb"
    with closing(source):
        repl = Repl(source.open(name), name, settings, options.system, terminal=terminal, source=source,
                    view=Formatted if formatted else None)  # fmt: skip
        repl.loop(terminal_lines(repl.words) if terminal else piped_lines)
    return 0
