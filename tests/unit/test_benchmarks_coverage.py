"""The coverage benchmark: its tasks' sizes, whose time is whose, its figures, resumption, and a dry run."""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks import coverage, model_kernels
from benchmarks import coverage_summary as summary
from benchmarks.coverage_errors import is_wrong, tensor_error, worst_error
from benchmarks.coverage_jobs import JOBS, job_named
from benchmarks.coverage_measure import FirstVerdict, gpu_times
from benchmarks.coverage_rate import large_regions, stage_of
from benchmarks.coverage_trace import Call, Graph, Owners, shares
from benchmarks.model_contenders import Contender, Step
from benchmarks.model_kernels import OUTSIDE, Launch
from benchmarks.side_by_side import Place
from cudal1_compile.codegen.prior.traffic import bytes_moved
from cudal1_compile.judge.verdict import Deferred, Rejected
from cudal1_compile.synthesis.outcome import Outcome, Unfinished
from cudal1_compile.synthesis.progress import Done, Preparing
from cudal1_fx_passes.program.text import print_program

ROOT = Path(__file__).parents[2]
GIB = 1 << 30
TASKS = [job for job in JOBS if job.kind == "task"]


class Live(TorchDispatchMode):
    """The largest tensor, and the most bytes that live at once."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, int] = {}
        self.peak_bytes = self.largest_bytes = self.most_elements = 0

    def note(self, found: Any) -> None:
        for x in tree_leaves(found):
            if isinstance(x, Tensor):
                self.most_elements = max(self.most_elements, x.numel())
                self.largest_bytes = max(self.largest_bytes, x.numel() * x.element_size())
                self._hold(x.untyped_storage())
        self.peak_bytes = max(self.peak_bytes, sum(self.live.values()))

    def _hold(self, storage: torch.UntypedStorage) -> None:
        if storage._cdata not in self.live:
            self.live[storage._cdata] = storage.nbytes()
            weakref.finalize(storage, self.live.pop, storage._cdata, None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self.note(found)
        return found


def test_there_are_jobs_of_every_kind() -> None:
    models = [job for job in JOBS if job.kind == "model"]
    assert len(TASKS) >= 32 and len(models) >= 16 and sum(job.train for job in models) >= 5
    assert len({job.name for job in JOBS}) == len(JOBS)
    with pytest.raises(ValueError, match="expected one of"):
        job_named("none")


def test_tasks_are_large_and_none_too_large() -> None:
    largest = []
    for job in TASKS:
        module, inputs = job.make(torch.device("meta"), False)
        with Live() as live, torch.no_grad():
            live.note(inputs)
            module.train(False)(*inputs)
        assert live.most_elements < 2**31, job.name
        assert 0.1 * GIB <= live.largest_bytes <= 8 * GIB and live.peak_bytes <= 40 * GIB, job.name
        largest.append(live.largest_bytes)
    assert sum(size > GIB for size in largest) * 2 >= len(TASKS)


@pytest.mark.parametrize("job", TASKS, ids=lambda job: job.name)
def test_a_tiny_task_runs_and_is_right_in_float64(job: Any) -> None:
    module, inputs = job.make(torch.device("cpu"), True)
    with torch.no_grad():
        found = module.train(False)(*inputs)
        exact = module.double()(*(x.double() if x.is_floating_point() else x for x in inputs))
    limit = 5e-2 if torch.bfloat16 in (x.dtype for x in inputs) else 1e-3
    assert tensor_error(found, exact) < limit


# errors


def test_errors_are_relative_and_absolute() -> None:
    right = torch.tensor([1.0, -1.0, 0.0, 100.0, math.inf, math.nan], dtype=torch.float64)
    assert tensor_error(right.float(), right) == 0.0
    moved = right.clone()
    moved[2] = 1.0
    assert 0.0 < tensor_error(moved, right) < 0.05  # of a zero: of the tensor's typical size
    assert tensor_error(torch.tensor([1.0, math.nan]), torch.tensor([1.0, 2.0])) == math.inf
    assert tensor_error(torch.tensor([1, 2, 3, 5]), torch.tensor([1, 2, 3, 4])) == 0.25


def test_a_gradient_of_nothing_is_held_against_the_others() -> None:
    exact = {"output 0": torch.ones(3), "gradient of a": torch.ones(9), "gradient of b": torch.zeros(9) + 1e-30}
    found = exact | {"gradient of b": torch.full((9,), 1e-6)}
    assert worst_error(found, exact) < 0.01
    assert worst_error({"output 0": torch.ones(3)}, exact) == math.inf
    assert worst_error(exact | {"output 0": torch.ones(4)}, exact) == math.inf


def test_wrong_is_far_off_and_farther_than_inductor() -> None:
    assert is_wrong(0.05, 0.01) and is_wrong(math.inf, 0.5) and is_wrong(math.nan, 0.5)
    assert not is_wrong(0.05, 0.02) and not is_wrong(0.009, 0.0)


# whose time


def launches(*names: str) -> list[Launch]:
    """Each takes ten times as long as the one before."""
    return [Launch(name, float(i), 10.0**i) for i, name in enumerate(names)]


def graph(*calls: Call, **origins: dict[str, int]) -> Graph:
    return Graph(Owners({}, ()), list(calls), dict(origins))


def test_libraries_time_goes_to_the_calls_between_the_same_kernels() -> None:
    made = graph(
        Call("", {"aa": 1}),
        Call("triton_x", {}),
        Call("", {"bb": 1}),
        Call("", {"cc": 1}),
        triton_x={"aa": 1, "dd": 3},
    )
    found = shares(launches("gemm", "triton_x", "cudnn1", "cudnn2"), [made], train=False)
    assert found.in_order
    assert found.us == {"aa": 1.0 + 2.5, "dd": 7.5, "bb": 100.0, "cc": 1000.0}


def test_calls_that_cannot_be_told_apart_share_evenly_and_copies_are_nobodys() -> None:
    made = graph(Call("", {"aa": 1}), Call("", {"bb": 1}), Call("triton_x", {}), triton_x={"aa": 1})
    found = shares(launches("a", "b", "c", "triton_x", "Memcpy"), [made], train=False)
    assert found.us == {"aa": 55.5 + 1000.0, "bb": 55.5, OUTSIDE: 10000.0}


def test_backwards_run_in_the_reverse_order_of_their_forwards() -> None:
    first, second = (graph(Call(f"triton_{k}", {}), **{f"triton_{k}": {k: 1}}) for k in "ab")
    back_first, back_second = (graph(Call(f"triton_{k}", {}), **{f"triton_{k}": {k: 1}}) for k in "cd")
    ran = launches("triton_a", "triton_b", "triton_d", "triton_c")
    assert shares(ran, [first, back_first, second, back_second], train=True).in_order
    assert not shares(ran, [first, back_first, second, back_second], train=False).in_order


def test_in_another_order_than_the_codes_libraries_time_is_nobodys() -> None:
    made = graph(Call("", {"aa": 1}), Call("triton_x", {}), Call("triton_y", {}), triton_x={"aa": 1})
    found = shares(launches("gemm", "triton_y", "triton_x"), [made], train=False)
    assert not found.in_order and found.us == {OUTSIDE: 11.0, "aa": 100.0}


def test_gpu_times_are_the_mean_of_the_profiled_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = graph(Call("", {"aa": 1}), Call("triton_x", {}), triton_x={"bb": 1})
    calls = [launches("gemm", "triton_x"), launches("gemm", "triton_x", "Memcpy")]

    def record(segments: list[Any], path: Path) -> list[list[Launch]]:
        for run in segments:
            run()
        path.write_text("{}")
        return calls

    monkeypatch.setattr(model_kernels, "record", record)
    step = Step(torch.nn.Linear(2, 2), (torch.ones(2, 2),), False)
    ran: list[Tensor] = []
    found = gpu_times(step, Contender("inductor", lambda x: ran.append(x) or x), [made], tmp_path, dry=False)
    assert found == {"us": {"aa": 1.0, "bb": 10.0, OUTSIDE: 50.0}, "in_order": True}
    assert len(ran) == 2 and list(tmp_path.iterdir()) == []


def test_a_node_that_a_later_pass_made_is_known_by_what_it_reads() -> None:
    drawn = fx.Graph()
    x, w, bias = (drawn.placeholder(name) for name in ("x", "w", "bias"))
    fused = drawn.call_function(torch.ops.aten.addmm.default, (bias, x, w))
    other = drawn.call_function(torch.ops.aten.mm.default, (w, bias))
    view = drawn.call_function(torch.ops.aten.view.default, (x, [4]))
    owners = Owners({}, ((frozenset({"x", "w"}), "aa"),))
    assert owners.operations([fused, view, x]) == {"aa": 1}
    assert owners.operations([view]) == {}
    assert owners.operations([other]) == {OUTSIDE: 1}


def test_a_library_call_stands_for_the_last_of_its_origins() -> None:
    drawn = fx.Graph()
    x = drawn.placeholder("x")
    before = drawn.call_function(torch.ops.aten.relu.default, (x,))
    product = drawn.call_function(torch.ops.aten.mm.default, (before, before))
    owners = Owners({before.name: "aa", product.name: "bb"}, ())
    assert owners.operations([product, before]) == owners.operations([before, product]) == {"bb": 1}


def test_the_first_verdict_is_none_that_leaves_a_region_open() -> None:
    first = FirstVerdict()
    assert first.seconds() is None
    first.note(Preparing(2, 20.0))
    first.note(Done(1, 2, Outcome("aa", Unfinished("the time is over"), (), 0, 0), 0.0))
    assert first.decided is None
    time.sleep(0.01)
    waited = first.seconds()
    assert waited is not None and waited >= 0.01
    first.decided = first.known
    assert first.seconds() == 0.0


# figures


def region(fingerprint: str, outcome: str, reason: str = "", speedup: float | None = None) -> dict[str, Any]:
    return {"fingerprint": fingerprint, "outcome": outcome, "reason": reason, "speedup": speedup, "count": 2}


def row(job: str = "softmax", **changed: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "job": job,
        "kind": "task",
        "commit": "c0ffee",
        "device": "NVIDIA H100 80GB HBM3",
        "versions": {"torch": "2.11"},
        "budget_s": 20.0,
        "inductor_first_s": [10.0, 12.0, 50.0],
        "first_call_s": 35.0,
        "first_verdict_s": 2.0,
        "ms": {"cudal1": 1.0, "inductor": 2.0},
        "regions": [
            region("a" * 64, "new", speedup=1.4),
            region("b" * 64, "unprofitable", "all was tried"),
            region("c" * 64, "at_floor", "0.95 of the floor"),
            region("d" * 64, "untuned", "a trial of this region needs about 9 MiB, 8 MiB are free for it"),
        ],
        "us": {"a" * 64: 40.0, "b" * 64: 20.0, "c" * 64: 10.0, "d" * 64: 20.0, "e" * 64: 10.0, OUTSIDE: 100.0},
        "errors": {"cudal1": 1e-6, "inductor": 1e-6},
        "failed": {},
    }
    return found | changed


def test_shares_are_of_the_gpus_time() -> None:
    found = summary.summarise([row()], {"judged_per_s_small": 150.0})
    assert found["value_decided"] == pytest.approx(0.7)
    assert found["value_decided_of_graph"] == pytest.approx(0.35)
    assert (found["value_with_kernel"], found["value_at_floor"], found["value_no_win"]) == pytest.approx(
        (0.4, 0.1, 0.2)
    )
    assert (found["no_room"], found["regions"], found["regions_at_floor"], found["jobs"]) == (1, 4, 1, 1)
    assert found["speedup_over_inductor"] == found["slowest_over_inductor"] == 2.0
    assert found["judged_per_s_small"] == 150.0 and math.isnan(found["judged_per_s_large"])
    assert math.isnan(found["speedup_in_reduce_overhead"])


def test_the_limit_is_inductors_median_and_the_budget() -> None:
    assert summary.limit_s(row()) == pytest.approx(12.0 * 1.1 + 22.0)
    assert not summary.is_over(row(first_call_s=35.1)) and summary.is_over(row(first_call_s=35.3))
    assert not summary.is_over(row(inductor_first_s=[], first_call_s=999.0))
    found = summary.summarise([row(first_call_s=99.0), row("cumsum")], {})
    assert found["first_call_over_limit"] == 1


def test_what_failed_is_counted_and_needs_nothing_measured() -> None:
    bare = {k: row("cumsum")[k] for k in ("job", "kind", "device", "commit", "budget_s", "inductor_first_s")}
    rows = [row(), bare | {"failed": {"cudal1": "over 240 s: first call"}}]
    found = summary.summarise(rows, {})
    assert (found["failed"], found["jobs"], found["regions"], found["first_verdict_s"]) == (1, 2, 4, 2.0)
    assert summary.describe(rows, {})["jobs"]["cumsum"]["failed"] == {"cudal1": "over 240 s: first call"}


def test_wrong_is_counted_in_either_mode() -> None:
    off = {"cudal1": 0.5, "inductor": 0.01}
    rows = [
        row(),
        row("cumsum", errors=off),
        row("gelu", graphs={"errors": off, "ms": {"cudal1": 1.0, "inductor": 3.0}}),
    ]
    found = summary.summarise(rows, {})
    assert found["wrong"] == 2 and found["speedup_in_reduce_overhead"] == pytest.approx(3.0)


def test_a_region_is_a_few_words_and_reasons_are_listed_once() -> None:
    found = summary.describe([row(), row("cumsum")], {})
    assert found["jobs"]["softmax"]["regions"].startswith("aaaaaaaaaaaa new 1.40x 40us x2; ")
    assert "; bbbbbbbbbbbb unprofitable 20us x2 #0; " in found["jobs"]["cumsum"]["regions"]
    assert found["reasons"][0] == "all was tried" and len(found["reasons"]) == 3
    assert max(len(reason) for reason in found["reasons"]) <= summary.REASON


def test_candidates_without_a_time_do_not_count() -> None:
    verdicts = [Rejected("time", "slower"), Rejected("verify", "wrong"), Deferred("no room")]
    assert [stage_of(v) for v in verdicts] == ["timed", "verify", "deferred"]


def test_large_regions_are_of_one_gib_each() -> None:
    found = large_regions()
    assert all(0.9 * GIB < bytes_moved(program) < 1.1 * GIB for program in found)
    assert len({print_program(program) for program in found}) == len(found) >= 40


# the run


def words(tmp_path: Path, *more: str) -> list[str]:
    return ["--out", str(tmp_path / "out"), "--work", str(tmp_path / "work"), *more]


def measured(monkeypatch: pytest.MonkeyPatch, ends_at: str = "") -> list[str]:
    """What is measured from now on; the run's end comes in the job of that name."""
    asked: list[str] = []

    def measure(_: Any, job: Any) -> dict[str, Any]:
        if job.name == ends_at:
            raise coverage.OutOfTime
        asked.append(job.name)
        return row(job.name)

    monkeypatch.setattr(coverage, "measure_job", measure)
    return asked


def test_a_run_goes_on_where_it_was_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = "--jobs", "softmax,cumsum,gelu"
    first = measured(monkeypatch, ends_at="cumsum")
    assert coverage.main(words(tmp_path, *jobs)) == 0 and first == ["softmax"]
    second = measured(monkeypatch)
    assert coverage.main(words(tmp_path, *jobs)) == 0 and second == ["cumsum", "gelu"]
    body = json.loads((tmp_path / "out" / "coverage.partial.h100.json").read_text())
    assert body["n"] == 3 and body["commit"] == "c0ffee" and body["device"].startswith("NVIDIA H100")


def test_no_job_is_begun_without_the_time_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = measured(monkeypatch)
    assert coverage.main(words(tmp_path, "--jobs", "softmax", "--seconds", "100")) == 1 and asked == []


def write_rows(folder: Path, rows: Iterable[dict[str, Any]]) -> None:
    folder.mkdir(parents=True)
    (folder / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))


def test_parts_are_merged_and_the_file_stays_small(tmp_path: Path) -> None:
    regions = [region(f"{i:064x}", "untuned", f"the reason of region {i % 7}" * 9, 1.23) for i in range(15)]
    us = {r["fingerprint"]: 123456.789 for r in regions}
    rows = [row(job.name, kind=job.kind, regions=regions, us=us) for job in JOBS]
    write_rows(tmp_path / "work", rows[::2])
    write_rows(tmp_path / "other", rows[1::2])
    (tmp_path / "other" / "rate.json").write_text(json.dumps({"judged_per_s_large": 21.0}))
    assert coverage.main(words(tmp_path, "--name", "coverage.before", "--collect", str(tmp_path / "other"))) == 0
    path = tmp_path / "out" / "coverage.before.h100.json"
    body = json.loads(path.read_text())
    assert body["n"] == len(JOBS) and body["summary"]["judged_per_s_large"] == 21.0
    assert path.stat().st_size <= 60_000


def test_jobs_of_another_device_than_the_usual_one_name_it(tmp_path: Path) -> None:
    write_rows(tmp_path / "a", [row("softmax"), row("cumsum", device="NVIDIA H200"), row("matmul_square")])
    assert coverage.main(["--out", str(tmp_path / "out"), "--work", str(tmp_path / "a"), "--collect"]) == 0
    body = json.loads((tmp_path / "out" / "coverage.partial.h100.json").read_text())
    devices = {job: found.get("device") for job, found in body["detail"]["jobs"].items()}
    assert devices == {"softmax": None, "cumsum": "NVIDIA H200", "matmul_square": None}
    assert body["device"].startswith("NVIDIA H100")


def test_gpus_share_the_jobs_and_the_longest_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []
    both = threading.Barrier(2, timeout=60)

    def measure(run: coverage.Run, job: Any) -> dict[str, Any]:
        asked.append((run.place.environment["CUDA_VISIBLE_DEVICES"], job.name))
        both.wait()
        return row(job.name)

    monkeypatch.setattr(coverage, "measure_job", measure)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert coverage.main(words(tmp_path, "--jobs", "softmax,gelu,vit,vit.train", "--gpus", "2")) == 0
    gpus, jobs = zip(*asked, strict=True)
    assert sorted(gpus[:2]) == sorted(gpus[2:]) == ["2", "3"]
    assert set(jobs[:2]) == {"vit", "vit.train"} and set(jobs[2:]) == {"softmax", "gelu"}
    assert len(coverage.read_rows([tmp_path / "work"])) == 4


def test_a_gpu_is_one_of_those_that_may_be_seen() -> None:
    def seen(count: int, visible: str) -> list[str]:
        return [p.environment.get("CUDA_VISIBLE_DEVICES", "") for p in coverage.gpu_places(count, visible)]

    assert (seen(0, "2,3"), seen(2, ""), seen(1, "2,3")) == ([""], ["0", "1"], ["2"])
    one, other = coverage.gpu_places(2, "")
    assert not one.cores & other.cores
    with pytest.raises(ValueError, match="has 2"):
        coverage.gpu_places(3, "2,3")


def run_of(work: Path, seconds: float) -> coverage.Run:
    end, place = time.monotonic() + seconds, Place({})
    return coverage.Run(work, end, threading.Event(), place, graphs=False, dry=True)


def test_a_process_is_ended_at_its_limit_and_at_the_runs_end(tmp_path: Path) -> None:
    def code_of(program: str, seconds: float, limit: float) -> int | None:
        run = run_of(tmp_path, seconds)
        return coverage.hold(run, ["-c", program], tmp_path / "x.json", "x").wait(run, limit)

    waits = "import sys; sys.stdin.read()"
    assert code_of(waits, 60.0, 0.2) is None
    assert code_of("print(1); exit(3)", 60.0, 60.0) == 3
    assert (tmp_path / "logs" / "x.log").read_text() == "1\n"
    with pytest.raises(coverage.OutOfTime):
        code_of(waits, 0.2, 60.0)


def hold_with(monkeypatch: pytest.MonkeyPatch, program: str) -> list[coverage.Child]:
    """Processes that run it in place of a job's, their file and arm as arguments."""
    held: list[coverage.Child] = []
    hold = coverage.hold

    def instead(run: coverage.Run, command: list[str], file: Path, log_name: str) -> coverage.Child:
        held.append(hold(run, ["-c", program, str(file), command[command.index("--arm") + 1]], file, log_name))
        return held[-1]

    monkeypatch.setattr(coverage, "hold", instead)
    return held


SAYS = """
import json, os, sys, time
begun = time.monotonic()
assert os.read(0, 1) == b"\\n"
said = {"stage": "timed rounds", "first_call_s": 31.0, "failures": {"profile": "ProfileError: none"}}
open(sys.argv[1], "w").write(json.dumps(said | {"begun": begun, "went": time.monotonic()}))
time.sleep(0.3)
sys.stdin.read() if sys.argv[2] == "cudal1" else None
"""


def test_what_an_ended_process_had_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hold_with(monkeypatch, SAYS)
    monkeypatch.setattr(coverage, "CUDAL1_LIMIT_S", 1.0)
    found = coverage.measure_job(run_of(tmp_path, 60.0), job_named("softmax"))
    assert found["first_call_s"] == 31.0 and found["inductor_first_s"] == [31.0]
    assert found["failed"]["cudal1"] == "over 1 s: timed rounds"
    assert found["failed"]["cudal1, profile"] == "ProfileError: none"


def test_the_next_process_waits_while_one_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = hold_with(monkeypatch, SAYS.replace('"cudal1"', '"nobody"'))
    said: list[dict[str, float]] = []
    keep = coverage.said_by
    monkeypatch.setattr(coverage, "said_by", lambda *given: said.append(keep(*given)) or said[-1])  # type: ignore[func-returns-value]
    run = replace(run_of(tmp_path, 60.0), dry=False, graphs=True)
    coverage.measure_job(run, job_named("softmax"))
    assert len(held) == len(said) == coverage.INDUCTOR_RUNS + 2
    for one, following in itertools.pairwise(said):
        assert following["begun"] < one["went"] + 0.3 <= following["went"]


def test_whoever_waits_ends_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = hold_with(monkeypatch, "import os; os.read(0, 1) and os.read(0, 1)")
    with pytest.raises(coverage.OutOfTime):
        coverage.measure_job(run_of(tmp_path, 1.0), job_named("softmax"))
    assert len(held) == 2 and all(child.process.poll() is not None for child in held)


@pytest.mark.slow
def test_a_dry_run_from_end_to_end(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.coverage", *words(tmp_path, "--dry")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    body = json.loads((tmp_path / "out" / "coverage.dry.json").read_text())
    assert body["n"] == len(coverage.DRY_JOBS) and body["summary"]["failed"] == 0, body
    assert body["summary"]["wrong"] == 0 and body["summary"]["regions"] >= len(coverage.DRY_JOBS)
    for row in coverage.read_rows([tmp_path / "work"]):
        planned = {r["fingerprint"] for r in row["regions"]}
        assert planned & row["us"].keys(), row  # what Inductor compiled has the regions that the backend saw
