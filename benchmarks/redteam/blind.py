"""The blind red team: attacks by an author who knew the public rules of a reply, and nothing of the judge."""

from __future__ import annotations

from benchmarks.redteam import blind_memory as memory
from benchmarks.redteam import blind_text as text
from benchmarks.redteam import blind_values as values
from benchmarks.redteam import blind_work as work
from benchmarks.redteam.attack import Attack

BLIND: tuple[Attack, ...] = (
    *(*values.PRECISION, *values.NONFINITE, *values.BRANCHES),
    *(*memory.RACES, *memory.STALE, *memory.BOUNDS, *memory.SURROUNDINGS),
    *(*work.SKIPPED, *work.LAYOUTS, *work.SIZES),
    *(*text.STATE, *text.COMPILER, *text.PLAN, *text.CLOCK),
)
