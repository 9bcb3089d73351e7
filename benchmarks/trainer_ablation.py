"""What does each stage of training gain? Six stages, the same held-out programs, one judge.

    python -m benchmarks.trainer_ablation --model cudal1_compile/generate/model --recipe ablation \\
        --data trainer/data --out build/ablation --seconds 545 --machine-s 1380

    sft                    --model as it is
    self_supervised        stage 2 from sft, once: stage 3 begins with it, or with sft where it is not asked for
    plain_grpo             stage 3, for the same minutes or steps each: no exemplars,
    contrastive_random     exemplars drawn uniformly,
    contrastive_buckets    exemplars of two score buckets
    best_teacher           the templates' replies behind the same protocol, as a ceiling

The recipe's stages are trained by the same commands that a user would give (they are printed), then every model
writes 8 replies a program at temperature 0.8 from the prompt without exemplars, as they are drawn (in use designs
are chosen to differ, the most likely first, which hides what an arm makes likelier), and all codes of a program
are judged and timed together with Inductor. Programs are those of held-out patterns (heldout.py: 419).
`--seeds 1,2,3` trains the arms of stage 3 again, contrastive_random for the first two only; figures are means.
Where a machine is here for one seed only, benchmarks/ablation_pool.py makes one table of several results.

Every run (a stage with a seed) is trained and sampled in a process of its own, which this command starts (with
--only) as soon as a GPU is free and the model that the run begins with is there: `--gpus 4` does four at a time.
Each sees one GPU, and has its share of the cores and compiler caches of its own; the judge then works in as many
processes, each with its share of the programs. Where this command ends, or is killed, they end too.

Give the same command again until it says that all is done: what is finished is kept, and a stage that was cut goes
on from its checkpoint in --out. --out/carry holds what another machine needs to go on, in parts of 15 MiB at most,
renewed after every stage: whole files of replies, rows, figures, and the models that stages begin with. A new
--out takes up what its `carry` holds, or another folder by --carry. Not carried are a stage's checkpoint and a
model that has not written its replies: a stage that cannot do both before the machine is given back (--machine-s
from now) is not begun, as far as that is known (steps are expected to take as long as the slowest stage's so far).

    summary.stages    rows of stage, right_1, right_8, speedup_1, speedup_best8 (over Inductor alone, clamped at 1
                      a program), hack_rate, interval (95%, of speedup_best8); without the clamp in detail.raw
    detail.paired     differences of two stages (quotients of speedups) with their 95% intervals; also by_seed,
                      over_aten, lengths (by operations), novelty (of winners)
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml

from benchmarks.ablation_rows import (
    CONTEST,
    SILENCE_S,
    held_out_patterns,
    judge_contest,
    judge_rows,
    known_rows,
    summarise,
)
from benchmarks.generator import TEMPLATE_CONTROL, load_generator, read_replies, sample_all
from benchmarks.parts import pack, unpack
from benchmarks.result_file import write_result
from benchmarks.side_by_side import (
    OUT_OF_TIME,
    OutOfTime,
    Place,
    ends_at,
    ends_with_parent,
    run_side_by_side,
    share_cores,
)
from cudal1_compile.generate.model_files import check_model_dir, model_digest
from cudal1_compile.judge.sandbox.isolation import die_with_parent
from cudal1_compile.runtime.target import HOST, Target, detect_target
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.data.practice import probe_tasks
from cudal1_trainer.recipe import Recipe, load_recipe
from cudal1_trainer.scores.referee import Referee, open_judge
from cudal1_trainer.scores.scorebook import drop_torn_line
from cudal1_trainer.tasks.heldout import HeldOutProgram
from cudal1_trainer.tasks.variants import canonical_key

log = logging.getLogger(__name__)

START_S = 60.0  # of a run beside its loop: imports of two processes, the judge, tasks that can be decided
SAMPLE_S = 50.0  # of its model's replies
END_S = 8.0  # before this command's end the processes that it started are ended, and what they made is saved
# stage -> (the stage whose model it begins with, script, options)
TRAINED = {
    "self_supervised": ("sft", "self_supervised", ()),
    "plain_grpo": ("self_supervised", "contrastive", ("--arm", "plain")),
    "contrastive_random": ("self_supervised", "contrastive", ("--arm", "random")),
    "contrastive_buckets": ("self_supervised", "contrastive", ("--arm", "buckets")),
}
STAGES = ("sft", *TRAINED, "best_teacher")
SEEDS = {"plain_grpo": 3, "contrastive_random": 2, "contrastive_buckets": 3}  # at most; 1 of the others
JUDGE = "judge"


@dataclass(frozen=True, slots=True)
class Run:
    """One stage with one seed."""

    stage: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.stage}.{self.seed}"


@dataclass(frozen=True, slots=True)
class Ablation:
    """What was asked for. Times are monotonic seconds."""

    recipe: Recipe
    model: Path
    data: Path
    out: Path
    stages: tuple[str, ...]
    seeds: tuple[int, ...]
    samples: int
    limit: int  # programs; 0 is all
    deadline: float  # of this command
    given_back: float  # the machine, with what is not carried
    dry: bool
    gpus: int = 1

    @property
    def left_s(self) -> float:
        return self.deadline - time.monotonic()

    @property
    def target(self) -> Target:
        return HOST if self.dry else detect_target(torch.device("cuda", 0))

    @property
    def runs(self) -> list[Run]:
        """What needs no training, stage 2, then the main comparison first: two seeds of it, the third last."""
        wanted = [(stage, seed) for seed in self.seeds for stage in self.stages]
        runs = [Run(stage, seed) for stage, seed in wanted if seed in self.seeds[: SEEDS.get(stage, 1)]]
        first = ("sft", "best_teacher", "self_supervised")

        def order(run: Run) -> tuple[int, int]:
            if run.stage in first:
                return 0, first.index(run.stage)
            at = self.seeds.index(run.seed)
            if run.stage == "contrastive_random":
                return 2, at
            return (1, at) if at < SEEDS["contrastive_random"] else (3, at)

        return sorted(runs, key=order)

    def folder(self, run: Run) -> Path:
        return self.out / run.name

    def replies(self, run: Run) -> Path:
        """Those of all programs."""
        return self.out / f"replies.{run.name}.jsonl"

    def model_of(self, run: Run) -> Path:
        if run.stage not in TRAINED:
            return self.model if run.stage == "sft" else Path(TEMPLATE_CONTROL)
        return self.folder(run) / "model"

    def is_trained(self, run: Run) -> bool:
        return run.stage not in TRAINED or (self.folder(run) / "report.json").is_file()

    def begins_with(self, run: Run) -> Run:
        """Whose model its training begins with: the first one where stage 2 is not asked for."""
        first = TRAINED[run.stage][0]
        return Run(first if first in self.stages else "sft", self.seeds[0])

    def first_model(self, run: Run) -> Path:
        return self.model_of(self.begins_with(run))


def begin(ablation: Ablation) -> None:
    """Writes the recipe that the stages are given. Raises ValueError where --out is of another one."""
    # held-out programs are looked at here, not by the stages
    names = ("self_supervised", "contrastive")
    unprobed = {name: replace(getattr(ablation.recipe, name), probe_tasks=0) for name in names}
    recipe = asdict(replace(ablation.recipe, **unprobed))
    asked = {"model": digest_of(ablation), "samples": ablation.samples, "recipe": recipe}
    path = ablation.out / "asked.json"
    if path.is_file() and json.loads(path.read_text()) != asked:
        raise ValueError(f"{ablation.out} holds an ablation of another model or recipe: give another --out")
    path.write_text(json.dumps(asked))
    (ablation.out / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    for path in ablation.out.glob("*.jsonl"):
        drop_torn_line(path)


def digest_of(ablation: Ablation) -> str:
    """Of the model that stage 1 made."""
    return model_digest(check_model_dir(ablation.model))


def expected_s(ablation: Ablation, run: Run) -> float:
    """Of a stage from its command to its model's last reply; 0 where nothing tells how long its steps take."""
    stage = getattr(ablation.recipe, TRAINED[run.stage][1])
    if not stage.steps:
        return float(stage.minutes * 60 + START_S + SAMPLE_S)
    done = [_report(ablation.folder(r)) for r in ablation.runs if r.stage in TRAINED and ablation.is_trained(r)]
    slowest_s = max((r["seconds"] / r["steps"] for r in done), default=0.0)
    return stage.steps * slowest_s + START_S + SAMPLE_S if done else 0.0


def refusal(ablation: Ablation, run: Run) -> str | None:
    """Why a run is not begun: the machine is given back before it could end."""
    if ablation.is_trained(run) or (ablation.folder(run) / "state.pt").is_file():
        return None
    needed_s, left_s = expected_s(ablation, run), ablation.given_back - time.monotonic()
    if left_s >= needed_s:
        return None
    return f"{run.name} needs {needed_s:.0f} s, the machine is here for {left_s:.0f} s"


def train(ablation: Ablation, run: Run) -> None:
    """By the stage's own command. Raises OutOfTime; what was learnt until then is in its checkpoint."""
    _, script, options = TRAINED[run.stage]
    out = ablation.folder(run)
    command = [sys.executable, "-m", f"cudal1_trainer.rl.{script}", "--recipe", str(ablation.out / "recipe.yaml")]
    command += ["--model", str(ablation.first_model(run)), "--data", str(ablation.data), "--out", str(out)]
    command += ["--seed", str(run.seed), *options]
    print(shlex.join(["python", *command[1:]]), flush=True)
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=die_with_parent
    )
    try:
        code = process.wait()
    except OutOfTime:
        raise OutOfTime(f"{run.name} was cut, its checkpoint stays") from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if code != 0:
        raise RuntimeError(f"{run.name} ended with code {code}; what it printed says why")


def programs_of(ablation: Ablation) -> list[HeldOutProgram]:
    """Of held-out patterns, in an order in which a part is a fair choice; on the host target small ones only."""
    recipe, target = ablation.recipe, ablation.target
    if target.kind == "host" or recipe.data.family:
        stage = replace(recipe.contrastive, probe_tasks=ablation.limit or recipe.contrastive.probe_tasks)
        texts = probe_tasks(recipe, stage, ablation.data, target)
        return [HeldOutProgram("probe", canonical_key(parse_program(t)), "", t) for t in texts]
    return held_out_patterns(ablation.data)[: ablation.limit or None]


def sample(ablation: Ablation, run: Run, programs: list[HeldOutProgram]) -> None:
    """Replies that are there already are kept. Raises SystemExit where the model was not carried."""
    path, begun = ablation.replies(run), ablation.out / f"sampling.{run.name}.jsonl"
    if lacking := {p.fingerprint for p in programs} - set(read_replies(path)):
        if run.stage in TRAINED and not ablation.model_of(run).is_dir():
            raise SystemExit(
                f"{run.name}: {len(lacking)} programs without replies, and its model is on another "
                "machine: give the --limit that it was sampled with"
            )
        if path.is_file():
            os.replace(path, begun)
        generator = load_generator(ablation.model_of(run), "cpu" if ablation.dry else "cuda", as_drawn=True)
        sample_all(generator, programs, ablation.target.facts(), ablation.samples, begun, run.seed)
        os.replace(begun, path)


def judge(ablation: Ablation, share: int, programs: list[HeldOutProgram]) -> None:
    """One process's share of the programs, on the one GPU that it sees."""
    replies = read_all_replies(ablation)
    setup = partial(open_judge, None if ablation.dry else 0, None, CONTEST)
    with Referee(ablation.target, setup, SILENCE_S, judge_contest) as referee:
        judge_rows(programs[share :: ablation.gpus], replies, referee, ablation.out / "rows.jsonl")


def read_all_replies(ablation: Ablation) -> dict[str, dict[str, list[str]]]:
    return {run.name: read_replies(ablation.replies(run)) for run in ablation.runs}


def write(ablation: Ablation, rows: list[dict[str, Any]], held_out: int) -> Path:
    runs = sorted({name for row in rows for name in row["runs"]})
    names = {stage: [name for name in runs if name.startswith(f"{stage}.")] for stage in ablation.stages}
    summary, intervals, detail = summarise(rows, names)
    detail |= {"held_out": held_out, "reached": len(rows), "seeds": ablation.seeds, "samples": ablation.samples}
    detail["runs"] = {run.name: _report(ablation.folder(run)) for run in ablation.runs if run.stage in TRAINED}
    detail |= {"model": digest_of(ablation), "recipe": asdict(ablation.recipe), "gpus": ablation.gpus}
    for row in summary["stages"]:
        print(json.dumps(row))
    n = len(detail["programs"])
    return write_result(ablation.out, "trainer-ablation", summary, n, intervals, detail, ablation.dry)


def _report(folder: Path) -> dict[str, Any]:
    report = json.loads((folder / "report.json").read_text())
    return {k: v for k, v in report.items() if k not in ("recipe", "before", "after")}


def to_carry(ablation: Ablation) -> Iterator[Path]:
    """Files that another machine needs to go on, that which says that all of them are there last."""
    trained = [run for run in ablation.runs if run.stage in TRAINED and ablation.is_trained(run)]
    begun_with = {ablation.first_model(run) for run in ablation.runs if run.stage in TRAINED}  # by more seeds too
    yield from (path for run in ablation.runs if (path := ablation.replies(run)).is_file())
    for run in trained:
        first = ablation.model_of(run) in begun_with
        if first or ablation.replies(run).is_file():  # else it is trained again
            yield ablation.folder(run) / "report.json"
        if first and ablation.model_of(run).is_dir():  # not where replies alone were carried
            yield from ablation.model_of(run).iterdir()
    yield from (path for name in ("rows.jsonl", "asked.json") if (path := ablation.out / name).is_file())


def work(ablation: Ablation, words: Sequence[str]) -> None:
    """All that the time allows, by processes with this command's `words`. Raises OutOfTime where some is left."""
    programs = programs_of(ablation)
    waiting = [run for run in ablation.runs if not is_done(ablation, run, programs)]

    def pick() -> str | None:
        for run in waiting:
            trained = ablation.is_trained(run)
            if trained or (ablation.is_trained(ablation.begins_with(run)) and refusal(ablation, run) is None):
                waiting.remove(run)
                return run.name
        return None

    start_all(ablation, words, pick)
    if left := [run for run in ablation.runs if not is_done(ablation, run, programs)]:
        raise OutOfTime("; ".join(w for run in left if (w := refusal(ablation, run))) or "the time is over")
    measure(ablation, words, programs)


def is_done(ablation: Ablation, run: Run, programs: list[HeldOutProgram]) -> bool:
    """Trained and sampled."""
    lacking = {p.fingerprint for p in programs} - set(read_replies(ablation.replies(run)))
    return ablation.is_trained(run) and not lacking


def measure(ablation: Ablation, words: Sequence[str], programs: list[HeldOutProgram]) -> None:
    """Judges, and writes the figures of all programs that were reached, also where the time ends it."""
    replies, path = read_all_replies(ablation), ablation.out / "rows.jsonl"
    known = {row["fingerprint"] for row in known_rows(programs, replies, path)}
    lacking = [any(p.fingerprint not in known for p in programs[k :: ablation.gpus]) for k in range(ablation.gpus)]
    names = iter([f"{JUDGE}.{share}" for share, some in enumerate(lacking) if some])
    try:
        start_all(ablation, words, lambda: next(names, None))
    finally:
        if rows := known_rows(programs, replies, path):
            print(write(ablation, rows, len(programs)), flush=True)
    if len(rows) < len(programs):
        raise OutOfTime(f"{len(rows)} of {len(programs)} programs are judged")


def start_all(ablation: Ablation, words: Sequence[str], pick: Callable[[], str | None]) -> None:
    """A process for each name that `pick` gives. Raises SystemExit where one has failed, once the others ended."""
    command = [sys.executable, "-m", "benchmarks.trainer_ablation", *words, "--only"]
    end = ablation.deadline - END_S
    failed = run_side_by_side(
        pick, lambda name: [*command, name], places(ablation), end, lambda: save_parts(ablation)
    )
    if failed:
        raise SystemExit(f"{', '.join(failed)}; what it printed says why, all that is whole is kept")


def places(ablation: Ablation) -> list[Place]:
    """One a GPU. Raises SystemExit where there are too few."""
    if ablation.gpus == 1:
        return [Place({})]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(torch.cuda.device_count())))
    gpus = visible.split(",")
    if not ablation.dry and len(gpus) < ablation.gpus:
        raise SystemExit(f"--gpus {ablation.gpus}: there are {visible or 'none'}; give as many as there are")
    found = []
    # by the environment: a judge that sees another GPU of its model measures some gains there a second time
    for k, cores in enumerate(share_cores(ablation.gpus)):
        caches = (ablation.out / "caches" / str(k)).resolve()
        environment = {
            "CUDAL1_CACHE_DIR": str(caches / "cudal1"),
            "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
            "TRITON_CACHE_DIR": str(caches / "triton"),
        }
        found.append(Place(environment | ({} if ablation.dry else {"CUDA_VISIBLE_DEVICES": gpus[k]}), cores))
    return found


def work_as_child(ablation: Ablation, name: str) -> int:
    """One run, or one share of the judge's programs; returns the exit code."""
    stage, _, number = name.rpartition(".")
    try:
        with ends_with_parent():
            programs = programs_of(ablation)
            if stage == JUDGE:
                judge(ablation, int(number), programs)
                return 0
            run = Run(stage, int(number))
            if not ablation.is_trained(run):
                train(ablation, run)
            sample(ablation, run, programs)
            print(f"{name}: trained and sampled", flush=True)
            return 0
    except OutOfTime as left:
        print(left, flush=True)
        return OUT_OF_TIME


def save_parts(ablation: Ablation) -> None:
    parts = pack(ablation.out, to_carry(ablation), ablation.out / "carry")
    log.info("carry: %d parts, %.1f MiB", len(parts), sum(p.stat().st_size for p in parts) / 2**20)


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What each stage of training gains.")
    parser.add_argument("--model", type=Path, required=True, help="bundle of stage 1")
    parser.add_argument("--recipe", default="h100", help="name of a built-in recipe, or a YAML file")
    parser.add_argument("--data", type=Path, default=Path("trainer/data"), help="folder with heldout.json")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--carry", type=Path, help="parts of another machine; OUT/carry by default")
    parser.add_argument("--stages", default=",".join(STAGES), help="wanted; carry holds what these need")
    parser.add_argument("--seeds", default="1", help="of stage 3, three at most; the first is of stage 2 too")
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--limit", type=int, default=340, help="held-out programs; 0 is all")
    parser.add_argument("--seconds", type=float, default=570.0, help="until this command ends")
    parser.add_argument("--machine-s", type=float, help="until the machine is given back; --seconds by default")
    parser.add_argument("--gpus", type=int, default=1, help="that are used side by side")
    parser.add_argument("--only", help="given by this command to processes that it starts: a run, as plain_grpo.2")
    parser.add_argument("--dry", action="store_true", help="on the host target: proves the script, no result")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    words = sys.argv[1:] if argv is None else argv
    a = parse_arguments(words)
    stages, seeds = set(a.stages.split(",")), tuple(int(s) for s in a.seeds.split(","))
    if unknown := sorted(stages - set(STAGES)):
        raise SystemExit(f"--stages: no {', '.join(unknown)}; the stages are {', '.join(STAGES)}")
    begin_s = time.monotonic()
    deadline, given_back = begin_s + a.seconds, begin_s + max(a.seconds, a.machine_s or 0.0)
    recipe = load_recipe(a.recipe)
    in_order = tuple(s for s in STAGES if s in stages)
    times = (deadline, given_back)
    asked = (a.samples, a.limit, *times, a.dry, a.gpus)
    ablation = Ablation(recipe, a.model, a.data, a.out, in_order, seeds, *asked)
    if a.only is not None:
        raise SystemExit(work_as_child(ablation, a.only))
    if a.carry is not None and not any(a.carry.glob("part.*")):
        raise SystemExit(f"--carry {a.carry}: no parts there; leave it out to begin anew")
    ablation.out.mkdir(parents=True, exist_ok=True)
    if not (ablation.out / "asked.json").is_file():
        unpack(a.carry or ablation.out / "carry", ablation.out)
    begin(ablation)
    try:
        with ends_at(ablation.deadline):
            work(ablation, words)
        print("all is done")
    except OutOfTime as left:
        print(f"{left}: give the same command again")
    finally:
        save_parts(ablation)


if __name__ == "__main__":
    main()
