"""Reads what must be known of a 64-bit little-endian ELF object.

Of the host target's: which symbols it needs from outside, how much thread-local storage, whether code runs as it
is loaded. Of a cubin: where its code lies.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from cudal1_compile.errors import BuildError

SHT_INIT_ARRAY = 14
SHT_DYNSYM = 11
PT_TLS = 7


@dataclass(frozen=True)
class ElfFacts:
    undefined: frozenset[str]  # dynamic symbols that somebody else must provide
    tls_bytes: int  # thread-local storage: the static shared memory of host kernels
    initialisers: int  # functions that run when the object is loaded


def read_elf(image: bytes) -> ElfFacts:
    """Raises BuildError for anything that is not such an object."""
    if image[:6] != b"\x7fELF\x02\x01":
        raise BuildError(f"the image begins with {image[:6]!r}: not a 64-bit little-endian ELF object")
    (phoff,) = struct.unpack_from("<Q", image, 32)
    phentsize, phnum = struct.unpack_from("<HH", image, 54)
    segments = [struct.unpack_from("<IIQQQQQQ", image, phoff + i * phentsize) for i in range(phnum)]
    sections = _sections(image)
    return ElfFacts(
        undefined=frozenset(_undefined(image, sections)),
        tls_bytes=sum(s[6] for s in segments if s[0] == PT_TLS),
        initialisers=sum(s[5] // 8 for s in sections if s[1] == SHT_INIT_ARRAY),
    )


def code_sections(image: bytes) -> list[tuple[int, int]]:
    """Offset and bytes of each .text section with a name of its own, as a cubin has one a kernel."""
    sections = _sections(image)
    (names,) = struct.unpack_from("<H", image, 62)
    strings = sections[names][4]
    return [(s[4], s[5]) for s in sections if image.startswith(b".text.", strings + s[0])]


def _sections(image: bytes) -> list[tuple[int, ...]]:
    (shoff,) = struct.unpack_from("<Q", image, 40)
    shentsize, shnum = struct.unpack_from("<HH", image, 58)
    return [struct.unpack_from("<IIQQQQIIQQ", image, shoff + i * shentsize) for i in range(shnum)]


def _undefined(image: bytes, sections: list[tuple[int, ...]]) -> set[str]:
    found = set()
    for section in sections:
        if section[1] != SHT_DYNSYM:
            continue
        strings = sections[section[6]][4]
        for at in range(section[4], section[4] + section[5], 24):
            name, _, _, index = struct.unpack_from("<IBBH", image, at)
            if index == 0 and name:
                start = strings + name
                found.add(image[start : image.index(b"\0", start)].decode())
    return found
