"""What could not be run for a reason of the machine's: a closed list. It says nothing about a candidate.

    tool_trouble(said, returncode)     of a compiler or linker that failed
    exit_trouble(returncode)           of a child that ended without a report
    report_trouble(kind, detail)       of what the runner of host kernels reported

Each gives a MachineTrouble, or None where the failure is the text's. A text can bring some of them about itself,
by asking for too much or by words in an error message: those are not certain, and whoever judges runs a
known-good kernel right after (judge/bench/canary.py). Only where that one fails too it was the machine.
"""

from __future__ import annotations

import re
import signal
from typing import Literal

Reason = Literal["memory", "load", "killed", "header", "signal", "seal", "disk"]

SENTENCES: dict[Reason, str] = {
    "memory": "there is no memory for it",
    "load": "what was built cannot be opened",
    "killed": "a compiler was killed",
    "header": "the precompiled header cannot be read",
    "signal": "the process died",
    "seal": "no process can be sealed",
    "disk": "the disk is full",
}
NOT_FOUND = 127  # a process that ended so never came to its own code: the loader found no room, or no library

_MEMORY = re.compile(
    r"virtual memory exhausted|out of memory|cannot allocate|can't allocate|bad_alloc|memory exhausted"
    r"|failed to map segment|cannot map|OUT_OF_MEMORY",
    re.IGNORECASE,
)
_KILLED = re.compile(
    r"(?:Killed|Terminated|Hangup|Interrupt|Aborted|Bus error|Segmentation fault) signal terminated program"
    r"|terminated with signal (?:1|2|6|7|9|11|15)\b|internal compiler error"
)
_HEADER = re.compile(
    r"PCH file|precompiled header|had text segment at different address|fatal error: \S*host\.h: No such file"
)
_LOAD = re.compile(
    r"cannot open shared object|cannot create shared object|file too short|cannot read|Input/output error"
    r"|no request|no data file"
)
_OUR_LIMIT = "CPU time limit exceeded"
_DISK = re.compile(r"No space left on device|Disk quota exceeded")
_FROM_OUTSIDE = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)  # no sealed child sends these
# a limit on CPU time kills so, too; an abort without a report is the runner's own, before it took signals over
_PERHAPS_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGABRT)


class MachineTrouble(OSError):
    """No verdict: the machine could not run it. is_certain: no text can bring this about."""

    def __init__(self, reason: Reason, said: str, is_certain: bool = False) -> None:
        super().__init__(f"{SENTENCES[reason]}: {said}" if said else SENTENCES[reason])
        self.reason, self.is_certain = reason, is_certain

    @property
    def is_of_run(self) -> bool:
        """Not of a build."""
        return self.reason in ("load", "signal")


def tool_trouble(said: str, returncode: int) -> MachineTrouble | None:
    """returncode: as of subprocess. A tool that used up its CPU time is no trouble: the limit is ours."""
    if returncode == -signal.SIGXCPU or _OUR_LIMIT in said:
        return None
    if returncode < 0:
        return MachineTrouble("killed", _named(returncode))
    listed: tuple[tuple[Reason, re.Pattern[str]], ...] = (
        ("disk", _DISK),
        ("memory", _MEMORY),
        ("header", _HEADER),
        ("killed", _KILLED),
    )
    found = ((reason, line) for reason, pattern in listed if (line := _line(said, pattern)))
    return next((MachineTrouble(reason, line) for reason, line in found), None)


def exit_trouble(returncode: int) -> MachineTrouble | None:
    """Of a child for host kernels that reported nothing; its own faults it reports, or dies of other signals."""
    if returncode == NOT_FOUND:
        return MachineTrouble("load", "the process could not start", is_certain=True)
    if -returncode in _FROM_OUTSIDE:
        return MachineTrouble("signal", _named(returncode), is_certain=True)
    return MachineTrouble("signal", _named(returncode)) if -returncode in _PERHAPS_FROM_OUTSIDE else None


def report_trouble(kind: str, detail: str) -> MachineTrouble | None:
    """Buffers and their shadow are the region's, so that memory for them is never the code's fault."""
    if kind == "out_of_memory":
        return MachineTrouble("memory", detail, is_certain=True)
    if kind != "load_error":
        return None
    if _MEMORY.search(detail):
        return MachineTrouble("memory", detail)
    return MachineTrouble("load", detail) if _LOAD.search(detail) else None


def _line(said: str, pattern: re.Pattern[str]) -> str:
    """The first line that speaks of it."""
    return next((line.strip() for line in said.splitlines() if pattern.search(line)), "")


def _named(returncode: int) -> str:
    try:
        return signal.Signals(-returncode).name
    except ValueError:
        return f"signal {-returncode}"
