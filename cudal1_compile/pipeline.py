"""Plan, then compile: one Dynamo graph from its stored or new plan to a callable.

    stored plan | collect -> look up -> synthesize        which regions have kernels
    -> settle: compile_fx with the kernels of the choice  on a GPU first a trial between variants (choice.py)

compile_fx runs on a fresh copy each time, because it owns and changes what it gets, and always with one pass at
the hook, whose uuid is the digest of this graph's decisions.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import fx
from torch._inductor import config as inductor_config
from torch._inductor.compile_fx import compile_fx

from cudal1_cache.errors import CacheError
from cudal1_cache.rows import PlanChoice
from cudal1_compile.choice import CudaClock, Trial
from cudal1_compile.collect import SeenGraph, collect
from cudal1_compile.graph_key import copy_graph, graph_key
from cudal1_compile.options import Options
from cudal1_compile.plan import GraphPlanned, from_row, to_row, with_regions
from cudal1_compile.planner import Place, Planner
from cudal1_compile.session import Session
from cudal1_compile.splice import HOOK, Splice, UserPass
from cudal1_compile.summary import GRAPHS, SOURCES, dump, report, timed
from cudal1_compile.survey import survey

log = logging.getLogger(__name__)

Compiled = Callable[..., Any]


@dataclass(frozen=True)
class Job:
    """One graph to compile."""

    gm: fx.GraphModule
    example_inputs: Sequence[Any]
    options: Options
    place: Place


class Pipeline:
    """The steps for one graph; each may be called alone (`cudal1 plan` stops before compiling)."""

    def __init__(self, job: Job, session: Session) -> None:
        self.job, self.session = job, session
        self.planner = Planner(session, job.options, job.place)
        self.key = graph_key(job.gm, job.example_inputs, job.options.inductor)
        self.previous = _user_pass(job.options)

    def plan(self) -> GraphPlanned:
        """The regions with the cache's answers: from the stored plan where there is one, else collected."""
        stored = self.stored()
        if stored is not None:
            return with_regions(stored, self.planner.look_up_all(stored.regions))
        return self.plan_for(self.collect())

    def collect(self) -> list[SeenGraph]:
        """Every graph at the hook, as the compile will see it."""
        job = self.job
        with timed("collect"):
            graphs = collect(job.gm, job.example_inputs, job.options.inductor, self.previous)
        for graph in graphs:
            dump(GRAPHS, f"{graph.phase} graph at the hook", graph.code)
        return graphs

    def plan_for(self, graphs: Sequence[SeenGraph]) -> GraphPlanned:
        """Looks up the regions of collected graphs."""
        seen, refused = survey(graphs, self.job.place.device)
        return GraphPlanned(self.planner.look_up_all(seen), tuple(refused))

    def with_inputs(self, example_inputs: Sequence[Any]) -> Pipeline:
        """The same graph and key, to be compiled again on a later call's inputs."""
        other = copy.copy(self)
        other.job = replace(self.job, example_inputs=example_inputs)
        return other

    def synthesize(self, plan: GraphPlanned) -> GraphPlanned:
        with timed("synthesis"):
            return with_regions(plan, self.planner.synthesize(plan.regions))

    def finish(self, plan: GraphPlanned) -> Compiled:
        """Compiles with the plan's kernels, stores the plan, and says what was done."""
        is_trial = False
        if not plan.has_kernels or self.job.place.target.kind == "host":
            plan = replace(plan, choice="all" if plan.has_kernels else "none")
        elif plan.choice == "deciding":
            is_trial = may_try()
        self.planner.record_misses(plan.regions)
        compiled = self._trial(plan) if is_trial else self.build(plan, _untried(plan))
        self.save(plan)
        self.session.count(plan)
        report(plan, self.job.place.target.kind)
        return compiled

    def build(self, plan: GraphPlanned, choice: PlanChoice) -> Compiled:
        """One variant, through Inductor's own caches."""
        splice = Splice(self.previous, self.planner.kernels(plan.chosen(choice), plan))
        patches = {**self.job.options.inductor, HOOK: splice}
        for kernel in splice.kernels.values():
            dump(SOURCES, f"kernel {kernel.entry_id[:12]}", f"{kernel.text}{kernel.candidate.code}")
        with timed(f"compile, variant {choice}"):
            compiled: Any = compile_fx(
                copy_graph(self.job.gm), list(self.job.example_inputs), config_patches=patches
            )
        log.debug("variant %s: %d kernels in %d places", choice, len(splice.kernels), len(splice.replaced))
        return cast(Compiled, compiled)

    def save(self, plan: GraphPlanned) -> None:
        try:
            self.planner.store.put_plan(to_row(plan, self.key, self.job.place.target.key))
        except CacheError as error:
            log.warning("the plan of this graph was not stored: %s", error)

    def stored(self) -> GraphPlanned | None:
        try:
            row = self.planner.store.get_plan(self.key, self.job.place.target.key)
            return from_row(row) if row is not None else None
        except (CacheError, ValueError, KeyError, TypeError) as error:
            log.warning("the stored plan of this graph is not used: %s", error)
            return None

    def _trial(self, plan: GraphPlanned) -> Compiled:
        choices: list[PlanChoice] = ["none", "all"]
        if plan.chosen("some") and plan.chosen("some") != plan.chosen("all"):
            choices.append("some")
        variants = {choice: self.build(plan, choice) for choice in choices[:1]}
        for choice in choices[1:]:
            try:
                variants[choice] = self.build(plan, choice)
            except Exception as error:  # noqa: BLE001  then the kernel-free variant runs
                log.warning("variant %s does not compile: %s: %s", choice, type(error).__name__, error)

        def decided(choice: PlanChoice, ratio: float) -> None:
            final = replace(plan, choice=choice, ratio=ratio)
            self.save(final)
            report(final, self.job.place.target.kind)

        return Trial(variants, CudaClock(self.job.place.device), decided)


def may_try() -> bool:
    """Whether calls may differ from each other: not under deterministic algorithms, nor among several ranks."""
    distributed = torch.distributed
    several = distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
    return not several and not torch.are_deterministic_algorithms_enabled()


def _untried(plan: GraphPlanned) -> PlanChoice:
    """What runs without a trial: the decided choice, and what is never slower where nothing was decided."""
    return "none" if plan.choice == "deciding" else plan.choice


def _user_pass(options: Options) -> UserPass:
    found: UserPass = options.inductor.get(HOOK, inductor_config.post_grad_custom_pre_pass)
    return found
