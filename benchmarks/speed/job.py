"""What one fresh process measures of one task; __main__.py starts such processes, one after the other.

    cudal1's first call -> calls until its trial has decided -> the other arms compiled and captured, Dynamo alone
    -> timed rounds of all -> their results against float64 -> the roofline

Everything under torch.no_grad() and on modules as constructed (train mode; --eval for the other). The process
loads the task, waits for a byte on stdin, checks torch's flags, and checks them again at its end. FILE holds what
was measured so far at any time. An arm that fails is left out, and the row says why.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import torch

from benchmarks.coverage_job import Report, at_the_word
from benchmarks.coverage_measure import allow_recompiles, choices, decided_regions, first_call, settle
from benchmarks.model_contenders import Contender, Step
from benchmarks.speed import flags
from benchmarks.speed.arms import DYNAMO, MAX_AUTOTUNE, OURS, compile_as
from benchmarks.speed.errors import reference, results, shares_outside
from benchmarks.speed.loader import TaskError, build, load
from benchmarks.speed.roofline import Work, floor_us, measure_peaks, products_us, work_of
from benchmarks.speed.rounds import CLOCKS, time_rounds

ROUNDS_S = 4.0
DRY_ROUNDS_S = 0.5


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse_arguments(argv)
    report = Report(arguments.out)
    try:
        module = load(arguments.task, tiny=arguments.dry)
    except TaskError as error:
        report.stage("failed", error=str(error)[:300])
        return 1
    return at_the_word(report, lambda: measure(module, report, arguments))


def measure(module: ModuleType, report: Report, arguments: argparse.Namespace) -> None:
    """Raises RuntimeError where a flag is not what it should be."""
    check_flags(report, arguments.strict)
    step = make_step(module, report, arguments)
    wanted = ["cudal1", "inductor", "reduce_overhead", "cudal1_reduce_overhead", "graph"]
    arms = [Contender("eager", step.module)]
    for name in [*wanted, *([MAX_AUTOTUNE] if arguments.max_autotune else []), DYNAMO]:
        with report.may_fail(name):
            arms.append(make_arm(name, step, report, arguments.dry))
    report.stage("timed rounds")
    times = time_rounds(step, arms, DRY_ROUNDS_S if arguments.dry else ROUNDS_S)
    found = {clock: _short(getattr(times, clock)) for clock in CLOCKS}
    report.stage("roofline", **found, hidden=times.hidden)
    work = Work(0, {})
    with report.may_fail("roofline"):
        work = work_of(module)
        report.row |= roofline(work, arguments)
    with report.may_fail("errors"):
        report.row |= compare(step, arms, sum(work.flops.values()))
    check_flags(report, arguments.strict)


def check_flags(report: Report, strict: bool) -> None:
    if strict:
        torch.backends.cudnn.allow_tf32 = False
    found = flags.read()
    report.stage("flags", flags=found)
    if differs := flags.unexpected(found, strict):
        raise RuntimeError(f"torch's flags: {differs}")


def make_step(module: ModuleType, report: Report, arguments: argparse.Namespace) -> Step:
    device = torch.device("cpu") if arguments.dry else torch.device("cuda", 0)
    report.stage("build", device="" if arguments.dry else torch.cuda.get_device_name(0))
    model, inputs = build(module, device)
    step = Step(model.eval() if arguments.eval else model, inputs, False)
    (torch.ones(64, device=device) @ torch.ones(64, device=device)).item()  # the device's context, and a library
    return step


def make_arm(name: str, step: Step, report: Report, dry: bool) -> Contender:
    """Compiled and called once; of this backend, until its trial has decided."""
    if name != OURS[0]:
        allow_recompiles()
    with torch._dynamo.config.patch(allow_rnn=name == DYNAMO):  # as for this backend's own compiles
        call, found = first_call(step, lambda: compile_as(name, step, dry))
    report.row.setdefault("first_call_s", {})[name] = round(found["first_call_s"], 3)
    if name in OURS:
        report.row.setdefault("settling", {})[name] = settle(step, call)["settling"]
        report.row.setdefault("choices", {})[name] = choices()
    if name == OURS[0]:
        report.row["regions"] = dict(Counter(r["outcome"] for r in decided_regions()))
    return Contender(name, call)


def roofline(work: Work, arguments: argparse.Namespace) -> dict[str, object]:
    found: dict[str, object] = {"bytes": work.bytes, "flops": dict(work.flops)}
    if arguments.dry:
        return found
    peaks, allowed = measure_peaks(torch.device("cuda", 0), work), not arguments.strict
    return found | {
        "floor_us": floor_us(work, peaks, allowed),
        "floor_by": "products" if products_us(work, peaks, allowed) > work.bytes / peaks.bytes_per_us else "bytes",
        "peaks": {"bytes_per_us": peaks.bytes_per_us, **peaks.flops_per_us},
    }


def compare(step: Step, arms: Sequence[Contender], flops: float) -> dict[str, object]:
    step.clear()
    exact, against = reference(step, flops)
    if exact is None:
        return {"reference": against}
    with torch.no_grad():
        errors = {arm.name: shares_outside(results(step, arm.call), exact) for arm in arms if arm.name != DYNAMO}
    return {"reference": against, "errors": errors}


def _short(times: dict[str, list[float]]) -> dict[str, list[float]]:
    return {name: [float(f"{us:.5g}") for us in found] for name, found in times.items()}


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="file of what was measured")
    for name in ("strict", "eval", "max-autotune", "dry"):
        parser.add_argument(f"--{name}", action="store_true")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
