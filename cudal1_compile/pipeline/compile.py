"""Plan, then compile: one Dynamo graph from its stored or new plan to a callable.

    stored plan | collect -> look up -> synthesize        which regions have kernels; on a GPU Inductor's variant
                                                          is compiled meanwhile (beside.py)
    -> finish: compile_fx with the kernels of the choice  on a GPU first a trial between variants (choice.py), of
               which Inductor's alone is compiled by then; a graph that aten runs faster is not compiled (aten.py)

The first call takes at most budget_s and MORE_S beside Inductor's own compile, which itself collects as well.
compile_fx runs on a fresh copy each time, because it owns and changes what it gets, and always with one pass at
the hook, whose uuid is the digest of this graph's decisions.
"""

from __future__ import annotations

import copy
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
import torch._functorch.config as functorch_config
from torch import fx
from torch._dynamo.utils import preserve_rng_state
from torch._inductor import config as inductor_config
from torch._inductor.compile_fx import compile_fx

from cudal1_cache.errors import CacheError
from cudal1_cache.rows import PlanChoice
from cudal1_compile.errors import describe
from cudal1_compile.inductor.aten import has_cuda_graphs, is_on_device, is_packaged, run_by_aten, why_not
from cudal1_compile.inductor.backward import Backward
from cudal1_compile.inductor.collect import SeenGraph, collect, without_full_collections
from cudal1_compile.inductor.fused_convolutions import may_fuse
from cudal1_compile.inductor.graph_key import copy_graph, graph_key
from cudal1_compile.inductor.graph_plan import CAPTURED, GraphPlanned, from_row, to_row, with_regions
from cudal1_compile.inductor.hook import DYNAMOS, forget_symbols
from cudal1_compile.inductor.late import as_traced
from cudal1_compile.inductor.layouts import LAYOUT_SETTINGS
from cudal1_compile.inductor.splice import HOOK, Splice, UserPass
from cudal1_compile.options import Options
from cudal1_compile.pipeline.captured import Captured, CudaDevice
from cudal1_compile.pipeline.captured_step import CapturedStep
from cudal1_compile.pipeline.choice import (
    CAPTURED_CALLS,
    GRAPH_MAX_RIVALS,
    GRAPH_WARMUP_CALLS,
    MAX_CALLS,
    MAX_RIVALS,
    USUAL_CALLS,
    WARMUP_CALLS,
    CompiledGraph,
    CudaClock,
    VariantTrial,
)
from cudal1_compile.pipeline.heard import Heard
from cudal1_compile.pipeline.place import TargetDevice
from cudal1_compile.pipeline.planner import ALONE_SHARE, FORWARD_SHARE, Planner
from cudal1_compile.pipeline.process_state import Session
from cudal1_compile.pipeline.shadow import Shadow
from cudal1_compile.pipeline.summary import report
from cudal1_compile.pipeline.survey import survey, unanswered
from cudal1_compile.pipeline.trace import SOURCES, PassLog, dump
from cudal1_compile.runtime.target import Target, free_memory

log = logging.getLogger(__name__)

_PLAIN = ("inductor", "no_layout_opt", "aten")  # with nothing in place of what Inductor makes
COMPILES_S = 30.0  # of a graph's variants: what one more might win is not worth a longer wait
COLLECT_SHARE = 0.5  # of the time of Inductor's own compile
MORE_S = 2.0  # that a first call may take beside Inductor's compile and budget_s
MORE_SHARE = 0.1  # and of Inductor's compile


@dataclass(frozen=True)
class CompileJob:
    """One graph to compile."""

    gm: fx.GraphModule
    example_inputs: Sequence[Any]
    options: Options
    place: TargetDevice


class Pipeline:
    """The steps for one graph; each may be called alone (`cudal1 plan` stops before compiling)."""

    inductors: CompiledGraph | None = None  # its variant, where that is there already
    inductors_s = inductors_cpu_s = 0.0  # that this took

    def __init__(self, job: CompileJob, session: Session) -> None:
        self.job, self.session = job, session
        self.begun_s = time.monotonic()
        self.collect_s = 0.0  # the longest that it took to collect the graphs
        self.compiled_s = 0.0  # that its variants took
        self.planner = Planner(session, job.options, job.place)
        self.products = job.options.has_products(job.place.target.kind)  # whether they begin regions here
        self.key = graph_key(job.gm, job.example_inputs, job.options.inductor, self.products, self.planner.labels)
        self.previous = _user_pass(job.options)
        # of this compile, one for its copies too
        self.faults: list[str] = []  # the last is stored
        self.passes = PassLog()

    def decide(self) -> GraphPlanned:
        """The plan, with kernels written for what has none where the options say so."""
        with self.planner.preparation as preparation:
            is_new = self.stored() is None
            if self._may_ask_the_judge and is_new:
                preparation.begin()
            if is_new and self._writes_beside and (heard := self._decide_while_compiling()) is not None:
                return heard
            plan = self.plan()
            if plan.is_open and self.job.options.on_miss == "synthesize":
                plan = self._synthesize_beside(plan)
        return plan

    def _synthesize_beside(self, plan: GraphPlanned) -> GraphPlanned:
        """Where Inductor's variant is wanted whatever is found, it is compiled meanwhile."""
        if plan.choice == "deciding" and is_timed(self.job.place.target):
            compile_variant = partial(self._compile_inductors, plan) if self.inductors is None else None
            return self.synthesize(plan, meanwhile=compile_variant)
        left_s = self.begun_s + self.job.options.budget_s - time.monotonic()
        return self.synthesize(plan, max(0.0, left_s))

    def _decide_while_compiling(self) -> GraphPlanned | None:
        """With the regions that Inductor's own compile shows; None where it did not show all of them."""
        heard = Heard(self.job.place.device)

        def compile_variant() -> None:
            try:
                self._compile_inductors(GraphPlanned(()), heard)
            finally:
                heard.end()

        with self.passes.run("synthesis"):
            answers = self.planner.write_as_heard(heard, compile_variant)
        if heard.plan is None or not heard.is_whole:
            return None
        found = [replace(answers.get(r.fingerprint, r), seen=r.seen) for r in heard.plan.regions]
        plan = replace(with_regions(heard.plan, found), collect_s=COLLECT_SHARE * self.inductors_s)
        ends_s = self.begun_s + ALONE_SHARE * self.inductors_cpu_s + self.job.options.budget_s + MORE_S
        return self.settle(plan, ends_s)

    def _compile_inductors(self, plan: GraphPlanned, heard: Heard | None = None) -> None:
        begun_s, begun_cpu_s = time.monotonic(), time.thread_time()
        with without_full_collections():
            self.inductors = self.build(plan, "inductor", heard=heard)
        self.inductors_s = time.monotonic() - begun_s
        self.inductors_cpu_s = time.thread_time() - begun_cpu_s

    def plan(self) -> GraphPlanned:
        """The regions with the cache's answers: from the stored plan where there is one, else collected."""
        stored = self.stored()
        if stored is None:
            return self.survey()[1]
        return self.settle(with_regions(stored, self.planner.look_up_all(r.seen for r in stored.regions)))

    @property
    def _may_write(self) -> bool:
        """Whether kernels may be written for this graph."""
        options = self.job.options
        has_time = min(options.budget_s, self.session.budget(options.process_budget_s).left_s) > 0
        return options.on_miss == "synthesize" and has_time and not self.session.is_interrupted

    @property
    def _may_ask_the_judge(self) -> bool:
        """Whether that may be measured on a GPU."""
        return self._may_write and self.job.place.target.kind == "cuda"

    @property
    def _writes_beside(self) -> bool:
        return self._may_write and is_timed(self.job.place.target)

    def survey(self) -> tuple[list[SeenGraph], GraphPlanned]:
        """The graphs and their plan, both as they are with the cache's kernels in place."""
        graphs = self.collect()
        plan = self.plan_for(graphs)
        if self._moves_layouts(plan):
            graphs = self.collect(plan)
            plan = _as_traced_now(self.plan_for(graphs))
        return graphs, plan

    def settle(self, plan: GraphPlanned, end_s: float = math.inf) -> GraphPlanned:
        """The plan for the graphs as they are with its kernels in place; what it has decided stays.

        end_s: of the monotonic clock. Where collecting would end later the plan is returned as it is: what the
        backward then reads otherwise is not found at the hook, and is Inductor's. The next process settles it.
        """
        if not self._moves_layouts(plan) or time.monotonic() + plan.collect_s > end_s:
            return plan
        known = {r.fingerprint: r for r in plan.regions}
        settled = self.plan_for(self.collect(plan))
        regions = tuple(known.get(r.fingerprint, r) for r in settled.regions)
        return _as_traced_now(replace(settled, regions=regions))

    def _moves_layouts(self, plan: GraphPlanned) -> bool:
        """Whether the backward may read what its forward now lays out otherwise than when they were collected.

        Inductor saves for it the copies that convolutions needed; a kernel reads weights and inputs as they are.
        """
        return _forward_products(plan) != plan.traced and any(r.seen.reads_copies for r in plan.regions)

    def collect(self, plan: GraphPlanned | None = None) -> list[SeenGraph]:
        """Every graph at the hook, as the compile will see it; the backward as after a forward with a plan."""
        job, options = self.job, self.job.options
        splice = self._splice(plan, "all_kernels", None) if plan is not None else None
        begun_s = time.monotonic()
        with self.passes.run("collect"):
            found = collect(
                job.gm,
                job.example_inputs,
                options.inductor,
                self.previous,
                self.products,
                splice,
                self.passes,
                self.planner.labels,
            )
        self.collect_s = max(self.collect_s, time.monotonic() - begun_s)
        return found

    def plan_for(self, graphs: Sequence[SeenGraph]) -> GraphPlanned:
        """Looks up the regions of collected graphs."""
        found = survey(graphs, self.job.place.device)
        plan = with_regions(unanswered(found), self.planner.look_up_all(found.regions))
        return replace(plan, collect_s=self.collect_s)

    def with_inputs(self, example_inputs: Sequence[Any]) -> Pipeline:
        """The same graph and key, to be compiled again on a later call's inputs."""
        other = copy.copy(self)
        other.job = replace(self.job, example_inputs=example_inputs)
        return other

    def without_inputs(self) -> Pipeline:
        """For what is called after the compile: the example's tensors must not live as long as the graph."""
        return self.with_inputs(())

    def synthesize(
        self,
        plan: GraphPlanned,
        budget_s: float | None = None,
        settles: bool = True,
        meanwhile: Callable[[], object] | None = None,
    ) -> GraphPlanned:
        """Products of the backward come last, when it is known which kernels its forward has.

        budget_s: by default that of the options. settles: traces the graph again where that is called for, which
        no thread beside the user's may do. meanwhile: called while the first kernels are written.
        """
        budget_s = limit_s = self.job.options.budget_s if budget_s is None else budget_s
        spent_s = self.planner.spent_s
        # where something is done meanwhile the first call's limit counts, of which that time is a part
        begun_s = time.monotonic() if meanwhile is None else self.begun_s

        def left_s() -> float:
            waited_s = time.monotonic() - begun_s - self.inductors_s
            return max(0.0, budget_s - max(waited_s, self.planner.spent_s - spent_s))

        def settle(plan: GraphPlanned) -> GraphPlanned:
            return self.settle(plan, time.monotonic() + left_s() if settles else -math.inf)

        with self.passes.run("synthesis"), self.planner.preparation:
            first = [r for r in plan.regions if not r.seen.may_change]
            if any(r.seen.has_product for r in first) and len(first) < len(plan.regions):
                found = self.planner.synthesize(first, FORWARD_SHARE * budget_s, meanwhile)
                answers = {r.fingerprint: r for r in found}
                plan = settle(with_regions(plan, [answers.get(r.fingerprint, r) for r in plan.regions]))
                limit_s, meanwhile = left_s(), None
            return settle(with_regions(plan, self.planner.synthesize(plan.regions, limit_s, meanwhile)))

    def finish(self, plan: GraphPlanned) -> CompiledGraph:
        """Compiles with the plan's kernels, stores the plan, and says what was done."""
        rivals: tuple[PlanChoice, ...] = ()
        if not is_timed(self.job.place.target):
            plan = replace(plan, choice="all_kernels" if plan.chosen("all_kernels") else "inductor")
        elif plan.choice == "deciding" and may_try():
            rivals = self._rivals(plan)
            plan = plan if rivals else replace(plan, choice="inductor")
        self.planner.record_misses(plan.regions)
        choice = "all_kernels" if rivals else self._now(plan)
        with self.session.first_calls.compiling(self.inductors_s):
            compiled = self._trial(plan, rivals) if rivals else self._variant(plan, choice)
        if self.job.options.shadow and plan.kernels(choice) and not is_packaged():
            compiled = self._with_shadow(compiled, plan, choice)
        self.save(plan)
        self.session.count(plan)
        self.session.remember(plan, self.passes)
        report(plan, self.job.place.target.kind)
        return compiled

    def _variant(self, plan: GraphPlanned, choice: PlanChoice) -> CompiledGraph:
        """What is there already, for once: who calls it keeps it."""
        found, self.inductors = self.inductors, None
        base = CAPTURED.get(choice, choice)
        run = self.build(plan, base) if found is None or base != "inductor" else found
        return run if base == choice else self._captured(plan, run)

    def build(
        self, plan: GraphPlanned, choice: PlanChoice, is_checked: bool = False, heard: Heard | None = None
    ) -> CompiledGraph:
        """One variant that is not captured; but for aten's through Inductor, with its own caches.

        heard: is told of its graphs.
        """
        if choice == "aten":
            return run_by_aten(self.job.gm)
        splice = self._splice(plan, choice, self.previous, is_checked)
        splice.see = heard.see if heard is not None else None
        layouts = {name: getattr(inductor_config, name) for name in LAYOUT_SETTINGS}
        patches = {**layouts, **self.job.options.inductor, HOOK: splice}
        if choice == "no_layout_opt":
            patches["layout_optimization"] = False
        if is_checked:
            patches["triton.cudagraphs"] = False  # its calls wait for the GPU
        for kernel in splice.kernels.values():
            dump(SOURCES, f"kernel {kernel.entry_id[:12]}", f"{kernel.text}{kernel.candidate.code}")
        with self.passes.run(f"compile, variant {choice}"), as_traced(self.job.example_inputs):
            with_backward = choice == "inductor" and is_timed(self.job.place.target)
            compiled = self._compile(plan, splice, patches, with_backward, heard)
        log.debug("variant %s: %d regions in %d places", choice, len(plan.chosen(choice)), len(splice.replaced))
        return compiled

    def _compile(
        self,
        plan: GraphPlanned,
        splice: Splice,
        patches: Mapping[str, Any],
        with_backward: bool,
        heard: Heard | None,
    ) -> CompiledGraph:
        """with_backward: at once too, while kernels are written, and not when it is first called."""
        try:
            with functorch_config.patch(force_non_lazy_backward_lowering=with_backward):
                compiled: Any = compile_fx(
                    copy_graph(self.job.gm),
                    list(self.job.example_inputs),
                    inner_compile=Backward(
                        splice,
                        partial(self.without_inputs()._backward_gave_way, plan),
                        heard.begin if heard is not None else None,
                    ),
                    config_patches=dict(patches),
                )
        except Exception as error:
            if not with_backward or isinstance(error, DYNAMOS):
                raise
            log.debug("compiled again without its backward, which may never be called", exc_info=True)
            forget_symbols()
            splice.see = None  # what it saw is collected
            return self._compile(plan, splice, patches, False, None)
        return cast(CompiledGraph, compiled)

    def _splice(
        self, plan: GraphPlanned, choice: PlanChoice, previous: UserPass, is_checked: bool = False
    ) -> Splice:
        kernels = self.planner.kernels(plan.kernels(choice), plan)
        kernels = {f: replace(k, is_checked=is_checked) for f, k in kernels.items()}
        by_aten, labels = self._by_aten(plan, choice), self.planner.labels
        fuses = choice not in _PLAIN and self._fuses(plan)
        return Splice(previous, kernels, by_aten, self.products, self.passes, labels=labels, fuses=fuses)

    def _fuses(self, plan: GraphPlanned) -> bool:
        """Whether convolutions may run with their ReLU, which puts factors into their weights."""
        return plan.fuses and may_fuse() and "reassociates" in self.planner.labels

    def _by_aten(self, plan: GraphPlanned, choice: PlanChoice) -> Set[str]:
        """Fingerprints. Deterministic algorithms are Inductor's: aten refuses some operations then."""
        if torch.are_deterministic_algorithms_enabled():
            return frozenset()
        return plan.chosen(choice).keys() - plan.kernels(choice).keys()

    def _with_shadow(self, plain: CompiledGraph, plan: GraphPlanned, choice: PlanChoice) -> CompiledGraph:
        try:
            checked = self.build(plan, CAPTURED.get(choice, choice), is_checked=True)
        except Exception as error:  # noqa: BLE001  the plain graph is there
            log.warning("no call of this graph is checked: %s: %s", type(error).__name__, error)
            forget_symbols()
            return plain
        later = self.without_inputs()

        def without_kernels(args: Sequence[Any]) -> CompiledGraph:
            return later.with_inputs(args).build(plan, "inductor")

        return Shadow(
            plain,
            checked,
            self.job.options.shadow,
            plan.kernels(choice).values(),
            self.job.place.device,
            None if self.is_symbolic or has_several_ranks() else without_kernels,
            has_cuda_graphs(self.job.options.inductor) or self._may_capture(plan),
        )

    def save(self, plan: GraphPlanned) -> None:
        try:
            fault = self.faults[-1] if self.faults else ""
            row = to_row(replace(plan, fault=fault), self.key, self.job.place.target.key)
            self.planner.store.put_plan(row)
        except CacheError as error:
            log.warning("the plan of this graph was not stored: %s", error)

    def note_fault(self, plan: GraphPlanned, fault: str) -> None:
        """For `explain`: what is compiled without the kernels that were chosen for it, and why."""
        self.faults.append(fault)
        self.save(self.stored() or plan)  # a trial may have decided since

    def _backward_gave_way(self, plan: GraphPlanned, error: Exception) -> None:
        why = describe(error)
        if not self.faults:  # of several variants
            log.warning("plain inductor for the backward, because of %s", why)
        self.note_fault(plan, f"the backward, because of {why}")

    def stored(self) -> GraphPlanned | None:
        try:
            row = self.planner.store.get_plan(self.key, self.job.place.target.key)
            return from_row(row) if row is not None else None
        except (CacheError, ValueError, KeyError, TypeError) as error:
            log.warning("the stored plan of this graph is not used: %s", error)
            return None

    def _rivals(self, plan: GraphPlanned) -> tuple[PlanChoice, ...]:
        """What may be faster than Inductor without kernels; what has products comes before what has none.

        One more with products, and with fused convolutions, so that they push out nothing else.
        """
        chosen = plan.chosen("all_kernels")
        free: list[PlanChoice] = ["aten"] if self.why_not_aten(plan) is None else []
        if plan.is_channels_last:
            free.append("no_layout_opt")
        if fuses := self._fuses(plan):
            free.append("fused_convolutions")
        ours: list[PlanChoice] = ["all_kernels"] if chosen else []
        if plan.chosen(plan.fewer_kernels) and plan.chosen(plan.fewer_kernels) != chosen:
            ours.append(plan.fewer_kernels)
        has_product = any(r.seen.has_product for r in plan.regions if r.fingerprint in chosen)
        most = self._usual_rivals + has_product + fuses
        rivals = ([*ours, *reversed(free)] if has_product else [*free, *ours])[:most]
        if self._may_capture(plan):
            bases = ["inductor", *rivals]
            rivals += [name for name, base in CAPTURED.items() if base in bases and self._may_replay(plan, base)]
        return tuple(rivals)

    def _may_capture(self, plan: GraphPlanned) -> bool:
        """Whether variants may be recorded as CUDA graphs where the user did not ask for it."""
        options = self.job.options
        return options.capture == "auto" and not plan.why_not_captured and not has_cuda_graphs(options.inductor)

    def _may_replay(self, plan: GraphPlanned, base: PlanChoice) -> bool:
        """aten would copy from the host what Inductor has folded, and keep all that its backward may read."""
        return base != "aten" or (not plan.is_trained and is_on_device(self.job.gm, self.job.place.device))

    def _captured(self, plan: GraphPlanned, base: CompiledGraph, **settings: int) -> CompiledGraph:
        kind = CapturedStep if plan.is_trained else Captured
        return kind(base, CudaDevice(self.job.place.device), plan.changed, **settings)

    @property
    def _usual_rivals(self) -> int:
        return GRAPH_MAX_RIVALS if has_cuda_graphs(self.job.options.inductor) else MAX_RIVALS

    def why_not_aten(self, plan: GraphPlanned) -> str | None:
        """The reason for which aten may not run this graph instead of Inductor; None: it may."""
        job = self.job
        free_bytes = free_memory(job.place.device)
        return why_not(job.gm, job.example_inputs, job.options.inductor, plan.refused, free_bytes)

    def _now(self, plan: GraphPlanned) -> PlanChoice:
        """What runs without a trial. A stored choice of aten stands only while it may run here."""
        choice = _untried(plan)
        if choice in CAPTURED and not self._may_capture(plan):
            choice = CAPTURED[choice]
        is_atens = CAPTURED.get(choice, choice) == "aten"
        return "inductor" if is_atens and self.why_not_aten(plan) is not None else choice

    def _trial(self, plan: GraphPlanned, rivals: Sequence[PlanChoice]) -> CompiledGraph:
        """Inductor's variant, with the others to come."""
        begun_s = time.monotonic()
        inductor = self._variant(plan, "inductor")
        took_s = self.inductors_s + time.monotonic() - begun_s
        later = self.without_inputs()
        later.compiled_s = took_s
        made: dict[PlanChoice, CompiledGraph] = {"inductor": inductor}  # until it is decided

        def build(choice: PlanChoice, inputs: Sequence[Any]) -> CompiledGraph | None:
            if choice in CAPTURED:
                base = made.get(CAPTURED[choice])
                return None if base is None else later._captured(plan, base, warm_up=1)
            if (found := later._build_rival(plan, choice, inputs)) is not None:
                made[choice] = found
            return found

        def decided(choice: PlanChoice, ratio: float) -> None:
            made.clear()
            final = replace(plan, choice=choice, ratio=ratio)
            later.save(final)
            later.session.remember(final, later.passes)
            report(final, later.job.place.target.kind)

        trial = VariantTrial(
            {"inductor": inductor},
            CudaClock(self.job.place.device),
            decided,
            GRAPH_WARMUP_CALLS if has_cuda_graphs(self.job.options.inductor) else WARMUP_CALLS,
            self._most_calls(rivals),
            {choice: partial(build, choice) for choice in rivals},
            self.session.first_calls.are_over,
        )
        if self.is_symbolic and not self._compile_now(trial, took_s):
            return inductor
        self.session.first_calls.watch(trial)
        return trial

    def _most_calls(self, rivals: Sequence[PlanChoice]) -> int:
        plain = [choice for choice in rivals if choice not in CAPTURED]
        usual = MAX_CALLS if len(plain) > self._usual_rivals else USUAL_CALLS
        return usual + CAPTURED_CALLS * (len(plain) < len(rivals))

    @property
    def is_symbolic(self) -> bool:
        """Whether its sizes change from call to call."""
        return any(isinstance(x, torch.SymInt) for x in self.job.example_inputs)

    def _compile_now(self, trial: VariantTrial, took_s: float) -> bool:
        """The rivals of a graph with symbolic sizes, for which there is time; whether all of them.

        A later call's numbers do not stand for such sizes, and the guards are closed then. Without all of them
        nothing is tried: a later process may have more time left.
        """
        limit_s = (1 + MORE_SHARE) * took_s + self.job.options.budget_s + MORE_S
        while trial.coming:
            if time.monotonic() - self.begun_s + took_s * len(trial.coming) > limit_s:
                log.info("variants that are not tried for want of time: %s", ", ".join(trial.coming))
                return False
            trial.compile_next(self.job.example_inputs)
        return True

    def _build_rival(self, plan: GraphPlanned, choice: PlanChoice, inputs: Sequence[Any]) -> CompiledGraph | None:
        if choice not in ("all_kernels", "aten") and self.compiled_s > COMPILES_S:  # aten compiles nothing
            log.info("variant %s is not tried: the others have compiled for %.0f s", choice, self.compiled_s)
            return None
        begun_s = time.monotonic()
        try:
            with preserve_rng_state():  # a compile may time its choices on random data
                return self.with_inputs(inputs).build(plan, choice)
        except Exception as error:  # noqa: BLE001  then the kernel-free variant runs
            log.warning("variant %s does not compile: %s: %s", choice, type(error).__name__, error)
            forget_symbols()
            return None
        finally:
            self.compiled_s += time.monotonic() - begun_s


def _as_traced_now(plan: GraphPlanned) -> GraphPlanned:
    """Of graphs that were collected with its forward's kernels in place."""
    return replace(plan, traced=_forward_products(plan))


def _forward_products(plan: GraphPlanned) -> frozenset[str]:
    """Fingerprints of those that run by a kernel."""
    chosen = plan.chosen("all_kernels")
    forward = (r for r in plan.regions if r.seen.phase == "forward" and r.seen.has_product)
    return frozenset(r.fingerprint for r in forward if r.fingerprint in chosen)


def is_timed(target: Target) -> bool:
    """Whether there is a clock to choose by."""
    return target.kind == "cuda"


def may_try() -> bool:
    """Whether calls may differ from each other.

    Not under deterministic algorithms, among several ranks, or in a package, which holds one graph.
    """
    return not (has_several_ranks() or torch.are_deterministic_algorithms_enabled() or is_packaged())


def has_several_ranks() -> bool:
    """Whether another process waits for this one's collectives."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def _untried(plan: GraphPlanned) -> PlanChoice:
    """What runs without a trial: the decided choice, and what is never slower where nothing was decided."""
    return "inductor" if plan.choice == "deciding" else plan.choice


def _user_pass(options: Options) -> UserPass:
    found: UserPass = options.inductor.get(HOOK, inductor_config.post_grad_custom_pre_pass)
    return found
