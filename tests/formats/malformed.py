"""Malformed model files: a table of named cases, and a seeded stream of random damage.

Each case takes a small valid model and makes one thing in it wrong. `match` is what the error must name. The cases with
`needs == "architecture"` are well-formed files of models that cannot work; those with `needs == "strings"` show when
the strings of an array are decoded. All others fail as soon as the file is opened.
"""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from gguf_bytes import (
    ARRAY,
    BOOL,
    F32,
    I32,
    STRING,
    U32,
    U64,
    GgufBytes,
    Mutation,
    Tensor,
    array,
    file,
    head,
    integer,
    key,
    last_key,
    number,
    reshaped,
    small_llama,
    string,
    tensor,
    text,
    without,
    without_tensor,
)  # fmt: skip

ARRAY_OF_U32 = struct.pack("<I", U32)
TOKENS, SCORES, TYPES = "tokenizer.ggml.tokens", "tokenizer.ggml.scores", "tokenizer.ggml.token_type"
HEADS, EPS, Q = "llama.attention.head_count", "llama.attention.layer_norm_rms_epsilon", "blk.0.attn_q.weight"


class Case(NamedTuple):
    """One way to be wrong."""

    mutate: Mutation
    match: str
    needs: str = ""


def truncated(g: GgufBytes, part: str, rng: random.Random) -> bytes:
    """The file cut off at a random place inside one of its parts."""
    sizes = {"head": len(g.head()), "metadata": len(g.metadata()), "table": len(g.table())}
    start = 0
    for name, size in sizes.items():
        if name == part:
            return g.build()[: rng.randrange(start + 1, start + size)]
        start += size
    return g.build()[: rng.randrange(g.padded(start) + 1, len(g.build()))]


def vocabulary(n: int, arrays: tuple[str, ...] = (TOKENS, SCORES, TYPES)) -> Mutation:
    """Make these arrays of the vocabulary `n` long."""

    def mutate(g: GgufBytes, rng: random.Random) -> None:
        if TOKENS in arrays:
            g.set_strings(TOKENS, [f"t{i}".encode() for i in range(n)])
        if SCORES in arrays:
            g.set(SCORES, ARRAY, g.array(F32, bytes(4 * n), n))
        if TYPES in arrays:
            g.set(TYPES, ARRAY, g.array(I32, struct.pack(f"<{n}i", *[1] * n), n))

    return mutate


def overlapping(g: GgufBytes, rng: random.Random) -> None:
    """Put a tensor into the middle of another."""
    g.tensors.append(Tensor(b"extra.weight", [8], 0, bytes(32), offset=32 * rng.randrange(1, 200)))


def extra_tensor(**fields: Any) -> Mutation:
    """Append a tensor of 32 bytes with these fields."""
    row: dict[str, Any] = {"name": b"extra.weight", "shape": [8], "type": 0, "data": bytes(32), **fields}
    return lambda g, rng: g.tensors.append(Tensor(**row))


HEADER: dict[str, Case] = {
    "file empty": Case(file(lambda raw: b""), "empty"),
    "file of three bytes": Case(file(lambda raw: raw[:3]), "header"),
    "magic only": Case(file(lambda raw: raw[:4]), "header"),
    "magic wrong": Case(head(magic=b"GGJT"), "magic: b'GGJT'"),
    "magic of a zip": Case(head(magic=b"PK\3\4"), "magic"),
    "version 0": Case(head(version=0), "version: 0 "),
    "version 4": Case(head(version=4), "version: 4 "),
    "version 2^31": Case(head(version=1 << 31), f"version: {1 << 31} "),
    "big-endian": Case(head(version=3 << 24), "version: 3 stored big-endian"),
    "tensor count -1": Case(head(n_tensors=-1), "tensor count: 18446744073709551615"),
    "tensor count 2^63": Case(head(n_tensors=1 << 63), "tensor count: 9223372036854775808"),
    "tensor count beyond the file": Case(head(n_tensors=5000), "tensor count: 5000"),
    "tensor count one more": Case(lambda g, rng: head(n_tensors=len(g.tensors) + 1)(g, rng), "tensor 12"),
    "metadata count -1": Case(head(n_keys=-1), "metadata count: 18446744073709551615"),
    "metadata count 2^63": Case(head(n_keys=1 << 63), "metadata count: 9223372036854775808"),
    "metadata count one more": Case(lambda g, rng: head(n_keys=len(g.keys) + 1)(g, rng), "tensor 0 name"),
    "metadata count one less": Case(lambda g, rng: head(n_keys=len(g.keys) - 1)(g, rng), "tensor"),
    "header truncated": Case(lambda g, rng: truncated(g, "head", rng), "header|count"),
    "metadata truncated": Case(lambda g, rng: truncated(g, "metadata", rng), "count|key|length|llama|token|type"),
    "tensor table truncated": Case(lambda g, rng: truncated(g, "table", rng), "tensor"),
    "data truncated": Case(lambda g, rng: truncated(g, "data", rng), "tensor"),
    "last byte missing": Case(file(lambda raw: raw[:-1]), "tensor blk.0.ffn_down.weight"),
}

METADATA: dict[str, Case] = {
    "key empty": Case(last_key(b"", U32, bytes(4)), "key 18: is empty"),
    "key twice": Case(last_key(b"llama.block_count", U32, bytes(4)), "llama.block_count: is there twice"),
    "key not UTF-8": Case(last_key(b"a\xff\xfe", U32, bytes(4)), "key 18: b'a.xff.xfe' is not UTF-8"),
    "key of 65536 bytes": Case(last_key(b"k" * 65536, U32, bytes(4)), "key 18: 65536 bytes"),
    "key length 2^63": Case(lambda g, rng: g.head() + g.size(1 << 63) + bytes(8000), "key 0: 9223372036854775808"),
    "value type 13": Case(key("x", 13, bytes(8)), "x: unknown value type 13"),
    "value type 2^32-1": Case(key("x", 2**32 - 1, bytes(8)), "x: unknown value type 4294967295"),
    "string length -1": Case(text("x", b"abc", -1), "x: 18446744073709551615 bytes"),
    "string length 2^63": Case(text("x", b"abc", 1 << 63), "x: 9223372036854775808 bytes"),
    "string beyond the file": Case(text("x", b"abc", 1 << 20), "x: 1048576 bytes"),
    "string not UTF-8": Case(text("general.name", b"caf\xe9"), "general.name: b'caf.xe9' is not UTF-8"),
    "string with a surrogate": Case(text("general.name", b"\xed\xa0\x80"), "general.name: .* is not UTF-8"),
    "bool 2": Case(key("tokenizer.ggml.add_bos_token", BOOL, b"\2"), "add_bos_token: bool has value 2"),
    "array of bool 7": Case(array("x", BOOL, b"\0\1\7", 3), "x: array of bool holds 7"),
    "array element type 13": Case(array("x", 13, bytes(8), 1), "x: unknown element type 13"),
    "array of arrays": Case(array("x", ARRAY, ARRAY_OF_U32 + bytes(12), 1), "x: is an array of arrays"),
    "array length -1": Case(array("x", U32, b"", -1), "x length: 18446744073709551615"),
    "array length 2^63": Case(array("x", U64, b"", 1 << 63), "x length: 9223372036854775808"),
    "array length 2^61": Case(array("x", U64, b"", 1 << 61), "x length: 2305843009213693952"),
    "array beyond the file": Case(array("x", U32, b"", 100_000), "x length: 100000"),
    "string array length 2^60": Case(array("x", STRING, b"", 1 << 60), "x length: 1152921504606846976"),
    "string array beyond the file": Case(array("x", STRING, bytes(80), 8_000), r"x\["),
    "string in array length -1": Case(array("x", STRING, b"\0" * 8 + b"\xff" * 8, 2), r"x\[1\]: 18446744073709551615"),
    "string in array length 2^63": Case(
        array("x", STRING, struct.pack("<QQ", 0, 1 << 63), 2), r"x\[1\]: 9223372036854775808"
    ),
    "string in array beyond the file": Case(array("x", STRING, struct.pack("<Q", 1 << 30), 1), r"x\[0\]: 1073741824"),
    "string in array not UTF-8": Case(lambda g, rng: bad_token(g, rng), TOKENS + r"\[\d+\]: .* UTF-8", "strings"),
    "architecture not a string": Case(integer("general.architecture", 1), "general.architecture: has type u32"),
    "alignment not a u32": Case(key("general.alignment", U64, struct.pack("<Q", 32)), "general.alignment: has type"),
    "alignment 0": Case(integer("general.alignment", 0), "general.alignment: 0 "),
    "alignment 3": Case(integer("general.alignment", 3), "general.alignment: 3 "),
    "alignment 2^17": Case(integer("general.alignment", 1 << 17), "general.alignment: 131072 "),
    "alignment 2^31": Case(integer("general.alignment", 1 << 31), "general.alignment: 2147483648 "),
    "shard without its name": Case(key("split.count", 2, struct.pack("<H", 4)), "split.count: 4"),
    "shard count a string": Case(string("split.count", "2"), "split.count: '2'"),
}


def bad_token(g: GgufBytes, rng: random.Random) -> None:
    """Make one token of the vocabulary bytes that are not UTF-8."""
    tokens = [b"t%d" % i for i in range(32)]
    tokens[rng.randrange(32)] = bytes([rng.randrange(0xC0, 0x100), 0x20])
    g.set_strings(TOKENS, tokens)


TENSORS: dict[str, Case] = {
    "name empty": Case(extra_tensor(name=b""), "tensor 12 name: is empty"),
    "name twice": Case(extra_tensor(name=Q.encode()), f"tensor {Q}: is there twice"),
    "name not UTF-8": Case(extra_tensor(name=b"\xc3("), "tensor 12 name: .* is not UTF-8"),
    "name of 65 bytes": Case(extra_tensor(name=b"n" * 65), "tensor 12 name: 65 bytes"),
    "name length 2^63": Case(extra_tensor(name_length=1 << 63), "tensor 12 name: 9223372036854775808"),
    "n_dims 0": Case(tensor(Q, n_dims=0), f"tensor {Q} n_dims: 0 "),
    "n_dims 5": Case(tensor(Q, n_dims=5), f"tensor {Q} n_dims: 5 "),
    "n_dims 2^32-1": Case(tensor(Q, n_dims=2**32 - 1), f"tensor {Q} n_dims: 4294967295 "),
    "dimension 0": Case(tensor(Q, shape=[64, 0]), f"tensor {Q} shape: .64, 0."),
    "dimension -1": Case(tensor(Q, shape=[64, -1]), f"tensor {Q} shape: .64, 18446744073709551615."),
    "dimensions overflow 2^64 to 0": Case(tensor(Q, shape=[2**32, 2**32]), f"tensor {Q} shape: .4294967296"),
    "dimensions overflow 2^64 to 64": Case(tensor(Q, shape=[64, 2**58 + 1, 16, 16]), f"tensor {Q} shape"),
    "bytes overflow 2^64": Case(tensor(Q, shape=[2**62]), f"tensor {Q}: 18446744073709551616 bytes"),
    "bytes beyond the file": Case(tensor(Q, shape=[64, 64000]), f"tensor {Q}: 16384000 bytes"),
    "type unknown": Case(tensor(Q, type=200), f"tensor {Q} type: 200"),
    "type 2^32-1": Case(tensor(Q, type=2**32 - 1), f"tensor {Q} type: 4294967295"),
    "type removed": Case(tensor(Q, type=4), f"tensor {Q} type: 4 .Q4_2. was removed"),
    "row no multiple of its block": Case(tensor(Q, type=12), f"tensor {Q} shape: row of 64 .* Q4_K"),
    "offset not aligned": Case(tensor(Q, offset=8), f"tensor {Q} offset: 8 "),
    "offset beyond the file": Case(tensor(Q, offset=1 << 40), f"tensor {Q}: .* at offset 10995"),
    "offset -32": Case(tensor(Q, offset=-32), f"tensor {Q}: .* end beyond the file"),
    "overlapping tensors": Case(overlapping, "overlaps tensor"),
    "two tensors at one place": Case(extra_tensor(offset=0), "overlaps tensor"),
}

MODELS: dict[str, Case] = {
    name: Case(mutate, match, "architecture")
    for name, (mutate, match) in {
        "architecture missing": (without("general.architecture"), "general.architecture"),
        "architecture unknown": (string("general.architecture", "nonsense"), "general.architecture: .*nonsense"),
        "block_count missing": (without("llama.block_count"), "llama.block_count"),
        "block_count a string": (string("llama.block_count", "1"), "llama.block_count"),
        "block_count a float": (number("llama.block_count", 1.0), "llama.block_count"),
        "block_count 0": (integer("llama.block_count", 0), "llama.block_count: 0"),
        "block_count 2^32-1": (integer("llama.block_count", 2**32 - 1), "llama.block_count|blk.1"),
        "more layers than tensors": (integer("llama.block_count", 2), "blk.1"),
        "embedding_length 0": (integer("llama.embedding_length", 0), "llama.embedding_length: 0"),
        "embedding_length another": (integer("llama.embedding_length", 128), "token_embd.weight|embedding_length"),
        "embedding_length missing": (without("llama.embedding_length"), "llama.embedding_length"),
        "feed_forward_length another": (integer("llama.feed_forward_length", 64), "ffn|feed_forward_length"),
        "head_count 0": (integer(HEADS, 0), f"{HEADS}: 0"),
        "head_count a string": (string(HEADS, "4"), HEADS),
        "head_count negative": (key(HEADS, I32, struct.pack("<i", -4)), f"{HEADS}: -4"),
        "head_count missing": (without(HEADS), HEADS),
        "head_count 2^32-1": (integer(HEADS, 2**32 - 1), "head_count|attn_q"),
        "head_count array too short": (array(HEADS, U32, b"", 0), HEADS),
        "head_count_kv no divisor": (integer(f"{HEADS}_kv", 3), "head_count_kv|attn_k"),
        "head_count_kv 0": (integer(f"{HEADS}_kv", 0), "head_count_kv|attn_k"),
        "epsilon missing": (without(EPS), EPS),
        "epsilon an integer": (integer(EPS, 1), EPS),
        "epsilon NaN": (number(EPS, math.nan), EPS),
        "rope base a string": (string("llama.rope.freq_base", "10000"), "llama.rope.freq_base"),
        "rope base infinite": (number("llama.rope.freq_base", math.inf), "llama.rope.freq_base"),
        "rope base 0": (number("llama.rope.freq_base", 0.0), "llama.rope.freq_base: 0"),
        "rope dimensions odd": (integer("llama.rope.dimension_count", 7), "llama.rope.dimension_count: 7"),
        "rope dimensions beyond the head": (
            integer("llama.rope.dimension_count", 32),
            "llama.rope.dimension_count: 32",
        ),
        "context_length 0": (integer("llama.context_length", 0), "llama.context_length: 0"),
        "token_embd missing": (without_tensor("token_embd.weight"), "token_embd.weight"),
        "output_norm missing": (without_tensor("output_norm.weight"), "output_norm.weight"),
        "attn_q missing": (without_tensor(Q), Q),
        "ffn_down missing": (without_tensor("blk.0.ffn_down.weight"), "blk.0.ffn_down.weight"),
        "attn_q too narrow": (reshaped(Q, [64, 32]), Q),
        "attn_k too wide": (reshaped("blk.0.attn_k.weight", [64, 64]), "blk.0.attn_k.weight"),
        "ffn_down transposed": (reshaped("blk.0.ffn_down.weight", [64, 96]), "blk.0.ffn_down.weight"),
        "norm too short": (reshaped("blk.0.attn_norm.weight", [32]), "blk.0.attn_norm.weight"),
        "matrix with three dimensions": (reshaped(Q, [64, 64, 2]), Q),
        "weights of integers": (tensor(Q, type=26), Q),
        "vocabulary shorter than the embedding": (vocabulary(16), "token|vocab"),
        "vocabulary longer than the embedding": (vocabulary(64), "token|vocab"),
        "scores shorter than the vocabulary": (vocabulary(16, (SCORES,)), SCORES),
        "token types shorter than the vocabulary": (vocabulary(16, (TYPES,)), TYPES),
        "tokens missing": (without(TOKENS), TOKENS),
        "tokens an array of integers": (array(TOKENS, U32, bytes(128), 32), TOKENS),
        "tokenizer unknown": (string("tokenizer.ggml.model", "nonsense"), "tokenizer.ggml.model: .*nonsense"),
        "tokenizer not a string": (integer("tokenizer.ggml.model", 1), "tokenizer.ggml.model"),
    }.items()
}

CASES: dict[str, Case] = {
    f"{part}: {name}": case
    for part, cases in {"header": HEADER, "metadata": METADATA, "tensors": TENSORS, "model": MODELS}.items()
    for name, case in cases.items()
}


def make(name: str, seed: int = 1, version: int = 3) -> bytes:
    """The bytes of the file of that case; `seed` moves whatever in it is random."""
    g = small_llama(seed, version)
    raw = CASES[name].mutate(g, random.Random(f"{seed}:{name}"))
    return g.build() if raw is None else raw


NASTY = (0, 1, 2, 3, 7, 8, 9, 13, 31, 32, 33, 127, 128, 255, 256, 65535, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32,
         2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 32, 2**64 - 1)  # fmt: skip


def damaged(good: bytes, seed: int, head_bytes: int) -> Iterator[bytes]:
    """Endless random damage to a good file, most of it within the first `head_bytes`, where the structure is."""
    rng = random.Random(seed)
    while True:
        raw = bytearray(good)
        for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
            pos = rng.randrange(min(head_bytes, len(raw)) if rng.random() < 0.95 and raw else len(raw) or 1)
            match rng.randrange(6):
                case 0:
                    raw[pos : pos + 1] = bytes([rng.randrange(256)])
                case 1:
                    raw[pos : pos + 8] = struct.pack("<Q", rng.choice(NASTY))
                case 2:
                    raw[pos : pos + 4] = struct.pack("<I", rng.choice(NASTY) & 0xFFFFFFFF)
                case 3:
                    del raw[pos : pos + rng.choice((1, 4, 8, 100, len(raw)))]
                case 4:
                    raw[pos:pos] = rng.randbytes(rng.choice((1, 4, 8, 100)))
                case 5:
                    raw[pos:pos] = raw[pos : pos + rng.choice((4, 8, 40, 400))]
        yield bytes(raw)
