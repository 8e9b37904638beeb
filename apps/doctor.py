"""Describe this computer as edgert sees it: processor and kernels, threads, cache, memory bandwidth, models."""

import argparse
import shutil
from typing import Any

import edgert

from .console import human_bytes, print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print a JSON object")


def execute(options: argparse.Namespace) -> int:
    report = {**edgert.system_info(), "models": _models()}
    if options.json:
        print_json(report)
        return 0
    for title, section in report.items():
        print(title)
        for line in _lines(section):
            print(f"  {line}")
    return 0


def _models() -> dict[str, Any]:
    """Where models are kept, whether the default one is here, and what to do if it is not."""
    registry = edgert.registry
    folder, name = registry.home() / "models", registry.default_model()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    path = registry.installed_path(name)
    return {
        "folder": str(folder),
        "free": human_bytes(shutil.disk_usage(existing).free),
        "here": [row.name for row in registry.list_models() if row.path],
        "default": f"{name} ({path})" if path else f"{name}, not here yet: get it with 'edgert pull {name}'",
    }


def _lines(section: Any) -> list[str]:
    """A section as `name: value` lines, nested ones indented."""
    if not isinstance(section, dict):
        return [_text(section)]
    lines = []
    for name, value in section.items():
        label = str(name).replace("_", " ")
        if isinstance(value, dict):
            lines += [f"{label}:", *(f"  {line}" for line in _lines(value))]
        else:
            lines.append(f"{label}: {_text(value)}")
    return lines


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value)) or "none"
    return str(value)
