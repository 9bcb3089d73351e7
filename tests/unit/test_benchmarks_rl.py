"""The baselines of reinforcement learning: arms are what they say, programs weigh as much as they take."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import duel, rl, rl_second
from benchmarks.duel import Config, Job, Row, Worker
from benchmarks.families import FamilyProgram
from benchmarks.rl_rows import Measured, read_row, summarise
from cudal1_compile.codegen.prior.regression import load_prior
from cudal1_compile.codegen.replies import complete
from cudal1_compile.codegen.stages.schedule import print_schedule
from cudal1_compile.codegen.templates import try_reply, variants
from cudal1_compile.generate.bundled import BundledConfig, BundledGenerator
from cudal1_compile.generate.model_files import MODEL_DIR
from cudal1_compile.kernel.candidate import parse_reply
from cudal1_compile.runtime.target import HOST
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.precision import products_may_use_tf32
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.data.template_generator import TemplateGenerator
from cudal1_trainer.scores.measure import Measurement

TEXT = "region v1\ndims d0=4096 d1=1024\nin0 f32[d0,d1]\nt0 f32[d0] = sum(in0) over d1\nout0 f32[d0] = t0\n"
PRODUCT = """region v1
dims d0=64 d1=32 d2=16
in0 f32[d0,d1]
in1 f32[d2,d1]
t0 f32[d0,d2] = {}(in0, in1) over d1
out0 f32[d0,d2] = t0
"""
REDUCTION = FamilyProgram("reduction", "rows", "inference", "4096x1024", TEXT)


class Recorder(TemplateGenerator):
    def __init__(self, greedy_first: bool, asked: list[tuple[bool, int]]) -> None:
        super().__init__()
        self.greedy_first, self.asked = greedy_first, asked

    def propose(self, prompts: Sequence[str], n: int, seed: int) -> list[list[str]]:
        self.asked.append((self.greedy_first, n))
        return super().propose(prompts, n, seed)


def _arguments(out: Path, arms: Sequence[str] = rl.ARMS) -> Namespace:
    return Namespace(
        model=Path("m"), rl=Path("r"), data=Path("trainer/data"), out=out, arms=arms, seed=0, dry=True
    )


def test_arms_are_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[bool, int]] = []
    models: list[tuple[str, bool]] = []

    def load(model: Path, device: str, greedy: bool, distinct: bool) -> Recorder:
        models.append((model.name, distinct))
        return Recorder(greedy, asked)

    monkeypatch.setattr(rl, "load_model", load)
    found = {arm: some[0] for arm, some in rl.ask_arms(_arguments(tmp_path), [REDUCTION]).items()}
    assert asked == [(True, 1), (False, 1), (True, 8), (True, 1), (True, 8), (True, 8)]
    assert models == [("m", False)] * 3 + [("r", False)] * 2 + [("r", True)]
    assert {arm: len(some) for arm, some in found.items() if arm != "all_arms"} == {
        "sft_greedy": 1,
        "sft_draw": 1,
        "sft_best8": 8,
        "rl_greedy": 1,
        "rl_best8": 8,
        "rl_distinct8": 8,
        "prior_best8": 8,
        "prior_first": 1,
    }
    assert found["prior_best8"] == found["all_arms"][:8] and found["prior_first"] == found["all_arms"][:1]
    program, prior = parse_program(TEXT), load_prior()
    assert prior is not None
    schedules = variants(program)
    codes = {reply.code for s in schedules if (reply := try_reply(program, s)) is not None}
    assert {parse_reply(text).code for text in found["all_arms"]} == codes and len(codes) > 8
    first = schedules[int(np.argmin(prior.rank(program, schedules)))]
    likeliest = try_reply(program, first)
    assert likeliest is not None and parse_reply(found["all_arms"][0]).code == likeliest.code, print_schedule(
        first
    )


def test_what_was_asked_for_is_not_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[bool, int]] = []
    monkeypatch.setattr(rl, "load_model", lambda model, device, greedy, distinct: Recorder(greedy, asked))
    first = rl.ask_arms(_arguments(tmp_path, ["sft_draw"]), [REDUCTION])
    assert (
        rl.ask_arms(_arguments(tmp_path, ["sft_draw", "sft_greedy"]), [REDUCTION])["sft_draw"] == first["sft_draw"]
    )
    assert asked == [(False, 1), (True, 1)]


def test_the_model_is_asked_as_in_use() -> None:
    for greedy in (True, False):
        made = rl.load_model(MODEL_DIR, "cpu", greedy)
        assert isinstance(made, BundledGenerator)
        assert made.config == BundledConfig(MODEL_DIR, "cpu", greedy_first=greedy)
    assert BundledConfig().greedy_first and made.temperature > 0


def test_a_folder_without_a_prior_says_what_writes_one(tmp_path: Path) -> None:
    arguments = _arguments(tmp_path)
    arguments.data = tmp_path
    with pytest.raises(ValueError, match="fit_prior"):
        rl.ask_arms(arguments, [REDUCTION])


def test_a_code_of_several_arms_is_measured_once_and_other_arms_are_another_job() -> None:
    prior = load_prior()
    assert prior is not None
    a, b, *_ = rl.likeliest(TEXT, prior)
    job, names = rl.make_job(REDUCTION, {"sft_greedy": [a], "sft_best8": [b, a, "no reply"]})
    assert [name for name, _ in job.codes] == ["sft_greedy/0", "sft_best8/0"]
    assert names["sft_best8"]["sft_best8/1"] == "sft_greedy/0"
    assert names["sft_best8"]["sft_best8/2"].startswith("!")
    again, _ = rl.make_job(REDUCTION, {"sft_greedy": [a], "sft_best8": [b, a, "no reply"]})
    other, _ = rl.make_job(REDUCTION, {"sft_greedy": [a]})
    assert again == job and other.ident != job.ident


class Shown(TemplateGenerator):
    """Writes what it is given, and keeps its prompts."""

    def __init__(self, replies: Sequence[str]) -> None:
        super().__init__()
        self.replies, self.prompts, self.asked = list(replies), list[str](), list[int]()

    def propose(self, prompts: Sequence[str], n: int, seed: int) -> list[list[str]]:
        self.prompts += prompts
        self.asked.append(n)
        return [self.replies[:n] for _ in prompts]


def test_second_rounds_are_the_first_and_as_many_others(tmp_path: Path) -> None:
    prior = load_prior()
    assert prior is not None
    every = list(rl.likeliest(TEXT, prior))
    first, others = every[:8], every[8:]
    assert len(others) >= 4
    job, names = rl.make_job(REDUCTION, {rl_second.FIRST: first})
    busy = {name: (10.0 + i, 0.0, 0.0) for i, (name, _) in enumerate(job.codes[:6])} | {"aten": (13.0, 0.0, 0.0)}
    row = Row(job.ident, busy, {name: "verify: wrong" for name, _ in job.codes[6:]})
    known = rl_second.known_after(REDUCTION, first, row, names[rl_second.FIRST])
    assert [round(13.0 / e.speedup) for e in known.variants] == [10, 11, 12, 13, 14, 15]
    found, prompts, asked = {}, {}, {}
    for way in rl_second.WAYS:
        model = Shown([first[0], *others, others[0]])
        path = tmp_path / way
        (found[way],) = rl_second.second_round(way, [known], lambda model=model: model, "gpu", path, 1)
        prompts[way], asked[way] = "".join(model.prompts), model.asked
        assert found[way][:8] == first and 8 < len(found[way]) <= 16
        codes = [complete(parse_program(TEXT), parse_reply(text)).code for text in found[way]]
        assert len({*codes}) == len(codes)
    assert prompts["contrastive_in_use"].count("variant ") == 6 and "variant " not in prompts["plain_in_use"]
    assert prompts["search_in_use"] == ""
    assert asked["contrastive_in_use"] == [10], "two that were refused may be drawn"
    assert found["plain_in_use"][8:] == others[:8]
    # a program of which nothing was measured gives no exemplars, and no edits
    bare = rl_second.known_after(REDUCTION, first, None, names[rl_second.FIRST])
    assert bare.variants == []
    assert rl_second.second_round("search_in_use", [bare], lambda: Shown([]), "gpu", path, 1) == [first]


@pytest.mark.usefixtures("products_in_f32")
def test_baselines_of_tf32_products_may_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def measured(program: Program, built: object, mark: object) -> Measurement:
        seen.append(products_may_use_tf32())
        assert torch.get_float32_matmul_precision() in ("high", "highest")  # Inductor asks
        return Measurement({}, {})

    monkeypatch.setattr(duel, "_measure_host", measured)
    worker = Worker(Config(1, dry=True), torch.device("cpu"), HOST, None)  # type: ignore[arg-type]
    for kind, fn in (("product_tf32", "dot_tf32"), ("product_f32", "dot"), ("conv2d", "dot_tf32")):
        program = FamilyProgram(kind, "x", "inference", "64x32 16x32", PRODUCT.format(fn))
        job, _ = rl.make_job(program, {})
        duel.work(worker, job, lambda name: None)
    assert seen == [True, False, False] and not products_may_use_tf32()


NAMES = {"sft_greedy": {"a0": "a0"}, "sft_best8": {"b0": "b0", "b1": "a0", "b2": "!none"}}


def _measured(kind: str, busy: dict[str, float], failures: dict[str, str] | None = None) -> Measured | None:
    program = FamilyProgram(kind, "x", "inference", "1", TEXT)
    return read_row(program, Row("0", {n: (us, us, us) for n, us in busy.items()}, failures or {}), NAMES)


def test_weights_are_times() -> None:
    long = _measured("conv2d", {"aten": 300.0, "inductor": 400.0, "a0": 200.0, "b0": 150.0})
    short = _measured("loss", {"aten": 120.0, "inductor": 100.0, "b0": 400.0}, {"a0": "wrong: out0"})
    assert long and short
    summary, intervals, detail = summarise([long, short], list(NAMES))
    greedy, best = summary["rows"]
    assert (greedy["stage"], best["stage"]) == ("sft_greedy", "sft_best8")
    assert greedy["right_1"] == greedy["right_8"] == pytest.approx(0.75)
    assert best["right_1"] == pytest.approx(0.75 * 2 / 3 + 0.25 / 3) and best["right_8"] == 1.0
    assert greedy["over_best"] == greedy["over_best_raw"] == pytest.approx(1.5**0.75)
    assert best["over_best"] == pytest.approx(2**0.75)  # the slow kernel does not run
    assert best["over_best_raw"] == pytest.approx(2**0.75 * 0.25**0.25)
    assert best["over_sft_greedy"] == pytest.approx((4 / 3) ** 0.75)
    assert best["over_sft_greedy_raw"] == pytest.approx((4 / 3) ** 0.75 * 0.25**0.25)
    assert greedy["over_sft_greedy"] == greedy["over_sft_greedy_raw"] == 1.0
    assert (greedy["candidates"], best["candidates"]) == (1.0, 2.0)
    assert summary["time_in_products"] == 0.75
    assert detail["plain"]["sft_best8"]["over_best"] == pytest.approx(math.sqrt(2))
    assert detail["kinds"]["conv2d"]["n"] == 1 and detail["kinds"]["conv2d"]["time"] == 0.75
    assert detail["kinds"]["loss"]["sft_best8"]["over_best_raw"] == pytest.approx(0.25)
    assert detail["kinds"]["scan"] == {"n": 0, "time": 0.0}
    assert intervals["sft_best8.over_best"] == pytest.approx((1.0, 2.0))  # one of the two alone, at the ends
    assert intervals["sft_greedy.over_sft_greedy.plain"] == (1.0, 1.0)
    assert detail["programs"][0]["us"] == {"aten": 300, "inductor": 400, "sft_greedy": 200, "sft_best8": 150}


def test_without_the_greedy_arm_nothing_is_held_against_it() -> None:
    program = FamilyProgram("loss", "x", "inference", "1", TEXT)
    row = Row("0", {"aten": (2.0, 2.0, 2.0), "b0": (1.0, 1.0, 1.0)}, {})
    found = read_row(program, row, {"sft_best8": {"b0": "b0"}})
    assert found
    summary, _, _ = summarise([found], ["sft_best8"])
    assert set(summary["rows"][0]) == {"stage", "right_1", "right_8", "over_best", "over_best_raw", "candidates"}


def test_what_has_no_baseline_has_no_weight() -> None:
    assert _measured("loss", {"a0": 3.0}, {"aten": "capture: memory", "inductor": "capture: memory"}) is None
    with pytest.raises(ValueError, match="no program was measured"):
        summarise([], list(NAMES))


def test_rows_that_are_there_are_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def measure(jobs: Sequence[Job], config: Config, deadline: float) -> list[Row]:
        asked.append([job.ident for job in jobs])
        return [Row(job.ident, {"aten": (1.0, 1.0, 1.0)}, {}) for job in jobs[:2]]  # the time ends then

    monkeypatch.setattr(duel, "duel", measure)
    jobs = [Job(name, TEXT, ()) for name in "abc"]
    for _ in range(3):
        found = duel.duel_into(tmp_path / "rows.jsonl", jobs, Config(1), 0.0, 0.0, go_on=True)
    assert asked == [["a", "b", "c"], ["c"], []] and [row.ident for row in found] == ["a", "b", "c"]
    assert found[0].us("aten") == 1.0
    assert len(duel.duel_into(tmp_path / "rows.jsonl", jobs, Config(1), 0.0, 0.0)) == 2  # anew
    assert duel.duel_into(tmp_path / "rows.jsonl", jobs[2:], Config(1), 0.0, 0.0, go_on=True)[0].ident == "c"
