"""Random GGUF files with the shapes of real models, for measuring: what they say is noise, what they cost is real.

    python tests/bench/synth.py llama-3.2-1b Q4_K_M out.gguf [--layers N] [--vocab N] [--pure] [--seed N]

llama.cpp and programs built on it load and run them. Weights are random blocks with scales that keep activations near
one, so logits are finite. Vocabularies are real ones (tests/data/vocab), or made up (Gemma, and with --vocab).
"""

from __future__ import annotations

import argparse
import dataclasses
import lzma
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, BinaryIO

import gguf
import numpy as np
from edgert.formats.gguf import Gguf, StringArray

sys.path.append(str(Path(__file__).parents[1]))  # for quant_blocks, when this is run as a program

from mixes import Mix, names
from random_blocks import block_of, weights
from shapes import SHAPES, Shape, metadata, rope_factors, tensors

VOCAB = Path(__file__).parents[1] / "data" / "vocab"
ALIGNMENT = 32


def synthesise(
    shape: Shape, mix: Mix, path: Path, *, seed: int = 0, layers: int | None = None, n_vocab: int | None = None
) -> Path:
    """Write a model to `path` and return it. layers, n_vocab: other than the shape's."""
    if n_vocab:
        shape = dataclasses.replace(shape, n_vocab=n_vocab, vocabulary="")
    if layers:
        shape = dataclasses.replace(shape, layers=layers)
    kinds = {name: mix.type_of(name, dims, shape.layers, tied=shape.tied) for name, dims in tensors(shape)}
    writer = gguf.GGUFWriter(path, shape.arch)
    for key, value in {**metadata(shape), **vocabulary(shape)}.items():
        _add_key(writer, key, value)
    for name, dims in tensors(shape):
        kind = gguf.GGMLQuantizationType[kinds[name]]
        # The writer takes shapes in NumPy order.
        writer.add_tensor_info(name, dims[::-1], np.dtype(np.float32), _nbytes(kinds[name], dims), kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with open(path, "ab") as file:
        _pad(file)
        for index, (name, dims) in enumerate(tensors(shape)):
            _write(file, shape, name, dims, kinds[name], np.random.Generator(np.random.SFC64([seed, index])))
            _pad(file)
    return path


def _nbytes(kind: str, dims: tuple[int, ...]) -> int:
    block, size = block_of(kind)
    return int(np.prod(dims, dtype=np.int64)) // block * size


def _pad(file: BinaryIO) -> None:
    file.write(bytes(-file.tell() % ALIGNMENT))


def _write(file: BinaryIO, s: Shape, name: str, dims: tuple[int, ...], kind: str, rng: np.random.Generator) -> None:
    if name == "rope_freqs.weight":
        file.write(rope_factors(s).tobytes())
    elif len(dims) == 1:  # a norm
        file.write((np.float32(0.8) + np.float32(0.4) * rng.random(dims[0], np.float32)).tobytes())
    else:
        for piece in weights(rng, kind, int(np.prod(dims, dtype=np.int64)), dims[0] ** -0.5):
            file.write(piece.data)


def _add_key(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


# ---- vocabularies ----


def vocabulary(s: Shape) -> dict[str, Any]:
    """The keys tokenizer.* of a shape."""
    return _packed(s.vocabulary) if s.vocabulary else _made_up(s.n_vocab)


def _packed(name: str) -> dict[str, Any]:
    """Those of a packed vocabulary file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocab.gguf"
        path.write_bytes(lzma.decompress((VOCAB / f"{name}.gguf.xz").read_bytes()))
        with Gguf.open(path) as file:
            return {
                key: value.tolist() if isinstance(value, StringArray) or hasattr(value, "dtype") else value
                for key, value in file.metadata.items()
                if key.startswith("tokenizer.")
            }


def _made_up(n: int) -> dict[str, Any]:
    """SentencePiece: unknown, begin, end, the 256 bytes, and letters written with "▁" before them."""
    if n < 300:
        raise ValueError(f"a vocabulary of {n} is too small; 300 tokens are the least")
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [2, 3, 3] + [6] * 256 + [1] * (n - 259)
    tokens += ["▁" + _letters(i) for i in range(n - 259)]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(i) for i in range(n - 259)],
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def _letters(i: int) -> str:
    """0 is "a", 25 "z", 26 "aa": bijective, so no two numbers share a word."""
    text = ""
    i += 1
    while i:
        i, rest = divmod(i - 1, 26)
        text = chr(97 + rest) + text
    return text


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=sorted(SHAPES))
    parser.add_argument("mix", help=f"and exceptions, e.g. Q4_0,attn_v=Q8_0; one of {', '.join(names())}")
    parser.add_argument("path", type=Path)
    parser.add_argument("--layers", type=int, help="number of layers, if not the model's own")
    parser.add_argument("--vocab", type=int, help="size of a made-up vocabulary instead of the model's own")
    parser.add_argument("--pure", action="store_true", help="one type for all matrices")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    partial = options.path.with_name(options.path.name + ".partial")
    try:
        mix = Mix(options.mix, pure=options.pure)
        synthesise(SHAPES[options.shape], mix, partial, seed=options.seed, layers=options.layers, n_vocab=options.vocab)
        os.replace(partial, options.path)
    except (ValueError, OSError) as error:
        partial.unlink(missing_ok=True)
        print(f"synth: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
