"""Model architectures: one short file per family. A family lists the names it serves in ARCHS and emits its
operations in `build(b, c)`; what it does not support fails there, by name."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable

from ..builder import Builder
from ..config import Config
from ..formats.gguf import Gguf

FAMILIES = tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))  # every file here is one


def supported() -> list[str]:
    """Names of all supported architectures (`general.architecture`)."""
    return sorted(name for family in FAMILIES for name in importlib.import_module(f".{family}", __name__).ARCHS)


def read_config(gguf: Gguf) -> Config:
    """The model's hyper-parameters. FormatError if its architecture is not supported: that is said first."""
    arch = gguf.metadata.get_str("general.architecture")
    if arch not in supported():
        names = ", ".join(supported())
        raise gguf.error("general.architecture", f"{arch!r} is not supported; supported are {names}")
    return Config(gguf)


def find(c: Config) -> Callable[[Builder, Config], None]:
    """The `build` function of a supported architecture."""
    for family in FAMILIES:
        module = importlib.import_module(f".{family}", __name__)
        if c.arch in module.ARCHS:
            build: Callable[[Builder, Config], None] = module.build
            return build
    raise AssertionError(f"no family builds {c.arch}")
