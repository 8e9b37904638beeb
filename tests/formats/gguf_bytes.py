"""GGUF files written field by field, so that a test can make any one field wrong."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

U32, I32, F32, BOOL, STRING, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10


@dataclass
class Tensor:
    """One tensor: `shape` in GGUF order; `offset` is the next free one unless it is given."""

    name: bytes
    shape: list[int]
    type: int = 0
    data: bytes = b""
    offset: int | None = None
    n_dims: int | None = None
    name_length: int | None = None


@dataclass
class GgufBytes:
    """The fields of a file. A count that is None is the true one."""

    version: int = 3
    magic: bytes = b"GGUF"
    alignment: int = 32
    n_tensors: int | None = None
    n_keys: int | None = None
    keys: list[tuple[bytes, int, bytes]] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    tail: bytes = b""

    def size(self, n: int) -> bytes:
        """A count or a length: 32 bits in version 1, 64 bits later. Negative values wrap around."""
        return struct.pack("<I", n & 0xFFFFFFFF) if self.version == 1 else struct.pack("<Q", n & (2**64 - 1))

    def text(self, raw: bytes, length: int | None = None) -> bytes:
        """A string, with a false length if one is given."""
        return self.size(len(raw) if length is None else length) + raw

    def array(self, kind: int, payload: bytes, count: int) -> bytes:
        """The value of an array of `count` elements of type `kind`."""
        return struct.pack("<I", kind) + self.size(count) + payload

    def set(self, key: str | bytes, kind: int, payload: bytes) -> None:
        """Add a key, or give it another value in place."""
        raw = key.encode() if isinstance(key, str) else key
        names = [k for k, _, _ in self.keys]
        if raw in names:
            self.keys[names.index(raw)] = (raw, kind, payload)
        else:
            self.keys.append((raw, kind, payload))

    def set_int(self, key: str, value: int) -> None:
        """Set a u32."""
        self.set(key, U32, struct.pack("<I", value))

    def set_float(self, key: str, value: float) -> None:
        """Set an f32."""
        self.set(key, F32, struct.pack("<f", value))

    def set_str(self, key: str, value: str) -> None:
        """Set a string."""
        self.set(key, STRING, self.text(value.encode()))

    def set_strings(self, key: str, values: list[bytes]) -> None:
        """Set an array of strings."""
        self.set(key, ARRAY, self.array(STRING, b"".join(map(self.text, values)), len(values)))

    def drop(self, key: str) -> None:
        """Remove a key."""
        self.keys = [row for row in self.keys if row[0] != key.encode()]

    def tensor(self, name: str) -> Tensor:
        """The tensor of that name."""
        return next(t for t in self.tensors if t.name == name.encode())

    def add(self, name: str, shape: list[int], rng: random.Random) -> None:
        """Add an F32 tensor of small random values."""
        data = struct.pack(f"<{math.prod(shape)}f", *(rng.gauss(0, 0.1) for _ in range(math.prod(shape))))
        self.tensors.append(Tensor(name.encode(), shape, 0, data))

    def head(self) -> bytes:
        """Magic, version and the two counts."""
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        n_keys = len(self.keys) if self.n_keys is None else self.n_keys
        return self.magic + struct.pack("<I", self.version) + self.size(n_tensors) + self.size(n_keys)

    def metadata(self) -> bytes:
        """All keys and values."""
        return b"".join(self.text(key) + struct.pack("<I", kind) + payload for key, kind, payload in self.keys)

    def table(self) -> bytes:
        """The tensor table."""
        out, end = b"", 0
        for t in self.tensors:
            offset = end if t.offset is None else t.offset
            n_dims = len(t.shape) if t.n_dims is None else t.n_dims
            out += self.text(t.name, t.name_length) + struct.pack("<I", n_dims) + b"".join(map(self.size, t.shape))
            out += struct.pack("<IQ", t.type, offset & (2**64 - 1))
            end += self.padded(len(t.data))
        return out

    def padded(self, n: int) -> int:
        """`n` rounded up to the alignment."""
        return -(-n // self.alignment) * self.alignment

    def build(self) -> bytes:
        """The file."""
        out = self.head() + self.metadata() + self.table()
        for t in self.tensors:
            out = out.ljust(self.padded(len(out)), b"\0") + t.data
        return out + self.tail


def small_llama(seed: int = 1, version: int = 3) -> GgufBytes:
    """A whole, valid model of about 70 kB: architecture llama, one layer, an SPM vocabulary of 32 tokens."""
    rng = random.Random(seed)
    n_embd, n_ff, n_vocab = 64, 96, 32
    g = GgufBytes(version=version)
    g.set_str("general.architecture", "llama")
    for key, value in {"block_count": 1, "context_length": 64, "embedding_length": n_embd, "feed_forward_length": n_ff,
                       "attention.head_count": 4, "attention.head_count_kv": 2, "rope.dimension_count": 16,
                       "vocab_size": n_vocab}.items():  # fmt: skip
        g.set_int(f"llama.{key}", value)
    g.set_float("llama.attention.layer_norm_rms_epsilon", 1e-5)
    g.set_float("llama.rope.freq_base", 10000.0)
    pieces = ["<unk>", "<s>", "</s>", "▁", *"abcdefghijklmnopqrstuvwxyz", "▁a", "▁the"]
    g.set_str("tokenizer.ggml.model", "llama")
    g.set_strings("tokenizer.ggml.tokens", [piece.encode() for piece in pieces])
    scores = [0.0] * 3 + [-float(i) for i in range(n_vocab - 3)]
    g.set("tokenizer.ggml.scores", ARRAY, g.array(F32, struct.pack(f"<{n_vocab}f", *scores), n_vocab))
    types = [2, 3, 3] + [1] * (n_vocab - 3)
    g.set("tokenizer.ggml.token_type", ARRAY, g.array(I32, struct.pack(f"<{n_vocab}i", *types), n_vocab))
    g.set_int("tokenizer.ggml.bos_token_id", 1)
    g.set_int("tokenizer.ggml.eos_token_id", 2)
    g.set("tokenizer.ggml.add_bos_token", BOOL, b"\1")
    for name, shape in {"token_embd": [n_embd, n_vocab], "output_norm": [n_embd], "output": [n_embd, n_vocab],
                        "blk.0.attn_norm": [n_embd], "blk.0.attn_q": [n_embd, 64], "blk.0.attn_k": [n_embd, 32],
                        "blk.0.attn_v": [n_embd, 32], "blk.0.attn_output": [64, n_embd], "blk.0.ffn_norm": [n_embd],
                        "blk.0.ffn_gate": [n_embd, n_ff], "blk.0.ffn_up": [n_embd, n_ff],
                        "blk.0.ffn_down": [n_ff, n_embd]}.items():  # fmt: skip
        g.add(f"{name}.weight", shape, rng)
    return g


# -- changes to a file, for tables of cases --------------------------------------------------------------------------

Mutation = Callable[[GgufBytes, random.Random], bytes | None]
"""Changes the file in place, or returns its bytes."""


def file(make: Callable[[bytes], bytes]) -> Mutation:
    """Change the bytes of the finished file."""
    return lambda g, rng: make(g.build())


def head(**fields: Any) -> Mutation:
    """Set fields of the file, such as a false count."""

    def mutate(g: GgufBytes, rng: random.Random) -> None:
        for name, value in fields.items():
            setattr(g, name, value)

    return mutate


def key(name: str | bytes, kind: int, payload: bytes) -> Mutation:
    """Add a key, or change it, to a value of that type and those bytes."""
    return lambda g, rng: g.set(name, kind, payload)


def last_key(name: bytes, kind: int, payload: bytes) -> Mutation:
    """Append a key, even one that is there already."""
    return lambda g, rng: g.keys.append((name, kind, payload))


def array(name: str, kind: int, payload: bytes, count: int) -> Mutation:
    """Set an array that says it has `count` elements."""
    return lambda g, rng: g.set(name, ARRAY, g.array(kind, payload, count))


def text(name: str, raw: bytes, length: int | None = None) -> Mutation:
    """Set a string that says it has `length` bytes."""
    return lambda g, rng: g.set(name, STRING, g.text(raw, length))


def tensor(name: str, **fields: Any) -> Mutation:
    """Set fields of a row of the tensor table."""

    def mutate(g: GgufBytes, rng: random.Random) -> None:
        for attribute, value in fields.items():
            setattr(g.tensor(name), attribute, value)

    return mutate


def integer(name: str, value: int) -> Mutation:
    """Set a u32."""
    return lambda g, rng: g.set_int(name, value)


def number(name: str, value: float) -> Mutation:
    """Set an f32."""
    return lambda g, rng: g.set_float(name, value)


def string(name: str, value: str) -> Mutation:
    """Set a string."""
    return lambda g, rng: g.set_str(name, value)


def without(name: str) -> Mutation:
    """Leave a key out."""
    return lambda g, rng: g.drop(name)


def without_tensor(name: str) -> Mutation:
    """Leave a tensor out."""
    return lambda g, rng: g.tensors.remove(g.tensor(name))


def reshaped(name: str, shape: list[int]) -> Mutation:
    """Give a tensor another shape, with as much data as that takes."""

    def mutate(g: GgufBytes, rng: random.Random) -> None:
        t = g.tensor(name)
        t.shape, t.data = shape, bytes(4 * math.prod(shape))

    return mutate
