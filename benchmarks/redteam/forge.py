"""Objects that our linker never wrote: a good one with a few bytes changed: loaders and readers may differ.

forged_objects(image)  a host kernel's        forged_cubins(image)  a GPU's
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from cudal1_compile.runtime.elf import (
    DT_FLAGS,
    DT_FLAGS_1,
    DT_HASH,
    DT_JMPREL,
    DT_NEEDED,
    DT_PLTRELSZ,
    DT_RELA,
    DT_RELASZ,
    DT_VERNEED,
    PT_DYNAMIC,
    PT_GNU_RELRO,
    PT_GNU_STACK,
    PT_LOAD,
    PT_TLS,
    SHT_DYNSYM,
    section_names,
    sections,
)

PT_NOTE, PT_INTERP = 4, 3
DT_BIND_NOW = 24
DT_INIT, DT_FINI, DT_INIT_ARRAY, DT_INIT_ARRAYSZ, DT_RUNPATH, DT_AUDIT = 12, 13, 25, 27, 29, 0x6FFFFEFC
IFUNC = {62: 37, 183: 1032}  # IRELATIVE, by machine


class Forge:
    """An object that is being changed. Places are offsets of a header's first byte."""

    def __init__(self, image: bytes) -> None:
        self.image = bytearray(image)
        self.first = bytes(image)
        (self.machine,) = struct.unpack_from("<H", image, 18)

    def put(self, at: int, form: str, *values: int) -> Forge:
        struct.pack_into(f"<{form}", self.image, at, *values)
        return self

    def get(self, at: int, form: str = "Q") -> int:
        (value,) = struct.unpack_from(f"<{form}", self.first, at)
        return int(value)

    def segment(self, kind: int) -> int:
        """Of the first program header of a kind."""
        start, count = self.get(32), self.get(56, "H")
        return next(at for at in range(start, start + 56 * count, 56) if self.get(at, "I") == kind)

    def section(self, kind: int) -> int:
        start = self.get(40)
        return next(start + 64 * i for i, s in enumerate(sections(self.first)) if s[1] == kind)

    def tag(self, tag: int) -> int:
        """Of an entry of the DYNAMIC segment."""
        start = self.get(self.segment(PT_DYNAMIC) + 8)
        return next(at for at in range(start, start + 4096, 16) if self.get(at) == tag)

    def at_address(self, address: int) -> int:
        """The offset of what will lie there."""
        start, count = self.get(32), self.get(56, "H")
        for at in range(start, start + 56 * count, 56):
            offset, low, size = self.get(at + 8), self.get(at + 16), self.get(at + 32)
            if self.get(at, "I") == PT_LOAD and low <= address < low + size:
                return offset + address - low
        raise ValueError(f"{address:#x} is in no segment")

    def symbol(self, name: str) -> int:
        """Of a dynamic symbol."""
        table = self.section(SHT_DYNSYM)
        strings = sections(self.first)[self.get(table + 40, "I")][4]
        start, size = self.get(table + 24), self.get(table + 32)
        wanted = name.encode() + b"\0"
        return next(
            at
            for at in range(start, start + size, 24)
            if self.first.startswith(wanted, strings + self.get(at, "I"))
        )

    def relocation(self) -> int:
        """The first one of a function."""
        return self.at_address(self.get(self.tag(DT_JMPREL) + 8))

    @property
    def entry(self) -> int:
        """The address of the kernel."""
        return self.get(self.symbol("cudal1_touch_shared") + 8)


_OBJECTS: dict[str, Callable[[Forge], object]] = {
    "no section headers": lambda f: f.put(60, "H", 0).put(62, "H", 0),
    "section headers elsewhere": lambda f: f.put(40, "Q", 0),
    "an initialiser in place of a flag": lambda f: f.put(f.tag(DT_FLAGS), "QQ", DT_INIT, f.entry),
    "a finaliser in place of a flag": lambda f: f.put(f.tag(DT_FLAGS_1), "QQ", DT_FINI, f.entry),
    "an array of initialisers": lambda f: f.put(
        f.tag(DT_FLAGS), "QQ", DT_INIT_ARRAY, f.get(f.tag(DT_RELA) + 8)
    ).put(f.tag(DT_FLAGS_1), "QQ", DT_INIT_ARRAYSZ, 8),
    "a folder to look for libraries": lambda f: f.put(f.tag(DT_FLAGS), "QQ", DT_RUNPATH, 1),
    "a library that audits": lambda f: f.put(f.tag(DT_FLAGS), "QQ", DT_AUDIT, 1),
    "another library": lambda f: f.put(f.tag(DT_NEEDED) + 8, "Q", f.get(f.tag(DT_NEEDED) + 8) + 2),
    "a name beyond the string table": lambda f: f.put(f.tag(DT_NEEDED) + 8, "Q", 1 << 40),
    "a tag twice": lambda f: f.put(f.tag(DT_FLAGS), "Q", DT_FLAGS_1),
    "unknown flags": lambda f: f.put(f.tag(DT_FLAGS_1) + 8, "Q", 1 | 1 << 5),
    "a program's interpreter": lambda f: f.put(f.segment(PT_NOTE), "I", PT_INTERP),
    "an executable stack": lambda f: f.put(f.segment(PT_GNU_STACK) + 4, "I", 7),
    "a segment to write and run": lambda f: f.put(f.segment(PT_LOAD) + 4, "I", 7),
    "segments over each other": lambda f: f.put(f.segment(PT_LOAD) + 40, "Q", 1 << 20),
    "a DYNAMIC segment elsewhere in the file": lambda f: f.put(
        f.segment(PT_DYNAMIC) + 8, "Q", f.get(f.segment(PT_DYNAMIC) + 8) - 64
    ),
    "no DYNAMIC segment": lambda f: f.put(f.segment(PT_DYNAMIC), "I", PT_NOTE),
    "fewer symbols by the sections": lambda f: f.put(f.section(SHT_DYNSYM) + 32, "Q", 48),
    "fewer symbols by the hash table": lambda f: f.put(f.at_address(f.get(f.tag(DT_HASH) + 8)) + 4, "I", 2),
    "fewer symbols by both": lambda f: f.put(f.section(SHT_DYNSYM) + 32, "Q", 48).put(
        f.at_address(f.get(f.tag(DT_HASH) + 8)) + 4, "I", 2
    ),
    "more symbols than there are": lambda f: f.put(f.at_address(f.get(f.tag(DT_HASH) + 8)) + 4, "I", 1 << 28),
    "a relocation that calls": lambda f: f.put(f.relocation() + 8, "QQ", IFUNC[f.machine], f.entry),
    "a relocation over the DYNAMIC segment": lambda f: f.put(
        f.relocation(), "Q", f.get(f.segment(PT_DYNAMIC) + 16) + 8
    ),
    "a relocation over code": lambda f: f.put(f.relocation(), "Q", f.entry),
    "a table of relocations of odd size": lambda f: f.put(f.tag(DT_PLTRELSZ) + 8, "Q", 25),
    "a symbol that is chosen as it is loaded": lambda f: f.put(f.symbol("cudal1_touch_shared") + 4, "B", 0x1A),
    "a symbol of its own that is unique": lambda f: f.put(f.symbol("cudal1_touch_shared") + 4, "B", 0xA2),
    "a symbol of another name": lambda f: f.put(
        f.symbol("cudal1_touch_shared"), "I", f.get(f.symbol("expf"), "I")
    ),
    "relocations without their size": lambda f: f.put(f.tag(DT_RELASZ), "Q", DT_BIND_NOW),
    "functions' relocations without their size": lambda f: f.put(f.tag(DT_PLTRELSZ), "Q", DT_BIND_NOW),
    "segments beyond its end": lambda f: f.put(32, "Q", 1 << 62),
    "sections beyond its end": lambda f: f.put(40, "Q", 1 << 62),
    "more sections than there are": lambda f: f.put(60, "H", 65535),
    "storage of threads that begins beyond its end": lambda f: f.put(
        f.segment(PT_TLS) + 16, "QQQ", 1 << 40, 1 << 40, 8
    ),
    "storage of threads with more in the file": lambda f: f.put(f.segment(PT_TLS) + 32, "Q", 1 << 20),
    "storage of threads at multiples of a terabyte": lambda f: f.put(f.segment(PT_TLS) + 48, "Q", 1 << 40),
    "code that shall be protected as data": lambda f: f.put(f.segment(PT_GNU_RELRO) + 16, "Q", f.entry),
    "versions that are nowhere": lambda f: f.put(f.tag(DT_VERNEED) + 8, "Q", 1 << 40),
    "a DYNAMIC segment of odd size": lambda f: f.put(f.segment(PT_DYNAMIC) + 32, "Q", 17),
    "no segments": lambda f: f.put(56, "H", 0),
    "a program": lambda f: f.put(16, "H", 2),
    "an entry of its own": lambda f: f.put(24, "Q", f.entry),
    "another machine": lambda f: f.put(18, "H", 243),
}


def forged_objects(image: bytes) -> Iterator[tuple[str, bytes]]:
    """By what was changed. image: of a plain build of a kernel that calls expf."""
    for name, change in _OBJECTS.items():
        forge = Forge(image)
        change(forge)
        yield f"forged: {name}", bytes(forge.image)
    yield "forged: half of it", image[: len(image) // 2]
    yield "forged: its first page", image[:4096]


def forged_cubins(image: bytes) -> Iterator[tuple[str, bytes]]:
    """By what was changed."""
    names, found = section_names(image), sections(image)
    headers = struct.unpack_from("<Q", image, 40)[0]
    strings = found[struct.unpack_from("<H", image, 62)[0]][4]
    at = names.index(".nv.global.init") if ".nv.global.init" in names else names.index(".nv.callgraph")
    for new in (".init_array", ".fini_array", ".preinit_array", ".ctors", ".init", ".cudal1"):
        changed = bytearray(image)
        length = len(names[at]) + 1
        changed[strings + found[at][0] : strings + found[at][0] + length] = new.encode()[: length - 1].ljust(
            length, b"\0"
        )
        yield f"a cubin with the section {new}", bytes(changed)
    for kind, what in ((14, "initialisers"), (15, "finalisers"), (16, "first initialisers")):
        yield f"a cubin with a section of {what}", bytes(Forge(image).put(headers + 64 * at + 4, "I", kind).image)
    yield "a cubin without sections", bytes(Forge(image).put(60, "H", 0).image)
    yield "a cubin for a CPU", bytes(Forge(image).put(18, "H", 62).image)
    yield "half a cubin", image[: len(image) // 2]
    yield "PTX for a cubin", b".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k() { ret; }\n\0"
    yield "an archive for a cubin", b"\x50\xed\x55\xba\x01\x00\x10\x00" + bytes(64)
