"""What one fresh process measures of one job; coverage.py starts such processes, one after the other.

    inductor   plain Inductor's first call, from torch.compile to the synchronised result
    cudal1     the same of the backend with default options and an empty cache -> calls until its trial has decided
               -> what was decided for every region -> Inductor beside it -> timed rounds -> Inductor's kernels by
               region -> errors of both
    graphs     the kernels of that in reduce-overhead, beside Inductor in it

It imports torch and the model's package, and waits for a byte on stdin. That, the model's construction and the
device's context are outside of the times; everything of this package and of Inductor is imported within. FILE
holds what was measured so far at any time, so that a process that is ended leaves what it had.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from benchmarks.coverage_jobs import Job, job_named
from benchmarks.coverage_measure import (
    FirstVerdict,
    allow_recompiles,
    choices,
    compare,
    compile_watched,
    decided_regions,
    first_call,
    gpu_times,
    settle,
    time_arms,
    watch_progress,
)
from benchmarks.model_contenders import Contender, Step
from benchmarks.side_by_side import OUT_OF_TIME, OutOfTime, ends_with_parent

Arm = Literal["inductor", "cudal1", "graphs"]

DRY_BUDGET_S = 4.0


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
        self.stage(what)
        try:
            yield
        except OutOfTime:
            raise
        except Exception as error:  # noqa: BLE001  a finding, not the end
            traceback.print_exc()
            self.row.setdefault("failures", {})[what] = f"{type(error).__name__}: {error}"[:300]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--job", required=True)
    parser.add_argument("--arm", required=True, choices=("inductor", "cudal1", "graphs"))
    parser.add_argument("--out", type=Path, required=True, help="file of what was measured")
    parser.add_argument("--dry", action="store_true")
    arguments = parser.parse_args(argv)
    report, job = Report(arguments.out), job_named(arguments.job)
    job.make(torch.device("cpu"), True)  # imports what it needs
    return at_the_word(report, lambda: measure(job, arguments.arm, report, arguments.dry))


def at_the_word(report: Report, work: Callable[[], None]) -> int:
    """Waits for a byte on stdin, and works. Returns the exit code; the report holds what went wrong."""
    if not os.read(0, 1):
        return OUT_OF_TIME
    with ends_with_parent():
        try:
            work()
        except OutOfTime:
            return OUT_OF_TIME  # the file tells what was being done
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


def measure_inductor(step: Step, report: Report, dry: bool) -> None:
    report.stage("first call")
    _, found = first_call(step, lambda: torch.compile(step.module))
    report.stage("done", **found)


def measure_cudal1(step: Step, report: Report, dry: bool) -> None:
    first = FirstVerdict()

    def make() -> Any:
        from cudal1_compile.backend import cudal1

        watch_progress(first)
        options: Any = {"target": "host", "budget_s": DRY_BUDGET_S} if dry else None
        return torch.compile(step.module, backend=cudal1, options=options)

    report.stage("first call")
    compiled, found = first_call(step, make)
    report.stage("trial between variants", **found, first_verdict_s=first.seconds())
    report.stage("regions", **settle(step, compiled), regions=decided_regions(), choices=choices())
    arms = [Contender("cudal1", compiled)]
    graphs: list[Any] = []
    with report.may_fail("Inductor beside it"):
        contender, graphs = compile_watched(step, dry)
        arms.append(contender)
    with report.may_fail("timed rounds"):
        report.row |= time_arms(step, arms)
    if graphs:
        with report.may_fail("profile"):
            report.row |= gpu_times(step, arms[-1], graphs, report.path.parent, dry)
    with report.may_fail("errors"):
        report.row |= compare(step, arms)


def measure_graphs(step: Step, report: Report, dry: bool) -> None:
    from benchmarks.model_contenders import inductor_backend
    from cudal1_compile.backend import cudal1

    options = {"on_miss": "fallback"} | ({"target": "host"} if dry else {})

    def backend(gm: Any, example_inputs: Any) -> Any:
        return cudal1(gm, example_inputs, mode="reduce-overhead", options=options)

    report.stage("first call")
    compiled, found = first_call(step, lambda: torch.compile(step.module, backend=backend))
    report.stage("trial between variants", **found)
    report.stage("Inductor beside it", **settle(step, compiled), choices=choices())
    allow_recompiles()
    plain, _ = first_call(step, lambda: torch.compile(step.module, backend=inductor_backend("reduce-overhead")))
    arms = [Contender("cudal1", compiled), Contender("inductor", plain)]
    for arm in arms * 3:  # warm up, record, replay
        step.clear()
        step.run(arm.call)
    report.stage("errors", **time_arms(step, arms))
    with report.may_fail("errors"):
        report.row |= compare(step, arms)


if __name__ == "__main__":
    sys.exit(main())
