"""The judge on this machine's GPU: honest kernels refused, candidates a second, finalists, the cost of a hang.

    python -m benchmarks.judge_rate --out benchmarks/results        on a GPU: writes judge.h100.json
    python -m benchmarks.judge_rate --out OUT --workers 1           the same with one worker process
    python -m benchmarks.judge_rate --dry --out OUT                 on the host target, tiny: proves the script

Hand-written honest kernels come from the judge's own audit; attacks are `cudal1 audit`'s. The rate, and a larger
count of refusals, come from templates' kernels over generated tasks. `summary` holds honest_refused (a fraction),
candidates_per_second (gates 1 to 5 and the quick timing, builds included), finalists_per_second (gates 5 to 8)
and the cost of a hang. A table tells what each gate costs a candidate: of one worker's time, and of the wall's,
where that is the worker's divided by the number of workers; the wall's column adds up to 1 / rate.
"""

from __future__ import annotations

import argparse
import gc
import logging
import random
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.redteam.attacks import attacks_for
from benchmarks.redteam.honest import HONEST
from benchmarks.redteam.regions import region
from benchmarks.result_file import bootstrap, mean, write_result
from cudal1_compile.judge.judge import Judge
from cudal1_compile.judge.limits import Limits
from cudal1_compile.judge.verdict import Accepted, Deferred, Rejected, Verdict
from cudal1_compile.runtime.target import HOST, detect_target
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import print_program

log = logging.getLogger(__name__)

START_S = 40.0

# the judge's steps by gate; what the worker takes beyond its own steps is the protocol
GATES = {
    "1 text": ("text",),
    "2 builds waited for": ("waited for builds",),
    "3 case suite waited for": ("waited for case suites",),
    "3 case suite, adequacy": ("case suite",),
    "4-5 kernel loaded, unloaded": ("load",),
    "4-5 trial": ("trial",),
    "quick: aten's graph": ("aten",),
    "quick: candidate's graph": ("capture",),
    "quick: timing": ("quick",),
    "quick: timed results compared": ("timed results",),
    "waits for other workers": ("waited for the device",),
}
FINAL_GATES = {
    "3 case suite, fresh": ("case suite",),
    "5 trial again": ("load", "trial"),
    "5 replays with new inputs": ("replays",),
    "6 memory checks waited for": ("waited for memory checks", "compute-sanitizer"),
    "7-8 baselines": ("aten", "inductor", "waited for Inductor"),
    "7-8 timing together": ("capture", "final timing"),
}
# of the process that owns the judge
OUTSIDE = (
    "text",
    "waited for builds",
    "waited for case suites",
    "waited for memory checks",
    "waited for Inductor",
    "compute-sanitizer",
)
DEVICE = ", device"  # ends the name of a step's waits for the device, which its own seconds hold too


@dataclass(frozen=True, slots=True)
class Refusal:
    """A template's kernel that was not accepted, kept whole so that it can be looked into."""

    region: str
    code: str
    stage: str
    reason: str


def main() -> None:
    arguments = _arguments()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    target = HOST if arguments.dry else detect_target(torch.device("cuda"))
    detail: dict[str, Any] = {}
    summary: dict[str, float | int | str] = {}
    limits = Limits(inductor=not arguments.no_inductor, workers=arguments.workers)
    with Judge(target, limits) as judge:
        if not arguments.dry:
            start_all(judge, limits.worker_count, summary)
        gc.freeze()  # of this process, whose modules are no part of the judge: a look through them took 0.1 s
        refused = _run_honest(judge, detail, summary)
        _run_templates(judge, arguments, detail, summary)
        _run_small(judge, arguments, detail, summary)
        if not arguments.dry:
            _run_hangs(judge, detail, summary)
        _run_finalists(judge, arguments, detail, summary)
        detail["counts"], detail["isolation"] = judge.counts, judge.isolation
    intervals = {"honest_refused": bootstrap(refused, mean)}
    n = len(refused) + int(summary["teacher_candidates"])
    path = write_result(arguments.out, "judge", summary, n, intervals, detail, arguments.dry)
    for key, value in summary.items():
        print(f"{key:32s} {value}")
    for kind in ("teacher_gates", "small_gates", "finalist_gates"):
        _print_gates(kind, detail[kind])
    print(path)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--programs", type=int, default=60, help="generated tasks for the rate")
    parser.add_argument("--variants", type=int, default=8, help="template kernels a task")
    parser.add_argument(
        "--finalists", type=int, default=6, help="regions whose candidates are measured as finalists"
    )
    parser.add_argument("--workers", type=int, default=0, help="that judge at once; 0: the judge decides")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-inductor", action="store_true")
    parser.add_argument("--dry", action="store_true", help="host target, small tasks")
    return parser.parse_args()


def start_all(judge: Judge, workers: int, summary: dict[str, float | int | str]) -> None:
    """All workers are up and warm before the clock starts; where the device has no room for them, fewer."""
    begin = time.monotonic()
    while judge.workers < workers and time.monotonic() - begin < START_S:
        judge.judge_tasks([(region(h.region), h.code) for h in HONEST])
    summary["workers"] = judge.workers
    summary["start_seconds"] = round(time.monotonic() - begin, 2)


def _run_honest(judge: Judge, detail: dict[str, Any], summary: dict[str, float | int | str]) -> list[float]:
    verdicts = judge.judge_tasks([(region(h.region), h.code) for h in HONEST])
    refused = [float(_refuses_result(v)) for v in verdicts]
    detail["honest"] = {h.name: _words(v) for h, v in zip(HONEST, verdicts, strict=True)}
    summary["honest"] = len(HONEST)
    summary["honest_refused"] = mean(refused)
    log.info("%d honest kernels, %d refused", len(HONEST), int(sum(refused)))
    return refused


def _run_templates(
    judge: Judge, arguments: argparse.Namespace, detail: dict[str, Any], summary: dict[str, float | int | str]
) -> None:
    tasks = template_tasks(arguments.programs, arguments.variants, arguments.seed, small=arguments.dry)
    verdicts, seconds, detail["teacher_gates"] = _judge_all(judge, tasks)
    stages = Counter(v.stage if isinstance(v, Rejected) else type(v).__name__.lower() for v in verdicts)
    refusals = [
        Refusal(print_program(p), code, v.stage, v.reason)
        for (p, code), v in zip(tasks, verdicts, strict=True)
        if isinstance(v, Rejected) and _refuses_result(v)
    ]
    judged = sum(not isinstance(v, Deferred) for v in verdicts)
    unverifiable = sum(r.stage == "task" for r in refusals)
    summary["teacher_candidates"] = len(tasks)
    summary["teacher_regions"] = len({print_program(p) for p, _ in tasks})
    summary["teacher_refused"] = (len(refusals) - unverifiable) / max(1, judged)
    summary["teacher_unverifiable"] = unverifiable / max(1, judged)  # the task's fault, not the kernel's
    summary["candidates_per_second"] = round(len(tasks) / seconds, 1)
    detail["teacher_verdicts"] = dict(stages)
    detail["teacher_refusals"] = [
        {"region": r.region, "code": r.code, "stage": r.stage, "reason": r.reason} for r in refusals[:40]
    ]
    detail["teacher_deferred"] = [v.reason for v in verdicts if isinstance(v, Deferred)][:10]
    detail["teacher_speedups"] = [v.proof.speedup for v in verdicts if isinstance(v, Accepted)]
    log.info("%d template kernels in %.1f s: %s", len(tasks), seconds, dict(stages))


def _run_small(
    judge: Judge, arguments: argparse.Namespace, detail: dict[str, Any], summary: dict[str, float | int | str]
) -> None:
    """The rate on small regions, where the judge's own overhead shows."""
    tasks = template_tasks(arguments.programs // 2, arguments.variants, arguments.seed + 1, small=True)
    _, seconds, detail["small_gates"] = _judge_all(judge, tasks)
    summary["candidates_per_second_small"] = round(len(tasks) / seconds, 1)
    detail["small_candidates"] = len(tasks)


def _judge_all(
    judge: Judge, tasks: list[tuple[Program, str]]
) -> tuple[list[Verdict], float, dict[str, dict[str, float]]]:
    """Verdicts, seconds, and what each gate cost; the last row lies within and beside the others."""
    before, cpu_s, workers = judge.spent_s, time.process_time(), judge.workers
    begin = time.monotonic()
    verdicts = judge.judge_tasks(tasks)
    seconds = time.monotonic() - begin
    cpu_s = time.process_time() - cpu_s
    gates = _gates(GATES, grown(judge, before), len(tasks), seconds, max(1, workers))
    gates["CPU of the judge's own process"] = _cost(cpu_s, 0.0, len(tasks), seconds, 1)
    return verdicts, seconds, gates


def template_tasks(programs: int, variants: int, seed: int, small: bool) -> list[tuple[Program, str]]:
    """Candidates of one region stand together, as a synthesis asks for them."""
    from cudal1_compile.codegen.templates import draw_reply
    from cudal1_trainer.tasks import generate_task  # the trainer is not needed for the rest

    rng = random.Random(seed)
    found: list[tuple[Program, str]] = []
    for _ in range(programs):
        program = generate_task(rng, small=small)
        codes = {reply.code for _ in range(variants) if (reply := draw_reply(program, rng)) is not None}
        found += [(program, code) for code in sorted(codes)]
    return found


def _run_hangs(judge: Judge, detail: dict[str, Any], summary: dict[str, float | int | str]) -> None:
    """What a candidate that hangs, and one that faults, cost until the next candidate is judged."""
    by_name = {a.name: a for a in attacks_for("cuda")}
    good = HONEST[0]
    for key, name in (("hang_seconds", "never ends"), ("fault_seconds", "writes far away")):
        begin = time.monotonic()
        first, second = judge.judge_tasks(
            [(region(by_name[name].region), by_name[name].code), (region(good.region), good.code)]
        )
        summary[key] = round(time.monotonic() - begin, 2)
        detail[key] = {"attack": _words(first), "next": _words(second)}


def _run_finalists(
    judge: Judge, arguments: argparse.Namespace, detail: dict[str, Any], summary: dict[str, float | int | str]
) -> None:
    """Finalists of some audit regions: all honest kernels of a region together."""
    rows = []
    before = judge.spent_s
    begin = time.monotonic()
    names = sorted({h.region for h in HONEST})[: arguments.finalists]
    for name in names:
        honest = [h for h in HONEST if h.region == name]
        verdicts = judge.finalists(region(name), [h.code for h in honest])
        rows += [{"region": name, "kernel": h.name, **_words(v)} for h, v in zip(honest, verdicts, strict=True)]
    seconds = time.monotonic() - begin
    detail["finalists"] = rows
    detail["finalist_gates"] = _gates(FINAL_GATES, grown(judge, before), len(rows), seconds, 1)
    summary["finalist_regions"] = len(names)
    summary["finalist_seconds_a_region"] = round(seconds / max(1, len(names)), 2)
    summary["finalists_per_second"] = round(len(rows) / seconds, 2)
    log.info("finalists of %d regions: %s", len(names), Counter(r["verdict"] for r in rows))


def grown(judge: Judge, before: dict[str, float]) -> dict[str, float]:
    """Seconds by step since `before`."""
    return {step: round(s - before.get(step, 0.0), 3) for step, s in judge.spent_s.items()}


def _gates(
    gates: dict[str, tuple[str, ...]], spent_s: dict[str, float], candidates: int, seconds: float, workers: int
) -> dict[str, dict[str, float]]:
    """What each gate costs a candidate, the part of it that waits for the device, and its share of the whole."""
    took = {gate: sum(spent_s.get(step, 0.0) for step in steps) for gate, steps in gates.items()}
    waited = {gate: sum(spent_s.get(step + DEVICE, 0.0) for step in steps) for gate, steps in gates.items()}
    within = {k: s for k, s in spent_s.items() if not k.endswith(DEVICE) and k not in OUTSIDE}
    worker, starts = within.pop("worker", 0.0), within.pop("worker starts", 0.0)
    took |= {"protocol": max(0.0, worker - sum(within.values())), "worker starts": starts}
    if "1 text" in took:  # comes before the workers' part, and none of them works meanwhile
        took["1 text"] *= workers
    took["the rest"] = max(0.0, seconds * workers - sum(took.values()))
    return {gate: _cost(s, waited.get(gate, 0.0), candidates, seconds, workers) for gate, s in took.items()}


def _cost(spent_s: float, device_s: float, candidates: int, seconds: float, workers: int) -> dict[str, float]:
    worker_ms, device_ms = (round(1e3 * s / max(1, candidates), 3) for s in (spent_s, device_s))
    share = round(spent_s / workers / seconds, 3)
    return {
        "wall_ms": round(worker_ms / workers, 3),
        "worker_ms": worker_ms,
        "device_ms": device_ms,
        "share": share,
    }


def _print_gates(title: str, gates: dict[str, dict[str, float]]) -> None:
    print(f"\n{title:32s} wall ms a candidate   a worker's ms   of it device   share")
    for gate, cost in gates.items():
        wall, worker, device = (cost[k] for k in ("wall_ms", "worker_ms", "device_ms"))
        print(f"{gate:32s} {wall:19.2f} {worker:15.2f} {device:14.2f} {cost['share']:7.1%}")


def _refuses_result(verdict: Verdict) -> bool:
    """Whether an honest kernel was refused for anything but its speed or cost."""
    return isinstance(verdict, Rejected) and not (verdict.stage == "time" and verdict.reason.startswith("cost"))


def _words(verdict: Verdict) -> dict[str, Any]:
    match verdict:
        case Accepted(proof):
            worst = max((share for _, share in proof.errors), default=0.0)
            timing = proof.timing
            return {
                "verdict": "accepted",
                "worst_share_of_budget": worst,
                "speedup": proof.speedup,
                "candidate_us": timing.candidate_us if timing else None,
                "aten_us": timing.aten_us if timing else None,
                "inductor_us": timing.inductor_us if timing else None,
            }
        case Rejected(stage, reason):
            return {"verdict": "rejected", "stage": stage, "reason": reason}
        case Deferred(reason):
            return {"verdict": "deferred", "reason": reason}


if __name__ == "__main__":
    main()
