"""The graph without Inductor: eager's results to the bit, chosen by the trial, found again without a compile."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cudnn_on_the_cpu import cudnn_on_the_cpu
from slow_cases import slow_but
from test_backend_semantics import CASES, Case, _copy, _gradients, randn
from torch import Tensor, fx, nn
from torch._inductor import config as inductor_config
from torch._inductor.graph import GraphLowering
from trials import new_process, time_variants

from cudal1_compile import explain
from cudal1_compile.inductor import aten
from cudal1_compile.inductor.graph_plan import GraphPlanned, PlannedRegion, RefusedNode, SeenRegion
from cudal1_compile.pipeline import compile as pipeline
from cudal1_compile.pipeline.choice import MAX_CALLS
from cudal1_compile.pipeline.process_state import Session

pytestmark = pytest.mark.host

PLENTY = 1 << 40
COST_US = {"inductor": 100.0, "aten": 50.0}


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """CPU tensors are treated as a GPU's: there is a clock, so there are trials."""
    monkeypatch.setattr(pipeline, "is_timed", lambda target: True)
    monkeypatch.setattr(pipeline, "free_memory", lambda device: PLENTY)
    shown = pipeline.report
    monkeypatch.setattr(pipeline, "report", lambda plan, kind: shown(plan, "cuda"))
    new_process(monkeypatch)
    with inductor_config.patch(force_disable_caches=True):
        yield
    torch._dynamo.reset()


@pytest.fixture
def only_aten(monkeypatch: pytest.MonkeyPatch) -> list[GraphPlanned]:
    """aten is the stored choice of every graph; yields the plans that were finished."""
    plans: list[GraphPlanned] = []

    def untried(plan: GraphPlanned) -> str:
        plans.append(plan)
        return "aten"

    monkeypatch.setattr(pipeline, "may_try", lambda: False)
    monkeypatch.setattr(pipeline, "_untried", untried)
    return plans


def compiled(fn: Callable[..., Any], dynamic: bool | None = None, **options: Any) -> Callable[..., Any]:
    given = {"target": "host", "on_miss": "fallback"} | options
    return torch.compile(fn, backend="cudal1", dynamic=dynamic, options=given)  # type: ignore[no-any-return]


def forbid_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **settings: Any) -> Any:
        raise AssertionError("Inductor was asked to compile")

    monkeypatch.setattr(pipeline, "compile_fx", fail)
    monkeypatch.setattr("cudal1_compile.backend.compile_plain", fail)


# what only a compile can do: aten does not stand in for it, or for graphs whose sizes change
COMPILED = ("checkpoint", "dynamic", "second batch size")


@pytest.mark.parametrize("case", [c for c in CASES if c.name not in COMPILED], ids=lambda case: case.name)
def test_equals_eager_to_the_bit(
    case: Case, only_aten: list[GraphPlanned], monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid_inductor(monkeypatch)
    fast = compiled(case.fn, case.dynamic)
    for run in range(case.runs):
        torch.manual_seed(run)
        ours = case.make()
        theirs = tuple(_copy(t) for t in ours)
        with case.context():
            expected, got = case.fn(*theirs), fast(*ours)
        torch.testing.assert_close(got, expected, rtol=0, atol=0)
        _same_aliases(got, expected)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a.detach(), b.detach(), rtol=0, atol=0)
        if case.grad:
            torch.testing.assert_close(_gradients(got, ours), _gradients(expected, theirs), rtol=0, atol=0)
    assert only_aten


@pytest.mark.parametrize("name", slow_but(COMPILED[2:], COMPILED))
def test_a_stored_choice_that_may_not_stand_is_inductors(
    name: str, only_aten: list[GraphPlanned], monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []
    build = pipeline.Pipeline.build

    def remember(self: Any, plan: GraphPlanned, choice: Any) -> Any:
        built.append(choice)
        return build(self, plan, choice)

    monkeypatch.setattr(pipeline.Pipeline, "build", remember)
    case = next(c for c in CASES if c.name == name)
    fast = compiled(case.fn, case.dynamic)
    for _ in range(case.runs):
        ours = case.make()
        torch.testing.assert_close(fast(*ours), case.fn(*ours), rtol=1e-5, atol=1e-5)
    assert "inductor" in built


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, groups=1), nn.BatchNorm2d(8)
        self.last = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(F.relu(self.norm(self.conv(x))), 0.5, self.training)
        return self.last(x.mean((2, 3)))


def test_training_with_batchnorm_and_dropout(
    only_aten: list[GraphPlanned], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three steps of SGD under a fixed seed: weights, running statistics and losses are eager's."""
    forbid_inductor(monkeypatch)
    model = Net()
    twin = copy.deepcopy(model)
    found = _train(twin, compiled(twin, fallback_random=True))
    assert found == _train(model, model)
    for (name, ours), theirs in zip(twin.state_dict().items(), model.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, msg=lambda text, name=name: f"{name}: {text}")
    assert int(twin.norm.num_batches_tracked) == 3


def _train(model: nn.Module, call: Callable[..., Any]) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    torch.manual_seed(1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = call(torch.randn(4, 3, 8, 8)).square().sum()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return losses


# the trial


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every variant takes what COST_US says; yields the variants that ran."""
    return time_variants(monkeypatch, COST_US)


def model(x: Tensor) -> Tensor:
    return torch.softmax(x * 2, -1) + 1


def call_often(fast: Callable[..., Any], fn: Callable[..., Any], times: int) -> None:
    for _ in range(times):
        x = randn(32, 64, grad=True)
        y = x.detach().clone().requires_grad_()
        out, expected = fast(x), fn(y)
        torch.testing.assert_close(out, expected)
        out.square().sum().backward()
        expected.square().sum().backward()
        torch.testing.assert_close(x.grad, y.grad)


def lines(captured: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in captured.readouterr().err.splitlines() if line.startswith("cudal1: regions")]


def test_a_graph_without_kernels_is_tried_and_found_again(
    costs: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    call_often(compiled(model), model, MAX_CALLS + 4)
    assert {"inductor", "aten"} == set(costs) and costs[-3:] == ["aten"] * 3
    first, last = lines(capsys)
    assert first.endswith("; deciding") and last.endswith("; aten runs, 2.00x over inductor")

    new_process(monkeypatch)
    forbid_inductor(monkeypatch)
    monkeypatch.setattr(pipeline, "collect", lambda *args: pytest.fail("the graph was collected again"))
    costs.clear()
    call_often(compiled(model), model, 3)
    assert costs == ["aten"] * 3
    assert lines(capsys) == [last]


def test_a_trial_keeps_no_input(costs: list[str]) -> None:
    fast = compiled(model)
    x = randn(32, 64)
    fast(x)
    alive = weakref.ref(x)
    del x
    gc.collect()
    assert costs and alive() is None


def test_inductor_stays_where_aten_is_slower(
    costs: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(COST_US, "aten", 300.0)
    call_often(compiled(model), model, 12)
    assert costs.count("aten") == 3 and costs[-4:] == ["inductor"] * 4
    assert lines(capsys)[-1].endswith("; inductor runs")


def test_convolutions_may_keep_their_layout(
    costs: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variant of Inductor's that takes no convolution to channels-last; found again without the others."""
    monkeypatch.setitem(COST_US, "no_layout_opt", 80.0)
    monkeypatch.setitem(COST_US, "aten", 300.0)
    decided: list[bool] = []
    decide = GraphLowering.decide_layout_opt

    def spy(*args: Any, **settings: Any) -> bool:
        decided.append(decide(*args, **settings))
        return decided[-1]

    monkeypatch.setattr(GraphLowering, "decide_layout_opt", staticmethod(spy))
    conv = nn.Conv2d(3, 8, 3)
    x = randn(2, 3, 9, 9)

    def fn(x: Tensor) -> Tensor:
        return conv(x).relu() + 1

    with torch.no_grad():
        fast = compiled(fn)
        for _ in range(MAX_CALLS + 1):
            torch.testing.assert_close(fast(x), fn(x))
        assert set(costs) == {"inductor", "aten", "no_layout_opt"} and costs[-1] == "no_layout_opt"
        first, last = lines(capsys)
        assert first.endswith("; deciding") and last.endswith(
            "; convolutions keep their layout, 1.25x over inductor"
        )
        assert True in decided
        new_process(monkeypatch)
        decided.clear()
        torch.testing.assert_close(compiled(fn)(x), fn(x))
        assert decided and not any(decided)
        assert lines(capsys) == [last]


def test_convolutions_may_run_with_their_relu(
    costs: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, us in (("fused_convolutions", 80.0), ("no_layout_opt", 200.0), ("aten", 300.0)):
        monkeypatch.setitem(COST_US, name, us)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
    x = randn(2, 3, 9, 9)
    with torch.no_grad(), cudnn_on_the_cpu(monkeypatch) as calls:
        fast = compiled(model)
        for _ in range(MAX_CALLS + 1):
            torch.testing.assert_close(fast(x), model(x))
        assert set(costs) == {"inductor", "aten", "no_layout_opt", "fused_convolutions"}
        said = "; convolutions with their ReLU by cuDNN, 1.25x over inductor"
        assert costs[-1] == "fused_convolutions" and lines(capsys)[-1].endswith(said)
        new_process(monkeypatch)
        calls.clear()
        torch.testing.assert_close(compiled(model)(x), model(x))
        assert len(calls) == 2 and lines(capsys)[-1].endswith(said), "the stored choice"


def test_a_layout_that_the_user_wants_is_kept(costs: list[str]) -> None:
    conv = nn.Conv2d(3, 8, 3)
    for settings in ({"force_layout_optimization": True}, {"layout_optimization": False}):
        torch._dynamo.reset()
        fast = compiled(lambda x: conv(x).relu() + 1, **settings)
        with torch.no_grad():
            for _ in range(8):
                fast(randn(2, 3, 9, 9))
    assert "no_layout_opt" not in costs


@pytest.mark.parametrize(
    ("fn", "options"),
    [
        (model, {"post_grad_custom_post_pass": lambda graph: None}),
        (lambda x: F.dropout(x, 0.5) * 2, {}),
    ],
    ids=["a pass of the user's", "random numbers"],
)
def test_no_trial(fn: Any, options: dict[str, Any], costs: list[str], capsys: Any) -> None:
    fast = compiled(fn, **options)
    for _ in range(3):
        fast(randn(32, 64))
    assert costs == ["inductor"] * 3 and lines(capsys)[-1].endswith("; inductor runs")


def test_no_trial_under_deterministic_algorithms(costs: list[str]) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        fast = compiled(model)
        for _ in range(3):
            fast(randn(32, 64))
    finally:
        torch.use_deterministic_algorithms(False)
    assert costs == ["inductor"] * 3


@pytest.mark.parametrize(
    ("outcomes", "reason", "rivals"),
    [
        ("untuned", None, ("aten",)),
        ("untuned", "no room", ()),
        ("hit", None, ("aten", "all_kernels")),
        ("hit fusible", "no room", ("all_kernels",)),
        ("hit, hit fusible", None, ("aten", "all_kernels", "unfusible_only")),
        ("untuned channels-last", "no room", ("no_layout_opt",)),
        ("hit, hit fusible channels-last", None, ("aten", "no_layout_opt", "all_kernels")),
        ("hit, hit fusible channels-last", "no room", ("no_layout_opt", "all_kernels", "unfusible_only")),
        ("hit, hit fusible channels-last", "CUDA graphs", ("no_layout_opt", "all_kernels")),
        ("hit = dot, hit", None, ("all_kernels", "no_products", "aten")),
        ("hit = dot, hit channels-last", None, ("all_kernels", "no_products", "no_layout_opt", "aten")),
        ("hit = dot, hit channels-last", "CUDA graphs", ("all_kernels", "no_products", "no_layout_opt")),
        ("hit = dot channels-last", "no room", ("all_kernels", "no_layout_opt")),
        ("untuned channels-last with ReLU", "no room", ("no_layout_opt", "fused_convolutions")),
        (
            "hit = dot, hit channels-last with ReLU",
            None,
            ("all_kernels", "no_products", "fused_convolutions", "no_layout_opt", "aten"),
        ),
        ("hit channels-last with ReLU", None, ("aten", "no_layout_opt", "fused_convolutions", "all_kernels")),
    ],
)
def test_what_is_tried(outcomes: str, reason: str | None, rivals: tuple[str, ...]) -> None:
    regions = [
        PlannedRegion(
            SeenRegion(o, o, 3, 1, "inference", "fusible" in o, True, 1.0),
            o.split()[0],  # type: ignore[arg-type]
            "",
            f"entry {o}",
        )
        for o in outcomes.split(", ")
    ]
    options = SimpleNamespace(capture="auto", inductor={"triton.cudagraphs": reason == "CUDA graphs"})
    self: Any = pipeline.Pipeline.__new__(pipeline.Pipeline)
    self.why_not_aten, self.job = lambda plan: reason, SimpleNamespace(options=options)
    self.planner = SimpleNamespace(labels=("exact", "reassociates"))
    plan = GraphPlanned(
        tuple(regions), is_channels_last="channels-last" in outcomes, fuses="with ReLU" in outcomes
    )
    assert pipeline.Pipeline._rivals(self, plan) == rivals
    without = pipeline.Pipeline._rivals(self, replace(plan, fuses=False))
    for flags in ({"enabled": False}, {"enabled": True, "deterministic": True}):
        with torch.backends.cudnn.flags(**flags):
            assert pipeline.Pipeline._rivals(self, plan) == without
    self.planner.labels = ("exact",)
    assert pipeline.Pipeline._rivals(self, plan) == without


@pytest.mark.parametrize(
    ("seconds", "built"),
    [
        (7.0, ["inductor", "all_kernels", "unfusible_only", "no_layout_opt", "aten"]),
        (14.0, ["inductor", "all_kernels", "unfusible_only", "aten"]),
        (40.0, ["inductor", "all_kernels", "aten"]),
    ],
)
def test_variants_that_compile_long_are_not_all_tried(
    seconds: float, built: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training step of 80 convolutions compiled for minutes; whoever waits for `all_kernels` gets it."""
    self: Any = pipeline.Pipeline.__new__(pipeline.Pipeline)
    now, begun = [0.0], []

    def build(plan: GraphPlanned, choice: str) -> Callable[..., Any]:
        begun.append(choice)
        now[0] += seconds if choice != "aten" else 0.0
        return lambda: None

    options: Any = SimpleNamespace(inductor={})
    place: Any = SimpleNamespace(device=torch.device("cpu"))
    monkeypatch.setattr(pipeline.Pipeline, "build", lambda self, plan, choice: build(plan, choice))
    self.session, self.job = Session(), pipeline.CompileJob(fx.GraphModule({}, fx.Graph()), (), options, place)
    monkeypatch.setattr(pipeline, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(pipeline, "CudaClock", lambda device: None)
    trial: Any = pipeline.Pipeline._trial(
        self, GraphPlanned(()), ("all_kernels", "unfusible_only", "no_layout_opt", "aten")
    )
    assert begun == ["inductor"]
    while trial.coming:
        trial.compile_next(())
    assert begun == list(trial.variants) == built


# when it may stand in for Inductor


def traced(fn: Callable[..., Any], *args: Any) -> list[Any]:
    """What `why_not` says inside a backend with plenty of room, too little, just enough, and CUDA graphs."""
    found: list[Any] = []

    def look(gm: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        enough = int(2 * 32 * 64 * 4 / aten.MEMORY_SHARE)
        found.extend(aten.why_not(gm, inputs, {}, (), room) for room in (PLENTY, enough - 1, enough))
        found.append(aten.why_not(gm, inputs, {"triton.cudagraphs": True}, (), PLENTY))
        found.extend((gm, inputs))
        return gm.forward

    torch.compile(fn, backend=look)(*args)
    return found


def test_why_not() -> None:
    plain, no_room, room, graphs, gm, inputs = traced(lambda x: (x * 2).sin(), randn(32, 64))
    assert plain is None and room is None
    assert "MiB of tensors" in no_room
    assert graphs == "the mode asks for CUDA graphs"
    seeds = RefusedNode("seeds", "prims.inductor_seeds.default", "")
    assert "seed" in str(aten.why_not(gm, inputs, {}, (seeds,), PLENTY))
    for node in gm.graph.nodes:
        node.meta.clear()
    assert aten.why_not(gm, inputs, {}, (), PLENTY) == "its tensors' sizes are not known"


def test_explain_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    told = [str(explain(fn, randn(32, 64), options={"target": "host"})) for fn in (model, F.dropout)]
    assert "aten in inductor's place: runs where the first calls show it to be faster" in told[0]
    assert "aten in inductor's place: never, under the same seed Inductor draws other random numbers" in told[1]
    assert not any("convolutions" in text for text in told)
    told = [str(explain(nn.Conv2d(3, 8, 3), randn(2, 3, 9, 9), options={"target": "host"}))]
    assert "convolutions: channels-last, or as they are where the first calls show it to be faster" in told[0]
    assert "ReLU" not in told[0]
    layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
    with torch.no_grad(), cudnn_on_the_cpu(monkeypatch):
        told = [str(explain(layers, randn(2, 3, 9, 9), options={"target": "host"}))]
    assert "with their ReLU: by cuDNN where that and the first calls show it to be faster" in told[0]


def _same_aliases(ours: Any, theirs: Any) -> None:
    """Outputs share memory with each other exactly where eager's do."""
    if isinstance(ours, tuple):
        addresses = [[t.untyped_storage().data_ptr() for t in group] for group in (ours, theirs)]
        shared = [[[a == b for b in group] for a in group] for group in addresses]
        assert shared[0] == shared[1]
