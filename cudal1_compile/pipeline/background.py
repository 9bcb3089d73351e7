"""on_miss="background": the graph runs at once without the missing kernels, and gets them when they are there.

    call, call, ... on the first compile  |  a worker thread synthesizes
    call boundary after the worker is done: compile with the new plan, swap

The worker traces nothing: while any thread does, Dynamo refuses every call of a compiled function.
Forward and backward swap as a pair, because a call runs on one compile and its backward belongs to that; what is
still outstanding keeps the old code. Nothing is compiled or swapped during a stream capture. A graph with
symbolic sizes is not swapped: the next process finds the kernels.
"""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import Any

import torch

from cudal1_compile.generate.daemons import start_daemon
from cudal1_compile.inductor.graph_plan import GraphPlanned
from cudal1_compile.pipeline.choice import CompiledGraph
from cudal1_compile.pipeline.compile import Pipeline

log = logging.getLogger(__name__)


class Background:
    """Callable in place of the compiled graph."""

    def __init__(self, pipeline: Pipeline, plan: GraphPlanned) -> None:
        self._pipeline: Pipeline | None = pipeline
        self._plan = plan
        self._done: GraphPlanned | None = None
        self._lock = threading.Lock()
        self._current: CompiledGraph = pipeline.finish(plan)
        self._can_swap = not pipeline.is_symbolic
        self.worker = start_daemon(partial(self._work, pipeline), "cudal1-background")

    def __call__(self, *args: Any) -> Any:
        if self._done is not None and not _capturing():
            self._swap(args)
        return self._current(*args)

    def _work(self, pipeline: Pipeline) -> None:
        try:
            plan = pipeline.synthesize(self._plan, settles=False)
        except Exception as error:  # noqa: BLE001  a thread has nobody to raise to
            level = logging.WARNING if threading.main_thread().is_alive() else logging.DEBUG  # else it just ends
            log.log(level, "the background synthesis failed: %s", error)
            self._pipeline = None
            return
        pipeline.save(plan)
        if plan.chosen("all_kernels") != self._plan.chosen("all_kernels") and self._can_swap:
            self._done = plan
        else:
            self._pipeline = None

    def _swap(self, args: tuple[Any, ...]) -> None:
        with self._lock:
            plan, pipeline = self._done, self._pipeline
            self._done = self._pipeline = None
        if plan is None or pipeline is None:
            return
        try:
            pipeline = pipeline.with_inputs(args)
            self._current = pipeline.finish(pipeline.settle(plan))
        except Exception as error:  # noqa: BLE001  the first compile goes on running
            log.warning("the kernels made in the background are not used: %s", error)


def _capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
