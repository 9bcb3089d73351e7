"""What a user gets with default options and empty caches: how much of the GPU's time is decided, and how soon.

    python -m benchmarks.coverage --out OUT --work WORK --seconds 3000     on a GPU: all jobs that have no row yet
    python -m benchmarks.coverage --out OUT --work WORK --gpus 4           on four, each with a share of the cores
    python -m benchmarks.coverage --out OUT --work WORK --rate             candidates judged a second
    python -m benchmarks.coverage --out OUT --work W1 --collect W2 W3      writes coverage.h100.json of all rows
    python -m benchmarks.coverage --dry --out OUT --work WORK              on a CPU, tiny: proves the script

Jobs are tasks of our own at large sizes (coverage_tasks.py) and models as packages define them
(coverage_models.py). A job is a few fresh processes, one after the other, with nothing beside them on the GPU
(while one measures, the next one imports, on one core, and waits): plain Inductor's first call twice, each
with empty caches; the backend with default options and an empty cache, then all that is measured of it
(coverage_job.py); with --graphs reduce-overhead too. A process that takes longer than its limit is ended, and the
row says so: `failed` counts it.

WORK/rows.jsonl gets a line when a job has ended; what has a line is not measured again, and a job that the run's
end cut off leaves none. The longest come first. A set that lacks jobs is written as NAME.partial.GPU.json. A
job's arms share a GPU; where jobs ran on several kinds, the file has the name of the usual one, and the other
jobs name theirs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from statistics import median
from typing import Any

from benchmarks.coverage_jobs import JOBS, Job, job_named
from benchmarks.coverage_summary import (
    describe,
    intervals,
    is_over,
    limit_s,
    speedup,
    summarise,
    usual_device,
    value,
)
from benchmarks.result_file import commit, versions, write_result
from benchmarks.side_by_side import Place, share_cores, start_child, stop_children
from cudal1_compile.options import DEFAULT_GRAPH_BUDGET_S

INDUCTOR_LIMIT_S = 120.0
CUDAL1_LIMIT_S = 240.0
RATE_LIMIT_S = 400.0
INDUCTOR_RUNS = 2
USUAL_JOB_S = 100.0  # less time than the longest of its kind took, or this before one has, and no job is begun
DRY_JOBS = ("linear_layer_norm", "rms_norm_bf16", "gpt2.train")
POLL_S = 0.1
ROWS = "rows.jsonl"
ONE_ROW = threading.Lock()  # is written at a time


class OutOfTime(Exception):
    """The run's time is over."""


@dataclass(frozen=True)
class Run:
    """What is measured in one place, one job after the other."""

    work: Path
    deadline: float  # monotonic
    over: threading.Event  # set: it ends before that
    place: Place
    graphs: bool
    dry: bool

    @property
    def left_s(self) -> float:
        return -1.0 if self.over.is_set() else self.deadline - time.monotonic()


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse_arguments(argv)
    arguments.work.mkdir(parents=True, exist_ok=True)
    end, over = time.monotonic() + arguments.seconds, threading.Event()
    places = gpu_places(arguments.gpus, os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    runs = [Run(arguments.work, end, over, place, arguments.graphs, arguments.dry) for place in places]
    if arguments.rate:
        measure_rate(runs[0])
    elif arguments.collect is None:
        measure_jobs(runs, wanted_jobs(arguments))
    return collect(arguments)


def measure_jobs(runs: Sequence[Run], wanted: Sequence[Job]) -> None:
    """Those that have no row yet, until the time is over."""
    known = {row["job"] for row in read_rows([runs[0].work])}
    waiting: SimpleQueue[Job] = SimpleQueue()
    for job in sorted(wanted, key=lambda job: (job.kind == "task", not job.train)):
        if job.name not in known:
            waiting.put(job)
    with ThreadPoolExecutor(len(runs)) as lanes:
        try:
            list(lanes.map(lambda run: measure_some(run, waiting), runs))
        finally:
            runs[0].over.set()


def measure_some(run: Run, waiting: SimpleQueue[Job]) -> None:
    longest_s: dict[tuple[str, bool], float] = {}  # of jobs of a kind
    with contextlib.suppress(Empty):
        while True:
            job = waiting.get_nowait()
            kind = job.kind, job.train
            usual_s = longest_s.get(kind, USUAL_JOB_S)
            if run.left_s < usual_s and not run.dry:
                say(f"{run.left_s:.0f} s are left, such a job takes {usual_s:.0f} s: {job.name} waits")
                continue
            begin = time.monotonic()
            try:
                row = measure_job(run, job)
            except OutOfTime:
                say(f"the time is over: {job.name} waits")
                return
            longest_s[kind] = max(longest_s.get(kind, 0.0), time.monotonic() - begin)
            with ONE_ROW, (run.work / ROWS).open("a") as stream:
                stream.write(json.dumps(row) + "\n")
            say(f"[{time.monotonic() - begin:4.0f} s] {line_of(row)}")


def measure_job(run: Run, job: Job) -> dict[str, Any]:
    """Its row. Raises OutOfTime."""
    folder = run.work / "jobs" / job.name
    shutil.rmtree(folder, ignore_errors=True)
    runs = 1 if run.dry else INDUCTOR_RUNS
    arms = [("inductor", f"inductor{i}") for i in range(runs)] + [("cudal1", "cudal1")]
    arms += [("graphs", "cudal1")] if run.graphs else []
    failed: dict[str, str] = {}
    found: list[dict[str, Any]] = []
    coming: list[Child] = []
    try:
        for i, (arm, _) in enumerate(arms):
            child = coming.pop() if coming else hold_arm(run, job, *arms[i])
            child.go()
            coming += [hold_arm(run, job, *following) for following in arms[i + 1 : i + 2]]
            limit = CUDAL1_LIMIT_S if arm != "inductor" else INDUCTOR_LIMIT_S
            found.append(said_by(child, arm, child.wait(run, limit), limit, failed))
    finally:
        stop_children([child.process for child in coming])
    shutil.rmtree(folder, ignore_errors=True)
    return row_of(job, found[:runs], found[runs], found[runs + 1] if run.graphs else {}, failed)


def row_of(
    job: Job,
    inductor: Sequence[Mapping[str, Any]],
    found: Mapping[str, Any],
    graphs: Mapping[str, Any],
    failed: Mapping[str, str],
) -> dict[str, Any]:
    """Of what a job's processes said."""
    parts = {"inductor": inductor[0] if inductor else {}, "cudal1": found}
    kept = ("first_call_s", "first_verdict_s", "settling", "regions", "choices", "ms", "rounds", "us", "in_order")
    return {
        "job": job.name,
        "kind": job.kind,
        "direction": "train" if job.train else "inference",
        "commit": commit(),
        "device": next((p["device"] for p in (found, *inductor) if p.get("device")), ""),
        "versions": versions(),
        "budget_s": DEFAULT_GRAPH_BUDGET_S,
        "inductor_first_s": [p["first_call_s"] for p in inductor if "first_call_s" in p],
        **{key: found[key] for key in (*kept, "errors", "against") if key in found},
        "mib": {arm: [p["peak_mib"], p["held_mib"]] for arm, p in parts.items() if "peak_mib" in p},
        "graphs": {key: graphs[key] for key in ("ms", "errors", "choices", "settling") if key in graphs},
        "failed": dict(failed),
    }


@dataclass(frozen=True)
class Child:
    """A process that imports, waits for `go`, and then measures into its file."""

    process: subprocess.Popen[bytes]
    file: Path

    def go(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: its exit code says how
            self.process.stdin.write(b"\n")
            self.process.stdin.flush()

    def wait(self, run: Run, limit: float) -> int | None:
        """Its exit code; None where it was ended at its limit. Raises OutOfTime where the run's end came first."""
        end = time.monotonic() + limit
        try:
            while (code := self.process.poll()) is None and time.monotonic() < end and run.left_s > 0:
                time.sleep(POLL_S)
        finally:
            stop_children([self.process])
        if code is None and run.left_s <= 0:
            raise OutOfTime
        return code


def hold_arm(run: Run, job: Job, arm: str, caches: str) -> Child:
    file = run.work / "jobs" / job.name / caches / f"{arm}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    command = ["-m", "benchmarks.coverage_job", "--job", job.name, "--arm", arm, "--out", str(file)]
    return hold(run, [*command, *(["--dry"] if run.dry else [])], file, f"{job.name}.{arm}")


def hold(run: Run, command: Sequence[str], file: Path, log_name: str) -> Child:
    """Its caches are beside the file."""
    logs = run.work / "logs"
    logs.mkdir(exist_ok=True)
    with (logs / f"{log_name}.log").open("wb") as log:
        place = Place({**environment_of(run, file.parent), **run.place.environment}, run.place.cores)
        return Child(start_child([sys.executable, *command], place, log), file)


def said_by(child: Child, arm: str, code: int | None, limit: float, failed: dict[str, str]) -> dict[str, Any]:
    """What one process measured; why it did not end well goes to `failed`."""
    found: dict[str, Any] = json.loads(child.file.read_text()) if child.file.is_file() else {}
    stage = found.get("stage", "start")
    if code is None:
        failed[arm] = f"over {limit:.0f} s: {stage}"
    elif code != 0:
        failed[arm] = found.get("error") or f"exit code {code}: {stage}"
    for what, why in found.get("failures", {}).items():
        failed[f"{arm}, {what}"] = why
    return found


def environment_of(run: Run, caches: Path) -> dict[str, str]:
    """A user's, with all caches in one folder."""
    places = {
        "TORCHINDUCTOR_CACHE_DIR": "inductor",
        "TRITON_CACHE_DIR": "triton",
        "CUDAL1_CACHE_DIR": "kernels",
        "CUDAL1_KEY_FILE": "key",
    }
    found = {name: str((caches / place).absolute()) for name, place in places.items()}
    if run.dry:  # no time of it is reported
        found["TORCHINDUCTOR_CACHE_DIR"] = str((run.work / "inductor").absolute())
    return found


def gpu_places(count: int, visible: str) -> list[Place]:
    """Each of the first GPUs that this process may see, with its share of the cores. Raises ValueError.

    count: 0 for this process's place as it is.
    """
    if not count:
        return [Place({})]
    names = [name for name in visible.split(",") if name] or [str(index) for index in range(count)]
    if count > len(names):
        raise ValueError(f"--gpus {count}: CUDA_VISIBLE_DEVICES={visible} has {len(names)}")
    pairs = zip(names, share_cores(count), strict=False)
    return [Place({"CUDA_VISIBLE_DEVICES": name}, cores) for name, cores in pairs]


def measure_rate(run: Run) -> None:
    file = run.work / "rate.json"
    caches = run.work / "jobs" / "rate"
    command = ["-m", "benchmarks.coverage_rate", "--out", str(file), *(["--dry"] if run.dry else [])]
    try:
        code = hold(run, command, caches / "rate.json", "rate").wait(run, RATE_LIMIT_S)
    except OutOfTime:
        code = None
    shutil.rmtree(caches, ignore_errors=True)
    say(f"rate: {file.read_text() if code == 0 else f'not measured (exit code {code}), see the log'}")


def collect(arguments: argparse.Namespace) -> int:
    """Writes what all folders have. Returns 1 where they have nothing."""
    folders = [arguments.work, *(arguments.collect or [])]
    rows = read_rows(folders)
    if not rows:
        return 0 if arguments.rate else 1
    rates = [json.loads(f.read_text()) for d in folders if (f := d / "rate.json").is_file()]
    rate = rates[0] if rates else {}
    is_whole = not {job.name for job in JOBS} - {row["job"] for row in rows}
    name = arguments.name if is_whole or arguments.dry else f"{arguments.name}.partial"
    usual = usual_device(rows)
    first = next(row for row in rows if row["device"] == usual)
    measured = {} if arguments.dry else {key: first[key] for key in ("device", "commit", "versions")}
    path = write_result(
        arguments.out,
        name,
        {key: round(v, 4) if isinstance(v, float) else v for key, v in summarise(rows, rate).items()},
        len(rows),
        {key: (round(low, 4), round(high, 4)) for key, (low, high) in intervals(rows).items()},
        describe(rows, rate),
        arguments.dry,
        measured,
    )
    for key, found in json.loads(path.read_text())["summary"].items():
        print(f"{key:32s} {found}")
    print(f"{path}, {path.stat().st_size} bytes")
    return 0


def read_rows(folders: Collection[Path]) -> list[dict[str, Any]]:
    """The latest row of each job, in the order of the jobs."""
    found: dict[str, dict[str, Any]] = {}
    for file in (folder / ROWS for folder in folders):
        lines = file.read_text().splitlines() if file.is_file() else []
        found |= {row["job"]: row for row in map(json.loads, lines)}
    return [found[job.name] for job in JOBS if job.name in found]


def line_of(row: Mapping[str, Any]) -> str:
    """For whoever watches."""
    limit, first = limit_s(row), row.get("first_call_s")
    words = [row["job"]]
    if limit is not None and first is not None:
        inductor = median(row["inductor_first_s"])
        words.append(f"first call {first:.0f} s of {limit:.0f} (Inductor {inductor:.0f}){' OVER' * is_over(row)}")
    words += [f"decided {value([row])['value_decided']:.2f}", f"{len(row.get('regions', []))} regions"]
    if (ratio := speedup(row)) is not None:
        words.append(f"{ratio:.2f}x")
    words += [f"{what} failed: {why}" for what, why in row["failed"].items()]
    return ", ".join(words)


def say(text: str) -> None:
    print(text, flush=True)


def wanted_jobs(arguments: argparse.Namespace) -> list[Job]:
    """Raises ValueError for a job that there is not."""
    if arguments.jobs:
        return [job_named(name) for name in arguments.jobs.split(",")]
    if arguments.dry:
        return [job_named(name) for name in DRY_JOBS]
    return list(JOBS)


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="folder for rows, logs and caches")
    parser.add_argument("--name", default="coverage", help="of the file; coverage.before for an older tree")
    parser.add_argument("--jobs", default="", help="names, by commas")
    parser.add_argument("--seconds", type=float, default=3e5, help="of the whole run")
    parser.add_argument("--gpus", type=int, default=0, help="so many jobs at a time, each on a GPU of its own")
    parser.add_argument("--graphs", action="store_true", help="reduce-overhead too, with the same kernels")
    parser.add_argument("--rate", action="store_true", help="measures candidates a second and no job")
    parser.add_argument("--collect", type=Path, nargs="*", help="measures nothing, adds these folders' rows")
    parser.add_argument("--dry", action="store_true", help="host target, tiny sizes: proves the script")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
