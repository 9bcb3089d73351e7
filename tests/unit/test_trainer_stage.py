"""The loop of stages 2 and 3: it learns, goes on bit by bit after SIGKILL, and survives what goes wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from slow_cases import slow_but
from stage_toys import PROBES, RECIPE, STAGE, TASKS, WRONG, ToyReferee, make_bundle, verdict_on
from tmpfs import run_on_tmpfs

from cudal1_compile.judge.verdict import Rejected, Verdict
from cudal1_compile.runtime.target import HOST
from cudal1_fx_passes.program.ir import Program
from cudal1_trainer.errors import NotFinite
from cudal1_trainer.model.base import load_base
from cudal1_trainer.model.model import build_model
from cudal1_trainer.model.sampler import Sampler, WeightsDiffer
from cudal1_trainer.recipe import ModelRecipe, StageRecipe
from cudal1_trainer.rl.book import Book
from cudal1_trainer.rl.contrastive import Contrastive
from cudal1_trainer.rl.learner import Learner
from cudal1_trainer.rl.policy import Objective, Rollout
from cudal1_trainer.rl.rollouts import Batch, Item
from cudal1_trainer.rl.self_supervised import SelfSupervised
from cudal1_trainer.rl.stage import Method, Setup, Stage, start_accelerator
from cudal1_trainer.scores.outcome import HACKS, Outcome
from cudal1_trainer.scores.referee import Group, Referee, Ruling

LONG = replace(STAGE, steps=24, at_once=3)
BUCKETS = replace(STAGE, arm="buckets")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle(tmp_path_factory.mktemp("toy") / "bundle")


def make_stage(bundle: Path, out: Path, method: Method, stage: StageRecipe = STAGE, referee: Any = None) -> Stage:
    setup = Setup(RECIPE, stage, bundle, out, TASKS, PROBES)
    return Stage(setup, method, start_accelerator(), referee or ToyReferee())


def _environment() -> dict[str, str]:
    """For a child process that imports this file."""
    here = Path(__file__).parent
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(here), str(here.parent), *sys.path])}


def _metrics(out: Path) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.endswith("_s")} for row in rows]


def _weights(out: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = torch.load(out / "state.pt", weights_only=True)["model"]
    return state


@pytest.mark.parametrize("baseline", slow_but(["group"], ["group", "leave_one_out"]))
def test_stage_3_finds_the_faster_kernel(bundle: Path, tmp_path: Path, baseline: str) -> None:
    stage = replace(LONG, baseline=baseline)
    report = make_stage(bundle, tmp_path, Contrastive(stage), stage).run()
    # at first a quarter of the replies is the fast kernel (2.4), a quarter the slow one (1.2), the rest score 0
    assert report["before"]["reward"] < 1.4
    assert report["after"]["reward"] > 2.0 and report["after"]["right_1"] > 0.9
    assert {row["step"] for row in _metrics(tmp_path)} == set(range(1, 25))
    assert (tmp_path / "model" / "config.json").is_file()
    assert (tmp_path / "plots" / "reward.png").read_bytes().startswith(b"\x89PNG")


def test_stage_2_finds_what_is_right_and_leaves_speed_alone(bundle: Path, tmp_path: Path) -> None:
    report = make_stage(bundle, tmp_path, SelfSupervised(), LONG).run()
    assert report["before"]["right_1"] < 0.75
    assert report["after"]["right_1"] > 0.95


def test_the_buckets_arm_shows_two_distinct_variants_and_checks_what_is_said_of_them(
    bundle: Path, tmp_path: Path
) -> None:
    stage = make_stage(bundle, tmp_path, Contrastive(BUCKETS))
    stage.run()
    shown = [i.shown for batch in stage.under_way for i in batch.items]
    assert [[e.speedup for e in pair] for pair in shown] == [[1.2, 2.4]] * len(shown) and shown
    # the toy's analysis names no variant: every reply that could be parsed contradicts
    assert _metrics(tmp_path)[-1]["contradicts"] > 0.3 and _metrics(tmp_path)[-1]["right"] == 0


def test_variants_of_one_bucket_are_shown_once_there_are_no_others(bundle: Path, tmp_path: Path) -> None:
    one = replace(STAGE, arm="random", width=10.0)
    stage = make_stage(bundle, tmp_path, Contrastive(one), one)
    stage.run()
    shown = [len(i.shown) for batch in stage.under_way for i in batch.items]
    assert stage.method.name == "contrastive_random" and set(shown) == {2}
    buckets = make_stage(bundle, tmp_path / "b", Contrastive(replace(one, arm="buckets")), one)
    buckets.book = stage.book
    assert {len(i.shown) for i in buckets._items(0)} == {2}


def test_islands_are_asked_by_turns_and_meet_as_often_as_the_recipe_says(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    met: list[int] = []
    monkeypatch.setattr(Book, "migrate", lambda book: met.append(len(book._islands)))
    apart = replace(STAGE, arm="buckets", islands=2, migrate_steps=3)
    stage = make_stage(bundle, tmp_path, Contrastive(apart), apart)
    stage.run()
    assert len(met) == STAGE.steps // 3
    assert {i.island for i in stage._items(0)} == {0, 1}
    assert all(len(islands) == 2 for islands in stage.book._islands.values())


def test_a_task_whose_replies_are_alike_makes_room_and_comes_again(bundle: Path, tmp_path: Path) -> None:
    two = replace(STAGE, at_once=2)
    stage = make_stage(bundle, tmp_path, Contrastive(two), two)
    assert (stage.tasks, stage.waiting) == ([0, 1], [2, 3])
    right, faster, wrong = Outcome("right", 1.2), Outcome("right", 1.25), Outcome("wrong")

    def see(task: int, *outcomes: Outcome) -> tuple[list[int], list[int]]:
        stage._relieve(Batch(0, [Item(task, 0, [])]), [outcomes])
        return stage.tasks, stage.waiting

    assert see(1, right, wrong) == ([0, 1], [2, 3])
    assert see(1, right, faster) == ([0, 2], [3, 1])
    assert see(1, right, faster) == ([0, 2], [3, 1])  # sampled before it made room
    assert see(0, wrong, wrong) == ([3, 2], [1, 0])
    assert see(2, right, Outcome("right", 2.4)) == ([3, 2], [1, 0])
    assert see(2, Outcome("undecided"), right) == ([3, 1], [0, 2])


class RefusesOne(ToyReferee):
    """Whatever is written for the second task; knows for which tasks it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[list[int]] = []

    def submit(self, key: int, groups: Sequence[Group]) -> None:
        self.asked.append([TASKS.index(g.text) for g in groups])
        refused = Ruling(Rejected("task", "nothing of it can be verified"))
        super().submit(key, groups)
        self._found[key] |= {(g.text, c): refused for g in groups for c in g.codes if g.text == TASKS[1]}


def test_only_tasks_in_turn_are_tried_before_the_first_step(bundle: Path, tmp_path: Path) -> None:
    two, referee = replace(STAGE, at_once=2, probe_tasks=0), RefusesOne()
    setup = Setup(RECIPE, two, bundle, tmp_path, TASKS, ())
    stage = Stage(setup, Contrastive(two), start_accelerator(), referee)
    assert (stage.tasks, stage.waiting, referee.asked) == ([0, 2], [3], [[0, 1], [2]])
    assert stage.book.best(0) and stage.book.best(3) is None


KILLED = """
import os, signal, sys
from pathlib import Path
from test_trainer_stage import LONG, make_stage
from stage_toys import ToyReferee
from cudal1_trainer.model import checkpoint
from cudal1_trainer.rl.contrastive import Contrastive

held = Path(sys.argv[4])
for begin in (lambda: checkpoint.forget(held), lambda: make_stage(Path(sys.argv[1]), held, Contrastive(LONG))):
    try:
        begin()
    except ValueError as error:
        print(error, flush=True)

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

class Dies(ToyReferee):
    def result(self, key):
        if key == 4 and sys.argv[3] == "judging":
            die()
        return super().result(key)

def save(path, state, write=checkpoint._write):
    if sys.argv[3] == "saving" and path.name == "state.pt" and state["step"] == 9:
        die()
    return write(path, state)

checkpoint._write = save
make_stage(Path(sys.argv[1]), Path(sys.argv[2]), Contrastive(LONG), LONG, Dies()).run()
"""


@dataclass(frozen=True)
class Child:
    """A process that was refused the folder of another run, then ran in one of its own and was killed."""

    moment: str
    out: Path
    held: Path
    holder: Stage  # the other run, in this process
    code: int
    said: str
    errors: str


# between a checkpoint's parts, and between two steps
@pytest.fixture(scope="module", params=["saving", pytest.param("judging", marks=pytest.mark.slow)])
def child(bundle: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Child:
    folder = tmp_path_factory.mktemp("child")
    out, held = folder / "killed", folder / "held"
    holder = make_stage(bundle, held, Contrastive(STAGE))
    command = [sys.executable, "-c", KILLED, str(bundle), str(out), request.param, str(held)]
    done = subprocess.run(command, env=_environment(), capture_output=True, text=True)
    return Child(request.param, out, held, holder, done.returncode, done.stdout, done.stderr[-3000:])


def test_a_run_that_was_killed_equals_one_that_was_not(bundle: Path, child: Child, tmp_path: Path) -> None:
    assert child.code == -signal.SIGKILL, child.errors
    make_stage(bundle, tmp_path, Contrastive(LONG), LONG).run()
    last = make_stage(bundle, child.out, Contrastive(LONG), LONG)
    assert last.standing.step == {"saving": 8, "judging": 4}[child.moment] and len(last.under_way) == 1
    last.run()
    assert _metrics(child.out) == _metrics(tmp_path)
    for name, weight in _weights(tmp_path).items():
        assert torch.equal(weight, _weights(child.out)[name]), name


def test_another_recipe_or_arm_does_not_go_on_from_this_checkpoint(bundle: Path, tmp_path: Path) -> None:
    make_stage(bundle, tmp_path, Contrastive(STAGE)).save()
    with pytest.raises(ValueError, match="another recipe, arm"):
        make_stage(bundle, tmp_path, Contrastive(BUCKETS))
    with pytest.raises(ValueError, match="other tasks"):  # the book's places would mean other programs
        Stage(
            Setup(RECIPE, STAGE, bundle, tmp_path, TASKS[::-1], PROBES),
            Contrastive(STAGE),
            start_accelerator(),
            ToyReferee(),
        )  # type: ignore[arg-type]


def test_two_runs_do_not_write_in_one_folder(child: Child) -> None:
    assert child.said.count("another run writes in") == 2, child.errors
    assert (child.held / "state.pt").is_file()
    child.holder.run()


def test_hacks_that_come_again_stand_there_once(bundle: Path, tmp_path: Path) -> None:
    stage = make_stage(bundle, tmp_path, Contrastive(STAGE))
    batch = stage._sample()
    outcomes = [[Outcome("forbidden", reason="x") for _ in item.rollouts] for item in batch.items]
    stage._record(tmp_path / "hacks.0.jsonl", HACKS, batch, outcomes)
    cases = (tmp_path / "hacks.0.jsonl").read_text()
    assert {json.loads(line)["kind"] for line in cases.splitlines()} == {"forbidden"}
    again = make_stage(bundle, tmp_path, Contrastive(STAGE))
    again._record(tmp_path / "hacks.0.jsonl", HACKS, batch, outcomes)
    assert (tmp_path / "hacks.0.jsonl").read_text() == cases


def test_nan_ends_the_run_with_the_last_good_state(bundle: Path, tmp_path: Path) -> None:
    stage = make_stage(bundle, tmp_path, Contrastive(STAGE))
    good = {name: weight.clone() for name, weight in _weights(tmp_path).items()}
    sample = stage._sample()
    sample.rollouts[0].behaviour.fill_(float("nan"))
    stage.under_way.append(sample)
    with pytest.raises(NotFinite, match="last good state"):
        stage.run()
    assert all(torch.equal(weight, good[name]) for name, weight in _weights(tmp_path).items())


FULL = """
import sys
from pathlib import Path
from tmpfs import fill
from test_trainer_stage import make_stage, STAGE
from cudal1_trainer.rl.contrastive import Contrastive
out = Path(sys.argv[2])
stage = make_stage(Path(sys.argv[1]), out, Contrastive(STAGE))
give_back = fill(out)
try:
    stage.run()
except OSError as error:
    print(error)
import torch
print("kept", torch.load(out / "state.pt", weights_only=True)["step"], "learnt", stage.standing.step)
give_back()
stage = make_stage(Path(sys.argv[1]), out, Contrastive(STAGE))
report = stage._report
def full():
    global give_back
    give_back = fill(out)
    report()
stage._report = full
try:
    stage.run()
except OSError as error:
    print(error)
give_back()
print(make_stage(Path(sys.argv[1]), out, Contrastive(STAGE)).run()["steps"])
"""


LAUNCH = [str(Path(sys.executable).parent / "accelerate"), "launch", "--multi_gpu", "--num_processes", "2"]
LAUNCH += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
TWO = """
import sys
from pathlib import Path
from test_trainer_stage import LONG, make_stage
from cudal1_trainer.rl.contrastive import Contrastive
make_stage(Path(sys.argv[1]), Path(sys.argv[2]), Contrastive(LONG), LONG).run()
"""


@pytest.mark.slow
def test_two_processes_share_tasks_and_learn_together(bundle: Path, tmp_path: Path) -> None:
    script, out = tmp_path / "two.py", tmp_path / "out"
    script.write_text(TWO)
    done = subprocess.run(
        [*LAUNCH, str(script), str(bundle), str(out)], env=_environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads((out / "report.json").read_text())
    assert (report["processes"], report["tasks"], report["replies"]) == (2, 2, 2 * 24 * 8)
    assert report["after"]["reward"] > 2.0 > 1.4 > report["before"]["reward"]


class HangsOnWrong:
    """A judge without limits of its own."""

    spent_s: ClassVar[dict[str, float]] = {}

    def judge_tasks(self, tasks: Sequence[tuple[Program, str]]) -> list[Verdict]:
        if any(code.strip() == WRONG for _, code in tasks):
            time.sleep(600)
        return [verdict_on(code) for _, code in tasks]


@pytest.mark.slow
def test_a_judge_that_hangs_costs_the_reply_and_not_the_run(bundle: Path, tmp_path: Path) -> None:
    stage = replace(STAGE, steps=2, tasks=1, prompts=1, ahead=0, group=16, probe_tasks=0)
    with Referee(HOST, HangsOnWrong, silence_s=3.0) as referee:  # type: ignore[arg-type]
        setup = Setup(RECIPE, stage, bundle, tmp_path, TASKS[:1], [])
        report = Stage(setup, Contrastive(stage), start_accelerator(), referee).run()
    assert report["steps"] == 2 and report["judge_lost"] == 1
    assert report["kinds"]["lost"] > 0 and report["kinds"]["right"] > 0  # the other codes have their verdicts


@pytest.mark.slow
def test_a_full_disk_costs_checkpoints_not_the_run(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    done = run_on_tmpfs(
        tmp_path / "out", "4m", FULL, str(bundle), str(tmp_path / "out"), environment=_environment()
    )
    assert "no room for the last checkpoint" in done.stdout and "kept 0 learnt 8" in done.stdout
    assert "no room for the model or its report" in done.stdout
    assert done.stdout.strip().endswith("8") and "no checkpoint was written" in done.stderr


def test_a_sampler_one_step_behind_is_found(bundle: Path, tmp_path: Path) -> None:
    lm = make_stage(bundle, tmp_path, SelfSupervised()).learner.lm
    sampler = Sampler(torch.device("cpu"))
    sampler.synchronise(lm)
    with torch.no_grad():
        lm.model.layers[0].mlp.up_proj.weight[3, 5] += 1e-3
    with pytest.raises(WeightsDiffer, match="part 0 of 2"):
        sampler.check(lm)
    sampler.synchronise(lm)


def test_the_policy_is_the_model_at_the_temperature_of_its_samples(bundle: Path) -> None:
    """Of a random model, whose likeliest token is hardly likelier than another: at almost 0 each is certain."""
    base = load_base(bundle)
    torch.manual_seed(0)
    lm = build_model(ModelRecipe(32, 1, 2, 1, 64, 1024), base.lm.config.vocab_size)
    prompt = base.language.codec.encode_prompt(TASKS[0])
    sampler = Sampler(torch.device("cpu"))
    sampler.synchronise(lm)
    for temperature in (1.0, 1e-3):
        stage = replace(STAGE, temperature=temperature)
        learner = Learner(start_accelerator(), replace(base, lm=lm), stage, Objective(0.2, 0.0))
        (reply,) = sampler.sample([prompt], 20, temperature, seed=3)
        rollout = Rollout([*prompt, *reply], len(prompt), "")
        learner.measure([rollout])
        assert rollout.behaviour.max() < -2.0 if temperature == 1.0 else rollout.behaviour.min() > -0.7
