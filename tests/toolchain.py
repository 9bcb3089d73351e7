"""What of the tools that tests need this machine has."""

from __future__ import annotations

from cudal1_compile.errors import BuildError
from cudal1_compile.runtime import nvrtc


def has_nvrtc() -> bool:
    try:
        nvrtc.library()
    except BuildError:
        return False
    return True
