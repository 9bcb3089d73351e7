"""What one process keeps between compiles: stores, generators, the time that synthesis may still take, totals.

Nothing here is made before it is needed: a warm start opens the store and nothing else.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import torch

from cudal1_cache.store import Store
from cudal1_compile.config import cache_dir
from cudal1_compile.dispatch import registry
from cudal1_compile.dispatch.kernel_cache import open_store
from cudal1_compile.generate.factory import make_generator
from cudal1_compile.generate.protocol import Generator
from cudal1_compile.inductor.graph_plan import GraphPlanned
from cudal1_compile.pipeline.first_calls import FirstCalls
from cudal1_compile.pipeline.trace import PassLog, PassRun
from cudal1_compile.synthesis.budget import ProcessBudget

LAST_PLANS = 32  # compiles that are remembered


@dataclass(frozen=True, slots=True)
class Totals:
    """Regions over all compiles of this process."""

    graphs: int = 0
    regions: int = 0
    hit: int = 0
    new: int = 0
    aten: int = 0
    unprofitable: int = 0
    at_floor: int = 0
    untried: int = 0
    untuned: int = 0

    def plus(self, plan: GraphPlanned) -> Totals:
        return Totals(
            self.graphs + 1,
            self.regions + len(plan.regions),
            self.hit + plan.count("hit"),
            self.new + plan.count("new"),
            self.aten + plan.count("aten"),
            self.unprofitable + plan.count("unprofitable"),
            self.at_floor + plan.count("at_floor"),
            self.untried + plan.count("untried"),
            self.untuned + plan.count("untuned"),
        )


@dataclass(frozen=True, slots=True)
class LastPlan:
    """One compile: what was decided for its graph, and the passes so far, a late backward's too."""

    plan: GraphPlanned
    passes: tuple[PassRun, ...]


class Session:
    """One a process; safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._making = threading.Lock()  # one generator at a time; nothing else waits for that
        self._stores: dict[Path, Store] = {}
        self._generators: dict[tuple[str, str], Generator] = {}
        self._granted_s: float | None = None  # the process budget's size, as the latest options gave it
        self._budget = ProcessBudget(0.0)
        self.totals = Totals()
        self._plans: deque[tuple[GraphPlanned, PassLog]] = deque(maxlen=LAST_PLANS)
        self.replies = 0  # that generators gave
        self.first_calls = FirstCalls()
        self.is_interrupted = False  # nothing is written any more

    def store(self, directory: Path | None) -> Store:
        """The kernel cache in a directory (by default the user's); the registry then loads from it too."""
        place = directory or cache_dir()
        with self._lock:
            if place not in self._stores:
                self._stores[place] = open_store(place)
            registry.use_store(self._stores[place])
            return self._stores[place]

    def generator(self, wanted: str | Generator, device: torch.device) -> Generator:
        """Raises GeneratorError, or ValueError for a text that names no generator."""
        if not isinstance(wanted, str):
            return wanted
        with self._making:
            key = (wanted, str(device))
            found = self._generators.get(key)
            if found is None:
                found = self._generators[key] = make_generator(wanted, str(device))
            return found

    def budget(self, process_budget_s: float) -> ProcessBudget:
        """The process's budget; a changed option changes its size, not what was spent."""
        with self._lock:
            self._budget.give_back(process_budget_s - (self._granted_s or 0.0))
            self._granted_s = process_budget_s
            return self._budget

    def reset(self) -> None:
        """With torch.compiler.reset(): no graph of before is called again, and kernels may be written again."""
        self.first_calls, self.is_interrupted = FirstCalls(), False

    def interrupt(self) -> None:
        """The generators go too: one that was interrupted may be in any state."""
        with self._lock:
            self.is_interrupted = True
            self._generators.clear()

    def end_if_interrupted(self) -> None:
        """For commands, of which Ctrl-C ends everything. Raises KeyboardInterrupt."""
        if self.is_interrupted:
            raise KeyboardInterrupt

    def count_replies(self, replies: int) -> None:
        with self._lock:
            self.replies += replies

    def count(self, plan: GraphPlanned) -> None:
        with self._lock:
            self.totals = self.totals.plus(plan)

    def remember(self, plan: GraphPlanned, passes: PassLog) -> None:
        """For `last_plans`; a later plan of the same compile takes its place."""
        with self._lock:
            for i, (_, known) in enumerate(self._plans):
                if known is passes:
                    self._plans[i] = (plan, passes)
                    return
            self._plans.append((plan, passes))

    def last_plans(self) -> tuple[LastPlan, ...]:
        with self._lock:
            return tuple(LastPlan(plan, passes.runs) for plan, passes in self._plans)


SESSION = Session()


def last_plans() -> tuple[LastPlan, ...]:
    """What this process's last compiles decided, the latest last, with their passes' names and seconds.

    At most LAST_PLANS of them; any thread may ask.
    """
    return SESSION.last_plans()
