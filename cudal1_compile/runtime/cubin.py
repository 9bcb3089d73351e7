"""What a GPU's image may hold: code and tables that wait to be launched, nothing that runs as it is loaded.

check_cubin(image)    raises BuildError for anything but such an ELF object (no PTX, no archive of images)
code_sections(image)  where the code of each kernel lies
"""

from __future__ import annotations

import re
import struct

from cudal1_compile.errors import BuildError
from cudal1_compile.runtime.elf import RUN_AT_LOAD, SHT_ARRAYS, section_names, sections

EM_CUDA = 190
PROGRAM_HEADERS = (("<Q", 32), ("<H", 54), ("<H", 56))  # where they begin, bytes of one, how many
SHT_IN_FILE = range(1, 8)  # code and data, tables, notes
# NVRTC's own families of sections, whatever a later version adds to them
_KNOWN = re.compile(r"|\.(?:text|nv|rela?\.(?:text|nv|debug)|debug|note)[.\w$]*|\.(?:shstr|str|sym)tab")


def check_cubin(image: bytes) -> None:
    """Raises BuildError, naming the section that has no place in a cubin."""
    try:
        (machine,) = struct.unpack_from("<H", image, 18)
        if image[:6] != b"\x7fELF\x02\x01" or machine != EM_CUDA:
            raise BuildError(f"the image begins with {image[:6]!r}: no ELF object for a GPU")
        start, size, count = (struct.unpack_from(form, image, at)[0] for form, at in PROGRAM_HEADERS)
        if start + size * count > len(image):
            raise BuildError("the image ends before its program headers do")
        for name, section in zip(section_names(image), sections(image), strict=True):
            runs = section[1] in SHT_ARRAYS or RUN_AT_LOAD.match(name)
            if runs or not _KNOWN.fullmatch(name):
                raise BuildError(f"the image has the section {name!r}: nothing may run as it is loaded")
            if section[1] in SHT_IN_FILE and section[4] + section[5] > len(image):
                raise BuildError(f"the image ends before its section {name!r} does")
    except (struct.error, IndexError, ValueError) as error:
        raise BuildError(f"the image is no whole ELF object: {error}") from None


def code_sections(image: bytes) -> list[tuple[int, int]]:
    """Offset and bytes of each .text section with a name of its own, as a cubin has one a kernel."""
    named = zip(section_names(image), sections(image), strict=True)
    return [(s[4], s[5]) for name, s in named if name.startswith(".text.")]
