"""Reads what must be known of a 64-bit little-endian ELF object before it is loaded.

    read_elf(image)      a shared object of the host target: what it needs and offers; nothing runs as it is loaded
    read_object(image)   what g++ made of a candidate, before linking: the names that it defines, its constructors
    sections(image)      the section headers, of a cubin too

`read_elf` believes what the loader believes: the program headers and the DYNAMIC segment, at the addresses where
they will lie. It takes only what our own linker writes (tags, relocations and segments by allow-list), and section
headers that tell the same story, so that no second reader can be told another one.
"""

from __future__ import annotations

import platform
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from cudal1_compile.errors import BuildError

PAGE = 4096
ET_REL, ET_DYN = 1, 3
MACHINES = {"x86_64": 62, "aarch64": 183}

SHT_PROGBITS, SHT_SYMTAB, SHT_DYNAMIC, SHT_DYNSYM = 1, 2, 6, 11
SHF_WRITE, SHF_TLS, SHF_EXCLUDE = 1, 0x400, 0x80000000
RUN_AT_LOAD = re.compile(
    r"\.(?:init|fini|preinit_array|ctors|dtors)\b|\.(?:init|fini)_array\b"
)  # names of sections
SHT_ARRAYS = (14, 15, 16)  # INIT, FINI, PREINIT
PT_LOAD, PT_DYNAMIC, PT_TLS, PT_GNU_STACK, PT_GNU_RELRO = 1, 2, 7, 0x6474E551, 0x6474E552
# besides: NOTE, PHDR, GNU_EH_FRAME, GNU_PROPERTY
SEGMENTS = {PT_LOAD, PT_DYNAMIC, PT_TLS, PT_GNU_STACK, PT_GNU_RELRO, 4, 6, 0x6474E550, 0x6474E553}
EXECUTABLE, WRITABLE = 1, 2

DT_NEEDED, DT_PLTRELSZ, DT_HASH, DT_STRTAB, DT_SYMTAB, DT_RELA, DT_RELASZ = 1, 2, 4, 5, 6, 7, 8
DT_RELAENT, DT_STRSZ, DT_SYMENT, DT_PLTREL, DT_JMPREL, DT_FLAGS, DT_FLAGS_1 = 9, 10, 11, 20, 23, 30, 0x6FFFFFFB
DT_VERSYM, DT_VERNEED = 0x6FFFFFF0, 0x6FFFFFFE
TAGS = {
    *(DT_NEEDED, DT_PLTRELSZ, DT_HASH, DT_STRTAB, DT_SYMTAB, DT_RELA, DT_RELASZ, DT_RELAENT, DT_STRSZ, DT_SYMENT),
    *(DT_PLTREL, DT_JMPREL, DT_FLAGS, DT_FLAGS_1),
    3,  # PLTGOT
    24,  # BIND_NOW
    *(DT_VERSYM, DT_VERNEED, 0x6FFFFFF9, 0x6FFFFFFF),  # RELACOUNT, VERNEEDNUM
}
FLAGS = {DT_FLAGS: 0x18, DT_FLAGS_1: 1}  # BIND_NOW, STATIC_TLS; NOW
NAMED_TAGS = {
    12: "DT_INIT",
    13: "DT_FINI",
    25: "DT_INIT_ARRAY",
    26: "DT_FINI_ARRAY",
    32: "DT_PREINIT_ARRAY",
    15: "DT_RPATH",
    29: "DT_RUNPATH",
    22: "DT_TEXTREL",
    0x7FFFFFFD: "DT_AUXILIARY",
    0x7FFFFFFF: "DT_FILTER",
}
LIBRARIES = {"libm.so.6", "libc.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}  # the runner has them all
# RELATIVE, GLOB_DAT, JUMP_SLOT, an address, and of thread-local storage: module, offset, offset in the static part
RELOCATIONS = {62: {8, 6, 7, 1, 16, 17, 18}, 183: {1027, 1025, 1026, 257, 1028, 1029, 1030, 1031}}
SYMBOL_TYPES = {0, 1, 2, 3, 4, 6}  # no IFUNC
SYMBOL_BINDINGS = {0, 1, 2}  # no GNU_UNIQUE

_Words = tuple[int, ...]


@dataclass(frozen=True)
class ElfFacts:
    undefined: frozenset[str]  # dynamic symbols that somebody else must provide
    defined: frozenset[str]  # dynamic symbols that others can find
    tls_bytes: int  # thread-local storage: the static shared memory of host kernels


@dataclass(frozen=True)
class ObjectFacts:
    defined: frozenset[str]  # names that the linker sees
    arrays: tuple[str, ...]  # sections of functions that would run at load or unload
    state: tuple[str, ...]  # sections of data that could be written after loading, of no thread


def read_elf(image: bytes) -> ElfFacts:
    """Raises BuildError for anything but a shared object in which nothing runs when it is loaded."""
    try:
        return _read(image)
    except (struct.error, LookupError, ValueError, OverflowError) as error:
        raise BuildError(f"the image is no whole ELF object: {error}") from None


def read_object(image: bytes) -> ObjectFacts:
    """Of a relocatable object as g++ writes it. Raises BuildError for anything else."""
    _check_header(image, ET_REL)
    found, names = sections(image), section_names(image)
    arrays = [
        name
        for name, section in zip(names, found, strict=True)
        if section[1] in SHT_ARRAYS or RUN_AT_LOAD.match(name) and not section[2] & SHF_EXCLUDE
    ]
    defined = set()
    for symbols in (s for s in found if s[1] == SHT_SYMTAB):
        for name, info, index in _symbols(image, symbols[4], symbols[5] // 24):
            if info >> 4 and index:
                defined.add(_text(image, found[symbols[6]][4] + name))
            if info & 15 not in SYMBOL_TYPES or info >> 4 not in SYMBOL_BINDINGS:
                raise BuildError("device code may not hold functions that are chosen as they are loaded")
    state = [n for n, s in zip(names, found, strict=True) if _is_state(n, s)]
    return ObjectFacts(frozenset(defined), tuple(arrays), tuple(state))


def _is_state(name: str, section: _Words) -> bool:
    written = section[2] & (SHF_WRITE | SHF_TLS) == SHF_WRITE and section[5] > 0
    return written and not name.startswith(".data.rel.ro")


def without_section(image: bytes, name: str) -> bytes:
    """A relocatable object of which the linker leaves out the sections of that name."""
    (shoff,) = struct.unpack_from("<Q", image, 40)
    changed = bytearray(image)
    for i, (found, section) in enumerate(zip(section_names(image), sections(image), strict=True)):
        if found == name:
            struct.pack_into("<IQ", changed, shoff + i * 64 + 4, SHT_PROGBITS, section[2] | SHF_EXCLUDE)
    return bytes(changed)


def sections(image: bytes) -> list[_Words]:
    """Name, type, flags, address, offset, size, link, info, alignment, entry size of each."""
    (shoff,) = struct.unpack_from("<Q", image, 40)
    (shnum,) = struct.unpack_from("<H", image, 60)
    return [struct.unpack_from("<IIQQQQIIQQ", image, shoff + i * 64) for i in range(shnum)]


def section_names(image: bytes) -> list[str]:
    """In the order of `sections`."""
    found = sections(image)
    strings = found[struct.unpack_from("<H", image, 62)[0]][4]
    return [_text(image, strings + s[0]) for s in found]


class _Memory:
    """The object as it will lie in memory: its PT_LOAD segments, by address."""

    def __init__(self, image: bytes, segments: list[_Words]) -> None:
        self._image = image
        self._loads = [s for s in segments if s[0] == PT_LOAD]
        end = 0
        for _, flags, offset, address, _, in_file, in_memory, _ in self._loads:
            if flags & EXECUTABLE and flags & WRITABLE:
                raise BuildError("a segment of the image is both writable and executable")
            if address // PAGE * PAGE < end or offset % PAGE != address % PAGE or in_file > in_memory:
                raise BuildError("segments of the image overlap")
            if offset + in_file > len(image):
                raise BuildError("the image ends before its segments do")
            end = -(-(address + in_memory) // PAGE) * PAGE

    def offset(self, address: int, size: int) -> int:
        """Where bytes that will lie there stand in the file."""
        for _, _, offset, start, _, in_file, _, _ in self._loads:
            if start <= address and address + size <= start + in_file:
                return offset + address - start
        raise BuildError(f"the image refers to {size} bytes at {address:#x} that it does not hold")

    def is_writable(self, address: int, size: int) -> bool:
        return any(s[1] & WRITABLE and s[3] <= address and address + size <= s[3] + s[6] for s in self._loads)


def _read(image: bytes) -> ElfFacts:
    _check_header(image, ET_DYN)
    machine, phoff = struct.unpack_from("<H", image, 18)[0], struct.unpack_from("<Q", image, 32)[0]
    (phnum,) = struct.unpack_from("<H", image, 56)
    segments = [struct.unpack_from("<IIQQQQQQ", image, phoff + i * 56) for i in range(phnum)]
    _check_segments(segments)
    memory = _Memory(image, segments)
    (_, _, at, address, _, size, _, _) = next(s for s in segments if s[0] == PT_DYNAMIC)
    if memory.offset(address, size) != at:
        raise BuildError("the image's DYNAMIC segment lies elsewhere in memory than in the file")
    needed, tags = _dynamic(image, at, size)
    _check_places(memory, segments, tags)
    strings = memory.offset(tags[DT_STRTAB], tags[DT_STRSZ])
    texts = image[strings : strings + tags[DT_STRSZ]]
    if foreign := sorted({_text(texts, n) for n in needed} - LIBRARIES):
        raise BuildError(f"the image needs the library {foreign[0]!r}")
    (count,) = struct.unpack_from("<I", image, memory.offset(tags[DT_HASH], 8) + 4)
    table = memory.offset(tags[DT_SYMTAB], 24 * count)
    _check_sections(image, tags[DT_SYMTAB], count, address, size)
    undefined: set[str] = set()
    defined: set[str] = set()
    for name, info, index in _symbols(image, table, count):
        if info & 15 not in SYMBOL_TYPES or info >> 4 not in SYMBOL_BINDINGS:
            raise BuildError("device code may not hold functions that are chosen as they are loaded")
        if name:
            (defined if index else undefined).add(_text(texts, name))
    for start, length in ((DT_RELA, DT_RELASZ), (DT_JMPREL, DT_PLTRELSZ)):
        if start in tags:
            rows = memory.offset(tags[start], tags[length])
            for row in struct.iter_unpack("<QQQ", image[rows : rows + tags[length]]):
                _check_relocation(memory, row, machine, count, range(address - 7, address + size))
    return ElfFacts(frozenset(undefined), frozenset(defined), sum(s[6] for s in segments if s[0] == PT_TLS))


def _check_header(image: bytes, kind: int) -> None:
    if image[:6] != b"\x7fELF\x02\x01":
        raise BuildError(f"the image begins with {image[:6]!r}: not a 64-bit little-endian ELF object")
    found, machine = struct.unpack_from("<HH", image, 16)
    (entry,) = struct.unpack_from("<Q", image, 24)
    _, segment_bytes, _, section_bytes, count, _ = struct.unpack_from("<6H", image, 52)
    if found != kind or entry or machine != MACHINES.get(platform.machine(), machine):
        raise BuildError(f"the image is an ELF file of type {found} for machine {machine}, entry {entry:#x}")
    if section_bytes != 64 or (kind == ET_DYN and segment_bytes != 56) or not count:
        raise BuildError("the image has no section headers, which ours have")


def _check_segments(segments: list[_Words]) -> None:
    kinds = [s[0] for s in segments]
    if foreign := sorted(set(kinds) - SEGMENTS):
        raise BuildError(f"the image has a segment of type {foreign[0]:#x}")
    if kinds.count(PT_DYNAMIC) != 1 or kinds.count(PT_TLS) > 1:
        raise BuildError("the image needs one DYNAMIC segment, and at most one of thread-local storage")
    if any(s[1] & EXECUTABLE for s in segments if s[0] == PT_GNU_STACK):
        raise BuildError("the image asks for an executable stack")


def _check_places(memory: _Memory, segments: list[_Words], tags: dict[int, int]) -> None:
    """That what the loader reads or protects besides lies within the object."""
    for kind, _, _, address, _, in_file, in_memory, alignment in segments:
        if kind == PT_TLS and in_file:
            memory.offset(address, in_file)
        if kind == PT_TLS and (in_file > in_memory or alignment > PAGE):
            raise BuildError(
                f"the image has {in_memory} bytes of thread-local storage at multiples of {alignment}"
            )
        if kind == PT_GNU_RELRO and not memory.is_writable(address, 1):
            raise BuildError(f"the image protects {address:#x}, which is no data")
    for tag in (DT_VERNEED, DT_VERSYM):
        if tag in tags:
            memory.offset(tags[tag], 2)


def _dynamic(image: bytes, at: int, size: int) -> tuple[list[int], dict[int, int]]:
    """The libraries that it needs (places in the string table) and the value of every other tag."""
    needed: list[int] = []
    tags: dict[int, int] = {}
    for tag, value in struct.iter_unpack("<QQ", image[at : at + size]):
        if tag == 0:
            break
        if tag not in TAGS or tag in tags or value & ~FLAGS.get(tag, value):
            name = NAMED_TAGS.get(tag, f"the tag {tag:#x} with {value:#x}")
            raise BuildError(f"the image has {name}: nothing may run as it is loaded")
        if tag == DT_NEEDED:
            needed.append(value)
        else:
            tags[tag] = value
    if lacking := {DT_HASH, DT_STRTAB, DT_STRSZ, DT_SYMTAB} - tags.keys():
        raise BuildError(f"the image lacks the tag {min(lacking)}")
    for tag, value in ((DT_SYMENT, 24), (DT_RELAENT, 24), (DT_PLTREL, DT_RELA)):
        if tags.get(tag, value) != value:
            raise BuildError(f"the image has tables of another kind (tag {tag}: {tags[tag]})")
    return needed, tags


def _check_sections(image: bytes, symbols: int, count: int, dynamic: int, dynamic_bytes: int) -> None:
    """That the section headers say what the DYNAMIC segment says."""
    found = sections(image)
    told = [(s[3], s[5]) for s in found if s[1] == SHT_DYNSYM]
    if told != [(symbols, 24 * count)]:
        raise BuildError(f"the image's section headers disagree with its DYNAMIC segment: symbols at {told}")
    if [(s[3], s[5]) for s in found if s[1] == SHT_DYNAMIC] != [(dynamic, dynamic_bytes)]:
        raise BuildError("the image's section headers disagree with its DYNAMIC segment")
    if any(s[1] in SHT_ARRAYS for s in found):
        raise BuildError("device code may not hold variables that are initialised at run time")


def _check_relocation(memory: _Memory, row: _Words, machine: int, symbols: int, dynamic: range) -> None:
    where, info, _ = row
    if info & 0xFFFFFFFF not in RELOCATIONS[machine] or info >> 32 >= symbols:
        raise BuildError(
            f"the image has a relocation of type {info & 0xFFFFFFFF}: nothing may run as it is loaded"
        )
    if where in dynamic or not memory.is_writable(where, 8):
        raise BuildError(f"the image has a relocation at {where:#x}, which is no data")


def _symbols(image: bytes, table: int, count: int) -> Iterator[tuple[int, int, int]]:
    """Name (a place in the string table), type and binding, section (0: undefined)."""
    for at in range(table, table + 24 * count, 24):
        name, info, _, index = struct.unpack_from("<IBBH", image, at)
        yield name, info, index


def _text(image: bytes, start: int) -> str:
    return image[start : image.index(b"\0", start)].decode("ascii")
