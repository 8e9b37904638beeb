"""Model architectures: one short file per family. A family lists the names it serves in ARCHS and emits its
operations in `build(b, c)`; what it does not support fails there, by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from ..builder import Builder
from ..config import Config
from ..formats.errors import FormatError

FAMILIES = ("llama", "gemma", "phi3")


def supported() -> list[str]:
    """Names of all supported architectures (`general.architecture`)."""
    return sorted(name for family in FAMILIES for name in importlib.import_module(f".{family}", __name__).ARCHS)


def find(c: Config) -> Callable[[Builder, Config], None]:
    """The `build` function of the model's architecture, or FormatError that lists those there are."""
    for family in FAMILIES:
        module = importlib.import_module(f".{family}", __name__)
        if c.arch in module.ARCHS:
            build: Callable[[Builder, Config], None] = module.build
            return build
    raise FormatError(
        f"{c.gguf.path}: general.architecture: {c.arch!r} is not supported; supported are {', '.join(supported())}"
    )
