"""Whole models under the backend: is it right, is it fast, and how much of it did the model write?

    python -m benchmarks.models --out benchmarks/results          on a GPU: writes models.h100.json in 8 minutes
    python -m benchmarks.models --suite cnn --out OUT             convolutional networks: models.cnn.h100.json
    python -m benchmarks.models --dry --out OUT --models mlp      on a CPU, tiny: proves the script, no result

    one process for each model and direction (inference: no_grad, eval; train: forward and backward)
    -> all plan -> every region of all models is synthesised once, most valuable first, into a fresh cache
    -> all compile -> one after another measures with the GPU to itself -> second processes, warm

Contenders: eager, Inductor, Inductor in reduce-overhead, cudal1 (mode default, the choice between its variants
settled on its first calls), and with --reduce-overhead, once these have a row, cudal1 in that mode beside Inductor
in it: a run that ends before keeps the row. Every call is timed with the host, in rounds of random order. Models
compile side by side: compile times, Inductor's too, are those of a busy machine. OUT grows while it runs:
models.rows.jsonl and models.partial.GPU.json hold what a killed run had; `--rows FILE` takes such rows over and
measures what is missing. With another generator than the bundled one the file is called after it
(models.template.GPU.json). `--lean` is for many models in one run: contenders share one folder of compile caches
(so no compile time is reported), Inductor's kernels are not traced to regions (no coverage_time), and there are no
second processes. Nothing is concluded here; model_summary.py says what counts.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from benchmarks.model_contenders import GRAPHS, Job
from benchmarks.model_job import Said, serve, serve_warm
from benchmarks.model_summary import count_refused, describe, intervals, summarise
from benchmarks.model_synthesis import Wanted, Written, find_right, load_generator, write_kernels
from benchmarks.result_file import commit, device_stem, write_result
from benchmarks.zoo import ZOO
from benchmarks.zoo_cnn import CNNS, SPECS
from cudal1_compile.generate.errors import GeneratorError
from cudal1_compile.generate.protocol import Generator
from cudal1_compile.inductor.graph_plan import SeenRegion
from cudal1_compile.pipeline.planner import FORWARD_SHARE
from cudal1_compile.runtime.cores import usable_cores

log = logging.getLogger(__name__)

SUITES = {
    "main": tuple(s.name for s in ZOO if s.issue),
    "cnn": (*(s.name for s in CNNS), "resnet18"),
}
DIRECTIONS = ("inference", "train")
WARM_S = 60.0  # reserved for the second processes
LAST_S = 10.0  # reserved for the end: processes are killed, the file is written


class OutOfTime(Exception):
    """The run's time is over, whatever it is doing."""


@dataclass
class Process:
    """One worker process and what it said last."""

    job: Job
    process: BaseProcess
    pipe: Connection
    state: str = "plans"


@dataclass
class Run:
    """What a run has so far; `write` may be called at any time."""

    arguments: argparse.Namespace
    generator: str
    deadline: float
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    written: Written = field(default_factory=Written)
    right: set[str] = field(default_factory=set)
    plans: dict[str, dict[str, Any]] = field(default_factory=dict)
    start: float = field(default_factory=time.monotonic)

    @property
    def name(self) -> str:
        kind = self.generator.partition(":")[0]
        suite = [] if self.arguments.suite == "main" else [self.arguments.suite]
        return ".".join(["models", *suite, *([] if kind == "bundled" else [kind])])

    @property
    def left_s(self) -> float:
        return self.deadline - time.monotonic()

    @property
    def reserve_s(self) -> float:
        return LAST_S if self.arguments.lean else WARM_S

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.start:5.0f} s] {text}", flush=True)

    def fail(self, job: str, why: str) -> None:
        self.failures[job] = why
        self.say(f"{job} failed: {why.strip().splitlines()[-1]}")

    def take_over(self, paths: Collection[Path]) -> None:
        """Rows of earlier runs with this generator, the latest of each job; they are not measured again."""
        lines = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
        (self.arguments.out / f"{self.name}.rows.jsonl").unlink(missing_ok=True)
        kept = {row.pop("job"): row for row in lines if row["generator"] == self.generator}
        for job, row in kept.items():
            self.right |= set(row["right"])
            self.add(job, row)

    def add_measured(self, job: str, row: dict[str, Any]) -> None:
        right = sorted(self.right & {f for plan in row["plans"] for f in plan["regions"]})
        self.add(job, row | {"right": right, "generator": self.generator, "commit": commit()})

    def add(self, job: str, row: dict[str, Any]) -> None:
        self.rows[job] = row
        with (self.arguments.out / f"{self.name}.rows.jsonl").open("a") as stream:
            stream.write(json.dumps({"job": job, **row}) + "\n")
        self.write(f"{self.name}.partial")

    def write(self, name: str) -> Path:
        rows = [self.rows[job] for job in sorted(self.rows)]
        summary = summarise(rows, self.right) | {
            "generator": self.generator,
            "generator_replies": self.written.replies,
            "synthesis_s": round(self.written.seconds, 1),
            "failed": len(self.failures),
        }
        detail = {
            job: describe(row, self.right, self.written.seconds_of) for job, row in sorted(self.rows.items())
        }
        body = {
            "models": detail,
            "failures": self.failures,
            "synthesis": self.written.describe(),
            "nodes_outside": {job: count_refused(plan["refused"]) for job, plan in sorted(self.plans.items())},
            "processes": len(self.plans),
            "cores": usable_cores(),
            "seconds": round(time.monotonic() - self.start, 1),
        }
        return write_result(
            self.arguments.out, name, summary, len(rows), intervals(rows), body, self.arguments.dry
        )


def main(argv: list[str] | None = None) -> int:
    began = time.monotonic()
    arguments = parse_arguments(argv)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    if not arguments.dry and not torch.cuda.is_available():
        print("no CUDA device here; --dry proves the script on a CPU", file=sys.stderr)
        return 2
    try:
        generator = load_generator(arguments.generator, torch.device("cpu" if arguments.dry else "cuda"))
    except (GeneratorError, ValueError) as error:
        print(f"nothing is measured: {error}", file=sys.stderr)
        return 2
    arguments.out.mkdir(parents=True, exist_ok=True)
    run = Run(arguments, generator.name, began + arguments.seconds)
    run.take_over(arguments.rows)
    work = Path(arguments.work or tempfile.mkdtemp(prefix="cudal1-models-"))
    store = work / "kernels"
    store.mkdir(parents=True, exist_ok=True)
    jobs = [job for job in _jobs(arguments, store, work) if job.name not in run.rows]
    # the processes are the parallelism, and where they are few each gets more threads
    threads = 1 if arguments.dry else max(1, usable_cores() // max(1, len(jobs)))
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(threads))
    processes = [start(job, serve) for job in jobs]
    signal.signal(signal.SIGALRM, _out_of_time)
    signal.setitimer(signal.ITIMER_REAL, max(0.1, run.left_s - LAST_S))
    run.say(f"{len(processes)} processes, work in {work}, generator {generator.name}")
    try:
        plan(run, processes)
        if arguments.products:
            lasting = [w for w in _wanted(run) if not w.may_change]
            synthesise(run, lasting, generator, store, arguments.synthesis_s * FORWARD_SHARE)
            plan_again(run, processes)
            synthesise(run, _wanted(run), generator, store, arguments.synthesis_s * (1 - FORWARD_SHARE))
        else:
            synthesise(run, _wanted(run), generator, store, arguments.synthesis_s)
        right = find_right(store, _wanted(run), generator.name, arguments.dry)
        run.right |= right
        run.say(f"{len(right)} of {len(_wanted(run))} regions have a right kernel")
        run.write(f"{run.name}.partial")
        del generator
        measure(run, processes)
        if not arguments.lean:
            warm(run, store, work)
    except OutOfTime:
        run.say("the time of the run is over")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for process in processes:
            if process.state not in ("done", "failed"):
                _give_up(run, process, f"the time of the run was over while it {process.state}")
        for process in processes:
            process.process.kill()
    path = run.write(run.name)
    stem = "dry" if arguments.dry else device_stem()
    (arguments.out / f"{run.name}.partial.{stem}.json").unlink(missing_ok=True)
    _print(path)
    return 0 if run.rows else 1


def start(job: Job, target: Callable[[Job, Connection], None]) -> Process:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=target, args=(job, there), name=job.name, daemon=True)
    process.start()
    there.close()
    return Process(job, process, here)


def plan(run: Run, processes: list[Process]) -> None:
    """Waits for every process's regions; one that takes too long is given up."""
    for said in listen(run, processes, "plans", run.arguments.plan_s):
        run.plans[said.job] = said.body
        counts = f"{len(said.body['regions'])} regions in {said.body['graphs']} graphs"
        took = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in said.body["seconds"].items())
        run.say(f"{said.job} planned: {counts}, {len(said.body['refused'])} nodes outside; {took}")
        _move(processes, said.job, "waits for kernels")
    for process in processes:
        if process.state == "plans":
            _give_up(run, process, "it did not plan in time")


def plan_again(run: Run, processes: list[Process]) -> None:
    """With the kernels that there are: those of a forward change what its backward reads."""
    for process in processes:
        if process.state == "waits for kernels":
            process.pipe.send("plan")
            process.state = "plans"
    plan(run, processes)


def synthesise(run: Run, wanted: list[Wanted], generator: Generator, store: Path, limit_s: float) -> None:
    """For those that have no kernel yet."""
    seconds = min(limit_s, max(0.0, run.left_s - run.reserve_s))
    known = {r["seen"]["fingerprint"] for p in run.plans.values() for r in p["regions"] if r["outcome"] == "hit"}
    wanted = [w for w in wanted if w.fingerprint not in known]
    run.written.add(write_kernels(wanted, generator, store, run.arguments.dry, seconds, run.say))


def measure(run: Run, processes: list[Process]) -> None:
    """Tells all to compile; whoever is ready first measures first, one at a time."""
    for process in processes:
        if process.state == "waits for kernels":
            process.pipe.send("kernels")
            process.state = "compiles"
    ready: list[Process] = []
    busy: Process | None = None
    while any(p.state in ("compiles", "ready", "measures") for p in processes) and run.left_s > run.reserve_s / 2:
        for said in listen_once(run, processes, 1.0):
            process = _of(processes, said.job)
            if said.what == "ready":
                process.state = "ready"
                ready.append(process)
            elif said.what == "measured":
                is_first = said.job not in run.rows
                if is_first:
                    said.body["compiling_beside"] = sum(p.state == "compiles" for p in processes)
                run.add_measured(said.job, run.rows.get(said.job, {}) | said.body)
                run.say(_line(said.job, run.rows[said.job]))
                if process.job.graphs and is_first:
                    process.pipe.send("graphs")
                    process.state = "compiles"
                else:
                    _finish(process)
        if busy is None or busy.state != "measures":
            busy = next((p for p in ready if p.state == "ready"), None)
            if busy is not None:
                busy.pipe.send("measure")
                busy.state = "measures"
    for process in processes:
        if process.state in ("compiles", "ready", "measures"):
            _give_up(run, process, f"the time of the run was over while it {process.state}")


def warm(run: Run, store: Path, work: Path) -> None:
    """Second processes for what was measured, all at once."""
    jobs = [job for job in _jobs(run.arguments, store, work) if job.name in run.rows]
    if run.left_s < 10 or not jobs:
        return
    processes = [start(job, serve_warm) for job in jobs]
    try:
        for said in listen(run, processes, "plans", run.left_s):
            run.rows[said.job]["warm"] = said.body
            cudal1, inductor = said.body["cudal1"], said.body["inductor"]
            times = f"{cudal1['compile_s']:.1f} s, Inductor {inductor['compile_s']:.1f} s"
            run.say(f"{said.job} warm: {times}; regions {cudal1['regions']}")
            _finish(_of(processes, said.job))
        run.failures |= {f"{p.job.name} warm": "not in time" for p in processes if p.state == "plans"}
    finally:
        for process in processes:
            process.process.kill()


def listen(run: Run, processes: list[Process], state: str, limit_s: float) -> Iterator[Said]:
    """Messages until no process is in `state` any more, or the limit is over."""
    end = time.monotonic() + limit_s
    while any(p.state == state for p in processes) and time.monotonic() < end:
        yield from listen_once(run, processes, 1.0)


def listen_once(run: Run, processes: list[Process], timeout_s: float) -> list[Said]:
    """What arrived within the timeout. Failures are noted, not returned."""
    open_pipes = {p.pipe: p for p in processes if p.state not in ("done", "failed")}
    found: list[Said] = []
    for pipe in wait(list(open_pipes), timeout_s):
        process = open_pipes[pipe]  # type: ignore[index]
        try:
            said: Said = process.pipe.recv()
        except (EOFError, OSError):
            process.process.join(5)
            _give_up(
                run, process, f"the process ended with code {process.process.exitcode} while it {process.state}"
            )
            continue
        if said.what == "failed":
            _give_up(run, process, said.body)
        else:
            found.append(said)
    return found


def _jobs(arguments: argparse.Namespace, store: Path, work: Path) -> list[Job]:
    """In the order given: what takes longest to compile should begin first."""
    specs = [SPECS[name] for name in arguments.models]
    return [
        Job(
            spec.name,
            direction == "train",
            min(spec.layers, arguments.layers or spec.layers),
            store,
            work,
            arguments.dry,
            arguments.rounds,
            arguments.measure_s,
            arguments.reduce_overhead,
            arguments.products,
            arguments.lean,
        )
        for direction in reversed(DIRECTIONS)
        if direction in arguments.directions
        for spec in specs
    ]


def _wanted(run: Run) -> list[Wanted]:
    """Every distinct region with what all models together spend in it."""
    found: dict[str, Wanted] = {}
    for plan_ in run.plans.values():
        for region in plan_["regions"]:
            seen = SeenRegion(**region["seen"])
            known = found.get(seen.fingerprint)
            value = seen.value_us + (known.value_us if known else 0.0)
            changes = seen.may_change and (known is None or known.may_change)
            found[seen.fingerprint] = Wanted(seen.fingerprint, seen.text, value, changes)
    return list(found.values())


def _move(processes: list[Process], job: str, state: str) -> None:
    _of(processes, job).state = state


def _of(processes: list[Process], job: str) -> Process:
    return next(p for p in processes if p.job.name == job)


def _finish(process: Process) -> None:
    process.state = "done"
    process.process.join(10)
    process.process.kill()


def _give_up(run: Run, process: Process, why: str) -> None:
    """A row without reduce-overhead stays."""
    process.state = "failed"
    process.process.kill()
    if (row := run.rows.get(process.job.name)) is not None:
        row["failures"] = row["failures"] | {GRAPHS: why[-500:]}
        run.say(f"{process.job.name} without reduce-overhead: {why.strip().splitlines()[-1]}")
    else:
        run.fail(process.job.name, why)


def _line(job: str, row: dict[str, Any]) -> str:
    part = row.get("graphs") or row
    times = ", ".join(f"{name} {ms:.2f}" for name, ms in part["median_ms"].items())
    choice = "+".join(part.get("choice") or [p["choice"] for p in row["plans"]]) or "no plan"
    return f"{job}: ms {times}; {choice}; turn {part['turn_s']:.0f} s"


def _print(path: Path) -> None:
    summary = json.loads(path.read_text())["summary"]
    for key, value in summary.items():
        print(f"{key:32s} {value if not isinstance(value, float) else round(value, 4)}")
    print(path)


def parse_arguments(argv: Collection[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--generator", default="bundled", help="as the backend's option, or `teacher`: templates")
    parser.add_argument("--suite", default="main", choices=SUITES, help="cnn: lean, and shorter than the main one")
    parser.add_argument("--models", nargs="*", choices=list(SPECS), help="default: those of the suite")
    parser.add_argument("--directions", nargs="*", default=list(DIRECTIONS), choices=DIRECTIONS)
    parser.add_argument("--layers", type=int, default=0, help="at most so many; 0: the full models")
    parser.add_argument("--synthesis-s", type=float, default=200.0, help="for all regions together")
    parser.add_argument("--plan-s", type=float, default=150.0, help="until every process must have planned")
    parser.add_argument("--seconds", type=float, default=520.0, help="of the whole run")
    parser.add_argument(
        "--products",
        action=argparse.BooleanOptionalAction,
        help="as the option; on by default, in --dry off",
    )
    parser.add_argument("--lean", action="store_true", help="no coverage_time, compile times and second processes")
    parser.add_argument("--rows", type=Path, nargs="*", default=[], help="rows.jsonl of earlier runs to take over")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--measure-s", type=float, default=8.0, help="of the timed rounds of one model")
    parser.add_argument(
        "--reduce-overhead",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="cudal1 in that mode too: its variants are compiled once more",
    )
    parser.add_argument("--work", type=Path, help="folder for caches, logs and traces; default: a temporary one")
    parser.add_argument("--dry", action="store_true", help="host target, tiny models: proves the script")
    words = list(argv) if argv is not None else sys.argv[1:]
    if parser.parse_known_args(words)[0].suite == "cnn":
        parser.set_defaults(lean=True, reduce_overhead=True, synthesis_s=130.0, plan_s=100.0, measure_s=4.0)
    arguments = parser.parse_args(words)
    arguments.products = not arguments.dry if arguments.products is None else arguments.products
    arguments.models = arguments.models or list(SUITES[arguments.suite])
    return arguments


def _out_of_time(*_: Any) -> None:
    raise OutOfTime


if __name__ == "__main__":
    sys.exit(main())
