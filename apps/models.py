"""Where the models of a conversation come from: this computer, or a server."""

import argparse
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

import edgert

from .console import Progress, loading


class Answering(Protocol):
    """A streamed answer, as `edgert.ChatStream` is one."""

    def __iter__(self) -> Iterator[str]: ...
    def __next__(self) -> str: ...
    def close(self) -> None: ...
    @property
    def completion(self) -> edgert.Completion: ...


class Talker(Protocol):
    """What a conversation needs of a model. n_ctx: 0 if it is not known."""

    @property
    def n_ctx(self) -> int: ...
    def chat(self, messages: Sequence[Mapping[str, Any]], *, stream: Literal[True], reasoning: Literal["keep"],
             **settings: Any) -> Answering: ...  # fmt: skip


class Source(Protocol):
    """Models by their names, one open at a time: `open` closes the one before, if it succeeds."""

    def names(self) -> list[str]: ...
    def open(self, name: str) -> Talker: ...
    def close(self) -> None: ...


class Local:
    """Models on this computer."""

    def __init__(self, options: argparse.Namespace) -> None:
        """options: those of `console.add_load_options`."""
        self._options, self._model = options, contextlib.ExitStack()

    def names(self) -> list[str]:
        """Those of 'edgert list' that are here."""
        return [model.name for model in edgert.registry.list_models() if model.path is not None]

    def open(self, name: str) -> edgert.Model:
        with contextlib.ExitStack() as held:
            with Progress() as progress:
                model = held.enter_context(edgert.load(name, progress=progress, **loading(self._options)))
            if model.chat_template is None:
                raise edgert.EdgertError(f"{name} has no chat template; it continues text: edgert run {name} -p TEXT")
            self._model.close()
            self._model = held.pop_all()
        return model

    def close(self) -> None:
        self._model.close()
