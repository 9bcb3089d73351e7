"""Statistics and results files of the benchmarks: figures from known rows, files as the design gives them."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from benchmarks.duel import Job, Row, _again
from benchmarks.generator import Outcome, Sampled, figures, judge_row, labels, make_job, summarise, usable
from benchmarks.model_summary import without_samples
from benchmarks.regions import best_by_strategy, family_of, speedup, strategy_of
from benchmarks.result_file import RESULTS, bootstrap, geomean, write_result
from cudal1_compile.kernel.candidate import Reply, print_reply
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.scores.workers import Lost
from cudal1_trainer.tasks.heldout import HeldOutProgram

TEXT = "region v1\ndims d0=64 d1=30\nin0 f32[d0,d1]\nt0 f32[d0] = sum(in0) over d1\nout0 f32[d0] = t0\n"
FOLDER_BYTES = 2_000_000
CODE = "// launch: k<<<1, 64>>>(in0, out0)\n__global__ void k(const f32* in0, f32* out0 DIMS) {}\n"


def _us(value: float) -> tuple[float, float, float]:
    return value, value, value


def _row(busy: dict[str, float], failures: dict[str, str] | None = None) -> Row:
    return Row("0", {k: _us(v) for k, v in busy.items()}, failures or {})


def test_geomean_and_interval() -> None:
    assert geomean([1.0, 4.0]) == pytest.approx(2.0)
    assert math.isnan(geomean([]))
    with pytest.raises(ValueError, match="positive"):
        geomean([1.0, 0.0])
    low, high = bootstrap([1.0, 2.0, 3.0, 4.0] * 10, geomean)
    assert low < geomean([1.0, 2.0, 3.0, 4.0]) < high
    assert bootstrap([2.0] * 5, geomean) == pytest.approx((2.0, 2.0))


def test_a_results_file_has_the_keys_of_the_design(tmp_path: Path) -> None:
    path = write_result(
        tmp_path, "x", {"a": 1.5, "b": math.nan}, 3, {"a": (1.0, 2.0)}, {"k": [math.inf]}, dry=True
    )
    body = json.loads(path.read_text())
    assert set(body) == {"summary", "device", "versions", "command", "commit", "n", "intervals", "detail"}
    assert path.name == "x.dry.json" and body["device"].startswith("dry run")
    assert body["summary"] == {"a": 1.5, "b": None} and body["detail"] == {"k": [None]}


def test_the_folder_holds_what_its_page_names_and_stays_small() -> None:
    files = sorted(RESULTS.glob("*.json"))
    assert sum(f.stat().st_size for f in files) <= FOLDER_BYTES
    named = re.findall(r"`([a-z0-9_.-]+\.(?:h100|h200|host))`", (RESULTS / "README.md").read_text())
    assert sorted(named) == [f.stem for f in files]


def test_floats_of_the_detail_have_six_digits_and_times_their_quartiles(tmp_path: Path) -> None:
    path = write_result(tmp_path, "x", {"a": 1.23456789}, 0, {}, {"b": [123456.789, 7]}, dry=True)
    body = json.loads(path.read_text())
    assert body["summary"] == {"a": 1.23456789} and body["detail"] == {"b": [123457.0, 7]}
    row = {"ms": {"eager": [4.0, 1.0, 2.0, 3.0, 5.0], "none": []}, "settling": {"us": {"all": [7.0]}, "calls": 9}}
    assert without_samples(row) == {
        "ms": {"eager": [2.0, 3.0, 4.0], "none": []},
        "settling": {"us": {"all": [7.0]}, "calls": 9},
    }


def test_a_dry_run_is_refused_among_the_results() -> None:
    with pytest.raises(ValueError, match="no result"):
        write_result(RESULTS, "x", {}, 0, {}, {}, dry=True)


def test_samples_are_judged_by_their_code() -> None:
    item = Sampled("0", HeldOutProgram("task", "f", "r", TEXT, 1), (_reply(CODE), "nonsense", _reply(CODE)))
    job, names = make_job(item, 0)
    assert [name for name, _ in job.codes] == ["s0"]
    assert names["s0"] == names["s2"] == "s0" and names["s1"].startswith("!")
    found = judge_row(_row({"s0": 4.0, "aten": 20.0, "inductor": 6.0}), names)
    assert (found.builds, found.right, found.raw) == (pytest.approx(2 / 3), pytest.approx(2 / 3), 1.5)
    wrong = judge_row(_row({"aten": 20.0, "inductor": 6.0}, {"s0": "wrong: out0"}), names)
    assert (wrong.builds, wrong.right, wrong.raw) == (pytest.approx(2 / 3), 0.0, 1.0)
    unbuilt = judge_row(_row({"inductor": 6.0}, {"s0": "build: no"}), names)
    assert unbuilt.builds == 0.0


def _reply(code: str) -> str:
    return print_reply(Reply("One pass.", "Plain.", code))


def test_figures_clamp_and_do_not_clamp() -> None:
    fast, slow, none = (
        Outcome(1.0, 1.0, 1.0, 4.0, 9.0, None),
        Outcome(1.0, 0.5, 4.0, 1.0, 9.0, None),
        Outcome(0.0, 0.0, None, 1.0, 9.0, None),
    )
    found = figures([fast, slow, none])
    assert found["speedup_best8_over_inductor"] == pytest.approx(4.0 ** (1 / 3))
    assert found["speedup_best8_raw"] == pytest.approx(1.0)
    assert (found["right_1"], found["right_8"]) == (pytest.approx(0.5), pytest.approx(2 / 3))


def test_a_program_lost_to_its_samples_counts_as_measured() -> None:
    assert usable(_row({}, {"program": "lost at s3: CUDA error"}))
    assert not usable(_row({}, {"program": "lost at aten: CUDA error"}))
    assert not usable(_row({}, {"program": "unusable: not finite"}))


def test_summary_counts_every_measured_program() -> None:
    items = [Sampled(str(i), HeldOutProgram("task", str(i), "r", TEXT, i), (_reply(CODE),)) for i in range(3)]
    names = {str(i): {"s0": "s0"} for i in range(3)}
    rows = [
        Row("0", {"s0": _us(2.0), "inductor": _us(3.0)}, {}),
        Row("1", {"inductor": _us(3.0)}, {"s0": "wrong: out0"}),
        Row("2", {}, {"program": "unusable: not finite"}),
    ]
    summary, n, intervals, detail = summarise(items, rows, names)
    assert n == 2 and summary["right_8"] == 0.5
    assert summary["speedup_best8_over_inductor"] == pytest.approx(1.5**0.5)
    assert set(intervals) >= {"right_1", "speedup_best8_raw"}
    assert detail["samples"] == {"right": 1, "wrong": 1}
    assert list(detail["not_measured"]) == ["task 2"]
    assert detail["vectors"]["do not divide"]["n"] == 2


def test_labels_and_families() -> None:
    found = labels(HeldOutProgram("gpt2/forward", "f", "r", TEXT))
    assert found["family"] == "rows" and found["source"] == "models" and found["length"] == "up to 4"
    columns = TEXT.replace("f32[d0] = sum(in0) over d1", "f32[d1] = sum(in0) over d0")
    assert family_of(parse_program(columns.replace("out0 f32[d0]", "out0 f32[d1]"))) == "columns"


def test_the_fastest_variant_of_each_strategy() -> None:
    row = _row({"split!/a.1.64": 2.0, "split/b.1.64": 4.0, "grouped/c.1.64": 8.0, "inductor": 8.0, "aten": 80.0})
    assert best_by_strategy(row) == {"split": 4.0, "grouped": 1.0}
    assert speedup(row) == 4.0 and speedup(row, "aten") == 40.0
    assert strategy_of("split!/a.1.64") == "split"


def test_only_candidates_are_blamed_for_a_lost_worker() -> None:
    job = Job("0", TEXT, (("s0", CODE), ("s1", CODE)))
    again = _again(Lost(job, "s1", "silent"))
    assert again is not None and again.blamed == ("s1",)
    other = _again(Lost(again, "aten", "silent"))
    assert other is not None and other.blamed == ("s1",) and other.losses == 2
