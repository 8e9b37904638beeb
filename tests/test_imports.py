"""Who may import whom, read from the sources, and what importing costs.

apps -> edgert (public names only) -> formats, kernels_cpu; the last two import neither each other nor the rest.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import edgert

ROOT = Path(__file__).parent.parent
FOLDERS = {"edgert": "edgert", "formats": "edgert.formats", "kernels_cpu": "edgert.kernels_cpu", "apps": "edgert.apps"}
PARTS = ("edgert.formats", "edgert.kernels_cpu", "edgert.apps")
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
HELP_SECONDS = 0.3


def module_name(path: Path) -> str:
    """The import name of a source file: formats/gguf.py is edgert.formats.gguf."""
    folder, *rest = path.relative_to(ROOT).with_suffix("").parts
    return ".".join([FOLDERS[folder], *(part for part in rest if part != "__init__")])


def part_of(module: str) -> str:
    """The part of the product that a module belongs to, "edgert" for the runtime itself."""
    return next((part for part in PARTS if f"{module}.".startswith(f"{part}.")), "edgert")


def imports(path: Path) -> Iterator[tuple[int, str, str | None]]:
    """(line, module, name or None) of each import anywhere in a file, relative ones resolved."""
    package = module_name(path) if path.name == "__init__.py" else module_name(path).rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, module, alias.name) for alias in node.names)


def is_module(name: str) -> bool:
    """Whether an edgert.* name is a source file or a folder of them."""
    return any(module_name(path) == name for path in SOURCES)


def fault(source: str, module: str, name: str | None) -> str | None:
    """Why a module may not import another (or a name of it), or None where it may."""
    if module.partition(".")[0] != "edgert":
        return None
    target = f"{module}.{name}" if name and is_module(f"{module}.{name}") else module
    here, there = part_of(source), part_of(target)
    if here == there:
        return None
    if here == "edgert":
        return "the runtime does not know the apps" if there == "edgert.apps" else None
    if here == "edgert.apps":
        if module != "edgert":
            return "apps import the public API only: `import edgert`"
        return None if name is None or name in edgert.__all__ else f"{name} is not in edgert.__all__"
    return f"{here} imports nothing else of edgert"


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_imports_follow_the_layout(path: Path) -> None:
    """No import points against the arrows."""
    faults = [
        f"{path.relative_to(ROOT)}:{line}: {module} {name or ''}: {reason}"
        for line, module, name in imports(path)
        if (reason := fault(module_name(path), module, name))
    ]
    assert not faults, "\n".join(faults)


def test_apps_use_public_names_only() -> None:
    """Attributes that apps take from `edgert` are in edgert.__all__."""
    for path in (ROOT / "apps").rglob("*.py"):
        used = {
            node.attr
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "edgert"
        }
        assert used <= set(edgert.__all__), path.name


def test_third_party_imports_are_declared() -> None:
    """Whatever the product imports is a dependency that users get, not one of the test and dev extras only."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [names for extra, names in project["optional-dependencies"].items() if extra not in ("test", "dev")]
    declared = {
        re.split(r"[\[<>=!~; ]", requirement)[0].lower().replace("-", "_")
        for requirement in sum(extras, project["dependencies"])
    }
    roots = {module.partition(".")[0] for path in SOURCES for _, module, _ in imports(path)}
    assert roots - declared - set(sys.stdlib_module_names) <= {"edgert"}


@pytest.mark.parametrize(
    ("source", "module", "name"),
    [
        ("edgert.formats.gguf", "edgert.kernels_cpu", None),
        ("edgert.formats.gguf", "edgert", "formats_of_something"),
        ("edgert.kernels_cpu.isa", "edgert.formats.errors", "FormatError"),
        ("edgert.kernels_cpu.isa", "edgert", "formats"),
        ("edgert.engine", "edgert.apps.main", "main"),
        ("edgert.engine", "edgert", "apps"),
        ("edgert.apps.main", "edgert.formats", "errors"),
        ("edgert.apps.main", "edgert", "no_public_name"),
    ],
)
def test_wrong_arrows_are_found(source: str, module: str, name: str | None) -> None:
    """The rule itself rejects one arrow of each kind that is not allowed."""
    assert fault(source, module, name)


def test_import_does_not_load_numba() -> None:
    """`import edgert` stays light."""
    code = "import sys, edgert; print(*sorted({'numba', 'llvmlite', 'tokenizers', 'sentencepiece'} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


def test_help_answers_at_once(edgert_command: str) -> None:
    """`edgert --help` answers within 0.3 s: the best of 5, since a busy machine can only add to the time."""
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        run = subprocess.run([edgert_command, "--help"], capture_output=True, text=True, check=True)
        seconds.append(time.perf_counter() - start)
        assert "chat" in run.stdout
    assert min(seconds) <= HELP_SECONDS
