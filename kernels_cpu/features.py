"""What the processor can do, asked of the processor and the system themselves: loading LLVM to ask costs 30 MB.

Names are LLVM's. x86: CPUID by a few bytes of machine code, and XGETBV for the registers that the system saves
(Intel SDM volume 1, 13.3). Arm: the system's own list.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

from .memory import Code

Ask = Callable[[int, int], tuple[int, ...]]  # CPUID: (leaf, subleaf) -> (eax, ebx, ecx, edx)

# leaf, subleaf -> register (0 eax, 1 ebx, 2 ecx, 3 edx) -> bit -> feature
_PLAIN: dict[tuple[int, int], dict[int, dict[int, str]]] = {
    (1, 0): {2: {0: "sse3", 1: "pclmul", 9: "ssse3", 19: "sse4.1", 20: "sse4.2", 22: "movbe", 23: "popcnt", 25: "aes"},
             3: {26: "sse2"}},
    (7, 0): {1: {3: "bmi", 8: "bmi2", 19: "adx", 29: "sha"}, 2: {8: "gfni"}},
    (0x80000001, 0): {2: {5: "lzcnt"}},
}  # fmt: skip
_AVX: dict[tuple[int, int], dict[int, dict[int, str]]] = {
    (1, 0): {2: {12: "fma", 28: "avx", 29: "f16c"}},
    (7, 0): {1: {5: "avx2"}, 2: {9: "vaes", 10: "vpclmulqdq"}},
    (7, 1): {0: {4: "avxvnni", 23: "avxifma"}, 3: {4: "avxvnniint8", 5: "avxneconvert", 10: "avxvnniint16"}},
}
_AVX512: dict[tuple[int, int], dict[int, dict[int, str]]] = {
    (7, 0): {1: {16: "avx512f", 17: "avx512dq", 21: "avx512ifma", 28: "avx512cd", 30: "avx512bw", 31: "avx512vl"},
             2: {1: "avx512vbmi", 6: "avx512vbmi2", 11: "avx512vnni", 12: "avx512bitalg", 14: "avx512vpopcntdq"},
             3: {23: "avx512fp16"}},
    (7, 1): {0: {5: "avx512bf16"}},
}  # fmt: skip
_AMX: dict[tuple[int, int], dict[int, dict[int, str]]] = {
    (7, 0): {3: {22: "amx-bf16", 24: "amx-tile", 25: "amx-int8"}},
    (7, 1): {0: {21: "amx-fp16"}, 3: {8: "amx-complex"}},
}
X86_NAMES = frozenset(
    name
    for group in (_PLAIN, _AVX, _AVX512, _AMX)
    for registers in group.values()
    for bits in registers.values()
    for name in bits.values()
)
_SAVED_AVX, _SAVED_AVX512, _SAVED_AMX = 0x6, 0xE6, 0x60000  # bits of XCR0

# push rbx; mov eax, leaf; mov ecx, subleaf; cpuid; store eax, ebx, ecx, edx at the first argument; pop rbx; ret
_CPUID_UNIX = bytes.fromhex("53 89f0 89d1 0fa2 8907 895f04 894f08 89570c 5b c3")
_CPUID_WINDOWS = bytes.fromhex("53 4989c9 89d0 4489c1 0fa2 418901 41895904 41894908 4189510c 5b c3")
_XGETBV = bytes.fromhex("31c9 0f01d0 48c1e220 4809d0 c3")  # xor ecx, ecx; xgetbv; shl rdx, 32; or rax, rdx; ret

# Linux on Arm: bits of AT_HWCAP (16) and AT_HWCAP2 (26)
_HWCAP = {16: {1: "neon", 10: "fullfp16", 20: "dotprod", 22: "sve"}, 26: {1: "sve2", 13: "i8mm", 14: "bf16"}}
_SYSCTL = {"AdvSIMD": "neon", "FEAT_FP16": "fullfp16", "FEAT_DotProd": "dotprod", "FEAT_I8MM": "i8mm",
           "FEAT_BF16": "bf16"}  # fmt: skip


def read(machine: str) -> frozenset[str] | None:
    """The features of this host, an "x86_64" or "aarch64"; None where there is no quick way to find them out."""
    if machine == "x86_64":
        return _x86()
    if machine == "aarch64" and sys.platform == "linux":
        value = ctypes.CDLL(None).getauxval
        value.restype, value.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
        return frozenset(n for kind, bits in _HWCAP.items() for bit, n in bits.items() if value(kind) >> bit & 1)
    if machine == "aarch64" and sys.platform == "darwin":
        return frozenset(name for key, name in _SYSCTL.items() if _sysctl(f"hw.optional.arm.{key}")) | {"neon"}
    return None


def _sysctl(name: str) -> int:
    value, size = ctypes.c_int64(0), ctypes.c_size_t(8)
    failed = ctypes.CDLL(None).sysctlbyname(name.encode(), ctypes.byref(value), ctypes.byref(size), None, 0)
    return 0 if failed else value.value


def _x86() -> frozenset[str]:
    stub = _CPUID_WINDOWS if sys.platform == "win32" else _CPUID_UNIX
    at = len(stub)
    code = Code(at + len(_XGETBV))
    code.seal(stub + _XGETBV)
    ask = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32)(code.address)
    saved = ctypes.CFUNCTYPE(ctypes.c_uint64)(code.address + at)

    def cpuid(leaf: int, subleaf: int) -> tuple[int, ...]:
        out = (ctypes.c_uint32 * 4)()
        ask(ctypes.addressof(out), leaf, subleaf)
        return tuple(out)

    highest = {0: cpuid(0, 0)[0], 0x80000000: cpuid(0x80000000, 0)[0]}
    saves = cpuid(1, 0)[2] >> 27 & 1  # OSXSAVE: XGETBV may be used
    return from_registers(lambda leaf, sub: _within(cpuid, highest, leaf, sub), saved() if saves else 0)


def _within(cpuid: Ask, highest: dict[int, int], leaf: int, subleaf: int) -> tuple[int, ...]:
    """A leaf that the processor lacks answers with another one's values."""
    if leaf > highest[leaf & 0x80000000] or (subleaf and subleaf > cpuid(leaf, 0)[0]):
        return 0, 0, 0, 0
    return cpuid(leaf, subleaf)


def from_registers(cpuid: Ask, saved: int) -> frozenset[str]:
    """Features by CPUID's answers and the register sets that the system saves (XCR0)."""
    groups = [_PLAIN]
    for group, mask in ((_AVX, _SAVED_AVX), (_AVX512, _SAVED_AVX512), (_AMX, _SAVED_AMX)):
        if saved & mask == mask:
            groups.append(group)
    found = set()
    for group in groups:
        for (leaf, subleaf), registers in group.items():
            values = cpuid(leaf, subleaf)
            found |= {name for r, bits in registers.items() for bit, name in bits.items() if values[r] >> bit & 1}
    return frozenset(found)
