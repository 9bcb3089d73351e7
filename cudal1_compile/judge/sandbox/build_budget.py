"""The time that slow builds of one region may take together: a text that no compiler finishes costs its limit.

    grant(region, most_s) -> CPU seconds for one build: USUAL_S, and what the region has left beyond that

Honest builds take less than USUAL_S, or little more, so they find it untouched. What
builds take is told by the wall clock: a busy machine uses the region's time up earlier, and then each build still
has USUAL_S of CPU time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from cudal1_compile.errors import BuildError

USUAL_S = 2.0  # of CPU time, that every build may take
USED_UP = "the region's time for slow builds is used up"


class BuildBudget:
    """Of one judge, which lasts for a call of synthesis. For several threads at once."""

    def __init__(self, slow_s: float) -> None:
        """slow_s: CPU time beyond USUAL_S, of all builds of a region."""
        self._slow_s = slow_s
        self._left_s: dict[str, float] = {}
        self._lock = threading.Lock()

    @contextmanager
    def grant(self, region: str, most_s: float) -> Iterator[float]:
        """Yields the limit of one build, at most `most_s`. One that meets a lower limit says so."""
        begin, granted_s = time.monotonic(), self._take(region, most_s - USUAL_S)
        limit_s = min(most_s, USUAL_S + granted_s)
        try:
            yield limit_s
        except BuildError as error:
            if limit_s < most_s and "CPU time" in str(error):
                raise BuildError(f"{error}; {USED_UP}: {limit_s:.1f} s were left to this one") from None
            raise
        finally:
            used_s = max(0.0, time.monotonic() - begin - USUAL_S)
            self._give_back(region, max(0.0, granted_s - used_s))

    def _take(self, region: str, wanted_s: float) -> float:
        with self._lock:
            left_s = self._left_s.get(region, self._slow_s)
            taken_s = min(left_s, max(0.0, wanted_s))
            self._left_s[region] = left_s - taken_s
            return taken_s

    def _give_back(self, region: str, seconds: float) -> None:
        with self._lock:
            self._left_s[region] += seconds
