"""Edits as data: what they change, by how much, and their one line each.

    stage 0: vector 8             elements that a thread moves at once
    stage 0: block 384            threads of a block, any multiple of 32
    stage 0: loads in flight 4    tiles of a product, or vectors that a thread loads before it uses one
    f0: unroll 8                  loops whose turns have no registers of their own
    f0: chains 2                  sums of a vector's elements, apart from each other and from other vectors' sums
    f0: loads first               a thread's vectors are all loaded before one of them is used
    f0: stream stores             results leave the caches first
    f0: swizzle 8                 blocks side by side that are worked on together, of a grid of two dimensions
    f0: min blocks 4              that share an SM: what the compiler may take of its registers

Whether an edit is legal is not decided here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

# by knob, in the order in which they are applied: what may be drawn; 0 where a knob takes no value
STAGE_VALUES: dict[str, tuple[int, ...]] = {
    "vector": (1, 2, 4, 8, 16),
    "block": (96, 160, 192, 224, 320, 384, 448, 640, 768, 896),
    "loads in flight": (2, 3, 4, 5, 6, 8),
}
KERNEL_VALUES: dict[str, tuple[int, ...]] = {
    "unroll": (1, 2, 4, 8, 16),
    "chains": (1, 2, 4),
    "loads first": (0,),
    "stream stores": (0,),
    "swizzle": (1, 2, 4, 8, 16),
    "min blocks": (2, 3, 4, 6, 8),
}
_STAGE = re.compile(rf"stage (\d{{1,3}}): ({'|'.join(STAGE_VALUES)}) ([1-9]\d{{0,4}})", re.ASCII)
_KERNEL = re.compile(rf"(f\d{{1,3}}): ({'|'.join(KERNEL_VALUES)})(?: ([1-9]\d{{0,4}}))?", re.ASCII)


class IllegalEdit(ValueError):
    """An edit that cannot be read, or not be made here; the sentence goes into the next prompt."""


@dataclass(frozen=True, slots=True)
class StageEdit:
    """Sets a field of a stage's schedule. stage: its number; knob: one of STAGE_VALUES."""

    stage: int
    knob: str
    value: int

    def __str__(self) -> str:
        return f"stage {self.stage}: {self.knob} {self.value}"

    @property
    def place(self) -> tuple[str, str]:
        """What no two edits may change."""
        return f"stage {self.stage}", self.knob


@dataclass(frozen=True, slots=True)
class KernelEdit:
    """Changes a kernel's text. kernel: its name; knob: one of KERNEL_VALUES; value: 0 where it takes none."""

    kernel: str
    knob: str
    value: int = 0

    def __str__(self) -> str:
        return f"{self.kernel}: {self.knob}{f' {self.value}' if self.value else ''}"

    @property
    def place(self) -> tuple[str, str]:
        """What no two edits may change."""
        return self.kernel, self.knob


Edit = StageEdit | KernelEdit


def print_edits(edits: Sequence[Edit]) -> str:
    """One a line."""
    return "\n".join(map(str, edits))


def parse_edits(text: str) -> tuple[Edit, ...]:
    """What print_edits gave, blank lines left out; raises IllegalEdit for a line that is none."""
    return tuple(_parse(line.strip()) for line in text.splitlines() if line.strip())


def _parse(line: str) -> Edit:
    found: Edit | None = None
    if m := _STAGE.fullmatch(line):
        found = StageEdit(int(m[1]), m[2], int(m[3]))
    elif m := _KERNEL.fullmatch(line):
        found = KernelEdit(m[1], m[2], int(m[3] or 0))
    takes_none = isinstance(found, KernelEdit) and KERNEL_VALUES[found.knob] == (0,)
    if found is None or str(found) != line or (isinstance(found, KernelEdit) and takes_none == (found.value > 0)):
        raise IllegalEdit(f"{line[:80]!r} is no edit; expected a line like 'stage 0: block 384' or 'f0: unroll 4'")
    return found
