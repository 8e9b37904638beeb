"""Turn a recipe of tests/data/archs into a GGUF file, the same bytes on every platform.

A recipe is a JSON object:

    seed     int
    meta     GGUF key -> [type, value]; type is u32, u64, i32, f32, bool or str, in square brackets for an array
    tensors  [name, shape, type, loc, scale] (random) or [name, shape, type, values] (written out)

shape is in GGUF order (first dimension contiguous). "blk.{0..2,5}.x" stands for layers 0, 1, 2 and 5.

Random values take one 64-bit word w of Philox4x64-10 per element, keyed by crc32("<seed>:<tensor name>"):

    u     = (w >> 40) * 2^-23 - 1                  float32, exact, uniform in [-1, 1)
    value = loc + float32(scale * sqrt(3)) * u     float32, the product rounded before the sum

which has mean loc and standard deviation scale. F16 tensors round to nearest even.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

SCALAR_TYPES = {
    "u32": gguf.GGUFValueType.UINT32,
    "u64": gguf.GGUFValueType.UINT64,
    "i32": gguf.GGUFValueType.INT32,
    "f32": gguf.GGUFValueType.FLOAT32,
    "bool": gguf.GGUFValueType.BOOL,
    "str": gguf.GGUFValueType.STRING,
}
DTYPES: dict[str, npt.DTypeLike] = {"F32": np.float32, "F16": np.float16, "I32": np.int32}


def layer_names(pattern: str) -> Iterator[str]:
    """The tensor names that a pattern stands for: blk.{0..2,5}.x gives blk.0.x, blk.1.x, blk.2.x, blk.5.x."""
    before, brace, rest = pattern.partition("{")
    if not brace:
        yield pattern
        return
    layers, _, after = rest.partition("}")
    for low, high in re.findall(r"(\d+)(?:\.\.(\d+))?", layers):
        for layer in range(int(low), int(high or low) + 1):
            yield f"{before}{layer}{after}"


def random_tensor(seed: int, name: str, count: int, loc: float, scale: float) -> npt.NDArray[np.float32]:
    """`count` uniform float32 values with mean `loc` and standard deviation `scale`; see the module's text."""
    # Philox.random_raw is the documented raw stream: unlike Generator methods it may not change between NumPy versions.
    words = np.random.Philox(key=zlib.crc32(f"{seed}:{name}".encode())).random_raw(count)
    u = (words >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1)
    product = np.float32(scale * math.sqrt(3)) * u
    return np.float32(loc) + product


def tensors(recipe: dict[str, Any]) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """(name, values in NumPy order) of each tensor of a recipe, in file order."""
    for pattern, shape, kind, *content in recipe["tensors"]:
        for name in layer_names(pattern):
            if len(content) == 1:
                values = np.asarray(content[0])
            else:
                values = random_tensor(recipe["seed"], name, math.prod(shape), *content)
            yield name, values.astype(DTYPES[kind]).reshape(shape[::-1])


def build(recipe: dict[str, Any], path: Path) -> Path:
    """Write the model of a recipe to `path` (GGUF v3) and return the path."""
    return write(recipe["meta"], dict(tensors(recipe)), path)


def write(
    meta: dict[str, Any],
    arrays: dict[str, npt.NDArray[Any]],
    path: Path,
    raw: dict[str, gguf.GGMLQuantizationType] | None = None,
) -> Path:
    """Write a model of metadata as in recipes and of arrays; those in `raw` are bytes of blocks of that type."""
    writer = gguf.GGUFWriter(path, meta["general.architecture"][1])  # writes general.architecture itself
    for key, (kind, value) in meta.items():
        if key == "general.architecture":
            continue
        element = SCALAR_TYPES[kind.strip("[]")]
        if kind.startswith("["):
            writer.add_key_value(key, value, gguf.GGUFValueType.ARRAY, element)
        else:
            writer.add_key_value(key, value, element)
    for name, values in arrays.items():
        writer.add_tensor(name, values, raw_dtype=(raw or {}).get(name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def load_recipe(path: Path) -> dict[str, Any]:
    """Read a recipe file."""
    recipe: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return recipe


Arrays = dict[str, npt.NDArray[Any]]
Meta = dict[str, Any]
Change = Callable[[Meta, Arrays], None]


def rewrite(recipe: dict[str, Any], change: Change, path: Path) -> Path:
    """Write the model of a recipe after `change` has altered its metadata and tensors in place."""
    meta, arrays = dict(recipe["meta"]), dict(tensors(recipe))
    change(meta, arrays)
    return write(meta, arrays, path)


def key(meta: Meta, name: str) -> str:
    """The full name of an architecture's own key."""
    return f"{meta['general.architecture'][1]}.{name}"


def settings(**values: object) -> Change:
    """Keys, their dots written as __; the type follows from the value."""

    def change(meta: Meta, a: Arrays) -> None:
        for name, value in values.items():
            kind = {bool: "bool", int: "u32", float: "f32", str: "str"}[type(value)]
            meta[key(meta, name.replace("__", "."))] = [kind, value]

    return change
