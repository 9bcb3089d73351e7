"""What one fresh process measures of one job; coverage.py starts such processes, one after the other.

    inductor   plain Inductor's first call, from torch.compile to the synchronised result
    cudal1     the same of the backend with default options and an empty cache -> calls until its trial has decided
               -> what was decided for every region -> Inductor beside it -> timed rounds -> Inductor's kernels by
               region -> errors of both
    graphs     the kernels of that in reduce-overhead, beside Inductor in it

Imports of torch and of the model's package, the model's construction and the device's context are outside of the
times; everything of this package and of Inductor is imported within. FILE holds what was measured so far at any time,
so that a process that is ended leaves what it had.
"""

# Nothing of the package, nor of Inductor, is imported up here: a first call pays for that, as a user's does.

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

import torch

from benchmarks.coverage_errors import reference, worst_error
from benchmarks.coverage_jobs import Job, job_named
from benchmarks.model_contenders import Contender, Step, results, timed_ms, wait
from benchmarks.side_by_side import ends_with_parent

Arm = Literal["inductor", "cudal1", "graphs"]

DECISIONS = ("Judging", "Done", "Decided")  # events of synthesis that a region's verdict or decision gives
PREPARING = "Preparing"
SETTLE_S = 20.0  # for calls until the trial between variants has decided
SETTLE_CALLS = 60  # after which calls are given at a pace, for variants that compile behind them
PACE_S = 0.05
ROUNDS_S = 4.0
ROUNDS = 100
MIN_ROUNDS = 5
FLUSH_BYTES = 256 << 20  # written before each timed call: several times the L2
PROFILED_CALLS = 2
RECOMPILES = 128  # two ways to compile a model, and layers that share their code


@dataclass
class Report:
    """What is known so far, in a file that is always whole. `stage`: what is being done."""

    path: Path
    row: dict[str, Any] = field(default_factory=dict)

    def stage(self, name: str, **found: Any) -> None:
        self.row |= {"stage": name, **found}
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(json.dumps(self.row))
        os.replace(temporary, self.path)

    @contextmanager
    def may_fail(self, what: str) -> Iterator[None]:
        """Of which the failure is noted, and the rest goes on."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  a finding, not the end
            traceback.print_exc()
            self.row.setdefault("failures", {})[what] = f"{type(error).__name__}: {error}"[:300]


@dataclass
class FirstVerdict:
    """When the first region was known, and when the first verdict or decision came."""

    known: float | None = None
    decided: float | None = None

    def note(self, event: object) -> None:
        name = type(event).__name__
        if name == PREPARING and self.known is None:
            self.known = time.monotonic()
        elif name in DECISIONS and self.decided is None:
            self.decided = time.monotonic()

    @property
    def seconds(self) -> float | None:
        return None if self.known is None or self.decided is None else self.decided - self.known


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--job", required=True)
    parser.add_argument("--arm", required=True, choices=("inductor", "cudal1", "graphs"))
    parser.add_argument("--out", type=Path, required=True, help="file of what was measured")
    parser.add_argument("--dry", action="store_true")
    arguments = parser.parse_args(argv)
    report = Report(arguments.out)
    with ends_with_parent():
        try:
            measure(job_named(arguments.job), arguments.arm, report, arguments.dry)
        except Exception as error:  # noqa: BLE001  a row that says so
            traceback.print_exc()
            report.stage("failed", error=f"{type(error).__name__}: {error}"[:300])
            return 1
    report.stage("done")
    sys.stdout.flush()
    return 0


def measure(job: Job, arm: Arm, report: Report, dry: bool) -> None:
    device = torch.device("cpu") if dry else torch.device("cuda", 0)
    report.stage("build", device="" if dry else torch.cuda.get_device_name(0))
    step = make_step(job, device, dry)
    arms = {"inductor": measure_inductor, "cudal1": measure_cudal1, "graphs": measure_graphs}
    arms[arm](step, report, dry)


def make_step(job: Job, device: torch.device, tiny: bool) -> Step:
    module, inputs = job.make(device, tiny)
    step = Step(module.train(job.train), inputs, job.train)
    (torch.ones(64, device=device) @ torch.ones(64, device=device)).item()  # the device's context, and a library
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    return step


def first_call(step: Step, make: Callable[[], Callable[..., Any]]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The compiled module; seconds of its making and first call, and the memory that this took, in MiB."""
    wait(step)
    begin = time.perf_counter()
    compiled = make()
    step.run(compiled)
    wait(step)
    seconds = time.perf_counter() - begin
    step.clear()
    return compiled, {"first_call_s": seconds, **memory_mib(step)}


def memory_mib(step: Step) -> dict[str, int]:
    """The allocator's peak in this process, and what the device holds now, for whomever."""
    if not step.inputs[0].is_cuda:
        return {}
    free, total = torch.cuda.mem_get_info()
    return {"peak_mib": torch.cuda.max_memory_reserved() >> 20, "held_mib": (total - free) >> 20}


def measure_inductor(step: Step, report: Report, dry: bool) -> None:
    report.stage("first call")
    _, found = first_call(step, lambda: torch.compile(step.module))
    report.stage("done", **found)


def measure_cudal1(step: Step, report: Report, dry: bool) -> None:
    first = FirstVerdict()

    def make() -> Any:
        from cudal1_compile.backend import cudal1

        watch_progress(first)
        options = {"options": {"target": "host", "budget_s": 4.0}} if dry else {}
        return torch.compile(step.module, backend=cudal1, **options)

    report.stage("first call")
    compiled, found = first_call(step, make)
    report.stage("trial between variants", **found, first_verdict_s=first.seconds)
    report.stage("regions", **settle(step, compiled), regions=decided_regions(), choices=choices())
    arms = [Contender("cudal1", compiled)]
    call: dict[str, Any] = {}
    with report.may_fail("inductor beside it"):
        report.stage("inductor beside it")
        contender, call["graphs"] = compile_watched(step, dry)
        arms.append(contender)
    report.stage("timed rounds", **time_arms(step, arms))
    with report.may_fail("profile"):
        report.stage("profile")
        if "graphs" in call:
            report.stage("profile", **gpu_times(step, arms[-1], call["graphs"], report.path.parent, dry))
    with report.may_fail("errors"):
        report.stage("errors")
        report.stage("errors", **compare(step, arms))


def measure_graphs(step: Step, report: Report, dry: bool) -> None:
    from benchmarks.model_contenders import inductor_backend
    from cudal1_compile.backend import cudal1

    options = {"on_miss": "fallback"} | ({"target": "host"} if dry else {})

    def backend(gm: Any, example_inputs: Any) -> Any:
        return cudal1(gm, example_inputs, mode="reduce-overhead", options=options)

    report.stage("first call")
    compiled, found = first_call(step, lambda: torch.compile(step.module, backend=backend))
    report.stage("trial between variants", **found)
    report.stage("inductor beside it", **settle(step, compiled), choices=choices())
    torch._dynamo.config.recompile_limit = RECOMPILES
    plain, _ = first_call(step, lambda: torch.compile(step.module, backend=inductor_backend("reduce-overhead")))
    arms = [Contender("cudal1", compiled), Contender("inductor", plain)]
    for arm in arms * 3:  # warm up, record, replay
        step.clear()
        step.run(arm.call)
    report.stage("timed rounds", **time_arms(step, arms))
    with report.may_fail("errors"):
        report.stage("errors", **compare(step, arms))


def watch_progress(first: FirstVerdict) -> None:
    """What synthesis says goes to `first` too. Of a tree that has no such line nothing is known."""
    from cudal1_compile.pipeline import progress

    shown: Any = getattr(progress, "LineProgress", None)
    if shown is not None:
        show = shown.__call__

        def noted(self: Any, event: Any) -> None:
            first.note(event)
            show(self, event)

        shown.__call__ = noted


def settle(step: Step, call: Callable[..., Any]) -> dict[str, Any]:
    """Calls until every graph's trial has decided, or SETTLE_S are over."""
    begin, calls = time.monotonic(), 0
    while "deciding" in choices() and time.monotonic() - begin < SETTLE_S:
        step.clear()
        step.run(call)
        calls += 1
        if calls > SETTLE_CALLS:
            time.sleep(PACE_S)
    step.clear()
    wait(step)
    return {"settling": {"calls": calls, "seconds": time.monotonic() - begin, "is_settled": "deciding" not in choices()}}


def choices() -> list[str]:
    from cudal1_compile.pipeline.process_state import last_plans

    return [p.plan.choice for p in last_plans()]


def decided_regions() -> list[dict[str, Any]]:
    """Every distinct region of this process's graphs, as its last plan has it."""
    from cudal1_compile.pipeline.process_state import last_plans

    regions = {r.fingerprint: r for p in last_plans() for r in p.plan.regions}
    counts: dict[str, int] = {}
    for p in last_plans():
        for r in p.plan.regions:
            counts[r.fingerprint] = counts.get(r.fingerprint, 0) + r.seen.count
    return [
        {
            "fingerprint": f,
            "outcome": r.outcome,
            "reason": r.reason[:80],
            "speedup": r.speedup,
            "count": counts[f],
            "phase": r.seen.phase,
        }
        for f, r in regions.items()
    ]


def compile_watched(step: Step, dry: bool) -> tuple[Contender, Any]:
    """Inductor in the same process, and what it made of its graphs."""
    from benchmarks.coverage_trace import watched
    from cudal1_compile.pipeline.process_state import last_plans

    torch._dynamo.config.recompile_limit = RECOMPILES
    chosen = {f for p in last_plans() for f in p.plan.chosen("all_kernels")}
    with watched(chosen, products=not dry) as (backend, graphs):
        compiled, _ = first_call(step, lambda: torch.compile(step.module, backend=backend))
    return Contender("inductor", compiled), graphs


def time_arms(step: Step, arms: Sequence[Contender]) -> dict[str, Any]:
    """Median milliseconds of each, with the host, from an idle device to an idle device, the L2 flushed before.

    Rounds in an order drawn for each, so that drift cancels.
    """
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device=step.inputs[0].device) if step.inputs[0].is_cuda else None
    rng, order = random.Random(0), list(arms)
    times: dict[str, list[float]] = {arm.name: [] for arm in arms}
    end = time.monotonic() + ROUNDS_S
    for done in range(ROUNDS):
        if time.monotonic() > end and done >= MIN_ROUNDS:
            break
        rng.shuffle(order)
        for arm in order:
            step.clear()
            if flush is not None:
                flush.zero_()
            times[arm.name].append(timed_ms(step, arm))
    step.clear()
    return {"ms": {name: median(ms) for name, ms in times.items()}, "rounds": len(times[arms[0].name])}


def gpu_times(step: Step, inductor: Contender, graphs: Any, folder: Path, dry: bool) -> dict[str, Any]:
    """Microseconds of one call of Inductor's by region, and of all its kernels.

    Without a GPU operations stand in for microseconds.
    """
    from benchmarks.coverage_trace import count_operations, shares
    from benchmarks.model_kernels import record

    def call() -> None:
        step.clear()
        step.run(inductor.call)

    if dry:
        us, in_order = count_operations(graphs), True
    else:
        path = folder / "trace.json"
        calls = [shares(launches, graphs, step.train) for launches in record([call] * PROFILED_CALLS, path)]
        path.unlink()
        names = {f for c in calls for f in c.us}
        us = {f: sum(c.us.get(f, 0.0) for c in calls) / len(calls) for f in names}
        in_order = all(c.in_order for c in calls)
    step.clear()
    return {"us": us, "in_order": in_order}


def compare(step: Step, arms: Sequence[Contender]) -> dict[str, Any]:
    """The worst error of each arm over all outputs and gradients, and against what."""
    step.clear()
    exact, against = reference(step)
    found: dict[str, float] = {}
    for arm in arms:
        found[arm.name] = worst_error(results(step, arm.call), exact)
    return {"errors": found, "against": against}


if __name__ == "__main__":
    sys.exit(main())
