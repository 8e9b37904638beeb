"""Keys and values of prompts in files: a whole session, or single pages. What is read from a file is untrusted.

A file is, little-endian: magic, version (u32), number of records (u32), 32 bytes that say for what model and kernels
it was made, 16 bytes of the key before the first record, records, 32 bytes of checksum of everything before. A record
is a page: number of tokens (u32), tokens (i32 each), a byte for each group of the cache that says whether its page
follows, those pages.
"""

from __future__ import annotations

import hashlib
import os
import struct
import tempfile
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .errors import EdgertError
from .kv import GONE, PAGE, PagePool, Sequence
from .runtime import Runtime

MAGIC, VERSION = b"edgertKV", 1
_HEAD = struct.Struct("<8sII32s16s")
_CHECK = 32


class SessionError(EdgertError):
    """A session file is damaged, or was made for another model."""


@dataclass(frozen=True)
class Record:
    """A page: its tokens, and the bytes of each group's page, None where the group no longer had it."""

    tokens: list[int]
    pages: list[bytes | memoryview | None]


def fingerprint(runtime: Runtime) -> bytes:
    """32 bytes that differ between models, and between kernels whose results do.

    Of the weights it takes three samples of each tensor.
    """
    plan, digest = runtime.plans["prompt"], hashlib.blake2b(digest_size=32)
    digest.update(repr((VERSION, PAGE, runtime.kv_type, runtime.level.name, plan.ropes, plan.cache)).encode())
    for op in plan.ops:
        scalars = sorted((k, v) for k, v in op.fields.items() if isinstance(v, int | float))
        digest.update(repr((op.kernel, op.label, scalars)).encode())
    for constant in plan.constants:
        digest.update(constant.tobytes())
    for name, info in runtime.gguf.tensors.items():
        data = runtime.gguf.data(name).reshape(-1).view(np.uint8)
        digest.update(repr((name, info.type.name, info.shape)).encode())
        for start in (0, len(data) // 2, max(0, len(data) - 4096)):
            digest.update(data[start : start + 4096].tobytes())
    return digest.digest()


def records(sequence: Sequence, pool: PagePool, first: int = 0) -> list[Record]:
    """The pages of a sequence's prompt tokens from the page `first` on."""
    found = []
    for at in range(first, -(-sequence.n_prompt // PAGE)):
        tokens = sequence.tokens[PAGE * at : min(PAGE * (at + 1), sequence.n_prompt)]
        pages: list[bytes | memoryview | None] = []
        for group, own in zip(pool.groups, sequence.pages, strict=True):
            pages.append(group.read(own[at]) if own[at] != GONE else None)
        found.append(Record(tokens, pages))
    return found


def encode(found: SequenceOf[Record], model: bytes, parent: bytes = b"") -> bytes:
    """A file's bytes. model: its fingerprint. parent: the key before the first record."""
    parts: list[bytes | memoryview] = [_HEAD.pack(MAGIC, VERSION, len(found), model, parent)]
    for record in found:
        parts.append(struct.pack(f"<I{len(record.tokens)}i", len(record.tokens), *record.tokens))
        parts.append(bytes(page is not None for page in record.pages))
        parts += [page for page in record.pages if page is not None]
    digest = hashlib.blake2b(digest_size=_CHECK)
    for part in parts:
        digest.update(part)
    return b"".join([*parts, digest.digest()])


def decode(data: memoryview, name: str, model: bytes, pool: PagePool, n_vocab: int) -> tuple[bytes, list[Record]]:
    """(the key before the first record, records) of a file's bytes, whose pages are views of them.

    SessionError, which names the file, unless all is as `encode` would have made it for this model. Full pages only,
    but for the last.
    """
    if len(data) < _HEAD.size + _CHECK or data[:8] != MAGIC:
        raise SessionError(f"{name}: this is no session file of edgert")
    _, version, count, made_for, parent = _HEAD.unpack(data[: _HEAD.size])
    if version != VERSION:
        raise SessionError(f"{name}: version {version} of the format is not known, only {VERSION}")
    if hashlib.blake2b(data[:-_CHECK], digest_size=_CHECK).digest() != data[-_CHECK:]:
        raise SessionError(f"{name}: the file is damaged: its checksum is another")
    if made_for != model:
        raise SessionError(f"{name}: made with another model, precision, KV type or instruction set")
    found, at, end = [], _HEAD.size, len(data) - _CHECK
    sizes = [group.page_bytes for group in pool.groups]
    for i in range(count):
        if end - at < 4:
            raise SessionError(f"{name}: record {i} is cut short")
        (n,) = struct.unpack("<I", data[at : at + 4])
        if not 1 <= n <= PAGE or (n < PAGE and i < count - 1) or end - at < 4 + 4 * n + len(sizes):
            raise SessionError(f"{name}: record {i} cannot have {n} tokens")
        tokens = list(struct.unpack(f"<{n}i", data[at + 4 : at + 4 + 4 * n]))
        at += 4 + 4 * n
        there = bytes(data[at : at + len(sizes)])
        at += len(sizes)
        needed = sum(size for size, flag in zip(sizes, there, strict=True) if flag)
        whole = all(flag or group.window for flag, group in zip(there, pool.groups, strict=True))
        if any(flag > 1 for flag in there) or not whole or needed > end - at:
            raise SessionError(f"{name}: record {i} has no valid pages")
        if not all(0 <= token < n_vocab for token in tokens):
            raise SessionError(f"{name}: record {i} has tokens that are not in the vocabulary")
        pages: list[bytes | memoryview | None] = []
        for size, flag in zip(sizes, there, strict=True):
            pages.append(data[at : at + size] if flag else None)
            at += size if flag else 0
        found.append(Record(tokens, pages))
    if at != end:
        raise SessionError(f"{name}: {end - at} bytes after the last record")
    return parent, found


def write_file(path: Path, data: bytes) -> None:
    """Put a file in place whole, or not at all. OSError if that fails."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def fill(sequence: Sequence, pool: PagePool, found: SequenceOf[Record]) -> None:
    """Append records to a sequence that ends with a full page, as far as the pool has room."""
    for record in found:
        if min(pool.room(), pool.state_room()) < 1 or len(sequence.tokens) + len(record.tokens) > sequence.n_ctx:
            return
        pages = []
        for group, data in zip(pool.groups, record.pages, strict=True):
            page = group.take() if data is not None else GONE
            if data is not None:
                group.write(page, memoryview(data))
            pages.append(page)
        sequence.append(pages)
        sequence.tokens += record.tokens
        sequence.n_prompt += len(record.tokens)
