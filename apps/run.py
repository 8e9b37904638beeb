"""Answer one prompt, to standard output.

Models with a chat template get the prompt as a user's message; pretrained ones, and all with --raw, continue it.
"""

import argparse
import dataclasses
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import edgert

from .console import (
    MODEL_HELP,
    Progress,
    UsageError,
    add_load_options,
    add_sampling_options,
    integer,
    loading,
    print_json,
    sampling,
    visible,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("-p", "--prompt", metavar="PROMPT", help="the prompt; '-' or nothing: standard input")
    parser.add_argument("-n", type=integer(1), metavar="N", dest="max_tokens", help="answer with at most N tokens")
    parser.add_argument("--system", metavar="TEXT", help="system message for models with a chat template")
    parser.add_argument("--raw", action="store_true", help="continue the prompt as it is, without a chat template")
    parser.add_argument("--json", action="store_true", help="print text, ids, finish_reason, usage and timings as JSON")
    parser.add_argument("--logprobs", type=integer(0, 512), metavar="N",
                        help="with --json: log-probabilities of the tokens and of N alternatives each")  # fmt: skip
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json-schema", metavar="SCHEMA", help="answer with JSON of this schema; @FILE reads it")
    form.add_argument("--regex", metavar="REGEX", help="answer with a text that matches this regular expression")
    form.add_argument("--choice", metavar="TEXT", action="append", help="answer with TEXT or another --choice")
    form.add_argument("--grammar", metavar="GRAMMAR", help="answer by this grammar (GBNF or Lark); @FILE reads it")
    parser.add_argument("--samplers", metavar="NAMES", help="order of the sampling steps, as 'top_k;top_p;temperature'")
    add_sampling_options(parser)
    add_load_options(parser)


def execute(options: argparse.Namespace) -> int:
    if options.raw and options.system is not None:
        raise UsageError("--system needs the chat template that --raw leaves out")
    if options.logprobs is not None and not options.json:
        raise UsageError("--logprobs needs --json, which shows them")
    form = _form(options)
    prompt = _read_prompt(options.prompt)
    with Progress() as progress:
        model = edgert.load(options.model, progress=progress, **loading(options))
    with model:
        _answer(model, prompt, options, form)
    return 0


def _form(options: argparse.Namespace) -> dict[str, Any]:
    """Arguments of generate for the form of the answer and the order of the steps; only what was asked for."""
    given = {
        "json_schema": _text("--json-schema", options.json_schema),
        "regex": options.regex,
        "choices": options.choice,
        "grammar": _text("--grammar", options.grammar),
        "samplers": None if options.samplers is None else [s for s in options.samplers.split(";") if s],
        "logprobs": options.logprobs,
    }
    return {name: value for name, value in given.items() if value is not None}


def _text(option: str, given: str | None) -> str | None:
    """What an option says, or what is in the file that it names with an @."""
    if given is None or not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{option}: cannot read {given[1:]}: {error}") from None


def _answer(model: "edgert.Model", prompt: str, options: argparse.Namespace, form: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"max_tokens": options.max_tokens, **sampling(options), **form}
    if options.raw or model.chat_template is None:
        if options.system is not None:
            raise UsageError("--system: this model has no chat template")
        ids = model.tokenize(prompt, add_special=True, parse_special=True)
        whole: Callable[[], edgert.Completion] = partial(model.generate, ids, **settings)
        pieces: Callable[[], Iterable[str]] = partial(model.stream, ids, **settings)
    else:
        messages = _messages(prompt, options.system)
        whole = partial(model.chat, messages, **settings)
        pieces = lambda: model.chat(messages, stream=True, reasoning="keep", **settings)  # noqa: E731
    if options.json:
        print_json(dataclasses.asdict(whole()))
        return
    show = visible if sys.stdout.isatty() else str
    for piece in pieces():
        sys.stdout.write(show(piece))
        sys.stdout.flush()
    print()


def _messages(prompt: str, system: str | None) -> list[dict[str, str]]:
    first = [{"role": "system", "content": system}] if system is not None else []
    return [*first, {"role": "user", "content": prompt}]


def _read_prompt(given: str | None) -> str:
    if given is None and sys.stdin.isatty():
        raise UsageError("no prompt: give one with -p PROMPT or pipe it in")
    text = given if given not in (None, "-") else sys.stdin.buffer.read().decode("utf-8", "replace")
    if not text:
        raise UsageError("the prompt is empty")
    return text
