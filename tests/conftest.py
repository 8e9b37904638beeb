"""What several test files share: the real models, the tiny golden models, the console script."""

from __future__ import annotations

import shutil
import signal
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from builder import build, load_recipe
from edgert import registry

DATA = Path(__file__).parent / "data"

# Started in the background of a script, this process ignores Ctrl-C, and so would the programs whose Ctrl-C is tested.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def edgert_command() -> str:
    """The console script of the installation under test."""
    command = shutil.which("edgert", path=sysconfig.get_path("scripts"))
    assert command, "edgert is not installed in this environment"
    return command


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct, Q4_1, 94 MiB, downloaded and verified on first use as for any user."""
    return registry.resolve("smollm2-135m")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """Gemma 3 270M, Q4_K_M, 241 MiB; tests that use it carry the marker `big`."""
    return registry.resolve("gemma3-270m")


@pytest.fixture(scope="session")
def arch_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Builds the tiny model of a recipe in data/archs by its name, once per session, and returns its path."""
    folder = tmp_path_factory.mktemp("archs")

    def model(name: str) -> Path:
        path = folder / f"{name}.gguf"
        if not path.exists():
            build(load_recipe(DATA / "archs" / f"{name}.json"), path)
        return path

    return model
