"""The vocabularies in tests/data/vocab, as GGUF files and as plain metadata."""

from __future__ import annotations

import base64
import json
import lzma
from pathlib import Path
from typing import Any

import numpy as np
from edgert.formats.gguf import Gguf, StringArray

VOCAB = Path(__file__).parents[1] / "data" / "vocab"
REAL = {"smollm2": "smollm2_path", "gemma3": "gemma3_path"}  # those that live in a model
MANIFEST: dict[str, dict[str, int]] = {
    entry["vocab"]: entry["info"] for entry in json.loads((VOCAB / "MANIFEST.json").read_text())
}


def packed(name: str) -> Any:
    """The content of an xz-packed JSON file."""
    return json.loads(lzma.decompress((VOCAB / f"{name}.json.xz").read_bytes()))


def cases(name: str) -> list[dict[str, Any]]:
    """The content of a JSON file."""
    content: list[dict[str, Any]] = json.loads((VOCAB / f"{name}.json").read_text(encoding="utf-8"))
    return content


def metadata_of(path: Path) -> dict[str, Any]:
    """Metadata that outlives the file: what a tokenizer reads, with arrays copied."""
    with Gguf.open(path) as gguf:
        return {
            key: list(value) if isinstance(value, StringArray) else np.array(value) if hasattr(value, "size") else value
            for key, value in gguf.metadata.items()
            if key.startswith(("tokenizer.", "general."))
        }


def metadata(name: str, folder: Path) -> dict[str, Any]:
    """Metadata of the packed vocabulary `name`, unpacked in `folder`."""
    path = folder / f"{name}.gguf"
    path.write_bytes(lzma.decompress((VOCAB / f"{name}.gguf.xz").read_bytes()))
    return metadata_of(path)


def plain(packed_metadata: dict[str, Any]) -> dict[str, Any]:
    """Metadata from its JSON form, where numeric arrays are base64."""
    return {
        key: np.frombuffer(base64.b64decode(value["base64"]), value["dtype"]) if isinstance(value, dict) else value
        for key, value in packed_metadata.items()
    }


def small_bpe(**changes: Any) -> dict[str, Any]:
    """Metadata of a byte-level BPE with a few merges; `changes` are keys below tokenizer.ggml, None removes one."""
    from edgert.formats.tok_bpe import BYTE_ALPHABET

    tokens = [*BYTE_ALPHABET, "he", "ll", "hell", "hello", "Ġw", "<|im_start|>", "<|im_end|>", "<tool>"]
    meta: dict[str, Any] = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array([1] * (len(tokens) - 3) + [3, 3, 4], "i4"),
        "tokenizer.ggml.merges": ["h e", "l l", "he ll", "hell o", "Ġ w"],
        "tokenizer.ggml.bos_token_id": len(tokens) - 3,
        "tokenizer.ggml.eos_token_id": len(tokens) - 2,
    }
    return changed(meta, **changes)


def small_spm(**changes: Any) -> dict[str, Any]:
    """Metadata of an SPM vocabulary with a few merges and all bytes; `changes` as for `small_bpe`."""
    pieces = ["▁", "h", "e", "l", "o", "he", "ll", "hell", "hello", "▁hello", "é", "<turn>"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *pieces]
    types = [2, 3, 3] + [6] * 256 + [1] * (len(pieces) - 1) + [4]
    scores = [0.0] * 259 + [-float(i) for i in range(len(pieces))]
    meta: dict[str, Any] = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(types, "i4"),
        "tokenizer.ggml.scores": np.array(scores, "f4"),
    }
    return changed(meta, **changes)


def changed(meta: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A copy of `meta` with keys set, or removed where the value is None."""
    new = {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return {key: value for key, value in (meta | new).items() if value is not None}
