"""What the compile of Inductor's variant tells of its graphs as it goes on, for whoever writes kernels meanwhile.

    the user's thread: begin(phase, graph), see(graph, partition) at the hook, end()
    the writer's:      next() -> the plan of what is whole by then, of which nothing has been looked up: the
                       inference's graphs, or the forward's, then the backward's too | None: nothing more comes

It sees what the collecting pass sees (inductor/collect.py), without tracing once more. A part that Inductor finds
in its cache does not come to the hook: `is_whole` tells whether all did.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from queue import Empty, SimpleQueue

import torch
from torch import fx

from cudal1_compile.generate.daemons import STEP_S
from cudal1_compile.inductor.collect import seen_at_hook
from cudal1_compile.inductor.graph_plan import GraphPhase, GraphPlanned
from cudal1_compile.pipeline.survey import Survey, unanswered
from cudal1_fx_passes.fusion.partition import Partition

log = logging.getLogger(__name__)


class Heard:
    def __init__(self, device: torch.device) -> None:
        self.plan: GraphPlanned | None = None  # the last one
        self._survey = Survey(device)
        self._begun: set[GraphPhase] = set()
        self._phase: GraphPhase = "inference"
        self._main: fx.Graph | None = None
        self._plans: SimpleQueue[GraphPlanned | None] = SimpleQueue()
        self._told = self._taken = 0  # plans
        self._is_broken = False

    def begin(self, phase: GraphPhase, graph: fx.Graph) -> None:
        self._phase, self._main = phase, graph
        self._begun.add(phase)

    def see(self, graph: fx.Graph, found: Partition) -> None:
        """Never raises: the compile is the user's."""
        try:
            self._survey.add(seen_at_hook(self._phase, graph, found))
            if graph is self._main:
                self.plan = unanswered(self._survey)
                self._told += 1
                self._plans.put(self.plan)
        except Exception as error:  # noqa: BLE001  it is collected afterwards
            self._is_broken = True
            log.debug("a graph was not understood at the hook: %s", error, exc_info=True)

    def end(self) -> None:
        """The compile is over."""
        self._plans.put(None)

    def next(self) -> GraphPlanned | None:
        while True:  # an interrupt comes between two steps
            with suppress(Empty):
                plan = self._plans.get(timeout=STEP_S)
                self._taken += plan is not None
                return plan

    @property
    def has_next(self) -> bool:
        """Whether a plan waits."""
        return self._told > self._taken

    @property
    def is_whole(self) -> bool:
        """Whether every graph of the compile was seen; a forward's backward among them."""
        phases = self._survey.phases
        return not self._is_broken and phases == self._begun and phases in ({"inference"}, {"forward", "backward"})
