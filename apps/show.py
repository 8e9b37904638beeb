"""Describe a model file: what it is, memory needed, tensors by type, metadata; the weights are not read.

--plan prints the programs that the model runs, an operation a line, with the bytes of weights that each reads.
"""

import argparse
import math
from typing import Any

import edgert

from .console import MODEL_HELP, Progress, add_load_options, human_bytes, loading, print_json, visible

SHOWN_ITEMS = 6  # of an array
JSON_ITEMS = 1000
SHOWN_CHARS = 70  # of a text, unless --full


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("--plan", action="store_true", help="print the programs that run, instead")
    parser.add_argument("--full", action="store_true", help="print long texts of the metadata in full")
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    add_load_options(parser)


def execute(options: argparse.Namespace) -> int:
    with Progress() as progress:
        path = edgert.registry.resolve(options.model, progress)
        if options.plan:
            print(_plan(path, options, progress))
            return 0
    info = edgert.inspect(path, kv_type="f32" if options.precision == "exact" else options.kv_type)
    report = _report(info, options.ctx or info.default_n_ctx)
    if options.json:
        print_json(report | {"metadata": {key: _plain(value) for key, value in info.metadata.items()}})
    else:
        print("\n".join(_lines(info, report, options.full)))
    return 0


def _plan(path: Any, options: argparse.Namespace, progress: Progress) -> str:
    with edgert.load(path, progress=progress, **loading(options)) as model:
        return model.describe_plan()


def _report(info: "edgert.ModelInfo", n_ctx: int) -> dict[str, Any]:
    return {
        "path": str(info.path),
        "file_bytes": info.file_bytes,
        "architecture": info.arch,
        "parameters": sum(values for _, values, _ in info.tensors.values()),
        "context": {"trained": info.n_ctx_train, "default": info.default_n_ctx},
        "memory": {
            "context": n_ctx,
            "weight_bytes": sum(size for _, _, size in info.tensors.values()),
            "kv_bytes": n_ctx * info.kv_bytes_per_token,
            "activation_bytes": info.arena_bytes,
            "total_bytes": info.memory(n_ctx),
        },
        "tensors": {
            kind: {"count": count, "parameters": values, "bytes": size}
            for kind, (count, values, size) in info.tensors.items()
        },
    }


def _lines(info: "edgert.ModelInfo", report: dict[str, Any], full: bool) -> list[str]:
    memory, context = report["memory"], report["context"]
    lines = [
        f"{report['path']}  {human_bytes(report['file_bytes'])}",
        f"architecture  {visible(info.arch)}, {report['parameters'] / 1e6:,.1f} M parameters",
        f"context       trained for {context['trained']} tokens, {context['default']} by default on this computer",
        f"memory        {human_bytes(memory['total_bytes'])} at a context of {memory['context']}: weights "
        f"{human_bytes(memory['weight_bytes'])} (mapped from the file), KV cache {human_bytes(memory['kv_bytes'])}, "
        f"activations {human_bytes(memory['activation_bytes'])}",
        "",
        "tensors    count    parameters        bytes",
    ]
    for kind, row in report["tensors"].items():
        lines.append(f"  {kind:8} {row['count']:5}  {row['parameters']:12,}  {human_bytes(row['bytes']):>11}")
    lines += ["", "metadata"]
    width = max(map(len, info.metadata), default=0)
    lines += [f"  {visible(key):{width}}  {_text(value, full)}" for key, value in info.metadata.items()]
    return lines


def _text(value: Any, full: bool) -> str:
    if isinstance(value, str):
        cut = value if full or len(value) <= SHOWN_CHARS else f"{value[:SHOWN_CHARS]}... ({len(value)} characters)"
        return visible(cut if full else cut.replace("\n", "\\n"))
    if isinstance(value, bool | int | float):
        return str(value)
    items = ", ".join(str(item) if not isinstance(item, str) else repr(item) for item in value[:SHOWN_ITEMS])
    return f"[{items}{', ...' if len(value) > SHOWN_ITEMS else ''}] ({len(value)} values)"


def _plain(value: Any) -> Any:
    """Metadata as JSON can hold it; of a long array (a vocabulary) only how many values there are."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str | bool | int | float):
        return value
    return list(value) if len(value) <= JSON_ITEMS else {"values": len(value)}
