"""Turn text into token ids, one line per token: the id and the bytes that it stands for."""

import argparse
import sys

import edgert

from .console import MODEL_HELP, Progress, UsageError, print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("text", metavar="TEXT", nargs="?", help="the text; '-' or nothing: standard input")
    parser.add_argument("--no-special", action="store_true", help="add no begin- or end-of-text token")
    parser.add_argument("--parse-special", action="store_true", help="read special tokens such as <|im_start|> in TEXT")
    parser.add_argument("--json", action="store_true", help="print a JSON object")


def execute(options: argparse.Namespace) -> int:
    text = read_text(options.text)
    with Progress() as progress:
        tokenizer = edgert.load_tokenizer(edgert.registry.resolve(options.model, progress))
    ids = tokenizer.tokenize(text, add_special=not options.no_special, parse_special=options.parse_special)
    pieces = [tokenizer.token_bytes(i) for i in ids]
    if options.json:
        print_json({"ids": ids, "pieces": [piece.decode("utf-8", "backslashreplace") for piece in pieces]})
        return 0
    for i, piece in zip(ids, pieces, strict=True):
        print(f"{i:>8}  {_quoted(piece)}")
    print(f"{len(ids)} tokens", file=sys.stderr)
    return 0


def _quoted(piece: bytes) -> str:
    try:
        return repr(piece.decode("utf-8"))
    except UnicodeDecodeError:
        return repr(piece)  # part of a character


def read_text(given: str | None) -> str:
    """TEXT, or all of standard input for '-' and for nothing when input is piped in."""
    if given not in (None, "-"):
        return given
    if given is None and sys.stdin.isatty():
        raise UsageError("no text: give it as an argument or pipe it in")
    return sys.stdin.buffer.read().decode("utf-8", "replace")
