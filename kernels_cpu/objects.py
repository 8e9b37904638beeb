"""A linker in small: finished object files (ELF, x86-64 and AArch64) into executable memory, many in one mapping.

Kernels have code and constant tables, no writable data, and call few functions of the C library. Sources: the ELF
gABI; "System V ABI, AMD64 supplement"; "ELF for the Arm 64-bit Architecture". Every offset of a file is checked before
it is used; what is not known is an ObjectError that names it.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .memory import Code

X86_64, AARCH64 = 62, 183  # e_machine
MACHINES = {"x86_64": X86_64, "aarch64": AARCH64}
_RELOCATABLE, _RELA, _NOBITS, _REL = 1, 4, 8, 9
_WRITE, _ALLOC = 1, 2
_PAGE = 4096
_STUB_BYTES = 16
# What LLVM makes of loops and stores, and of mathematics that a processor has no instruction for.
EXTERNAL = {"memset", "memcpy", "memmove", "bzero"} | {
    name + kind for name in ("floor", "ceil", "trunc", "rint", "fma", "sqrt", "exp", "log", "pow") for kind in ("", "f")
}

# relocation -> (name, kind, bits, shift of the value, whether the value must fit)
_X86 = {1: ("64", "abs", 64), 2: ("PC32", "rel", 32), 4: ("PLT32", "rel", 32), 10: ("32", "abs_unsigned", 32),
        11: ("32S", "abs", 32), 24: ("PC64", "rel", 64)}  # fmt: skip
_ARM_DATA = {257: ("ABS64", "abs", 64), 260: ("PREL64", "rel", 64), 261: ("PREL32", "rel", 32)}
_ARM_MOVW = {263: (0, True), 264: (0, False), 265: (1, True), 266: (1, False), 267: (2, True), 268: (2, False),
             269: (3, False)}  # number of the 16 bits, whether nothing may lie above them  # fmt: skip
_ARM_LOW12 = {277: 0, 278: 0, 284: 1, 285: 2, 286: 3, 299: 4}  # ADD and LDST8 to LDST128: scale of the offset
_ARM_PAGE, _ARM_BRANCH = (275, 276), (282, 283)  # ADR_PREL_PG_HI21(_NC); JUMP26, CALL26


class ObjectError(ValueError):
    """An object file that is damaged, or needs what this loader does not do."""


@dataclass(frozen=True)
class Section:
    """A section header."""

    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    align: int


@dataclass(frozen=True)
class Symbol:
    """`section` 0: not in this file."""

    name: str
    section: int
    value: int


class ObjectFile:
    """A parsed relocatable ELF file. ObjectError if it is not a sound one."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        if data[:6] != b"\x7fELF\2\1":
            raise ObjectError("not a 64-bit little-endian ELF file")
        kind, self.machine = self._unpack("<HH", 16)
        (at,) = self._unpack("<Q", 40)
        entry, count, names = self._unpack("<HHH", 58)
        if kind != _RELOCATABLE or entry != 64 or names >= count:
            raise ObjectError("not a relocatable file with 64-byte section headers")
        if self.machine not in (X86_64, AARCH64):
            raise ObjectError(f"machine {self.machine} is not supported")
        headers = [self._unpack("<IIQQQQIIQQ", at + 64 * i) for i in range(count)]
        text = headers[names]
        self.sections = [
            Section(self._name(text[4], text[5], h[0]), h[1], h[2], h[4], h[5], h[6], h[7], h[8]) for h in headers
        ]
        self.symbols = next((self._symbols(s) for s in self.sections if s.kind == 2), [])
        # What unwinds stacks is of no use: nothing that kernels call raises.
        self.loaded = [i for i, s in enumerate(self.sections) if s.flags & _ALLOC and s.size and s.name != ".eh_frame"]
        for i in self.loaded:
            self._check_loaded(self.sections[i])

    def _check_loaded(self, s: Section) -> None:
        if s.flags & _WRITE or s.kind == _NOBITS:
            raise ObjectError(f"section {s.name} is writable data")
        if s.align & (s.align - 1) or s.align > _PAGE:
            raise ObjectError(f"section {s.name}: alignment {s.align} is not a power of two up to {_PAGE}")
        self.span(s.offset, s.size, s.name)

    def span(self, offset: int, size: int, what: str) -> bytes:
        """Bytes of the file."""
        if offset + size > len(self.data):
            raise ObjectError(f"{what}: {size} bytes at {offset} end beyond the file ({len(self.data)} bytes)")
        return self.data[offset : offset + size]

    def _unpack(self, form: str, offset: int) -> tuple[int, ...]:
        return struct.unpack(form, self.span(offset, struct.calcsize(form), "header"))

    def _name(self, start: int, size: int, at: int) -> str:
        end = self.data.find(b"\0", start + at, start + size)
        if at >= size or end < 0:
            raise ObjectError(f"name at {at} lies outside its table")
        return self.data[start + at : end].decode("latin-1")

    def _symbols(self, table: Section) -> list[Symbol]:
        if table.link >= len(self.sections):
            raise ObjectError("the symbol table has no names")
        names = self.sections[table.link]
        found = []
        for at, _, _, section, value, _ in struct.iter_unpack(
            "<IBBHQQ", self.span(table.offset, table.size // 24 * 24, table.name)
        ):
            found.append(Symbol(self._name(names.offset, names.size, at) if at else "", section, value))
        return found

    def relocations(self) -> Iterator[tuple[int, int, int, Symbol, int]]:
        """(number of the section to change, offset in it, type, symbol, addend) for the sections that are loaded."""
        for table in self.sections:
            if table.kind not in (_RELA, _REL) or table.info not in self.loaded:
                continue
            if table.kind == _REL:
                raise ObjectError(f"{table.name}: relocations without addends are not supported")
            rows = self.span(table.offset, table.size // 24 * 24, table.name)
            for offset, info, addend in struct.iter_unpack("<QQq", rows):
                if info >> 32 >= len(self.symbols):
                    raise ObjectError(f"{table.name}: symbol {info >> 32} of {len(self.symbols)}")
                yield table.info, offset, info & 0xFFFFFFFF, self.symbols[info >> 32], addend


def relocate(image: bytearray, at: int, end: int, machine: int, kind: int, target: int, place: int) -> None:
    """Patch image[at:] (up to `end`) so that it refers to the address `target`; it will lie at the address `place`."""
    data = (_X86 if machine == X86_64 else _ARM_DATA).get(kind)
    if at + (data[2] // 8 if data else 4) > end:
        raise ObjectError(f"relocation {kind} at {at} lies outside its section")
    if data:
        name, how, bits = data
        value = target - place if how == "rel" else target
        low = 0 if how == "abs_unsigned" else -(1 << (bits - 1))
        high = 1 << (bits if how == "abs_unsigned" or bits == 64 else bits - 1)
        if not low <= value < high:
            raise ObjectError(f"relocation {name}: {value:#x} does not fit in {bits} bits")
        image[at : at + bits // 8] = (value & ((1 << bits) - 1)).to_bytes(bits // 8, "little")
        return
    if machine != AARCH64:
        raise ObjectError(f"relocation type {kind} of x86-64 is not supported")
    word = int.from_bytes(image[at : at + 4], "little")
    image[at : at + 4] = _arm_word(word, kind, target, place).to_bytes(4, "little")


def _arm_word(word: int, kind: int, target: int, place: int) -> int:
    """An instruction with the field for `target` filled in."""
    if kind in _ARM_MOVW:
        part, checked = _ARM_MOVW[kind]
        if checked and target >> (16 * part + 16):
            raise ObjectError(f"relocation MOVW_UABS_G{part}: {target:#x} does not fit")
        return word & ~(0xFFFF << 5) | (target >> (16 * part) & 0xFFFF) << 5
    if kind in _ARM_LOW12:
        scale, low = _ARM_LOW12[kind], target & 0xFFF
        if low & ((1 << scale) - 1):
            raise ObjectError(f"relocation LDST{8 << scale}_ABS_LO12_NC: {target:#x} is not aligned")
        return word & ~(0xFFF << 10) | (low >> scale) << 10
    if kind in _ARM_PAGE:
        pages = (target >> 12) - (place >> 12)
        if kind == _ARM_PAGE[0] and not -(1 << 20) <= pages < 1 << 20:
            raise ObjectError(f"relocation ADR_PREL_PG_HI21: {pages} pages are too far")
        return word & ~(3 << 29 | 0x7FFFF << 5) | (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5
    if kind in _ARM_BRANCH:
        distance = target - place
        if distance & 3 or not -(1 << 27) <= distance < 1 << 27:
            raise ObjectError(f"relocation CALL26: {distance} bytes are too far or odd")
        return word & ~0x3FFFFFF | distance >> 2 & 0x3FFFFFF
    raise ObjectError(f"relocation type {kind} of AArch64 is not supported")


def stub(machine: int, address: int) -> bytes:
    """Code that goes on at any address: for calls whose own reach is short."""
    if machine == X86_64:
        return struct.pack("<HIQH", 0x25FF, 0, address, 0x9090)  # jmp [rip + 0]
    return struct.pack("<IIQ", 0x58000050, 0xD61F0200, address)  # ldr x16, .+8; br x16


def external(name: str) -> int:
    """Address of a function of the C library that kernels may call."""
    if name not in EXTERNAL:
        raise ObjectError(f"the function {name!r} is not one that kernels may call")
    for library in ("ucrtbase",) if sys.platform == "win32" else (None, "libm.so.6"):
        try:
            return ctypes.cast(getattr(ctypes.CDLL(library), name), ctypes.c_void_p).value or 0
        except (AttributeError, OSError):
            continue
    raise ObjectError(f"the C library has no {name!r}")


class Image:
    """Object files laid out one after the other, and behind them a stub for every outside function."""

    def __init__(self, files: Sequence[ObjectFile]) -> None:
        self.files = files
        self._places: dict[tuple[int, int], int] = {}  # (file, section) -> offset
        self._stubs: dict[str, int] = {}
        size = 0
        for f, file in enumerate(files):
            for i in file.loaded:
                align = max(1, file.sections[i].align)
                self._places[f, i] = size = -(-size // align) * align
                size += file.sections[i].size
        self.size = -(-size // _STUB_BYTES) * _STUB_BYTES
        for file in files:
            for *_, symbol, _ in file.relocations():
                if not symbol.section and symbol.name not in self._stubs:
                    self._stubs[symbol.name] = self.size
                    self.size += _STUB_BYTES

    def bind(self, base: int) -> bytearray:
        """The bytes of the image for the address `base`."""
        image = bytearray(self.size)
        for (f, i), at in self._places.items():
            section = self.files[f].sections[i]
            image[at : at + section.size] = self.files[f].span(section.offset, section.size, section.name)
        for name, at in self._stubs.items():
            image[at : at + _STUB_BYTES] = stub(self.files[0].machine, external(name))
        for f, file in enumerate(self.files):
            for i, offset, kind, symbol, addend in file.relocations():
                at = self._places[f, i]
                end, target = at + file.sections[i].size, base + self._find(f, symbol) + addend
                relocate(image, at + offset, end, file.machine, kind, target, base + at + offset)
        return image

    def offset(self, f: int, name: str) -> int:
        """Where the function `name` of file number f lies."""
        found = next((s for s in self.files[f].symbols if s.name == name and s.section), None)
        if found is None:
            raise ObjectError(f"there is no symbol {name!r}")
        return self._find(f, found)

    def _find(self, f: int, symbol: Symbol) -> int:
        if not symbol.section:
            return self._stubs[symbol.name]
        if (f, symbol.section) not in self._places:
            raise ObjectError(f"symbol {symbol.name!r} lies in section {symbol.section}, which is not loaded")
        if symbol.value > self.files[f].sections[symbol.section].size:
            raise ObjectError(f"symbol {symbol.name!r} lies outside its section")
        return self._places[f, symbol.section] + symbol.value


def link(objects: Sequence[tuple[bytes, str]], machine: int) -> list[int]:
    """Addresses of one function each from object files (bytes, symbol) for `machine`, which stay in memory for good."""
    files = [ObjectFile(data) for data, _ in objects]
    for file in files:
        if file.machine != machine:
            raise ObjectError(f"is for machine {file.machine}, not {machine}")
    image = Image(files)
    offsets = [image.offset(f, symbol) for f, (_, symbol) in enumerate(objects)]
    code = Code(image.size)
    code.seal(image.bind(code.address))
    return [code.address + offset for offset in offsets]
