"""Kernels by name: finished object code from a content-hashed cache, linked without Numba or LLVM in the process.

The cache directory is keyed by the source of every file of this package, the numba, llvmlite and Python versions,
and the level's target, so nothing stale can be loaded. Missing kernels are compiled by child processes (one per
processor) under a lock that other processes wait for.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import isa, objects

Progress = Callable[[int, int, str], None]  # (done, total, kernel name)


class CompileError(RuntimeError):
    """A kernel could not be compiled."""


@dataclass(frozen=True)
class Kernel:
    """A loaded kernel: `address` of void(args, thread, n_threads), and the fields of its argument struct."""

    name: str
    address: int
    fields: tuple[tuple[str, str], ...]


def file_name(kernel: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.]", "-", kernel) + ".o"


def cache_root() -> Path:
    """Directory of all kernel caches: `kernels` in $EDGERT_CACHE, $EDGERT_HOME or the user's cache directory."""
    if home := os.environ.get("EDGERT_CACHE") or os.environ.get("EDGERT_HOME"):
        return Path(home) / "kernels"
    import platformdirs

    return Path(platformdirs.user_cache_dir("edgert", appauthor=False)) / "kernels"


@functools.cache
def _content_key() -> str:
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    for package in ("numba", "llvmlite"):
        digest.update(importlib.metadata.version(package).encode())
    digest.update(f"{sys.version_info[:2]} {isa.machine()} {sys.platform}".encode())
    return digest.hexdigest()[:16]


def cache_dir(level: isa.Level) -> Path:
    cpu, features = isa.target(level)
    target = hashlib.sha256(f"{cpu} {features}".encode()).hexdigest()[:8]
    return cache_root() / f"{_content_key()}-{level.name}-{target}"


_loaded: dict[tuple[str, str], Kernel] = {}


def load(names: Iterable[str], level: isa.Level, progress: Progress | None = None) -> dict[str, Kernel]:
    """Kernels by name, compiled first where the cache lacks them. Raises CompileError."""
    wanted = sorted(set(names))
    new = [name for name in wanted if (level.name, name) not in _loaded]
    if new:
        directory = cache_dir(level)
        missing = [name for name in new if _read(directory / file_name(name)) is None]
        if missing:
            _compile(missing, level, directory, progress)
        for kernel in _link(new, directory):
            _loaded[level.name, kernel.name] = kernel
    return {name: _loaded[level.name, name] for name in wanted}


def pack_object(symbol: str, fields: list[tuple[str, str]], code: bytes) -> bytes:
    """What a cache file holds: a line of JSON, then the object file."""
    header = {"symbol": symbol, "fields": fields, "sha256": hashlib.sha256(code).hexdigest()}
    return json.dumps(header).encode() + b"\n" + code


def _read(file: Path) -> tuple[dict[str, Any], bytes] | None:
    """Header and object file; None where the file is missing or not what was written."""
    try:
        header, _, code = file.read_bytes().partition(b"\n")
        meta = json.loads(header)
        return (meta, code) if meta["sha256"] == hashlib.sha256(code).hexdigest() else None
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _link(names: list[str], directory: Path) -> list[Kernel]:
    metas, files = [], []
    for name in names:
        found = _read(directory / file_name(name))
        if found is None:
            raise CompileError(f"kernel {name}: {directory / file_name(name)} was damaged after it was written")
        metas.append(found[0])
        files.append((found[1], found[0]["symbol"]))
    if isa.machine() not in objects.MACHINES:
        raise CompileError(f"kernels cannot be loaded on {isa.machine()}, only on {', '.join(objects.MACHINES)}")
    try:
        addresses = objects.link(files, objects.MACHINES[isa.machine()])
    except (objects.ObjectError, OSError) as error:
        raise CompileError(f"kernels of level {directory.name} cannot be loaded: {error}") from None
    return [
        Kernel(name, address, tuple((n, k) for n, k in meta["fields"]))
        for name, address, meta in zip(names, addresses, metas, strict=True)
    ]


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    import filelock

    directory.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(directory / "compile.lock"):
        yield


def _prune(current: Path) -> None:
    """Remove caches of other versions that were not written to for a month."""
    for other in current.parent.iterdir():
        if other != current and other.is_dir() and time.time() - other.stat().st_mtime > 30 * 86400:
            shutil.rmtree(other, ignore_errors=True)


def _compile(missing: list[str], level: isa.Level, directory: Path, progress: Progress | None) -> None:
    with _locked(directory):
        missing = [n for n in missing if _read(directory / file_name(n)) is None]
        for name in missing:
            (directory / file_name(name)).unlink(missing_ok=True)
        total, done = len(missing), 0
        if not total:
            return
        _prune(directory)
        jobs = min(total, os.cpu_count() or 1)
        children = [_child(level, directory, missing[i::jobs]) for i in range(jobs)]
        try:
            while done < total:
                alive = [c for c in children if c.poll() is None]
                finished = sum((directory / file_name(n)).exists() for n in missing)
                if finished != done and progress:
                    progress(finished, total, "kernels")
                done = finished
                for child in children:
                    if child.poll() not in (None, 0):
                        raise CompileError(f"kernel compiler failed at level {level.name}: {_last_line(child)}")
                if not alive and done < total:
                    raise CompileError(f"kernel compiler ended early at level {level.name}: {_last_line(children[0])}")
                time.sleep(0.02)
        finally:
            for child in children:
                if child.poll() is None and done < total:
                    child.kill()
                if child.stderr and not child.stderr.closed:  # else its error has been read already
                    child.communicate()


def _child(level: isa.Level, directory: Path, names: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-m", f"{__package__}.compile", level.name, str(directory), *names]
    # Its own session on Unix: Ctrl-C reaches the user's process, which then ends the children itself.
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                            start_new_session=os.name != "nt")


def _last_line(child: subprocess.Popen[str]) -> str:
    error = child.communicate()[1] or ""
    if os.environ.get("EDGERT_DEBUG"):
        sys.stderr.write(error)
    lines = [line for line in error.splitlines() if line.strip()]
    return lines[-1] if lines else f"exit code {child.returncode}"
