"""How the synthesis of one region ended.

Won           an entry with a kernel and its proof is stored
Unprofitable  everything planned was tried, nothing beat the fallback, or nothing need be tried (an entry
              `at_floor`) or can be (`untried`); that is stored too, with what the fallback is
Unfinished    time, generator or judge gave out before an answer; a later call goes on from what is stored
"""

from __future__ import annotations

from dataclasses import dataclass

from cudal1_cache.rows import Entry
from cudal1_compile.judge.verdict import Timing


@dataclass(frozen=True, slots=True)
class Won:
    entry: Entry


@dataclass(frozen=True, slots=True)
class Unprofitable:
    entry: Entry


@dataclass(frozen=True, slots=True)
class Unfinished:
    reason: str


Ending = Won | Unprofitable | Unfinished


@dataclass(frozen=True, slots=True)
class Outcome:
    fingerprint: str
    result: Ending
    attempts: int  # stored for this region and target, earlier calls included
    judged: int  # candidates that this call put before the judge
    proposed: int  # replies that this call got from the generator
    baselines: Timing | None = None  # as far as this call timed them

    @property
    def entry(self) -> Entry | None:
        """The kernel's entry; None without a win."""
        return self.result.entry if isinstance(self.result, Won) else None
