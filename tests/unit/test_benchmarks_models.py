"""The models benchmark: its statistics, its reading of profiles and of Inductor's code, and a dry run."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from synthesis_doubles import ScriptedGenerator, ScriptedJudge, program
from torch import nn
from trials import FakeClock

from benchmarks import model_kernels as kernels
from benchmarks import model_measure
from benchmarks import model_summary as summary
from benchmarks.model_contenders import (
    GRAPHS,
    Contender,
    Job,
    NotYet,
    Step,
    WithLogits,
    compile_contender,
    errors,
    results,
    run_first,
    time_rounds,
)
from benchmarks.model_synthesis import Wanted, Watch, Written, find_right, is_right, load_generator, wrote
from benchmarks.models import SUITES, Process, Run, _give_up, main, parse_arguments
from benchmarks.zoo import Loss, build
from benchmarks.zoo_cnn import SPECS
from cudal1_cache.rows import Attempt
from cudal1_compile.dispatch.kernel_cache import open_store
from cudal1_compile.pipeline.choice import USUAL_CALLS, VariantTrial
from cudal1_compile.runtime.target import HOST
from cudal1_compile.synthesis.budget import Budget
from cudal1_compile.synthesis.outcome import Unprofitable
from cudal1_compile.synthesis.progress import Examining
from cudal1_compile.synthesis.rounds import synthesize_all
from cudal1_fx_passes.program.text import print_program

ROOT = Path(__file__).parents[2]

CODE = """
# kernel path: somewhere
# Topologically Sorted Source Nodes: [a], Original ATen: [aten.add]
# Source node to ATen node mapping:
#   a => add, view_3
# Graph fragment:
#   %arg0 : Tensor "f32[4][1]cuda:0" = PlaceHolder[target=arg0]
#   %add : Tensor "f32[4][1]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.add.Tensor](args = (%x, 1))
#   %view_3 : [num_users=1] = call_function[target=torch.ops.aten.view.default](args = (%add, [4]), kwargs = {})
#   %mul_7 : Tensor "f32[4]" = call_function[target=torch.ops.aten.mul.Tensor](args = (%add, %add), kwargs = {})
#   %other : Tensor "f32[4]" = call_function[target=torch.ops.prims.convert_element_type.default](args = (%mul_7,))
#   return %other
triton_poi_fused_add_0 = async_compile.triton('triton_poi_fused_add_0', '''
import triton
''', device_str='cuda')


# Graph fragment:
#   %sum_1 : Tensor "f32[]" = call_function[target=torch.ops.aten.sum.default](args = (%mul_7,), kwargs = {})
triton_red_fused_sum_1 = async_compile.triton('triton_red_fused_sum_1', '''
''', device_str='cuda')
"""


def test_origins_count_operations_by_region_and_no_views() -> None:
    regions = {"add": "aa", "view_3": "aa", "mul_7": "aa", "other": "", "sum_1": "bb"}
    found = kernels.read_origins(CODE, regions)
    assert found == {"triton_poi_fused_add_0": {"aa": 2, "": 1}, "triton_red_fused_sum_1": {"bb": 1}}


NODE = (
    '#   %{} : Tensor "f32[4, 9][9, 1]cuda:0"[num_users=1] = call_function[target={}](args = ({}), kwargs = {{}})'
)
ONLINE = "\n".join(
    [
        "# Graph fragment:",
        NODE.format("add_tensor", "torch.ops.aten.add.Tensor", "%mm, %bias"),
        NODE.format("prepare", "torch.ops.prims.prepare_softmax_online.default", "%add_tensor, 1"),
        NODE.format("getitem_9", "operator.getitem", "%prepare, 0"),
        NODE.format("sub_tensor", "torch.ops.aten.sub.Tensor", "%add_tensor, %getitem_9"),
        "triton_red_0 = async_compile.triton('triton_red_0', ...)",
        "# Graph fragment:",
        NODE.format("getitem_8", "operator.getitem", "%prepare, 1"),
        NODE.format("log", "torch.ops.aten.log.default", "%getitem_8"),
        NODE.format("sub_1", "torch.ops.aten.sub.Tensor", "%sub_tensor, %log"),
        "triton_poi_1 = async_compile.triton('triton_poi_1', ...)",
    ]
)


def test_online_softmax_counts_for_the_region_whose_operations_it_replaced() -> None:
    found = kernels.read_origins(ONLINE, {"log": "aa", "sub_1": "aa"})
    assert found == {"triton_red_0": {"aa": 2, "": 1}, "triton_poi_1": {"aa": 2}}  # the bias is no part of it
    outside = kernels.read_origins(ONLINE, {"log": "", "sub_1": ""})
    assert outside == {"triton_red_0": {"": 3}, "triton_poi_1": {"": 2}}


def trace(*events: tuple[str, str, float, float]) -> str:
    rows = [{"cat": cat, "name": name, "ts": ts, "dur": took} for cat, name, ts, took in events]
    return json.dumps({"traceEvents": [{"ph": "M"}, *rows]})


SPIN = "at::cuda::(anonymous namespace)::spin_kernel(long)"


def test_segments_begin_at_markers_whatever_the_order_of_the_file() -> None:
    text = trace(
        ("kernel", "triton_poi_0", 30.0, 2.0),
        ("cuda_runtime", "cudaLaunchKernel", 9.0, 50.0),
        ("kernel", SPIN, 10.0, 1.0),
        ("kernel", "early", 5.0, 7.0),
        ("kernel", "triton_poi_0", 12.0, 3.0),
        ("gpu_memcpy", "Memcpy DtoD", 14.0, 1.5),
        ("kernel", SPIN, 20.0, 1.0),
    )
    found = kernels.split_launches(kernels.read_trace(text), 2)
    assert [{x.name: x.took_us for x in segment} for segment in found] == [
        {"triton_poi_0": 3.0, "Memcpy DtoD": 1.5},
        {"triton_poi_0": 2.0},
    ]
    with pytest.raises(kernels.ProfileError, match="2 of 3 segments"):
        kernels.split_launches(kernels.read_trace(text), 3)


@pytest.mark.parametrize(
    ("name", "kind", "base"),
    [
        ("triton_per_fused_add_0", "triton", "triton_per_fused_add_0"),
        ("row_stats(float*, float const*)", "library", "row_stats"),
        ("void apply<4>(float*, int)", "library", "apply"),
        ("nvjet_tst_128x8_64x12_1x2", "library", "nvjet_tst_128x8_64x12_1x2"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::Add>(int)", "aten", None),
        ("Memset (Device)", "copy", None),
    ],
)
def test_kinds_and_names_of_kernels(name: str, kind: str, base: str | None) -> None:
    assert kernels.kind_of(name) == kind
    assert base is None or kernels.base_name(name) == base


def test_own_time_is_of_the_named_kernels_only() -> None:
    times = {"void apply<4>(float*)": 3.0, "apply": 2.0, "apply2(int)": 7.0, "triton_apply": 5.0}
    assert kernels.own_us(times, {"apply", "triton_apply"}) == 5.0


def kernel(us: float, kind: str = "triton", **operations: int) -> dict[str, Any]:
    named = {("" if key == "none" else key): n for key, n in operations.items()}
    return {"name": "k", "us": us, "kind": kind, "operations": named, "part": 0}


def row(**changes: Any) -> dict[str, Any]:
    accuracy = {
        "errors": {a: {"output 0": 1e-6, "gradient of w": 2e-6} for a in ("eager", "inductor", "cudal1")},
        "roundoff": 6e-8,
    }
    times = {"compile_s": 2.0, "first_run_s": 1.0}
    return {
        "model": "m",
        "direction": "train",
        "layers": 1,
        "lean": False,
        "traced": True,
        "inductor_kernels": [kernel(10.0, aa=3, bb=1), kernel(4.0, none=2), kernel(50.0, "library")],
        "plans": [
            {"choice": "all_kernels", "ratio": 1.2, "regions": {"aa": "hit", "bb": "untuned"}, "chosen": ["aa"]}
        ],
        "accuracy": accuracy,
        "median_ms": {"eager": 4.0, "inductor": 2.0, "reduce_overhead": 1.0, "cudal1": 1.0},
        "ms": {},
        "busy": {"inductor": 60.0, "cudal1": 50.0},
        "own_us": 5.0,
        "cold": {contender: dict(times) for contender in ("inductor", "cudal1")},
        "kernels": ["apply"],
        **changes,
    }


def test_coverage_weighs_operations_and_counts_aten_as_lost() -> None:
    rows = [row(), row(inductor_kernels=[kernel(6.0, "aten"), kernel(1.0, "copy"), kernel(2.0, bb=1)])]
    covered, spent = summary.time_coverage(rows, {"aa"})
    assert (covered, spent) == (7.5, 22.0)
    found = summary.figures(rows, {"aa", "not of these models"})
    assert found["coverage_regions"] == 0.5 and found["wins"] == 0.5 and found["regions"] == 2
    assert found["device_time_in_model_kernels"] == 0.1
    lost = summary.uncovered(rows[0]["inductor_kernels"], {"aa"})
    assert [(k["lost_us"], k["missing"]) for k in lost] == [(4.0, {"no region": 2}), (2.5, {"bb": 1})]


def test_summary_over_models() -> None:
    slow = row(median_ms={"eager": 1.0, "inductor": 1.0, "reduce_overhead": 2.0, "cudal1": 2.0})
    found = summary.summarise([row(), slow], {"aa"})
    assert found["speedup_over_inductor"] == pytest.approx(1.0)
    assert found["speedup_over_best_of_three"] == pytest.approx(math.sqrt(0.5))
    assert found["slowest_over_inductor"] == 0.5
    assert found["sound"] == 1.0 and found["cold_compile_s"] == 6.0
    assert "warm_compile_s" not in found
    assert all(isinstance(v, int | float | str) for v in found.values())


def test_summary_of_nothing_is_not_a_number() -> None:
    assert math.isnan(float(summary.summarise([], set())["coverage_time"]))


def test_a_larger_error_is_unsound_and_named() -> None:
    accuracy = row()["accuracy"]
    accuracy["errors"]["cudal1"] = {"output 0": 1e-6, "gradient of w": 1e-5}
    found = summary.compare_errors(accuracy)
    assert not found["sound"] and found["worst_tensor"] == "gradient of w"
    assert found["worst_ratio"] == pytest.approx(5.0)


def test_describe_is_json() -> None:
    found = summary.describe(row(), {"aa"}, {"aa": 2.5})
    assert json.loads(json.dumps(found))["synthesis_s_of_its_regions"] == 2.5
    assert found["outcomes"] == {"hit": 1, "untuned": 1}


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.line(x).square().mean()


def small_step(train: bool = True) -> Step:
    torch.manual_seed(0)
    return Step.of(Small(), (torch.randn(8, 4),), train)


def test_errors_are_relative_and_small_gradients_use_the_typical_scale() -> None:
    exact = {"output 0": torch.tensor([2.0]), "gradient of a": torch.ones(100), "gradient of b": torch.zeros(4)}
    found = errors({"output 0": torch.tensor([2.2]), "gradient of b": torch.full((4,), 1e-6)}, exact)
    assert found["output 0"] == pytest.approx(0.1, rel=1e-5)
    assert found["gradient of a"] == math.inf
    assert found["gradient of b"] == pytest.approx(1e-3, rel=0.1)
    assert errors({"output 0": torch.tensor([math.nan])}, {"output 0": torch.ones(1)})["output 0"] == math.inf


def test_results_hold_outputs_and_every_gradient_and_leave_none() -> None:
    step = small_step()
    found = results(step, step.module)
    assert set(found) == {"output 0", "gradient of line.weight", "gradient of line.bias"}
    assert all(p.grad is None for p in step.module.parameters())
    assert set(results(small_step(train=False), step.module)) == {"output 0"}


def test_an_arm_is_compiled_without_running_until_its_gate_opens(tmp_path: Path) -> None:
    ran: list[str] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        def run(*args: Any) -> Any:
            ran.append("now")
            return gm(*args)

        return run

    step = small_step()
    contender = compile_contender("test", step, backend, tmp_path)
    assert ran == [] and contender.compile_s > 0
    with pytest.raises(NotYet):
        step.run(contender.call)
    run_first(step, contender)
    assert ran == ["now"] and (first_s := contender.first_run_s) > 0
    run_first(step, contender)
    assert ran == ["now"] and contender.first_run_s == first_s
    times = time_rounds(step, [contender, Contender("eager", step.module)], rounds=5, limit_s=60.0)
    assert {name: len(ms) for name, ms in times.items()} == {"test": 5, "eager": 5}
    assert len(ran) == 6, "every round calls each contender once"


def test_rounds_end_with_their_time() -> None:
    step = small_step()
    assert len(time_rounds(step, [Contender("eager", step.module)], rounds=50, limit_s=0.0)["eager"]) == 3


def test_inference_of_a_transformer_checks_its_logits() -> None:
    class Model(nn.Module):
        def forward(self, input_ids: torch.Tensor, labels: torch.Tensor, return_dict: bool) -> Any:
            return input_ids.sum(), labels * 2, "more"

    inputs = (torch.ones(2), torch.ones(2))
    step = Step.of(Loss(Model()), inputs, train=False)
    assert isinstance(step.module, WithLogits) and len(step.module(*inputs)) == 2
    assert isinstance(Step.of(Loss(Model()), inputs, train=True).module, Loss)


def attempt(stage: str, reason: str = "", generator: str = "bundled", model: str = "ab") -> Attempt:
    return Attempt("f", "t", "d", generator, model, "p", "", "", "code", stage, reason)


def test_right_are_accepted_ones_and_those_that_only_cost_too_much() -> None:
    assert is_right(attempt("accepted")) and is_right(attempt("time", "cost 9 is not below 3"))
    assert not is_right(attempt("time", "a timed call gave a wrong result: 1 of 4"))
    assert not is_right(attempt("verify", "cost")) and not is_right(attempt("deferred"))
    assert wrote(attempt("accepted"), "bundled:ab") and not wrote(attempt("accepted"), "teacher:all")


def test_a_right_candidate_covers_a_region_that_it_does_not_win(tmp_path: Path) -> None:
    generator = ScriptedGenerator([["lucky_130", "wrong_1"]])
    generator.name = "bundled:ab"
    budget = Budget(seconds=60, rounds=1, samples_per_round=2)
    programs = [program(32), program(64)]
    with open_store(tmp_path) as store:
        found = synthesize_all(programs, generator, ScriptedJudge(HOST), store, budget)
    assert all(isinstance(o.result, Unprofitable) for o in found)
    wanted = [Wanted(o.fingerprint, print_program(p), 1.0) for o, p in zip(found, programs, strict=True)]
    assert find_right(tmp_path, wanted, "bundled:ab", dry=True) == {o.fingerprint for o in found}
    assert find_right(tmp_path, wanted, "teacher:all", dry=True) == set()


def test_a_line_says_now_and_then_where_synthesis_is() -> None:
    said: list[str] = []
    watch = Watch(said.append, "cuda")
    for region in (1, 2):
        watch(Examining(region, 2, 1.3, 7.0))
    assert said == ["  cudal1: region 1/2, proving the best candidate, best 1.30x, 7 s left"]


def test_without_its_model_nothing_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert main(["--dry", "--out", str(tmp_path / "out"), "--generator", str(empty)]) == 2
    assert "nothing is measured" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert load_generator("teacher", torch.device("cpu")).name.startswith("teacher:")


def test_profiled_segments_come_back_by_arm_and_direction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The part that only a GPU can run, with a profiler that charges each segment its number."""
    ran: list[str] = []

    def profiled(segments: Any, path: Path) -> list[dict[str, float]]:
        for segment in segments:
            segment()
        return [{"triton_a": float(i), "mine(float*)": 1.0, "gemm": 2.0} for i in range(len(segments))]

    monkeypatch.setattr(model_measure, "profile", profiled)
    step = small_step()

    def call(name: str) -> Any:
        return lambda x: (ran.append(name), step.module(x))[1]

    contenders = {name: Contender(name, call(name)) for name in ("eager", "inductor", "cudal1")}
    origins = [({"triton_a": {"aa": 1}}, {}), ({"triton_a": {"bb": 2, "": 2}}, {})]
    job = Job("mlp", True, 1, tmp_path, tmp_path)
    turn = model_measure.Turn(job, step, contenders, origins, {}, {}, 0.0)
    found = turn._busy(["mine"])
    assert ran == ["eager", "inductor", "cudal1"] * model_measure.PROFILED_CALLS
    # six segments a call, three calls: segment i is charged i, i + 6 and i + 12
    assert found["busy"] == {"eager": 19.0, "inductor": 23.0, "cudal1": 27.0}
    assert found["own_us"] == 2.0
    triton = [k for k in found["inductor_kernels"] if k["kind"] == "triton"]
    assert [(k["part"], k["us"], k["operations"]) for k in triton] == [
        (0, 8.0, {"aa": 1}),
        (1, 9.0, {"bb": 2, "": 2}),
    ]
    json.dumps(found)


def test_a_frail_arm_may_fail_and_inductor_may_not() -> None:
    contenders, failures = {"reduce_overhead": Contender("reduce_overhead", len)}, {}
    with model_measure.may_fail(contenders, failures, "reduce_overhead"):
        raise RuntimeError("no graph")
    assert contenders == {} and failures == {"reduce_overhead": "RuntimeError: no graph"}
    with pytest.raises(RuntimeError), model_measure.may_fail(contenders, failures, "inductor"):
        raise RuntimeError("no code")
    left = row(median_ms={"eager": 4.0, "inductor": 2.0, "cudal1": 1.0})
    assert summary.summarise([left], {"aa"})["speedup_over_best_of_three"] == 2.0


def test_reduce_overhead_is_compared_with_reduce_overhead_and_must_be_right_too() -> None:
    times = {"eager": 4.0, "inductor": 2.0, "cudal1": 1.9, "reduce_overhead": 1.4}
    graphs = {"reduce_overhead": 1.5, "cudal1_reduce_overhead": 1.2}  # with CUPTI attached
    both = row(median_ms=times, graphs={"median_ms": graphs})
    both["accuracy"]["errors"]["cudal1_reduce_overhead"] = {"output 0": 1e-6, "gradient of w": 9e-6}
    found = summary.summarise([both, row()], {"aa"})
    assert found["speedup_in_reduce_overhead"] == found["slowest_in_reduce_overhead"] == 1.25
    assert found["speedup_best_mode_over_best_of_three"] == pytest.approx(1.4 / 1.2)
    failed = row(median_ms=times, graphs={})
    assert "speedup_in_reduce_overhead" not in summary.summarise([failed], {"aa"})
    assert found["worst_error_ratio"] == 4.5 and found["sound"] == 0.5
    assert "speedup_in_reduce_overhead" not in summary.summarise([row()], {"aa"})


def test_nodes_outside_are_counted_by_reason() -> None:
    nodes = [{"node": f"mm_{i}", "operation": "aten.mm.default", "reason": "a product"} for i in range(3)]
    assert summary.count_refused(nodes) == {"aten.mm.default: a product": 3}


ONE_REPLY = """
import sys
from benchmarks import models
from cudal1_trainer.data.template_generator import TemplateGenerator

class OneReply(TemplateGenerator):
    def propose(self, prompts, n, seed):
        return [group[:1] for group in super().propose(prompts, n, seed)]

models.load_generator = lambda wanted, device: OneReply()
sys.exit(models.main())
"""


@pytest.mark.host
@pytest.mark.slow
def test_a_dry_run_from_end_to_end(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["--dry", "--out", str(out), "--work", str(tmp_path / "work"), "--generator", "teacher"]
    words += ["--models", "mlp", "--layers", "1", "--synthesis-s", "60", "--rounds", "3", "--reduce-overhead"]
    paths = [ROOT / folder for folder in (".", "fx_passes", "cache", "trainer")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "OMP_NUM_THREADS": "1"}
    environment["TORCHINDUCTOR_VEC_ISA_OK"] = "0"  # scalar code: fewer headers, and no trials of the CPU
    command = [sys.executable, "-c", ONE_REPLY, *words]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    body = json.loads((out / "models.teacher.dry.json").read_text())
    assert body["n"] == 2 and body["device"].startswith("dry run")
    found = body["summary"]
    assert found["generator"] == "teacher:all" and found["failed"] == 0 and found["sound"] == 1.0
    assert 0 < found["coverage_regions"] <= 1 and 0 < found["coverage_time"] <= 1 and found["wins"] > 0
    models = body["detail"]["models"]
    assert models["mlp.train"]["accuracy"]["tensors"] > 5
    assert "cudal1_reduce_overhead" in models["mlp.train"]["accuracy"]["worst"]
    assert "deciding" not in models["mlp.train"]["graphs"]["choice"]
    assert found["speedup_in_reduce_overhead"] > 0
    assert models["mlp.train"]["warm"]["cudal1"]["regions"]["new"] == 0
    assert len((out / "models.teacher.rows.jsonl").read_text().splitlines()) == 4  # with reduce-overhead once more
    assert not list(out.glob("*.partial.*"))


PUBLISHED_PARAMETERS = {
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "mobilenet_v2": 3_504_872,
    "efficientnet_b0": 5_288_548,
}


@pytest.mark.parametrize("name", PUBLISHED_PARAMETERS)
def test_networks_have_as_many_parameters_as_published(name: str) -> None:
    spec = SPECS[name]
    with torch.device("meta"):
        module, _ = spec.make(spec.layers, False)
    assert sum(p.numel() for p in module.parameters()) == PUBLISHED_PARAMETERS[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", SUITES["cnn"])
def test_tiny_networks_are_trained_and_give_results(name: str) -> None:
    module, inputs = build(SPECS[name], torch.device("cpu"), tiny=True)
    loss = module(*inputs)
    loss.backward()
    assert loss.dim() == 0 and all(p.grad is not None for p in module.parameters())
    with torch.no_grad():
        assert module.eval()(*inputs).isfinite().all()


def test_a_row_stays_where_the_time_ends_before_reduce_overhead_is_measured(tmp_path: Path) -> None:
    run = Run(parse_arguments(["--suite", "cnn", "--dry", "--out", str(tmp_path)]), "teacher:all", 0.0)
    run.rows["gan.train"] = row(failures={})
    for name in ("gan", "resnet18"):
        ended = SimpleNamespace(kill=lambda: None)
        process = Process(Job(name, True, 1, tmp_path, tmp_path, graphs=True), cast(Any, ended), cast(Any, None))
        _give_up(run, process, "the time of the run was over while it compiles")
        assert process.state == "failed"
    assert list(run.failures) == ["resnet18.train"]
    assert run.rows["gan.train"]["failures"] == {GRAPHS: "the time of the run was over while it compiles"}
    assert run.rows["gan.train"]["median_ms"] == row()["median_ms"]


def test_rows_of_earlier_runs_are_taken_over(tmp_path: Path) -> None:
    earlier, out = tmp_path / "earlier.jsonl", tmp_path / "out"
    out.mkdir()
    kept = {"job": "gan.train", "generator": "teacher:all", "right": ["aa"], **row()}
    other = {"job": "gan.inference", "generator": "bundled:12", "right": ["bb"], **row()}
    earlier.write_text("".join(json.dumps(r) + "\n" for r in (kept, other, kept)))
    arguments = parse_arguments(["--suite", "cnn", "--dry", "--out", str(out), "--rows", str(earlier)])
    run = Run(arguments, "teacher:all", 0.0)
    run.take_over(arguments.rows)
    assert list(run.rows) == ["gan.train"] and run.right == {"aa"}
    body = json.loads((out / "models.cnn.teacher.partial.dry.json").read_text())
    assert body["n"] == 1 and body["summary"]["coverage_regions"] == 0.5
    again = Run(parse_arguments(["--suite", "cnn", "--dry", "--out", str(out)]), "teacher:all", 0.0)
    again.take_over([out / "models.cnn.teacher.rows.jsonl"])
    assert list(again.rows) == ["gan.train"]


def test_a_lean_row_says_nothing_of_compile_times_and_coverage() -> None:
    found = summary.summarise([row(lean=True, traced=False)], {"aa"})
    assert "cold_compile_s" not in found and math.isnan(float(found["coverage_time"]))
    described = summary.describe(row(lean=True, traced=False), {"aa"}, {})
    assert "cold" not in described and described["uncovered_kernels"] == []


@pytest.mark.slow
@pytest.mark.host
def test_a_run_ends_with_its_time(tmp_path: Path) -> None:
    words = ["--suite", "cnn", "--dry", "--out", str(tmp_path), "--generator", "teacher", "--models", "gan"]
    start = time.monotonic()
    assert main([*words, "--layers", "2", "--seconds", "30"]) == 1
    assert time.monotonic() - start < 30
    assert len(json.loads((tmp_path / "models.cnn.teacher.dry.json").read_text())["detail"]["failures"]) == 2


def test_two_rounds_of_synthesis_count_as_one() -> None:
    first = {"a": {"result": "Unfinished"}, "b": {"result": "Won"}}
    later = {"a": {"result": "Won"}, "c": {"result": "Unprofitable"}}
    both = Written(2.0, 8, 4, regions=first, seconds_of={"a": 1.0, "b": 1.0})
    both.add(Written(1.0, 2, 1, regions=later, seconds_of={"a": 0.5, "c": 0.5}))
    assert (both.seconds, both.replies, both.judged) == (3.0, 10, 5)
    assert both.results == {"Won": 2, "Unprofitable": 1} and both.seconds_of == {"a": 1.5, "b": 1.0, "c": 0.5}


def test_a_trial_is_watched_with_those_that_drop_out() -> None:
    """Of a graph that runs without kernels it must be seen by how much they lost."""
    clock = FakeClock()

    def variant(cost_us: float) -> Any:
        def run() -> None:
            clock.now += cost_us

        return run

    costs = {"inductor": 100.0, "all_kernels": 125.0, "unfusible_only": 80.0}
    trial = VariantTrial({n: variant(c) for n, c in costs.items()}, clock, lambda *_: None)  # type: ignore[misc, arg-type]
    with model_measure.watch_trials() as watched:
        for _ in range(USUAL_CALLS + 1):
            trial()
    assert trial.is_decided and watched.gains == {"inductor": 1.0, "all_kernels": 0.8, "unfusible_only": 1.25}
    assert watched.us.keys() == watched.host_us.keys() == {"inductor", "unfusible_only"} and set(
        watched.us["unfusible_only"]
    ) == {80.0}
