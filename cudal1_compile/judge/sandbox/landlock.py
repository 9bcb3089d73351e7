"""A read-only file system for this process and its children, by Landlock: Linux 5.13, no privilege needed.

    restrict_writes(["/scratch"]) -> the kernel's Landlock version; 0 where it has none and nothing has changed

Where the version allows it, TCP (4) and signals to other processes (6) are refused too. Reading stays free. There
is no way back; threads that run already are not restricted, so call it before any is started.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Mapping

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # system calls, the same on every architecture
_ASK_VERSION = 1
_PATH_BENEATH = 1
_PR_SET_NO_NEW_PRIVS = 38

WRITE_FILE, REMOVE_DIR, REMOVE_FILE, MAKE_DIR, MAKE_REG = 1 << 1, 1 << 4, 1 << 5, 1 << 7, 1 << 8
_MAKE_OTHER = 1 << 6 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 12  # devices, sockets, pipes, links
RENAME, TRUNCATE = 1 << 13, 1 << 14  # since versions 2 and 3
ANY_WRITE = WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | _MAKE_OTHER | RENAME | TRUNCATE
_TCP = 1 << 0 | 1 << 1  # bind, connect
_SIGNALS = 1 << 1


def version() -> int:
    """Landlock's version in the running kernel, 0 where it has none."""
    return max(0, _call(_CREATE_RULESET, None, 0, _ASK_VERSION))


def restrict_writes(allowed: Mapping[str, int]) -> int:
    """Refuses every change of a file but the rights given for what lies under each folder. Raises OSError."""
    found = version()
    if not found:
        return 0
    handled = ANY_WRITE & ~(0 if found >= 2 else RENAME) & ~(0 if found >= 3 else TRUNCATE)
    fields = [handled, _TCP, _SIGNALS][: 1 + (found >= 4) + (found >= 6)]
    rules = _checked(_call(_CREATE_RULESET, struct.pack(f"={len(fields)}Q", *fields), 8 * len(fields), 0))
    try:
        for folder, rights in allowed.items():
            _allow(rules, folder, rights & handled)
        libc = ctypes.CDLL(None, use_errno=True)
        _checked(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        _checked(_call(_RESTRICT_SELF, rules, 0))
    finally:
        os.close(rules)
    return found


def _allow(rules: int, folder: str, rights: int) -> None:
    place = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _checked(_call(_ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", rights, place), 0))
    finally:
        os.close(place)


def _call(number: int, *arguments: int | bytes | None) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return int(libc.syscall(ctypes.c_long(number), *words))


def _checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
