"""How many tokens a second does stage 1 learn from with one process, and how many with several?

    python -m benchmarks.trainer_throughput --recipe h100 --data trainer/data --chunks FOLDER --out OUT
    python -m benchmarks.trainer_throughput --recipe nano --data DATA --out OUT --dry      on a CPU, by gloo

The commands are a user's own (they are printed): `python -m cudal1_trainer.sft.supervised`, then the same under
`accelerate launch --multi_gpu --num_processes N`. Every run gets an equal share of what is left of --seconds,
start and end included, and is killed where it takes longer. Figures are of the looks in its metrics after the
first: steps that compile, and the wait for the first data, are not in them. Without --chunks (chunks.py)
producers make the data meanwhile, and cores rather than GPUs may set the pace: wait_share tells.

    summary.runs       rows of processes, tokens_per_s (all processes), steps_per_s, wait_share (of rank 0's time,
                       for data), loss at the end, tokens, ended (whether it came to its report)
    summary.speedup    tokens_per_s of the last run over the first's
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil
import yaml

from benchmarks.result_file import write_result
from cudal1_compile.runtime.cores import usable_cores
from cudal1_trainer.recipe import Recipe, load_recipe

CHUNK_TOKENS = 200_000  # at most: a run's first chunk must not take a tenth of its time
LAUNCH = ("-m", "accelerate.commands.launch", "--multi_gpu", "--num_machines", "1", "--dynamo_backend", "no")


def command_of(processes: int, words: list[str], dry: bool) -> list[str]:
    if processes == 1:
        return [sys.executable, "-m", *words]
    precision = ("--mixed_precision", "no" if dry else "bf16", "--main_process_port", "0")
    return [sys.executable, *LAUNCH, *precision, "--num_processes", str(processes), "-m", *words]


def run(command: list[str], log: Path, limit_s: float) -> bool:
    """Whether it ended by itself, and well; its words are in `log`."""
    print(shlex.join(["python", *command[1:]]), flush=True)
    with log.open("w") as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
        try:
            return process.wait(limit_s) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """With all that came of it: the launcher's processes have sessions of their own."""
    if process.poll() is None:
        every = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
        for one in every:
            one.kill()
        process.wait()
        psutil.wait_procs(every, timeout=2.0)


def figures(lines: list[dict[str, float]]) -> dict[str, float]:
    """Raises ValueError where there are fewer than two looks."""
    if len(lines) < 2:
        raise ValueError(f"{len(lines)} looks at the loss: too few steps for a rate, give more --seconds")
    first, last = lines[1 if len(lines) > 2 else 0], lines[-1]
    seconds = last["elapsed_s"] - first["elapsed_s"]
    return {
        "tokens_per_s": (last["tokens"] - first["tokens"]) / seconds,
        "steps_per_s": (last["step"] - first["step"]) / seconds,
        "wait_share": sum(x["wait_s"] for x in lines if x["step"] > first["step"]) / seconds,
        "loss": last["loss"],
        "tokens": last["tokens"],
        "measured_s": seconds,
    }


def measure(processes: int, words: list[str], out: Path, share_s: float, dry: bool) -> dict[str, Any]:
    """`words`: of the command, without its --out."""
    folder = out / f"processes.{processes}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    begin = time.monotonic()
    ended = run(command_of(processes, [*words, "--out", str(folder)], dry), folder / "said.txt", share_s)
    path = folder / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    try:
        found = figures(lines)
    except ValueError as error:
        raise SystemExit(f"{processes} processes: {error}\n{(folder / 'said.txt').read_text()[-2000:]}") from None
    taken_s = time.monotonic() - begin
    return {"processes": processes, **found, "ended": ended, "start_s": taken_s - lines[-1]["elapsed_s"]}


def short(recipe: Recipe, loop_s: float, stored: bool) -> Recipe:
    """The same with a loop of so many seconds, and smaller units of data where they are made meanwhile."""
    tokens = recipe.data.chunk_tokens if stored else min(CHUNK_TOKENS, recipe.data.chunk_tokens)
    train = replace(recipe.train, minutes=loop_s / 60, steps=0)
    return replace(recipe, data=replace(recipe.data, chunk_tokens=tokens), train=train)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Stage 1 with one process and with several.")
    parser.add_argument("--recipe", default="h100", help="name of a built-in recipe, or a YAML file")
    parser.add_argument("--data", type=Path, default=Path("trainer/data"))
    parser.add_argument("--chunks", type=Path, help="folder of chunks made ahead, as stage 1 takes them")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--processes", default="1,2", help="one a GPU")
    parser.add_argument("--seconds", type=float, default=150.0, help="until this command ends, in any case")
    parser.add_argument("--loop", type=float, default=36.0, help="seconds of training in each run")
    parser.add_argument("--dry", action="store_true", help="on a CPU: proves the script, no result")
    a = parser.parse_args(argv)
    counts = [int(n) for n in a.processes.split(",")]
    deadline = time.monotonic() + a.seconds - 4.0
    a.out.mkdir(parents=True, exist_ok=True)
    recipe = short(load_recipe(a.recipe), a.loop, a.chunks is not None)
    (a.out / "recipe.yaml").write_text(yaml.safe_dump(asdict(recipe)))
    words = ["cudal1_trainer.sft.supervised", "--recipe", str(a.out / "recipe.yaml"), "--data", str(a.data)]
    words += ["--chunks", str(a.chunks)] if a.chunks is not None else []
    runs = []
    for i, count in enumerate(counts):
        share_s = (deadline - time.monotonic()) / (len(counts) - i)
        runs.append(measure(count, words, a.out, share_s, a.dry))
    summary = {"runs": runs, "speedup": runs[-1]["tokens_per_s"] / runs[0]["tokens_per_s"]}
    for row in runs:
        print(json.dumps(row))
    detail = {"recipe": asdict(recipe), "cores": usable_cores()}
    print(write_result(a.out, "trainer-throughput", summary, len(runs), {}, detail, a.dry))


if __name__ == "__main__":
    main()
