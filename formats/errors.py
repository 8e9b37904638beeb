"""The one error every reader in this package raises for bad input."""


class FormatError(ValueError):
    """A file is malformed or not supported; the message is one line naming the file, the field and the value."""
