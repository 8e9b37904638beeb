"""A level is a promise about instructions: what its objects hold is read back with a disassembler (x86 only)."""

from __future__ import annotations

import iced_x86
import llvmlite.binding as llvm
import pytest
from edgert.kernels_cpu import isa, jit
from kernel_calls import LEVELS

KERNELS = [
    "act.quantise_rows", "act.quantise_tiles", "unit.gated[silu]", "norm.rmsnorm", "rope.neox", "kv.write[f16]",
    "attn_decode.decode[f16]", "attn_decode.decode[q8_0]", "attn_prompt.prompt[bf16]", "attn_decode.merge",
    "gemv.decode[Q4_K]", "gemv.decode[Q8_0]", "gemv.dense[F16]",
    "gemm.prompt[Q4_0]", "gemm.exact[Q6_K]", "embed.lookup[IQ4_NL]", "embed.lookup[IQ3_S]", "moe.route", "sample.top",
    "loop.work",
]  # fmt: skip

# What CPUID must report for an instruction to exist, by the level that may use it.
BASE = {"INTEL8086", "INTEL186", "INTEL286", "INTEL386", "INTEL486", "X64", "CMOV", "FPU", "CX8", "MULTIBYTENOP", "SSE",
        "SSE2", "PAUSE"}  # fmt: skip
V3 = BASE | {
    "SSE3",
    "SSSE3",
    "SSE4_1",
    "SSE4_2",
    "AVX",
    "AVX2",
    "FMA",
    "F16C",
    "BMI1",
    "BMI2",
    "LZCNT",
    "MOVBE",
    "POPCNT",
}
V4 = V3 | {"AVX512F", "AVX512BW", "AVX512CD", "AVX512DQ", "AVX512VL"}
V4_VNNI = V4 | {"AVX512_VNNI"}
ALLOWED = {"generic": BASE, "avx2": V3, "avxvnni": V3 | {"AVX_VNNI"}, "avx512vnni": V4_VNNI,
           "amx": V4_VNNI | {"AMX_TILE", "AMX_BF16", "AVX512_BF16"}}  # fmt: skip
# The instructions that a level exists for: they must occur, or the check looks at the wrong thing.
EXPECTED = {"generic": {"SSE2"}, "avx2": {"AVX2", "FMA", "F16C"}, "avxvnni": {"AVX2", "FMA", "F16C", "AVX_VNNI"},
            "avx512vnni": {"AVX512F", "AVX512BW", "AVX512_VNNI"}, "amx": {"AMX_TILE", "AMX_BF16"}}  # fmt: skip

FEATURES = {value: name for name, value in vars(iced_x86.CpuidFeature).items() if isinstance(value, int)}


def kernels(level: str) -> list[str]:
    return [*KERNELS, "amx.prompt[Q4_K]"] if isa.BY_NAME[level].bf16_tiles else KERNELS


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    for level in LEVELS:
        jit.load(kernels(level), isa.BY_NAME[level])


def instructions(kernel: str, level: str) -> list[iced_x86.Instruction]:
    """Every instruction of a kernel's object file."""
    file = jit.cache_dir(isa.BY_NAME[level]) / jit.file_name(kernel)
    code = file.read_bytes().partition(b"\n")[2]
    llvm.initialize_native_target()
    found: list[iced_x86.Instruction] = []
    for section in llvm.ObjectFileRef.from_data(code).sections():
        if section.is_text():
            found.extend(iced_x86.Decoder(64, section.data()))
    return found


def features(instruction: iced_x86.Instruction) -> set[str]:
    return {FEATURES[number] for number in instruction.cpuid_features()}


@pytest.mark.parametrize("level", LEVELS)
def test_no_instruction_above_the_level(level: str) -> None:
    """Nothing that the level does not promise: no AVX in `generic`, no AVX-512 in `avx2`."""
    for kernel in kernels(level):
        found = instructions(kernel, level)
        assert len(found) > 50, kernel
        for instruction in found:
            place = f"{kernel}: {instruction} at {instruction.ip:#x}"
            assert instruction.code != iced_x86.Code.INVALID, place
            assert features(instruction) <= ALLOWED[level], place
            if level == "generic":
                assert instruction.encoding == iced_x86.EncodingKind.LEGACY, place
            elif isa.BY_NAME[level].lanes == 8:
                assert instruction.encoding != iced_x86.EncodingKind.EVEX, place


@pytest.mark.parametrize("level", LEVELS)
def test_the_level_is_put_to_use(level: str) -> None:
    """All kernels together hold the instructions that set the level apart, 512 bits wide at the highest."""
    found = [i for kernel in kernels(level) for i in instructions(kernel, level)]
    assert set().union(*(features(i) for i in found)) >= EXPECTED[level]
    if isa.BY_NAME[level].lanes == 16:
        assert any("zmm" in str(i) and i.mnemonic == iced_x86.Mnemonic.VPDPBUSD for i in found)
