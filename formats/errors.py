"""The one error every reader in this package raises for bad input."""

import os


class FormatError(ValueError):
    """A file is malformed or not supported; the message is one line naming the file, the field and the value."""


def quote(value: object, limit: int = 80) -> str:
    """`value` as text for a one-line message: printable, and cut to `limit` characters."""
    text = repr(value[: limit + 1] if isinstance(value, str | bytes) else value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def format_error(source: str | os.PathLike[str], field: str, problem: str) -> FormatError:
    """FormatError with the message `source: field: problem` on one line: unprintable characters are escaped, and a
    field longer than 100 characters (names come from the file) is cut."""
    shown = _one_line(field)
    shown = shown if len(shown) <= 100 else shown[:97] + "..."
    return FormatError(f"{_one_line(os.fspath(source))}: {shown}: {_one_line(problem)}")


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
