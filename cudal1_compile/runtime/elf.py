"""Reads what the host target must know of a 64-bit little-endian ELF object.

That is: which symbols it needs from outside, how much thread-local storage, whether code runs as it is loaded.
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
    phoff, shoff = struct.unpack_from("<QQ", image, 32)
    phentsize, phnum, shentsize, shnum = struct.unpack_from("<HHHH", image, 54)
    segments = [struct.unpack_from("<IIQQQQQQ", image, phoff + i * phentsize) for i in range(phnum)]
    sections = [struct.unpack_from("<IIQQQQIIQQ", image, shoff + i * shentsize) for i in range(shnum)]
    return ElfFacts(
        undefined=frozenset(_undefined(image, sections)),
        tls_bytes=sum(s[6] for s in segments if s[0] == PT_TLS),
        initialisers=sum(s[5] // 8 for s in sections if s[1] == SHT_INIT_ARRAY),
    )


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
