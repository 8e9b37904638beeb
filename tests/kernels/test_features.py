"""What the processor offers, read without LLVM: as LLVM reads it, and never what the system does not save."""

from __future__ import annotations

import llvmlite.binding as llvm
import pytest
from edgert.kernels_cpu import features, isa


def test_agrees_with_llvm() -> None:
    answers = llvm.get_host_cpu_features()
    names = features.X86_NAMES if isa.machine() == "x86_64" else {"dotprod", "fullfp16", "i8mm", "bf16", "sve"}
    assert isa.host_features() & names == {name for name, on in answers.items() if on} & names
    assert names - isa.host_features(), "a host with every feature there is would not test what is missing"


def test_levels_need_only_what_is_read() -> None:
    for level in isa.LEVELS:
        if level.machine == "x86_64":
            assert set(level.needs) <= features.X86_NAMES


def everything(leaf: int, subleaf: int) -> tuple[int, ...]:
    return (0xFFFFFFFF,) * 4


@pytest.mark.parametrize(
    ("saved", "there", "missing"),
    [
        (0x0, "sse4.2", "avx"),
        (0x2, "sse4.2", "avx"),  # SSE state alone
        (0x7, "avx2", "avx512f"),
        (0x67, "avxvnni", "avx512vnni"),  # two of the three AVX-512 states
        (0xE7, "avx512vnni", "amx-tile"),
        (0x200E7, "avx512bf16", "amx-bf16"),  # tile configuration without tile data
        (0x600E7, "amx-bf16", ""),
    ],
)
def test_system_must_save_the_registers(saved: int, there: str, missing: str) -> None:
    found = features.from_registers(everything, saved)
    assert there in found
    assert missing not in found


def test_leaves_that_do_not_exist_say_nothing() -> None:
    """An old processor answers a leaf beyond its last with that of another."""

    def old(leaf: int, subleaf: int) -> tuple[int, ...]:
        return (4, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF)

    highest = {0: 4, 0x80000000: 0x80000000}
    assert features._within(old, highest, 7, 0) == (0, 0, 0, 0)
    assert features._within(old, highest, 0x80000001, 0) == (0, 0, 0, 0)
    assert features._within(old, highest, 1, 0)[3] == 0xFFFFFFFF
