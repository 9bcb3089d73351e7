"""The speed benchmark: its tasks against their quotas, foreign files, errors, and what counts in its figures."""

from __future__ import annotations

import ast
import copy
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from slow_cases import slow_but
from torch import Tensor, nn
from torch._dynamo.exc import SkipFrame

from benchmarks.model_contenders import Step
from benchmarks.speed import __main__ as speed
from benchmarks.speed import flags, job
from benchmarks.speed.arms import returns_the_first, with_own_code
from benchmarks.speed.errors import reference, shares_outside, tensors
from benchmarks.speed.loader import OWN, TINY, TaskError, build, find_tasks, load
from benchmarks.speed.plot import plot
from benchmarks.speed.quotas import (
    LARGE_BYTES,
    LEAST_NETWORKS,
    LEAST_PRODUCT_SHARE,
    LEAST_RECURRENT,
    LEAST_TASKS,
    NOMINAL,
    QUOTAS,
    SMALL_BYTES,
)
from benchmarks.speed.roofline import Work, floor_us, products_us, work_of
from benchmarks.speed.rounds import WARM_UP, time_rounds
from benchmarks.speed.summary import describe, forgive, over, ratio, summarise

TASKS = find_tasks(OWN)
CPU = torch.device("cpu")
TASK = """
import torch
ROWS = 4096
FREE = ("ROWS",)
class Model(torch.nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(4)
        self.scale = scale
    def forward(self, x, ids):
        return self.norm(x) * self.scale, ids + 1
def get_inputs():
    return [torch.rand(ROWS, 4), torch.arange(ROWS)]
def get_init_inputs():
    return [3.0]
"""


# the tasks


def test_the_quotas_are_met() -> None:
    assert TASKS.keys() == QUOTAS.keys() and len(QUOTAS) >= LEAST_TASKS
    bounds, families = Counter(q.bound for q in QUOTAS.values()), Counter(q.family for q in QUOTAS.values())
    assert bounds["product"] >= LEAST_PRODUCT_SHARE * len(QUOTAS)
    assert families["network"] >= LEAST_NETWORKS and families["recurrent"] >= LEAST_RECURRENT
    assert {(q.family, q.size) for q in QUOTAS.values()} == {(f, s) for f in families for s in ("small", "large")}


# which run step by step
RECURRENT = {"lstm_two_layers", "conv_lstm_tagger", "lstm_language_model", "gru_wide", "gru_both_directions"}


@pytest.mark.parametrize("name", slow_but([n for n in TASKS if n not in RECURRENT], TASKS))
def test_a_task_is_what_its_quota_says(name: str) -> None:
    quota, work = QUOTAS[name], work_of(load(TASKS[name]))
    if quota.size == "small":
        assert work.bytes < SMALL_BYTES
    else:
        assert LARGE_BYTES[0] <= work.bytes <= LARGE_BYTES[1]
    is_product = products_us(work, NOMINAL, True) > work.bytes / NOMINAL.bytes_per_us
    assert is_product == (quota.bound == "product") or quota.bound == "launch"
    assert quota.bound != "launch" or (quota.size == "small" and floor_us(work, NOMINAL, True) < 5.0)


@pytest.mark.parametrize("name", TASKS)
def test_a_task_runs_in_float32_and_float64(name: str) -> None:
    model, inputs = build(load(TASKS[name], tiny=True), CPU)
    step = Step(model, inputs, False)
    exact, against = reference(step, 0.0)
    assert against == "float64 on cpu" and exact is not None
    with torch.no_grad():
        found = tensors(model(*inputs))
    assert all(x.isfinite().all() for x in found) and not any(x.requires_grad for x in found)
    is_float32 = all(x.dtype in (torch.float32, torch.int64) for x in tensors((inputs, list(model.parameters()))))
    assert shares_outside(found, exact)["1e-4" if is_float32 else "1e-2"] == 0.0


def test_task_files_import_nothing_but_torch_and_say_what_they_are() -> None:
    for name, path in TASKS.items():
        tree = ast.parse(path.read_text())
        imported = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
        imported |= {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
        assert imported <= {"torch", "torch.nn"}, name
        assert len((ast.get_docstring(tree) or "").splitlines()) == 1, name


# files of others


def write(folder: Path, name: str, text: str) -> Path:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder / name


def test_a_foreign_file_is_built_as_constructed(tmp_path: Path) -> None:
    module = load(write(tmp_path, "a.py", TASK))
    model, (x, ids) = build(module, CPU)
    again, (same, _) = build(module, CPU)
    assert model.training and model.scale == 3.0 and x.shape == (4096, 4) and ids.dtype == torch.int64
    assert torch.equal(x, same) and again is not model
    assert build(load(tmp_path / "a.py", tiny=True), CPU)[1][0].shape == (TINY, 4)
    assert work_of(module) == Work(2 * 4096 * (16 + 8) + 16 * 4 + 8, {})


def test_folders_are_searched_but_for_private_files(tmp_path: Path) -> None:
    for name in ("a.py", "first/b.py", "_c.py", ".d/e.py", "f.txt"):
        write(tmp_path, name, TASK)
    assert list(find_tasks(tmp_path)) == ["a", "first.b"]
    with pytest.raises(ValueError, match="no task file there"):
        find_tasks(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (TASK.replace("def get_inputs", "def inputs"), "no get_inputs; a task file has Model, get_inputs"),
        (TASK.replace("class Model(torch.nn.Module)", "class Model"), "expected a subclass of torch.nn.Module"),
        ("import no_such_package", "ModuleNotFoundError when it was executed"),
    ],
)
def test_a_file_that_is_no_task_says_why(tmp_path: Path, text: str, says: str) -> None:
    path = write(tmp_path, "broken.py", text)
    with pytest.raises(TaskError, match=says):
        load(path)
    assert job.main(["--task", str(path), "--out", str(tmp_path / "row.json")]) == 1
    assert says in json.loads((tmp_path / "row.json").read_text())["error"]


def test_inputs_that_are_no_sequence_are_named(tmp_path: Path) -> None:
    module = load(write(tmp_path, "a.py", TASK.replace("return [3.0]", "return 3.0")))
    with pytest.raises(TaskError, match=r"get_init_inputs\(\) gave float; expected a list"):
        build(module, CPU)


def test_a_file_that_needs_the_cpu_is_built_there(tmp_path: Path) -> None:
    drawn = "torch.rand(ROWS, 4, generator=torch.Generator('cpu').manual_seed(1))"
    module = load(write(tmp_path, "a.py", TASK.replace("torch.rand(ROWS, 4)", drawn)))
    assert build(module, torch.device("meta"))[1][0].is_meta


# one process


def test_flags_that_differ_are_named() -> None:
    assert flags.unexpected(flags.expected(strict=False), strict=False) == ""
    found = flags.expected(strict=True) | {"cudnn.benchmark": True}
    assert flags.unexpected(found, strict=True) == "cudnn.benchmark is True, expected False"
    assert "cudnn.allow_tf32 is False, expected True" in flags.unexpected(found, strict=False)


@pytest.mark.usefixtures("products_in_f32")
def test_this_process_has_torchs_default_flags() -> None:
    assert flags.unexpected(flags.read(), strict=False) == ""


def test_elements_outside_a_tolerance() -> None:
    right = torch.tensor([0.0, 1.0, -100.0, math.inf], dtype=torch.float64)
    found = right + torch.tensor([5e-5, 1e-3, 0.5, 0.0], dtype=torch.float64)
    errors = shares_outside([found.float()], [right])
    assert errors["1e-4"] == 0.5 and errors["1e-2"] == 0.0 and errors["worst"] == pytest.approx(0.5 / 101)
    found[3] = 0.0
    assert shares_outside([found], [right])["1e-2"] == 0.25
    assert shares_outside([torch.tensor([1, 2, 3, 4])], [torch.tensor([1, 2, 3, 5])])["1e-2"] == 0.25
    assert shares_outside([found[:3]], [right])["1e-2"] == shares_outside([], [right])["1e-4"] == 1.0


class Narrow(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x @ torch.ones(4, 4)


def test_a_model_that_names_a_dtype_has_no_reference() -> None:
    step = Step(Narrow(), (torch.rand(4, 4),), False)
    exact, against = reference(step, 0.0)
    assert exact is None and against.startswith("none: RuntimeError")


def test_every_arm_has_as_many_times() -> None:
    from benchmarks.model_contenders import Contender

    calls: Counter[str] = Counter()
    step = Step(nn.ReLU(), (torch.rand(4, 4),), False)

    def counted(name: str) -> Contender:
        return Contender(name, lambda x: calls.update(name) or step.module(x))

    times = time_rounds(step, [counted(name) for name in "ab"], 0.0)
    assert set(calls.values()) == {WARM_UP + 2 * 7}
    assert {len(f) for f in (*times.host_us.values(), *times.loop_us.values())} == {7} and not times.gpu_us


# the figures

TIMES = {"eager": 40.0, "graph": 30.0, "inductor": 20.0, "reduce_overhead": 12.0}
OURS = {"cudal1": 10.0, "cudal1_reduce_overhead": 8.0}
RIGHT = {"1e-4": 0.0, "1e-2": 0.0, "worst": 1e-6}
OUTSIDE = {"1e-4": 0.1, "1e-2": 0.0, "worst": 1e-3}


def row_of(task: str = "a", **changed: Any) -> dict[str, Any]:
    times = TIMES | OURS
    row = {
        "task": task,
        "track": "cold",
        "strict": False,
        "family": "norm",
        "size": "small",
        "bound": "launch",
        "commit": "c",
        "device": "d",
        "host_us": {name: [us, us * 1.5, us] for name, us in times.items()},
        "loop_us": {name: [us / 4] * 3 for name, us in times.items()},
        "gpu_us": {name: [us / 2] * 3 for name, us in times.items()},
        "errors": dict.fromkeys(times, RIGHT),
        "floor_us": 2.0,
        "failed": {},
    }
    return copy.deepcopy(row | changed)


def test_ratios_are_paired_and_over_the_fastest() -> None:
    row = row_of()
    assert over(row) == {"eager": 5.0, "inductor": 2.5, "best": 1.5}
    assert over(row, ("cudal1",)) == {"eager": 4.0, "inductor": 2.0, "best": 2.0}
    row["host_us"]["reduce_overhead"] = [8.0, 24.0, 12.0]  # in its rounds 1, 2 and 1.5 times ours
    assert ratio(row, ("cudal1_reduce_overhead",), ("reduce_overhead",)) == 1.5


def test_a_ratio_is_clipped_in_the_geomean_over_the_best_alone() -> None:
    fast = row_of("b")
    fast["host_us"]["cudal1_reduce_overhead"] = [1.0, 1.5, 1.0]
    found = summarise([row_of(), fast])
    assert found["geomean_over_best"] == pytest.approx(math.sqrt(1.5 * 4))
    assert found["geomean_over_eager"] == pytest.approx(math.sqrt(5 * 40))
    assert found["default_geomean_over_best"] == pytest.approx(2.0) and found["wins"] == 2
    assert found["gpu_geomean_over_best"] == found["loop_geomean_over_best"] == pytest.approx(1.5)
    assert found["roofline_median"] == pytest.approx(0.5) and found["tasks"] == 2


def test_losses_are_under_the_limit_or_without_a_time() -> None:
    slow, even, none, few = row_of("b"), row_of("c"), row_of("d"), row_of("e")
    slow["host_us"]["graph"] = [7.0, 10.5, 7.0]
    even["host_us"]["graph"] = [7.9, 12.0, 7.9]
    none |= {"host_us": {}, "gpu_us": {}, "errors": {}, "failed": {"cold": "over 420 s: first call"}}
    del few["host_us"]["graph"]
    few["failed"] = {"cold, graph": "RuntimeError: cannot be captured"}
    found = summarise([slow, even, none, few])
    assert (found["losses"], found["no_time"], found["wins"]) == (2, 1, 1)
    assert (found["failed"], found["left_out"]) == (1, 1)
    assert found["default_losses"] == 3  # 7 and 7.9 against 10, too
    said = describe([slow, even, none, few])["cold"]
    assert said["by_best"] == {
        "graph": "won 0, even 1, lost 1",
        "reduce_overhead": "won 1, even 0, lost 0",
    }
    assert said["tasks"]["d"]["failed"] == {"cold": "over 420 s: first call"}
    assert said["tasks"]["e"]["gpu_us"] == "20; 15; 10; 6; -; 5; 4"


def test_a_loss_that_dynamo_alone_would_make_is_told_from_others() -> None:
    guarded, slow = row_of("b"), row_of("c")
    for row, alone in ((guarded, 5.0), (slow, 1.0)):
        row["host_us"] |= {"graph": [7.0, 7.0, 7.0], "dynamo": [alone] * 3}  # beside 4 of the GPU's
    found = summarise([guarded, slow, row_of("d")])
    assert (found["losses"], found["losses_to_dynamo"], found["default_losses_to_dynamo"]) == (2, 1, 1)
    assert describe([guarded])["cold"]["tasks"]["b"]["dynamo_us"] == 5.0


def test_dynamo_alone_runs_a_graph_once() -> None:
    runs = []
    call = returns_the_first(lambda x: runs.append(x) or [x + 1], None)
    assert call(1) == call(2) == [2] and runs == [1]


def test_a_wrong_arm_takes_part_in_nothing() -> None:
    ours, both, theirs, half = (row_of(name) for name in "abcd")
    ours["errors"]["cudal1_reduce_overhead"] = OUTSIDE
    both["errors"] |= dict.fromkeys(OURS, OUTSIDE)
    theirs["errors"]["reduce_overhead"] = OUTSIDE
    half["errors"] |= dict.fromkeys(("eager", *OURS), OUTSIDE)  # eager is outside as well
    assert over(ours)["best"] == 1.2 and over(both)["best"] is None and over(theirs)["best"] == 2.5
    assert over(half)["best"] == 1.5
    found = summarise([ours, both, theirs, half])
    assert (found["wrong"], found["wrong_1e-4"], found["wrong_1e-2"], found["losses"]) == (2, 2, 0, 1)
    del half["errors"]
    assert summarise([half])["no_reference"] == 1 and over(half)["best"] == 1.5


def test_what_tf32_alone_makes_is_counted_apart() -> None:
    row, strict, eager = row_of(), row_of(strict=True), row_of("b")
    row["errors"]["cudal1_reduce_overhead"] = OUTSIDE
    eager["errors"]["eager"] = OUTSIDE
    found = summarise(forgive([row, strict, eager, row_of("b", strict=True)]))
    assert (found["wrong"], found["tf32"], found["tf32_eager"]) == (0, 1, 1)
    assert found["geomean_over_best"] == pytest.approx(1.5) and found["strict_tasks"] == 2
    strict["errors"]["cudal1_reduce_overhead"] = OUTSIDE
    assert summarise(forgive([row, strict]))["wrong"] == 1
    assert summarise(forgive([row]))["wrong"] == 1  # without its strict row nobody knows


def test_tracks_have_names_of_their_own() -> None:
    warm = row_of(track="warm")
    warm["host_us"]["cudal1_reduce_overhead"] = [6.0, 9.0, 6.0]
    found = summarise([row_of(), warm])
    assert (found["geomean_over_best"], found["warm_geomean_over_best"]) == (1.5, 2.0)
    assert "strict_tasks" not in found


def test_max_autotune_is_of_a_quarter() -> None:
    drawn = speed.max_autotuned(TASKS)
    assert drawn == speed.max_autotuned(reversed(list(TASKS))) and len(drawn) == math.ceil(len(TASKS) / 4)
    row = row_of()
    row["host_us"]["max_autotune"] = [16.0, 24.0, 16.0]
    found = summarise([row, row_of("b")])
    assert (found["geomean_over_max_autotune"], found["max_autotune_tasks"]) == (2.0, 1)


def test_a_plot_has_a_bar_a_task(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert plot([row_of(), row_of("b")], tmp_path / "speed.png") == tmp_path / "speed.png"
    assert (tmp_path / "speed.png").stat().st_size > 1000
    assert plot([], tmp_path / "none.png") is None


# the runner


def words(folder: Path, *more: str) -> list[str]:
    return ["--out", str(folder / "out"), "--work", str(folder / "work"), *more]


def write_rows(folder: Path, rows: list[dict[str, Any]]) -> None:
    write(folder, "rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


def rows_of_all(commit: str) -> list[dict[str, Any]]:
    return [row_of(name, commit=commit, device="NVIDIA H100 80GB HBM3", versions={}) for name in TASKS]


def test_parts_of_several_folders_make_one_file(tmp_path: Path) -> None:
    rows = rows_of_all("c")
    write_rows(tmp_path / "work", rows[:50])
    write_rows(tmp_path / "other", rows[50:])
    assert speed.main(words(tmp_path, "--collect")) == 0
    assert (tmp_path / "out" / "speed.partial.h100.json").is_file()
    assert speed.main(words(tmp_path, "--collect", str(tmp_path / "other"))) == 0
    body = json.loads((tmp_path / "out" / "speed.h100.json").read_text())
    assert body["n"] == len(TASKS) and body["summary"]["geomean_over_best"] == 1.5
    assert body["commit"] == "c" and body["intervals"]["geomean_over_best"] == [1.5, 1.5]


def test_parts_of_two_commits_are_partial(tmp_path: Path) -> None:
    rows = rows_of_all("c")
    write_rows(tmp_path / "work", rows[:-1] + [rows[-1] | {"commit": "e"}])
    assert speed.main(words(tmp_path, "--collect")) == 0
    assert [p.name for p in (tmp_path / "out").glob("*.json")] == ["speed.partial.h100.json"]


def test_what_has_a_row_of_this_commit_is_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[str] = []

    def measure(run: Any, name: str, *given: Any) -> list[dict[str, Any]]:
        measured.append(name)
        return [row_of(name, commit="now", versions={}), row_of(name, commit="now", versions={}, track="warm")]

    monkeypatch.setattr(speed, "measure_task", measure)
    monkeypatch.setattr(speed, "commit", lambda: "now")
    names = ["gram_matrix", "gru_wide", "cumsum_rows"]
    write_rows(tmp_path / "work", [row_of(names[0], commit="now"), row_of(names[1], commit="before")])
    arguments = words(tmp_path, "--dry", "--names", ",".join(names))
    assert speed.main(arguments) == 0 and measured == names[1:]
    assert speed.main([*arguments, "--warm"]) == 0 and measured == [*names[1:], names[0]]
    assert speed.main([*arguments, "--strict"]) == 0 and measured[3:] == names


def test_an_unknown_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--names nobody: .* has activation_"):
        speed.main(words(tmp_path, "--names", "nobody"))


def test_no_task_is_begun_that_the_time_left_is_too_short_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(speed, "measure_task", lambda *given: pytest.fail("it was begun"))
    monkeypatch.setattr(speed, "gpu_places", lambda *given: [None])
    assert speed.main(words(tmp_path, "--names", "gram_matrix", "--seconds", "90")) == 1
    assert "such a task takes 96 s: gram_matrix waits" in capsys.readouterr().out


class Slanted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Any:
        return self.linear(x) + 1.0


def test_a_frame_that_one_arm_gives_up_is_compiled_for_the_next() -> None:
    """As those with recurrent layers are by Inductor's arm."""
    compiled: list[str] = []

    def gives_up(gm: Any, inputs: Any) -> Any:
        raise SkipFrame("not for this backend")

    def compiles(gm: Any, inputs: Any) -> Any:
        compiled.append("once")
        return gm

    module, x = Slanted(), torch.randn(4, 3)
    twins = [with_own_code(module) for _ in range(2)]
    expected = module(x)
    torch.testing.assert_close(torch.compile(twins[0], backend=gives_up)(x), expected)
    torch.testing.assert_close(torch.compile(twins[1], backend=compiles)(x), expected)
    assert compiled == ["once"] and [*twins[1].parameters()][0] is [*module.parameters()][0]
