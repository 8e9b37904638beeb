"""Errors a user can meet: the message is one line that says what is wrong and what to do."""


class EdgertError(Exception):
    """Base of every error that edgert raises on purpose (a malformed file is a `FormatError` instead)."""


class ModelNotFoundError(EdgertError):
    """MODEL is neither a known name nor a readable file nor a hub file that exists."""


class DownloadError(EdgertError):
    """A download could not be finished or did not have the expected content; nothing was put in place."""


class ContextLengthError(EdgertError):
    """The prompt, or the prompt and its answer, need more positions than the context has; names both counts."""


class EngineBusy(EdgertError):
    """As many requests as may wait are waiting already: try again later, or load the model with more `max_waiting`."""
