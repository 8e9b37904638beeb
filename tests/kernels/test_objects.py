"""The loader of object files: relocations against values worked out by hand, LLVM's own objects, and damaged files."""

from __future__ import annotations

import ctypes
import json
import random
import struct
from pathlib import Path

import llvmlite.binding as llvm
import pytest
from edgert.kernels_cpu import isa, jit, memory, objects

IR = """
@table = internal constant [4 x i64] [i64 11, i64 22, i64 33, i64 44], align 16
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare i32 @system(ptr)
define i64 @pick(ptr %a, i64 %n, i64 %i) {
  %t = and i64 %i, 3
  %p = getelementptr [4 x i64], ptr @table, i64 0, i64 %t
  %v = load i64, ptr %p
  call void @llvm.memset.p0.i64(ptr %a, i8 7, i64 %n, i1 false)
  ret i64 %v
}
"""
SHELL = "define i32 @shell(ptr %x) {\n  %y = call i32 @system(ptr %x)\n  ret i32 %y\n}\n"
TRIPLES = {"x86_64": "x86_64-unknown-linux-gnu", "aarch64": "aarch64-unknown-linux-gnu"}


def compiled(machine: str, model: str, ir: str = IR) -> bytes:
    """An object file by LLVM; `model`: how far apart it takes things to be."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = llvm.parse_assembly(ir)
    target = llvm.Target.from_triple(TRIPLES[machine])
    built = target.create_target_machine(opt=1, codemodel=model, reloc="pic" if model == "small" else "static")
    return bytes(built.emit_object(module))


def here() -> str:
    return isa.machine()


@pytest.mark.parametrize("model", ["small", "large"])
def test_llvm_object_runs(model: str) -> None:
    """Constants are read and memset is reached, near (PC-relative, through a stub) and far (absolute)."""
    (address,) = objects.link([(compiled(here(), model), "pick")], objects.MACHINES[here()])
    pick = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(address)
    block = (ctypes.c_ubyte * 8)()
    assert [pick(ctypes.addressof(block), 5, i) for i in range(4)] == [11, 22, 33, 44]
    assert bytes(block) == b"\7" * 5 + b"\0" * 3


def test_objects_share_one_mapping() -> None:
    data = compiled(here(), "large")
    first, second = objects.link([(data, "pick"), (data, "pick")], objects.MACHINES[here()])
    assert 0 < second - first < 4096


def test_functions_outside_are_few() -> None:
    with pytest.raises(objects.ObjectError, match="'system' is not one that kernels may call"):
        objects.link([(compiled(here(), "large", IR + SHELL), "pick")], objects.MACHINES[here()])


def test_every_function_outside_is_found() -> None:
    assert all(objects.external(name) for name in objects.EXTERNAL - {"bzero"})
    floorf = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_float)(objects.external("floorf"))
    assert floorf(-2.5) == -3


def test_other_machine_is_refused() -> None:
    other = next(m for m in objects.MACHINES if m != here())
    with pytest.raises(objects.ObjectError, match="is for machine"):
        objects.link([(compiled(other, "large"), "pick")], objects.MACHINES[here()])


def arm_words(model: str, base: int) -> tuple[objects.Image, list[int]]:
    image = objects.Image([objects.ObjectFile(compiled("aarch64", model))])
    data = image.bind(base)
    return image, [word for (word,) in struct.iter_unpack("<I", data[: len(data) // 4 * 4])]


def test_arm_absolute_address_in_four_moves() -> None:
    """The address of the table, put together from MOVZ and MOVK, is where the table's bytes are."""
    base = 0x1234_5678_9ABC_D000
    image, words = arm_words("large", base)
    moves = [w for w in words if (w >> 23 & 0xFF) in (0xA5, 0xE5) and w >> 31]  # MOVZ, MOVK of 64 bits
    address = 0
    for word in moves[:4]:
        address |= (word >> 5 & 0xFFFF) << 16 * (word >> 21 & 3)
    table = image.bind(base).index(struct.pack("<4Q", 11, 22, 33, 44))
    assert address == base + table


def test_arm_page_and_offset() -> None:
    """ADRP and ADD together give the table's address, for a base that puts it on another page than the code."""
    base = 0x7F00_0000_0FC0
    image, words = arm_words("small", base)
    table = base + image.bind(base).index(struct.pack("<4Q", 11, 22, 33, 44))
    at = next(i for i, w in enumerate(words) if w & 0x9F000000 == 0x90000000)
    pages = (words[at] >> 5 & 0x7FFFF) << 2 | words[at] >> 29 & 3
    add = next(w for w in words[at:] if w & 0xFF800000 == 0x91000000 and w >> 10 & 0xFFF == table & 0xFFF)
    assert ((base + 4 * at) >> 12) + pages == table >> 12
    assert add >> 10 & 0xFFF == table & 0xFFF


def test_arm_call_reaches_stub() -> None:
    """BL goes to the stub, which is LDR X16, .+8; BR X16 and the address of memset."""
    image, words = arm_words("large", 0x1000_0000)
    at = next(i for i, w in enumerate(words) if w >> 26 == 0x25)
    goal = at + (words[at] & 0x3FFFFFF)
    assert words[goal : goal + 2] == [0x58000050, 0xD61F0200]
    assert words[goal + 2] | words[goal + 3] << 32 == objects.external("memset")
    assert 4 * goal + 16 == image.size


# (machine, type, word before, target, place, word after): by hand from the ABI's formulas
KNOWN = [
    ("x86_64", 1, 0, 0x1122334455667788, 0, "8877665544332211"),
    ("x86_64", 2, 0, 0x2000 - 4, 0x1000, "fc0f0000"),
    ("x86_64", 4, 0, 0x1000 - 4, 0x2000, "fcefffff"),
    ("x86_64", 10, 0, 0xFFFFFFFF, 0, "ffffffff"),
    ("x86_64", 11, 0, -1, 0, "ffffffff"),
    ("x86_64", 24, 0, 0x10, 0x20, "f0ffffffffffffff"),
    ("aarch64", 257, 0, 0x1122334455667788, 0, "8877665544332211"),
    ("aarch64", 261, 0, 0x10, 0x20, "f0ffffff"),
    ("aarch64", 263, 0xD2800000, 0xBEEF, 0, "e0dd97d2"),  # movz x0, #0xbeef
    ("aarch64", 266, 0xF2A00001, 0xDEAD0000, 0, "a1d5bbf2"),  # movk x1, #0xdead, lsl #16
    ("aarch64", 275, 0x90000000, 0x5000, 0x1FFC, "20000090"),  # adrp x0, +4 pages: immlo 0, immhi 1
    ("aarch64", 277, 0x91000000, 0x12345678, 0, "00e01991"),  # add x0, x0, #0x678
    ("aarch64", 278, 0x39400000, 0x001, 0, "00044039"),  # ldrb w0, [x0, #1]
    ("aarch64", 284, 0x79400000, 0x002, 0, "00044079"),  # ldrh w0, [x0, #2]
    ("aarch64", 285, 0xB9400000, 0x004, 0, "000440b9"),  # ldr w0, [x0, #4]
    ("aarch64", 286, 0xF9400000, 0x008, 0, "000440f9"),  # ldr x0, [x0, #8]
    ("aarch64", 299, 0x3DC00000, 0x010, 0, "0004c03d"),  # ldr q0, [x0, #16]
    ("aarch64", 283, 0x94000000, 0x1000, 0x2000, "00fcff97"),  # bl .-0x1000
    ("aarch64", 282, 0x14000000, 0x2008, 0x2000, "02000014"),  # b .+8
]


@pytest.mark.parametrize(("machine", "kind", "before", "target", "place", "after"), KNOWN)
def test_relocation(machine: str, kind: int, before: int, target: int, place: int, after: str) -> None:
    image = bytearray(before.to_bytes(4, "little") + bytes(4))
    objects.relocate(image, 0, 8, objects.MACHINES[machine], kind, target, place)
    assert image.hex().startswith(after)


TOO_FAR = [
    ("x86_64", 2, 1 << 31, 0, "PC32"), ("x86_64", 4, 0, 1 << 40, "PLT32"), ("x86_64", 10, 1 << 32, 0, "32"),
    ("x86_64", 11, 1 << 31, 0, "32S"), ("aarch64", 261, 1 << 31, 0, "PREL32"), ("aarch64", 263, 0x10000, 0, "MOVW"),
    ("aarch64", 275, 1 << 40, 0, "ADR_PREL_PG_HI21"), ("aarch64", 283, 1 << 27, 0, "CALL26"),
    ("aarch64", 283, 2, 0, "CALL26"), ("aarch64", 286, 4, 0, "LDST64"),
    ("x86_64", 9, 0, 0, "type 9 of x86-64 is not supported"), ("aarch64", 311, 0, 0, "type 311 of AArch64 is not"),
]  # fmt: skip


@pytest.mark.parametrize(("machine", "kind", "target", "place", "message"), TOO_FAR)
def test_relocation_that_cannot_be(machine: str, kind: int, target: int, place: int, message: str) -> None:
    with pytest.raises(objects.ObjectError, match=message):
        objects.relocate(bytearray(8), 0, 8, objects.MACHINES[machine], kind, target, place)


def test_relocation_outside_section() -> None:
    with pytest.raises(objects.ObjectError, match="outside its section"):
        objects.relocate(bytearray(64), 4, 8, objects.X86_64, 1, 0, 0)


@pytest.mark.parametrize("machine", list(TRIPLES))
def test_damaged_files(machine: str) -> None:
    """Whatever bytes are changed or cut off: bound all the same, or an ObjectError; nothing else, and soon."""
    good = compiled(machine, "large")
    rng = random.Random(0)
    refused = 0
    for round_ in range(600):
        bad = bytearray(good)
        if round_ % 3 == 0:
            del bad[rng.randrange(len(bad)) :]
        else:
            start = len(good) - 64 * 12 if round_ % 3 == 1 else 0  # the section headers are at the end
            for _ in range(3):
                bad[rng.randrange(max(0, start), len(bad))] = rng.choice((0, 1, 0x7F, 0xFF, rng.randrange(256)))
        try:
            image = objects.Image([objects.ObjectFile(bytes(bad))])
            image.offset(0, "pick")
            image.bind(0x10000)
        except objects.ObjectError:
            refused += 1
    assert refused > 200


def test_writable_data_is_refused() -> None:
    data = compiled(here(), "large", "@counter = global i64 5\n" + IR)
    with pytest.raises(objects.ObjectError, match="writable data"):
        objects.ObjectFile(data)


def test_damaged_cache_file_is_made_again(tmp_path, monkeypatch) -> None:
    """A kernel file with one byte changed is not run but compiled anew."""
    monkeypatch.setenv("EDGERT_CACHE", str(tmp_path))
    monkeypatch.setattr(jit, "_loaded", {})
    level = isa.BY_NAME["generic"]
    jit.load(["loop.lead"], level)
    file = jit.cache_dir(level) / jit.file_name("loop.lead")
    good = file.read_bytes()
    file.write_bytes(good[:-9] + bytes([good[-9] ^ 1]) + good[-8:])
    jit._loaded.clear()
    kernel = jit.load(["loop.lead"], level)["loop.lead"]
    assert kernel.fields == (("team", "i64"),)
    header, _, code = file.read_bytes().partition(b"\n")
    assert jit.pack_object(**{k: v for k, v in json.loads(header).items() if k != "sha256"}, code=code)
    assert jit._read(file) is not None


def test_code_memory_is_not_writable_and_executable() -> None:
    code = memory.Code(64)
    with pytest.raises(ValueError, match="do not fit"):
        code.seal(bytes(65))
    code.seal(b"\xc3")
    maps = Path("/proc/self/maps")
    if maps.exists():  # Linux
        spans = [line.split()[:2] for line in maps.read_text().splitlines()]
        rights = {tuple(int(end, 16) for end in span.split("-")): right for span, right in spans}
        assert next(r for (low, high), r in rights.items() if low <= code.address < high) == "r-xp"
