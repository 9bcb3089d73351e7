"""From a place in a built host object to a line of the candidate, by addr2line. None where that is not known."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from cudal1_compile.errors import BuildError
from cudal1_compile.runtime.source import CANDIDATE_NAME
from cudal1_compile.runtime.toolchain import run


def candidate_line(image: Path, offset: int) -> int | None:
    """The innermost line of the candidate's own code at an offset; functions of the header are looked through."""
    tool = shutil.which("addr2line")
    if tool is None:
        return None
    try:
        text = run([tool, "-i", "-e", str(image), hex(offset)], limit_s=10.0).stdout
    except (BuildError, OSError):
        return None
    found = re.search(rf"{re.escape(CANDIDATE_NAME)}:(\d+)", text)
    return int(found[1]) if found else None
