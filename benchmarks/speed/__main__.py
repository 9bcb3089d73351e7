"""How fast task files run under every arm that a user has: eager, CUDA graphs, Inductor and its modes, cudal1.

    python -m benchmarks.speed --out OUT --work WORK                  on a GPU: this project's tasks, cold caches
    python -m benchmarks.speed --out OUT --work WORK --warm           and a second process, with the first's caches
    python -m benchmarks.speed --out OUT --work WORK --strict         cudnn.allow_tf32 off, in rows of their own
    python -m benchmarks.speed --out OUT --work WORK --tasks DIR      any folder of such files: speed.DIR.h100.json
    python -m benchmarks.speed --out OUT --work WORK --gpus 4         four at a time, each on a GPU of its own
    python -m benchmarks.speed --out OUT --work W1 --collect W2 W3    writes speed.h100.json of all rows
    python -m benchmarks.speed --dry --out OUT --work WORK            on a CPU, tiny: proves the script

A task file has a class `Model`, `get_inputs()` and `get_init_inputs()` (loader.py). A task is one fresh process in
which all arms are compiled and timed (job.py, rounds.py), with empty caches and default options; with --warm a
second one follows. max-autotune is measured of a quarter of the tasks, drawn by a seed.

WORK/rows.jsonl gets a line when a process has ended; what has one at this commit is not measured again, and what
the run's end cut off leaves none. summary.py says what counts. A set that lacks tasks, or is of several commits,
is written as NAME.partial.GPU.json. Beside the JSON lies a plot where matplotlib is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import sys
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty, SimpleQueue
from statistics import median
from typing import Any

from benchmarks.coverage import ONE_ROW, ROWS, OutOfTime, Run, gpu_places, hold, said_by, say
from benchmarks.coverage_summary import usual_device
from benchmarks.result_file import commit, versions, write_result
from benchmarks.side_by_side import stop_children
from benchmarks.speed.loader import OWN, find_tasks
from benchmarks.speed.plot import plot
from benchmarks.speed.quotas import FOREIGN, QUOTAS
from benchmarks.speed.summary import Row, describe, forgive, intervals, over, summarise

LIMITS_S = {"cold": 420.0, "warm": 300.0}
MAX_AUTOTUNE_S = 240.0  # on top
USUAL_S = 80.0  # of a process, before one has been measured
SPARE = 1.2  # less time left than the usual task's times this, and no such task is begun
MAX_AUTOTUNE_SHARE = 4  # of so many tasks one
SEED = 0
DRY_TASKS = 2


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse_arguments(argv)
    tasks = wanted_tasks(arguments)
    arguments.work.mkdir(parents=True, exist_ok=True)
    if arguments.collect is None:
        end, over_now = time.monotonic() + arguments.seconds, threading.Event()
        places = gpu_places(arguments.gpus, os.environ.get("CUDA_VISIBLE_DEVICES", ""))
        runs = [Run(arguments.work, end, over_now, place, False, arguments.dry) for place in places]
        measure_tasks(runs, tasks, arguments)
    return collect(arguments)


def measure_tasks(runs: Sequence[Run], tasks: Mapping[str, Path], arguments: argparse.Namespace) -> None:
    """Those that lack a row of this commit, until the time is over."""
    rows = [row for row in read_rows([arguments.work]) if row["commit"] == commit()]
    known = {(row["task"], row["track"]) for row in rows if row["strict"] == arguments.strict}
    waiting: SimpleQueue[str] = SimpleQueue()
    for name in tasks:
        if not known >= {(name, track) for track in tracks(arguments)}:
            waiting.put(name)
    drawn = max_autotuned(find_tasks(arguments.tasks))
    with ThreadPoolExecutor(len(runs)) as lanes:
        try:
            list(lanes.map(lambda run: measure_some(run, waiting, tasks, drawn, arguments), runs))
        finally:
            runs[0].over.set()


def measure_some(
    run: Run,
    waiting: SimpleQueue[str],
    tasks: Mapping[str, Path],
    drawn: Collection[str],
    arguments: argparse.Namespace,
) -> None:
    took_s: dict[bool, list[float]] = {True: [], False: []}  # with max-autotune, and without
    with contextlib.suppress(Empty):
        while True:
            name = waiting.get_nowait()
            took = took_s[name in drawn]
            usual_s = SPARE * (median(took) if took else USUAL_S * len(tracks(arguments)))
            if run.left_s < usual_s and not run.dry:
                say(f"{run.left_s:.0f} s are left, such a task takes {usual_s:.0f} s: {name} waits")
                continue
            begin = time.monotonic()
            try:
                rows = measure_task(run, name, tasks[name], name in drawn, arguments)
            except OutOfTime:
                say(f"the time is over: {name} waits")
                return
            took.append(time.monotonic() - begin)
            with ONE_ROW, (run.work / ROWS).open("a") as stream:
                stream.writelines(json.dumps(row) + "\n" for row in rows)
            for row in rows:
                say(f"[{time.monotonic() - begin:4.0f} s] {line_of(row)}")


def measure_task(
    run: Run, name: str, path: Path, max_autotune: bool, arguments: argparse.Namespace
) -> list[dict[str, Any]]:
    """Its rows, one a track. Raises OutOfTime."""
    folder = run.work / "jobs" / f"{name}{'.strict' if arguments.strict else ''}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    words = ["-m", "benchmarks.speed.job", "--task", str(path.resolve())]
    given = {"strict": arguments.strict, "eval": arguments.eval, "max-autotune": max_autotune, "dry": run.dry}
    words += [f"--{option}" for option, is_on in given.items() if is_on]
    rows, children = [], []
    try:
        for track in tracks(arguments):
            file = folder / f"{track}.json"
            children.append((track, hold(run, [*words, "--out", str(file)], file, f"{folder.name}.{track}")))
        for track, child in children:
            limit = LIMITS_S[track] + MAX_AUTOTUNE_S * max_autotune
            child.go()
            failed: dict[str, str] = {}
            found = said_by(child, track, child.wait(run, limit), limit, failed)
            rows.append(row_of(name, track, found, failed, arguments))
    finally:
        stop_children([child.process for _, child in children])
    shutil.rmtree(folder, ignore_errors=True)
    return rows


def row_of(
    name: str, track: str, found: Mapping[str, Any], failed: Mapping[str, str], arguments: argparse.Namespace
) -> dict[str, Any]:
    """Of what a task's process said."""
    quota = QUOTAS.get(name, FOREIGN) if is_own(arguments) else FOREIGN
    left_out = ("stage", "error", "failures")
    return {
        "task": name,
        "track": track,
        "strict": arguments.strict,
        "eval": arguments.eval,
        "family": quota.family,
        "size": quota.size,
        "bound": quota.bound,
        "commit": commit(),
        "versions": versions(),
        "device": "",
        **{key: value for key, value in found.items() if key not in left_out},
        "failed": dict(failed),
    }


def collect(arguments: argparse.Namespace) -> int:
    """Writes what all folders have. Returns 1 where they have nothing."""
    rows = forgive(read_rows([arguments.work, *(arguments.collect or [])]))
    if not rows:
        return 1
    found = {row["task"] for row in rows if row["track"] == "cold" and not row["strict"]}
    is_whole = found >= set(find_tasks(arguments.tasks)) and len({row["commit"] for row in rows}) == 1
    name = arguments.name or ("speed" if is_own(arguments) else f"speed.{arguments.tasks.resolve().name}")
    usual = usual_device(rows)
    first = next(row for row in rows if row["device"] == usual)
    path = write_result(
        arguments.out,
        name if is_whole or arguments.dry else f"{name}.partial",
        {key: round(v, 4) if isinstance(v, float) else v for key, v in summarise(rows).items()},
        len({row["task"] for row in rows}),
        {key: (round(low, 4), round(high, 4)) for key, (low, high) in intervals(rows).items()},
        describe(rows),
        arguments.dry,
        {} if arguments.dry else {key: first[key] for key in ("device", "commit", "versions")},
    )
    for key, value in json.loads(path.read_text())["summary"].items():
        print(f"{key:40s} {value}")
    print(f"{path}, {path.stat().st_size} bytes, plot: {plot(rows, path.with_suffix('.png'))}")
    return 0


def read_rows(folders: Iterable[Path]) -> list[dict[str, Any]]:
    """The latest row of each task and track."""
    found: dict[tuple[str, str, bool], dict[str, Any]] = {}
    for file in (folder / ROWS for folder in folders):
        for row in map(json.loads, file.read_text().splitlines() if file.is_file() else []):
            found[row["task"], row["track"], row["strict"]] = row
    return [found[key] for key in sorted(found)]


def line_of(row: Row) -> str:
    """For whoever watches."""
    words = [row["task"], row["track"], *(["strict"] if row["strict"] else [])]
    words += [f"{v:.2f}x over {name}" for name, v in over(row).items() if v is not None]
    words += [f"{what} failed: {why}" for what, why in row["failed"].items()]
    return ", ".join(words)


def tracks(arguments: argparse.Namespace) -> tuple[str, ...]:
    return ("cold", "warm") if arguments.warm else ("cold",)


def is_own(arguments: argparse.Namespace) -> bool:
    return bool(arguments.tasks.resolve() == OWN.resolve())


def max_autotuned(names: Iterable[str]) -> set[str]:
    """A quarter of the tasks, the same in every part of a run."""
    ordered = sorted(names)
    return set(random.Random(SEED).sample(ordered, -(-len(ordered) // MAX_AUTOTUNE_SHARE)))


def wanted_tasks(arguments: argparse.Namespace) -> dict[str, Path]:
    """Raises ValueError for a name that there is not."""
    tasks = find_tasks(arguments.tasks)
    names = arguments.names.split(",") if arguments.names else list(tasks)
    if unknown := [name for name in names if name not in tasks]:
        raise ValueError(f"--names {','.join(unknown)}: {arguments.tasks} has {', '.join(tasks)}")
    if arguments.dry and not arguments.names:
        names = names[:DRY_TASKS]
    return {name: tasks[name] for name in names}


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="folder for rows, logs and caches")
    parser.add_argument("--tasks", type=Path, default=OWN, help="folder of task files; this project's by default")
    parser.add_argument("--names", default="", help="of tasks, by commas")
    parser.add_argument("--name", default="", help="of the file")
    parser.add_argument("--seconds", type=float, default=3e5, help="of the whole run")
    parser.add_argument("--gpus", type=int, default=0, help="so many tasks at a time, each on a GPU of its own")
    parser.add_argument("--warm", action="store_true", help="a second process with the first's caches too")
    parser.add_argument("--strict", action="store_true", help="cudnn.allow_tf32 off, in rows of their own")
    parser.add_argument(
        "--eval", action="store_true", help="model.eval(), with a WORK of its own; otherwise as constructed"
    )
    parser.add_argument("--collect", type=Path, nargs="*", help="measures nothing, adds these folders' rows")
    parser.add_argument("--dry", action="store_true", help="host target, tiny sizes: proves the script")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
