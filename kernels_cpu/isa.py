"""Instruction-set levels: what each allows LLVM to use, and which of them this processor and its OS can run.

A level is a promise in both directions: kernels compiled for it use nothing beyond its features, and it is
offered only where CPUID and XGETBV report every feature it needs. `EDGERT_ISA=<level>` forces a
lower level; a level the host lacks is refused before any code is generated (LLVM kills the process otherwise).
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import sys
from dataclasses import dataclass

from . import features


@dataclass(frozen=True)
class Level:
    name: str
    machine: str  # "x86_64", "aarch64" or "any"
    cpu: str  # LLVM CPU name that bounds what may be emitted
    extra: tuple[str, ...]  # LLVM features on top of `cpu`
    needs: tuple[str, ...]  # features the host must report
    lanes: int  # f32 lanes of one register
    tile: int  # tokens that the slab matmul handles at once
    bf16_tiles: bool = False  # prompt matmuls run on AMX


_V3 = ("avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe", "popcnt")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
_AMX = ("amx-tile", "amx-bf16", "avx512bf16")

# Lowest first; the last one that the host can run is the default.
LEVELS: tuple[Level, ...] = (
    Level("generic", "any", "", (), (), 4, 8),
    Level("avx2", "x86_64", "x86-64-v3", (), _V3, 8, 8),
    Level("avxvnni", "x86_64", "x86-64-v3", ("avxvnni",), (*_V3, "avxvnni"), 8, 8),
    Level("avx512vnni", "x86_64", "x86-64-v4", ("avx512vnni",), (*_V4, "avx512vnni"), 16, 32),
    Level("amx", "x86_64", "x86-64-v4", ("avx512vnni", *_AMX), (*_V4, "avx512vnni", *_AMX), 16, 32, True),
)
# The amx kernels with their tile instructions done in plain code: tests of everything around them run on any AVX-512
# host. Never chosen unless named.
_PLAIN, _CONVERT = ("avx512vnni",), ("avx512vnni", "avx512bf16")
EMULATED = Level("amx-emulated", "x86_64", "x86-64-v4", _PLAIN, (*_V4, *_PLAIN), 16, 32, True)
# The same with the instruction that converts to bf16, which every processor with AMX has.
EMULATED_BF16 = Level("amx-emulated-bf16", "x86_64", "x86-64-v4", _CONVERT, (*_V4, *_CONVERT), 16, 32, True)
BY_NAME = {level.name: level for level in (*LEVELS, EMULATED, EMULATED_BF16)}


class IsaError(RuntimeError):
    """The requested instruction-set level is unknown or not available on this host."""


def machine() -> str:
    name = platform.machine().lower()
    return {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64"}.get(name, name)


@functools.cache
def host_features() -> frozenset[str]:
    """LLVM's names of the features that CPU and OS both support."""
    found = features.read(machine())
    if found is None:  # a system that has no quick way to tell
        import llvmlite.binding as llvm

        return frozenset(name for name, on in llvm.get_host_cpu_features().items() if on)
    return found


@functools.cache
def available() -> tuple[str, ...]:
    """Names of the levels this host can run, lowest first."""
    here = machine()
    return tuple(
        level.name
        for level in LEVELS
        if level.machine in ("any", here)
        and host_features().issuperset(level.needs)
        and (not level.bf16_tiles or _amx_permitted())
    )


@functools.cache
def _amx_permitted() -> bool:
    """Ask Linux for the right to use tile registers: arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)."""
    if sys.platform != "linux":
        return False
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    return int(syscall(ctypes.c_long(158), ctypes.c_long(0x1023), ctypes.c_long(18))) == 0


def choose() -> Level:
    """The level to use: `EDGERT_ISA` if set, else the highest the host can run."""
    wanted = os.environ.get("EDGERT_ISA", "")
    if not wanted:
        return BY_NAME[available()[-1]]
    return require(wanted)


def require(name: str) -> Level:
    """The level called `name`, or `IsaError` when it is unknown or this host cannot run it."""
    if name not in BY_NAME:
        raise IsaError(f"EDGERT_ISA={name!r} is not a level; choose one of {', '.join(BY_NAME)}")
    emulated = BY_NAME[name] in (EMULATED, EMULATED_BF16) and host_features().issuperset(BY_NAME[name].needs)
    if name not in available() and not emulated:
        raise IsaError(f"EDGERT_ISA={name!r} cannot run on this processor; it offers {', '.join(available())}")
    return BY_NAME[name]


def target(level: Level) -> tuple[str, str]:
    """(LLVM CPU name, LLVM feature string) for `level`."""
    cpu = level.cpu or ("x86-64" if machine() == "x86_64" else "generic")
    # x86-64-v4 tunes for 256-bit vectors, which would split every 512-bit kernel vector in two.
    tuning = ("-prefer-256-bit",) if level.lanes == 16 else ()
    return cpu, ",".join([*(f"+{f}" for f in level.extra), *tuning])
