"""Models as Ollama's API describes them."""

import time
from functools import cache
from pathlib import Path
from typing import Any

import edgert

from .errors import ApiError
from .models import Entry


@cache
def _inspect(path: Path, modified: float) -> edgert.ModelInfo:
    """modified: so that a file that was replaced is read anew."""
    return edgert.inspect(path)


def _info(entry: Entry) -> tuple[Path, edgert.ModelInfo]:
    path = entry.path()
    if path is None:
        raise ApiError(404, f"model {entry.name!r} is not on this computer yet; the first request to it downloads it")
    return path, _inspect(path, path.stat().st_mtime)


def details(info: edgert.ModelInfo) -> dict[str, Any]:
    """Family, size and weight type."""
    count = sum(row[1] for row in info.tensors.values())
    kind = max(info.tensors, key=lambda name: info.tensors[name][2])  # that most bytes have
    size = f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.0f}M"
    return {"parent_model": "", "format": "gguf", "family": info.arch, "families": [info.arch],
            "parameter_size": size, "quantization_level": kind}  # fmt: skip


def _modified(path: Path) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(path.stat().st_mtime))


def tag(entry: Entry) -> dict[str, Any] | None:
    """The row of the list; None for a model that is not here yet."""
    if entry.path() is None:
        return None
    path, info = _info(entry)
    name = entry.name if ":" in entry.name else f"{entry.name}:latest"
    return {"name": name, "model": name, "modified_at": _modified(path), "size": info.file_bytes,
            "digest": edgert.registry.expected_sha256(entry.given) or "", "details": details(info)}  # fmt: skip


def shown(entry: Entry, verbose: bool) -> dict[str, Any]:
    """What the file says. verbose: with its lists, the vocabulary among them."""
    path, info = _info(entry)
    model_info = {key: value for key, value in info.metadata.items() if verbose or not isinstance(value, list)}
    template = str(info.metadata.get("tokenizer.chat_template", ""))
    abilities = ["completion", *(["tools"] if template else []), *(["thinking"] if "</think>" in template else [])]
    return {
        "modelfile": f"FROM {entry.name}\n", "parameters": "", "template": template, "details": details(info),
        "license": str(info.metadata.get("general.license", "")), "model_info": _plain(model_info),
        "capabilities": abilities, "modified_at": _modified(path),
    }  # fmt: skip


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Without numbers that JSON has not."""
    return {key: str(value) if isinstance(value, float) and value - value != 0 else value
            for key, value in values.items()}  # fmt: skip
