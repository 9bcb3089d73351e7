"""What one synthesis may take, and what all of them together may take in one process.

A miss must never block for long: a graph waits at most Budget.seconds, a process at most the seconds of its
ProcessBudget. What does not fit is left for later; nothing is measured here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

GRAPH_S = 20.0
PROCESS_S = 120.0
TOO_LATE = 0.1  # share of the seconds with which no proposals are asked for any more
LAST_S = 6.0  # that are left as long as nobody waits: what begins then may be cut off


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of one call of synthesize or synthesize_all."""

    seconds: float = GRAPH_S  # of all regions together
    rounds: int = 3  # of proposals for a region; the first shows no exemplars
    samples_per_round: int = 8  # replies for a region in a round
    prompts_per_round: int = 2  # prompts with other exemplars in a contrastive round; share the samples
    regions_at_once: int | None = None  # whose prompts go to the generator in one call; None: as it likes best
    reserve: float = 0.15  # share of the time left that proposals leave to verdicts and examinations
    # when it is over (time.monotonic()), None as long as nobody waits; by default `seconds` after its beginning
    ends_s: Callable[[], float | None] | None = None

    def __post_init__(self) -> None:
        counts = (
            self.rounds,
            self.samples_per_round,
            self.prompts_per_round,
            1 if self.regions_at_once is None else self.regions_at_once,
        )
        if self.seconds < 0 or min(counts) < 1 or not 0 <= self.reserve < 1:
            raise ValueError(f"{self}: seconds >= 0, counts >= 1 and 0 <= reserve < 1 are possible")


@dataclass
class Timer:
    """The time of one call, started when it is made."""

    budget: Budget
    start: float = field(init=False)

    def __post_init__(self) -> None:
        self.start = time.monotonic()

    @property
    def left_s(self) -> float:
        usual_s = self.start + self.budget.seconds
        ends_s = usual_s if self.budget.ends_s is None else self.budget.ends_s()
        if ends_s is None:
            return max(LAST_S, usual_s - time.monotonic())
        return max(0.0, ends_s - time.monotonic())

    @property
    def rest(self) -> Budget:
        """For what follows within the same time."""
        return replace(self.budget, seconds=self.left_s)

    @property
    def proposals_left_s(self) -> float:
        """For the next proposals, so that there is time to judge and measure the best of them; 0 near the end."""
        left_s = self.left_s
        return (1 - self.budget.reserve) * left_s if left_s > TOO_LATE * self.budget.seconds else 0.0


class ProcessBudget:
    """Seconds of synthesis that are left to this process; safe to share between threads."""

    def __init__(self, seconds: float = PROCESS_S) -> None:
        self._left_s = seconds
        self._lock = threading.Lock()

    @property
    def left_s(self) -> float:
        return self._left_s

    def take(self, seconds: float) -> float:
        """Grants up to `seconds`; give back what was not used."""
        with self._lock:
            granted = min(seconds, max(0.0, self._left_s))
            self._left_s -= granted
            return granted

    def give_back(self, seconds: float) -> None:
        """A negative number books what a call took beyond its grant."""
        with self._lock:
            self._left_s += seconds
