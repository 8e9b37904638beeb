"""List the models that have names, and those that were downloaded from the hub."""

import argparse

import edgert

from .console import human_bytes, print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    parser.add_argument("--here", action="store_true", help="only the models that are on this computer")


def execute(options: argparse.Namespace) -> int:
    rows = [row for row in edgert.registry.list_models() if row.path or not options.here]
    if options.json:
        print_json({"folder": str(edgert.registry.home() / "models"), "models": [_as_json(row) for row in rows]})
        return 0
    width = max([len(row.name) for row in rows], default=0)
    for row in rows:
        state = "here" if row.path else ""
        size = human_bytes(row.bytes)
        entry = row.entry
        rest = f"{entry.context:>7} ctx  {entry.licence:11} {entry.about}" if entry else ""
        default = "  (default)" if row.is_default else ""
        print(f"{row.name:{width}}  {state:4}  {size:>8}  {rest}{default}".rstrip())
    print(f"\nModels are kept in {edgert.registry.home() / 'models'}; any GGUF file works by its path.")
    return 0


def _as_json(row: "edgert.registry.Installed") -> dict[str, object]:
    entry = row.entry
    return {
        "name": row.name,
        "path": str(row.path) if row.path else None,
        "bytes": row.bytes,
        "default": row.is_default,
        "context": entry.context if entry else None,
        "licence": entry.licence if entry else None,
        "about": entry.about if entry else None,
        "source": list(entry.sources) if entry else [row.name],
        "sha256": edgert.registry.expected_sha256(row.name),
    }
