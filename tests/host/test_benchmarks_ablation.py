"""The ablation of the trainer's stages: figures of known rows, finalists, parts, all of it on the host target."""

from __future__ import annotations

import fcntl
import json
import math
import shutil
import signal
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from stage_toys import FAST, RECIPE, SLOW, STAGE, TASKS, WRONG, make_bundle, verdict_on

from benchmarks import ablation_pool, trainer_ablation
from benchmarks.ablation_rows import (
    Contest,
    finalists,
    judge_contest,
    judge_rows,
    known_rows,
    read_rows,
    summarise,
    why_left_out,
)
from benchmarks.novelty import TemplateCodes
from benchmarks.parts import pack, unpack
from benchmarks.trainer_ablation import STAGES, main
from cudal1_compile.runtime.target import HOST
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.recipe import DataRecipe, Recipe
from cudal1_trainer.scores.referee import Referee, open_judge
from cudal1_trainer.tasks.heldout import HeldOutProgram, hold_out, write_heldout
from cudal1_trainer.tasks.variants import write_variants

pytestmark = pytest.mark.host


def _row(name: str, **runs: list[tuple[str, float | None]]) -> dict[str, Any]:
    return {"fingerprint": name, "source": "task", "ops": 5, "runs": runs}


def test_speedups_are_clamped_in_the_summary_and_raw_in_the_detail() -> None:
    rows = [
        _row("a", sft=[("right", 4.0), ("wrong", None)], best_teacher=[("right", 2.0)]),
        _row("b", sft=[("right", 0.25), ("right", 0.5)], best_teacher=[("right", 2.0)]),
        _row("c", sft=[("forbidden", None), ("malformed", None)], best_teacher=[("right", 2.0)]),
        _row("d", sft=[("undecided", None)], best_teacher=[("right", 2.0)]),
        _row("e", sft=[("wrong", None)], best_teacher=[("wrong", None)]),
        _row("f", sft=[("right", None)], best_teacher=[]),
    ]
    summary, intervals, detail = summarise(rows, {"sft": ["sft"], "best_teacher": ["best_teacher"]})
    sft, teacher = summary["stages"]
    assert (sft["stage"], sft["right_1"], sft["right_8"], sft["hack_rate"]) == ("sft", 1.5 / 4, 2 / 4, 0.5 / 4)
    assert sft["speedup_1"] == pytest.approx(4 ** (1 / 4)) and sft["speedup_best8"] == pytest.approx(4 ** (1 / 4))
    assert detail["raw"]["sft"]["speedup_1_raw"] == pytest.approx(1.0)
    assert detail["raw"]["sft"]["speedup_best8_raw"] == pytest.approx(2 ** (1 / 4))
    assert sft["interval"] == intervals["sft.speedup_best8"] and sft["interval"][0] < sft["speedup_best8"]
    assert teacher["speedup_best8"] == pytest.approx(8 ** (1 / 4)) and teacher["right_8"] == 3 / 4
    # e: what nobody gets right counts against all
    assert [r["fingerprint"] for r in detail["programs"]] == [*"abce"] and detail["nobody"] == ["e"]
    assert set(detail["left_out"]) == {*"df"}


def test_intervals_of_differences_are_paired_over_programs_and_runs_are_pooled() -> None:
    """Programs differ by far more than the stages do: only draws in common show the difference."""
    rows = []
    for i in range(40):
        easy = ("right", 1.1 ** (i % 20))
        harder = ("right", 1.05 * 1.1 ** (i % 20))
        rows.append(_row(str(i), **{"sft.1": [easy], "self_supervised.1": [harder], "self_supervised.2": [easy]}))
    stages = {"sft": ["sft.1"], "self_supervised": ["self_supervised.1", "self_supervised.2"]}
    summary, intervals, detail = summarise(rows, stages)
    ratio, low, high = detail["paired"]["self_supervised against sft"]["speedup_best8"]
    assert ratio == pytest.approx(math.sqrt(1.05)) and 1.02 < low <= ratio <= high < 1.03
    assert intervals["sft.speedup_best8"][1] > intervals["self_supervised.speedup_best8"][0]
    with pytest.raises(ValueError, match="none of 1 programs"):
        summarise([_row("x", a=[("right", None)])], {"a": ["a"]})
    assert why_left_out({"a": [("right", None)]}) == "Inductor was not measured"


def test_results_of_several_seeds_are_one_table_of_the_programs_that_all_have(tmp_path: Path) -> None:
    right, slow, wrong = [("right", 2.0)], [("right", 1.0)], [("wrong", None)]
    paths = [tmp_path / str(seed) / "trainer-ablation.h100.json" for seed in (1, 2)]
    rows = {
        1: [_row("a", **{"sft.1": right}), _row("b", **{"sft.1": right, "plain_grpo.1": right})],
        2: [_row("b", **{"sft.2": wrong, "plain_grpo.2": slow}), _row("c", **{"sft.2": right})],
    }
    for path, seed in zip(paths, rows, strict=True):
        detail = {"model": "m", "recipe": {"seed": seed}, "seeds": [seed], "programs": rows[seed]}
        detail["runs"] = {f"plain_grpo.{seed}": {"steps": seed}}
        body = {"device": f"GPU {seed}", "versions": {}, "command": "c", "commit": "d", "n": 2, "detail": detail}
        path.parent.mkdir()
        path.write_text(json.dumps(body))
    ablation_pool.main([*map(str, paths), "--out", str(tmp_path / "pooled.json")])
    pooled = json.loads((tmp_path / "pooled.json").read_text())
    assert (pooled["n"], pooled["device"]) == (1, "GPU 1, GPU 2")
    sft, plain = pooled["summary"]["stages"]
    assert (sft["stage"], sft["right_1"], plain["stage"]) == ("sft", 0.5, "plain_grpo")
    assert plain["speedup_1"] == pytest.approx(2**0.5, abs=1e-5)
    assert pooled["detail"]["by_seed"]["sft.2"]["right_1"] == 0.0
    assert pooled["detail"]["runs"] == {"plain_grpo.1": {"steps": 1}, "plain_grpo.2": {"steps": 2}}
    assert [s["recipe"] for s in pooled["detail"]["sources"]] == [{"seed": 1}, {"seed": 2}]


def test_results_that_are_no_seeds_of_one_model_are_not_pooled(tmp_path: Path) -> None:
    right = [("right", 2.0)]
    with pytest.raises(ValueError, match="some are in two results"):
        ablation_pool.pool([[_row("a", **{"sft.2": right})], [_row("a", **{"sft.2": right})]])
    paths = [tmp_path / f"{model}.json" for model in "mn"]
    for path in paths:
        path.write_text(json.dumps({"detail": {"model": path.stem, "programs": []}}))
    for given, said in ((paths, "2 first models"), ([tmp_path / "none.json"], "No such file")):
        with pytest.raises(SystemExit, match=said):
            ablation_pool.main([*map(str, given), "--out", str(tmp_path / "pooled.json")])
    assert not (tmp_path / "pooled.json").exists()


def test_aten_lengths_seeds_and_novelty_stand_in_the_detail() -> None:
    fast, slow = ("right", 2.0, 4.0, "form"), ("right", 0.5, 0.25, "")
    rows = [_row("a", x=[slow, fast], y=[slow]), _row("b", x=[fast, slow], y=[("wrong", None, None, None)])]
    rows[1]["ops"] = 11
    detail = summarise(rows, {"contrastive_buckets": ["x", "y"]})[2]
    assert detail["over_aten"]["contrastive_buckets"] == pytest.approx({"aten_1": 2**0.5, "aten_best8": 2.0})
    assert (
        detail["by_seed"]["x"]["speedup_best8"] == pytest.approx(2.0) and detail["by_seed"]["y"]["right_8"] == 0.5
    )
    lengths = detail["lengths"]["contrastive_buckets"]
    assert {name: (bin_["n"], bin_["right_8"]) for name, bin_ in lengths.items()} == {
        "up to 10": (1, 1.0),
        "up to 20": (1, 0.5),
    }
    assert detail["novelty"]["contrastive_buckets"] == {"winners": 2, "novel": 1.0, "novel_form": 1.0}


def test_novel_is_what_no_template_writes_whatever_the_names_and_the_layout() -> None:
    program = parse_program(TASKS[0])
    template_codes, code = TemplateCodes.of(program), write_variants(program, 1)[0].reply.code
    renamed = code.replace("f0", "add_then_multiply").replace("t0", "sum").replace("{\n", "{ // a body\n\n")
    assert renamed != code and template_codes.novelty(code) == template_codes.novelty(renamed) == ""
    assert template_codes.novelty(code.replace("256", "96").replace("128", "96")) == "numbers"
    assert template_codes.novelty(code.replace(" + ", " - ")) == template_codes.novelty(SLOW) == "form"
    assert template_codes.novelty(code.replace("ld(", "expf(").replace("vload<", "vstore<")) == "form"


def test_every_arm_begins_with_one_stage_2_and_has_its_own_seeds(tmp_path: Path) -> None:
    ablation = _ablation(tmp_path, seeds=(1, 2, 3))
    names = [run.name for run in ablation.runs]
    seeds = {stage: sum(name.startswith(f"{stage}.") for name in names) for stage in STAGES}
    assert list(seeds.values()) == [1, 1, 3, 2, 3, 1]
    arms = [r for r in ablation.runs if trainer_ablation.TRAINED.get(r.stage, ("",))[0] == "self_supervised"]
    assert {ablation.first_model(run) for run in arms} == {tmp_path / "self_supervised.1" / "model"}
    # what needs no training waits for none; of eight arms four GPUs train the main comparison with two seeds first
    assert names[:3] == ["sft.1", "best_teacher.1", "self_supervised.1"]
    pairs = [f"{arm}.{seed}" for seed in (1, 2, 3) for arm in ("plain_grpo", "contrastive_buckets")]
    assert names[3:] == [*pairs[:4], "contrastive_random.1", "contrastive_random.2", *pairs[4:]]
    without = replace(ablation, stages=("sft", "plain_grpo"))
    assert {without.first_model(run) for run in without.runs if run.stage == "plain_grpo"} == {Path("base")}
    alone = [run.name for run in _ablation(tmp_path, seeds=(7,)).runs]
    assert alone == [*(f"{name[:-1]}7" for name in names[:5]), "contrastive_random.7"]


def _ablation(out: Path, recipe: Recipe = RECIPE, seeds: tuple[int, ...] = (1,)) -> trainer_ablation.Ablation:
    return trainer_ablation.Ablation(recipe, Path("base"), out, out, STAGES, seeds, 2, 2, 0.0, 0.0, True)


def _trained(ablation: trainer_ablation.Ablation, run: trainer_ablation.Run) -> None:
    (ablation.folder(run) / "model").mkdir(parents=True)
    (ablation.folder(run) / "model" / "weights").write_text(run.name)
    (ablation.folder(run) / "state.pt").touch()
    (ablation.folder(run) / "report.json").touch()


def test_what_more_seeds_begin_with_is_carried_when_all_is_done(tmp_path: Path) -> None:
    ablation = _ablation(tmp_path)
    for run in ablation.runs:
        ablation.replies(run).touch()
        if run.stage in trainer_ablation.TRAINED:
            _trained(ablation, run)
    names = [p.parent.parent.name for p in trainer_ablation.to_carry(ablation) if p.name == "weights"]
    assert names == ["self_supervised.1"]
    assert not any(p.name == "state.pt" for p in trainer_ablation.to_carry(ablation))


def test_an_arm_whose_replies_are_not_whole_is_trained_again_elsewhere(tmp_path: Path) -> None:
    """Its model is not carried, and replies of two trainings may not mix."""
    ablation = _ablation(tmp_path / "here")
    sft, teacher, stage_2, arm = ablation.runs[:4]
    for run in (stage_2, arm):
        _trained(ablation, run)
    for run in (sft, teacher):
        ablation.replies(run).write_text("{}\n")
    (ablation.out / f"sampling.{arm.name}.jsonl").write_text("{}\n")
    (ablation.out / "asked.json").write_text("{}")
    trainer_ablation.save_parts(ablation)
    unpack(ablation.out / "carry", tmp_path / "there")
    there = _ablation(tmp_path / "there")
    assert there.is_trained(stage_2) and there.first_model(arm).is_dir() and not there.is_trained(arm)
    assert {p.name for p in there.out.iterdir() if p.is_file()} == {
        "asked.json",
        "replies.sft.1.jsonl",
        "replies.best_teacher.1.jsonl",
    }
    assert [p.name for p in trainer_ablation.to_carry(ablation)][-1] == "asked.json"


def test_parts_that_are_named_must_be_there(tmp_path: Path) -> None:
    make_bundle(tmp_path / "bundle")
    with pytest.raises(SystemExit, match="no parts there"):
        main(_arguments(tmp_path, "out", "--carry", str(tmp_path / "nowhere")))


def test_finalists_are_each_runs_first_and_quickest() -> None:
    quick = {code: verdict_on(code) for code in (SLOW, FAST, WRONG)}
    assert finalists(Contest("", (), None, runs=((SLOW, WRONG, FAST), ("", SLOW))), quick) == [SLOW, FAST]
    assert finalists(Contest("", (), None, runs=((WRONG, FAST), ())), quick) == [FAST]
    assert finalists(Contest("", (), None, runs=((WRONG, ""),)), quick) == []


def test_replies_are_judged_once_a_program_and_rows_are_kept(tmp_path: Path) -> None:
    programs = [HeldOutProgram("task", str(i), "", text) for i, text in enumerate(TASKS[2:])]
    fence = "## Performance Analysis\nx\n\n## Algorithm Design\ny\n\n## Code\n```cuda\n{}\n```\n"
    one = {p.fingerprint: [fence.format(c) for c in (SLOW, WRONG, FAST)] for p in programs}
    other = {p.fingerprint: ["nothing", fence.format(SLOW.replace("st(", "printf("))] for p in programs}
    replies = {"sft.1": one, "best_teacher.1": other}
    with Referee(HOST, _judge, 120.0, judge_contest) as referee:
        judge_rows(programs[:1], replies, referee, tmp_path / "rows.jsonl")
        judge_rows(programs, replies, referee, tmp_path / "rows.jsonl")
        rows = read_rows(tmp_path / "rows.jsonl")
        assert [row["fingerprint"] for row in rows] == ["0", "1"]
        for row in rows:
            # both right kernels move the same bytes: the second is no finalist
            right, wrong, slower = row["runs"]["sft.1"]
            assert (right, wrong[:2], slower[:2]) == (
                ["right", 2.0, 2.0, "form"],
                ["wrong", None],
                ["right", None],
            )
            assert [s[:2] for s in row["runs"]["best_teacher.1"]] == [["malformed", None], ["forbidden", None]]
            assert row["ops"] == 2
        known = known_rows(programs[::-1], replies, tmp_path / "rows.jsonl")
        assert known == rows[::-1]
        more = replies | {"sft.2": {p.fingerprint: [one[p.fingerprint][1]] for p in programs}}
        assert known_rows(programs, more, tmp_path / "rows.jsonl") == []
        judge_rows(programs, more, referee, tmp_path / "rows.jsonl")
    later = known_rows(programs, more, tmp_path / "rows.jsonl")
    assert [row["runs"] for row in later] == [r["runs"] | {"sft.2": [["wrong", None, None, None]]} for r in rows]


def test_rows_of_several_processes_are_written_one_after_the_other(tmp_path: Path) -> None:
    class Nothing:  # in place of the referee: the only reply has no code
        def __init__(self) -> None:
            self.asked = threading.Event()

        def submit(self, key: int, groups: Any) -> None:
            pass

        def result(self, key: int) -> Any:
            self.asked.set()
            return {}

    programs = [HeldOutProgram("task", "x", "", TASKS[2])]
    referee, path = Nothing(), tmp_path / "rows.jsonl"
    arguments = (programs, {"sft.1": {"x": ["no reply"]}}, referee, path)
    writer = threading.Thread(target=judge_rows, args=arguments, daemon=True)
    with path.open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        writer.start()
        assert referee.asked.wait(30)
        writer.join(0.3)
        assert writer.is_alive() and path.read_text() == ""
        other.write('{"fingerprint": "of another", "runs": {}}\n')
    writer.join(30)
    assert [row["fingerprint"] for row in read_rows(path)] == ["of another", "x"]


def _judge() -> Any:
    return open_judge(None, 1)


def test_parts_are_small_and_give_the_files_back(tmp_path: Path) -> None:
    (tmp_path / "a" / "deep").mkdir(parents=True)
    (tmp_path / "a" / "deep" / "x").write_bytes(bytes(range(256)) * 40)
    (tmp_path / "a" / "y").write_text("y")
    parts = pack(tmp_path / "a", [tmp_path / "a" / "y", tmp_path / "a" / "deep" / "x"], tmp_path / "carry", 100)
    assert len(parts) > 2 and all(p.stat().st_size <= 100 for p in parts)
    unpack(tmp_path / "carry", tmp_path / "b")
    assert (tmp_path / "b" / "deep" / "x").read_bytes() == bytes(range(256)) * 40
    unpack(tmp_path / "empty", tmp_path / "c")
    assert not (tmp_path / "c").exists()
    assert len(pack(tmp_path / "a", [tmp_path / "a" / "y"], tmp_path / "carry")) == 1  # the old parts are gone


def _arguments(tmp_path: Path, out: str, *more: str) -> list[str]:
    stage = replace(STAGE, steps=1, tasks=2, prompts=2, group=2, max_new=4)
    recipe = replace(RECIPE, self_supervised=stage, contrastive=stage, data=DataRecipe(family="pointwise", pool=4))
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(asdict(recipe)))
    write_heldout(hold_out([]), tmp_path / "data" / "heldout.json")
    fixed = ["--recipe", str(tmp_path / "toy.yaml"), "--data", str(tmp_path / "data"), "--dry", "--limit", "2"]
    return ["--model", str(tmp_path / "bundle"), *fixed, "--samples", "2", "--out", str(tmp_path / out), *more]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_all_stages_on_the_host_target_over_two_machines(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_bundle(tmp_path / "bundle")
    real = trainer_ablation.refusal

    def ends_early(ablation: Any, run: Any) -> str | None:
        if run.stage != "contrastive_buckets":
            return real(ablation, run)
        assert list((ablation.out / "carry").iterdir())  # also where what follows is killed
        return "the machine is given back"

    monkeypatch.setattr(trainer_ablation, "refusal", ends_early)
    main(_arguments(tmp_path, "first", "--gpus", "3"))
    assert "the machine is given back: give the same command again" in capfd.readouterr().out
    monkeypatch.setattr(trainer_ablation, "refusal", real)
    shutil.copytree(tmp_path / "first" / "carry", tmp_path / "second" / "carry")
    main(_arguments(tmp_path, "second"))
    printed = capfd.readouterr().out
    assert "all is done" in printed and printed.count("-m cudal1_trainer.rl.contrastive") == 1  # two were carried
    assert all(p.stat().st_size < 16 << 20 for p in (tmp_path / "second" / "carry").iterdir())
    body = json.loads((tmp_path / "second" / "trainer-ablation.dry.json").read_text())
    assert [row["stage"] for row in body["summary"]["stages"]] == list(STAGES) and body["n"] == 2
    teacher = body["summary"]["stages"][-1]
    assert teacher["right_1"] > 0.9 and teacher["speedup_best8"] > 1.0
    assert body["detail"]["runs"]["plain_grpo.1"]["steps"] == 1 and body["detail"]["gpus"] == 1
    with (tmp_path / "second" / "replies.sft.1.jsonl").open("a") as stream:
        stream.write('{"fingerprint": "cut by a ki')
    main(_arguments(tmp_path, "second"))
    assert "all is done" in capfd.readouterr().out
    with pytest.raises(ValueError, match="another model or recipe"):
        main(_arguments(tmp_path, "second", "--samples", "3"))


def test_a_stage_is_not_begun_that_cannot_end_in_time_and_cut_that_outruns_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    make_bundle(tmp_path / "bundle")
    arguments = _arguments(tmp_path, "out", "--seconds", "60", "--stages", "sft,self_supervised")
    recipe = yaml.safe_load((tmp_path / "toy.yaml").read_text())
    recipe["self_supervised"] |= {"steps": 0, "minutes": 5.0}
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(recipe))
    main(arguments)
    assert "self_supervised.1 needs 410 s" in capfd.readouterr().out
    assert not (tmp_path / "out" / "self_supervised.1").exists()
    assert "replies.sft.1.jsonl" in _names(tmp_path / "out" / "carry", tmp_path / "there")

    def ring() -> None:
        while not (tmp_path / "out" / "self_supervised.1").is_dir():
            time.sleep(0.1)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)

    threading.Thread(target=ring, daemon=True).start()
    main([*arguments, "--seconds", "250", "--machine-s", "600"])  # longer than a command, not than the machine
    printed = capfd.readouterr().out
    assert "self_supervised.1 was cut" in printed and "the time is over: give the same command again" in printed
    assert not (tmp_path / "out" / "trainer-ablation.dry.json").exists()
    assert _left_over(tmp_path) == []


def _left_over(tmp_path: Path) -> list[int]:
    """Processes that came of this test's commands, by the cache directory in their environment."""
    end = time.monotonic() + 10
    while True:
        every = psutil.process_iter(["environ"])
        found = [p.pid for p in every if str(tmp_path) in (p.info["environ"] or {}).get("CUDAL1_CACHE_DIR", "")]
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.2)


def _names(carry: Path, folder: Path) -> set[str]:
    unpack(carry, folder)
    return {p.name for p in folder.iterdir()}


def test_each_process_sees_one_gpu_and_has_its_own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-5,7")
    ablation = replace(_ablation(tmp_path), dry=False, gpus=3)
    found = trainer_ablation.places(ablation)
    assert [place.environment["CUDA_VISIBLE_DEVICES"] for place in found] == ["4", "GPU-5", "7"]
    for name in ("CUDAL1_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        assert len({place.environment[name] for place in found}) == 3
    assert trainer_ablation.places(replace(ablation, gpus=1))[0].environment == {}
    with pytest.raises(SystemExit, match="--gpus 4: there are 4,GPU-5,7"):
        trainer_ablation.places(replace(ablation, gpus=4))


def test_a_stage_may_be_longer_than_a_command_not_than_the_machine(tmp_path: Path) -> None:
    recipe = replace(RECIPE, contrastive=replace(STAGE, steps=0, minutes=5.0))
    ablation = replace(_ablation(tmp_path, recipe), given_back=time.monotonic() + 500)
    arm = next(run for run in ablation.runs if run.stage == "plain_grpo")
    assert ablation.left_s < 0 and trainer_ablation.refusal(ablation, arm) is None
    late = replace(ablation, given_back=time.monotonic() + 300)
    assert "plain_grpo.1 needs 410 s" in (trainer_ablation.refusal(late, arm) or "")
    ablation.folder(arm).mkdir()
    (ablation.folder(arm) / "state.pt").touch()
    assert trainer_ablation.refusal(late, arm) is None  # it was begun, and a kill costs it nothing


def test_the_end_comes_whatever_is_under_way() -> None:
    begin = time.monotonic()
    with pytest.raises(trainer_ablation.OutOfTime), trainer_ablation.ends_at(begin + 0.1):
        time.sleep(30)
    assert time.monotonic() - begin < 10


def test_steps_are_expected_to_take_what_the_slowest_took(tmp_path: Path) -> None:
    recipe = replace(RECIPE, contrastive=replace(STAGE, steps=10))
    stages = ("sft", "self_supervised", "plain_grpo")
    ablation = replace(_ablation(tmp_path, recipe), stages=stages)
    first, second = (run for run in ablation.runs if run.stage in trainer_ablation.TRAINED)
    assert trainer_ablation.expected_s(ablation, second) == 0.0  # nothing is known
    ablation.folder(first).mkdir()
    (ablation.folder(first) / "report.json").write_text('{"seconds": 60.0, "steps": 5}')
    assert trainer_ablation.expected_s(ablation, second) == 120.0 + 60.0 + 50.0
