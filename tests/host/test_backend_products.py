"""options={"products": True}: products begin regions, in one of two cuts, and nothing but speed changes.

Every region is spliced with a kernel that runs it with aten, as in test_backend_semantics.py; which cut saves more
is set by the test. Kernels that templates write, from partition to call, are at the end.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from backend_reference import Calls, every_region  # noqa: F401  a fixture
from torch import Tensor, fx, nn
from torch._inductor import config as inductor_config
from trials import new_process, time_variants

from cudal1_compile.dispatch import registry
from cudal1_compile.inductor import layouts
from cudal1_compile.inductor.collect import SeenGraph
from cudal1_compile.inductor.graph_plan import GraphPlanned, PlannedRegion, SeenRegion
from cudal1_compile.inductor.splice import Splice
from cudal1_compile.judge.bench import host as host_bench
from cudal1_compile.options import Options
from cudal1_compile.pipeline import compile as pipeline
from cudal1_compile.pipeline import planner
from cudal1_compile.pipeline.choice import MAX_CALLS
from cudal1_compile.pipeline.survey import multiplications
from cudal1_compile.pipeline.trace import PassLog
from cudal1_compile.runtime.host_cost import LINE_BYTES
from cudal1_trainer.data.template_generator import TemplateGenerator

pytestmark = pytest.mark.host

Savings = Callable[[PlannedRegion], float]
SAVINGS: dict[str, Savings] = {
    "whole": lambda region: region.seen.ops**2,
    "apart": lambda region: region.seen.ops**0.5,
    "mixed": lambda region: int(hashlib.sha256(region.seen.text.encode()).hexdigest(), 16) % 97,
}


class Block(nn.Module):
    """A residual block with a depthwise convolution and a shortcut, whose norms meet in one sum."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.deep = nn.Conv2d(4, 8, 1, bias=False), nn.Conv2d(8, 8, 3, 2, 1, groups=8, bias=False)
        self.narrow, self.short = nn.Conv2d(8, 6, 1), nn.Conv2d(4, 6, 1, 2, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(c) for c in (8, 8, 6, 6))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu6(self.norms[0](self.wide(x)))
        y = F.silu(self.norms[1](self.deep(y)))
        return F.relu(self.norms[2](self.narrow(y)) + self.norms[3](self.short(x)))


class Up(nn.Module):
    """Pooling, a transposed convolution, a join, a softmax over channels."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(4, 6, 3, 1, 1), nn.ConvTranspose2d(6, 4, 2, 2)
        self.join = nn.Conv2d(10, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.gelu(self.down(x))
        return torch.softmax(self.join(torch.cat([y, self.up(F.max_pool2d(y, 2))], 1)), 1)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        y = torch.softmax(q @ k.transpose(-1, -2) * 0.25, -1) @ v
        return x + F.gelu(self.out(y))


class Mixer(nn.Module):
    """The image beside what a depthwise convolution makes of it: one tensor that a region reads in two ways."""

    def __init__(self) -> None:
        super().__init__()
        self.deep = nn.Conv2d(4, 4, 3, 1, 1, groups=4)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.deep(x)) + x


def images() -> Tensor:
    return torch.randn(2, 4, 16, 16)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "block": (Block, images),
    "up": (Up, images),
    "mixer": (Mixer, images),
    "attention": (Attention, lambda: torch.randn(2, 12, 16)),
    "conv1d": (lambda: nn.Sequential(nn.Conv1d(4, 6, 3, dilation=2), nn.GELU()), lambda: torch.randn(2, 4, 40)),
    "conv3d": (
        lambda: nn.Sequential(nn.Conv3d(2, 4, 3, 2, 1), nn.InstanceNorm3d(4), nn.ReLU()),
        lambda: torch.randn(2, 2, 8, 8, 8),
    ),
}


@pytest.fixture
def saves(every_region: Calls, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Calls]:  # noqa: F811
    def choose(name: str) -> Calls:
        find = planner.Planner.look_up

        def look_up(self: planner.Planner, seen: SeenRegion) -> PlannedRegion:
            found = find(self, seen)
            object.__setattr__(found, "saved", SAVINGS[name](found))
            return found

        monkeypatch.setattr(planner.Planner, "look_up", look_up)
        return every_region

    return choose


def compile_(module: Any, dynamic: bool | None = None, **options: Any) -> Any:
    given = {"target": "host", "products": True} | options
    return torch.compile(module, backend="cudal1", options=given, dynamic=dynamic)


def check(module: nn.Module, x: Tensor, train: bool, autocast: bool = False, **options: Any) -> None:
    """Outputs, gradients and buffers equal eager's."""
    module = module.train(train)
    twin = copy.deepcopy(module)
    run, tolerance = compile_(twin, **options), 2e-2 if autocast else 1e-4
    for _ in range(2):
        with torch.set_grad_enabled(train), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            got, expected = run(x), module(x)
        torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)
    if train:
        got.float().square().sum().backward()
        expected.float().square().sum().backward()
        expect = [p.grad for p in module.parameters()]
        # on one scale: the gradient of a bias before a norm is nothing but rounding
        bound = tolerance * max(float(g.abs().max()) for g in expect)
        torch.testing.assert_close([p.grad for p in twin.parameters()], expect, rtol=tolerance, atol=bound)
    for p, q in zip(twin.buffers(), module.buffers(), strict=True):
        torch.testing.assert_close(p, q, rtol=tolerance, atol=tolerance)


def has_product(region: PlannedRegion) -> bool:
    return " = dot" in region.seen.text


QUICK = (("whole", "conv1d", True), ("mixed", "up", False))


@pytest.mark.parametrize(
    ("cut", "name", "train"),
    [
        pytest.param(*case, marks=[] if case in QUICK else [pytest.mark.slow])
        for case in itertools.product(SAVINGS, MODELS, (False, True))
    ],
)
def test_equals_eager(cut: str, name: str, train: bool, saves: Callable[[str], Calls]) -> None:
    calls = saves(cut)
    make, inputs = MODELS[name]
    check(make(), inputs(), train)
    plan = calls.plans[0]
    products = [r for r in plan.regions if has_product(r) and r.fingerprint in plan.chosen("all_kernels")]
    assert products and {f"reference{r.fingerprint[:40]}" for r in products} <= set(calls.ran)


@pytest.mark.slow
@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
def test_autocast(train: bool, saves: Callable[[str], Calls]) -> None:
    calls = saves("mixed")
    check(Block(), images(), train, autocast=True)
    assert any("bf16" in r.seen.text and has_product(r) for r in calls.plans[0].regions)


@pytest.mark.slow
@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
def test_channels_last(train: bool, saves: Callable[[str], Calls]) -> None:
    calls = saves("whole")
    module = Block().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    check(module, images().to(memory_format=torch.channels_last), train)
    chosen = calls.plans[0].chosen("all_kernels")
    assert chosen and set(chosen.values()) == set(calls.ran), "a region was given back"


def test_beside_convolutions_that_inductor_runs_in_channels_last(saves: Callable[[str], Calls]) -> None:
    """Inductor copies weights that the backward needs too, and results that the caller gets are as in eager."""
    calls = saves("whole")
    layers = (nn.Conv2d(4, 8, 3, 1, 1), nn.ReLU(), nn.AvgPool2d(8), nn.Conv2d(8, 2, 1))
    check(nn.Sequential(*layers), torch.randn(2, 4, 8, 8), train=True)
    plan = calls.plans[0]
    assert any("too small" in n.reason and "convolution" in n.operation for n in plan.refused)
    assert set(plan.chosen("all_kernels").values()) == set(calls.ran), "a region was given back"


@pytest.mark.slow  # in every run: beside convolutions in channels last
def test_small_operands_are_copied_into_the_layout_that_a_kernel_reads(saves: Callable[[str], Calls]) -> None:
    """Under autocast Inductor saves the casts of image and weight channels-last, for its own convolution."""
    calls = saves("whole")
    layers = (nn.Conv2d(2, 16, 3, 1, 1), nn.ReLU(), nn.AvgPool2d(16), nn.Conv2d(16, 2, 1))
    check(nn.Sequential(*layers), torch.randn(2, 2, 16, 16), train=True, autocast=True)
    plan = calls.plans[0]
    assert any("too small" in n.reason and "convolution" in n.operation for n in plan.refused)
    assert any(r.seen.phase == "forward" and has_product(r) for r in plan.regions)
    assert set(plan.chosen("all_kernels").values()) == set(calls.ran), "a region was given back"


def test_what_the_caller_gets_is_written_as_eager_lays_it_out(saves: Callable[[str], Calls]) -> None:
    calls = saves("apart")
    convolution = nn.Conv2d(4, 6, 3, 1, 1).requires_grad_(False)
    fast = compile_(lambda x: (y := convolution(x), y.sum(1), y.relu() * 2))
    x = images()
    for got, expected in zip(fast(x), (y := convolution(x), y.sum(1), y.relu() * 2), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
        assert got.stride() == expected.stride()
    assert set(calls.plans[0].chosen("all_kernels").values()) == set(calls.ran), "a region was given back"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["attention", "block"])
def test_sizes_that_change(name: str, saves: Callable[[str], Calls]) -> None:
    saves("mixed")
    module = MODELS[name][0]().eval()
    fast = compile_(module, dynamic=True)
    for rows in (2, 5, 3):
        x = torch.cat([MODELS[name][1]() for _ in range(rows)])
        torch.testing.assert_close(fast(x), module(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("all_us", "winner"), [(8.0, "all_kernels"), (12.0, "inductor")])
def test_the_first_calls_decide_whether_products_run_by_kernels(
    all_us: float, winner: str, saves: Callable[[str], Calls], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = saves("whole")
    monkeypatch.setattr(pipeline, "may_try", lambda: True)
    monkeypatch.setattr(pipeline, "is_timed", lambda target: True)
    monkeypatch.setattr(pipeline.Pipeline, "why_not_aten", lambda self, plan: "not here")
    ran = time_variants(
        monkeypatch, {"inductor": 10.0, "no_layout_opt": 20.0, "unfusible_only": 20.0, "all_kernels": all_us}
    )
    module, x = nn.Sequential(nn.Conv1d(4, 6, 3), nn.ReLU()).eval(), torch.randn(2, 4, 40)
    fast = compile_(module)
    with torch.no_grad():
        for _ in range(MAX_CALLS + 2):
            torch.testing.assert_close(fast(x), module(x), rtol=1e-4, atol=1e-4)
    assert ran[-1] == calls.plans[-1].choice == winner


def test_a_convolution_in_another_layout_keeps_inductors_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels take convolutions out of the graph, and Inductor decides by what is left of them."""
    graph = fx.symbolic_trace(lambda x, w: torch.ops.aten.convolution(x, w)).graph
    next(n for n in graph.nodes if n.op == "call_function").target = layouts.CONVOLUTION
    kept = {name: getattr(inductor_config, name) for name in layouts.LAYOUT_SETTINGS}
    cases = ((False, True, (True, True)), (True, False, (False, False)), (True, True, (True, False)))
    for now, before, expected in cases:
        monkeypatch.setattr(layouts, "is_channels_last", lambda graph, now=now: now)
        with inductor_config.patch({"layout_optimization": True, "force_layout_optimization": False}):
            layouts.keep_decision(graph, before)
            assert tuple(getattr(inductor_config, name) for name in layouts.LAYOUT_SETTINGS) == expected
    assert kept == {name: getattr(inductor_config, name) for name in layouts.LAYOUT_SETTINGS}


def test_a_kernel_with_tf32_runs_only_while_the_flags_allow_it() -> None:
    ran: list[str] = []
    allowed = torch.backends.cudnn.allow_tf32
    try:
        torch.backends.cudnn.allow_tf32 = True
        call = registry.while_tf32_is_allowed(lambda *_: ran.append("kernel"), lambda *_: ran.append("aten"))
        call()
        torch.backends.cudnn.allow_tf32 = False
        call()
        torch.backends.cudnn.allow_tf32 = True
        call()
    finally:
        torch.backends.cudnn.allow_tf32 = allowed
    assert ran == ["kernel", "aten", "kernel"]


@pytest.mark.parametrize(
    ("text", "outcome", "again"), [(" = dot", "hit", True), (" = dot", "untuned", False), ("", "hit", False)]
)
def test_only_products_by_kernels_have_the_backward_collected_again(text: str, outcome: Any, again: bool) -> None:
    """It is half of what a plan costs."""
    regions = (
        PlannedRegion(SeenRegion("f", text, 3, 1, "forward", False, True, 1.0), outcome, "", "entry"),
        PlannedRegion(SeenRegion("b", " = dot", 3, 1, "backward", False, True, 1.0, True), "untuned", ""),
    )
    self: Any = None
    assert pipeline.Pipeline._moves_layouts(self, GraphPlanned(regions)) == again
    assert not pipeline.Pipeline._moves_layouts(self, GraphPlanned(regions[:1]))
    collected = GraphPlanned(regions, traced=frozenset("f"))
    assert pipeline.Pipeline._moves_layouts(self, collected) != again, (
        "a kernel that it was collected with is lost"
    )


@pytest.mark.parametrize("forward_wins", [True, False])
def test_products_of_the_backward_are_asked_for_last(forward_wins: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What kernels of their forward change is not written twice; what they do not is asked for all the same."""

    def region(name: str, phase: Any, text: str = " = dot") -> PlannedRegion:
        seen = SeenRegion(name, text, 3, 1, phase, False, True, 1.0, reads_copies=phase == "backward")
        return PlannedRegion(seen, "untuned", "")

    plan = GraphPlanned((region("c", "forward"), region("g", "backward"), region("p", "backward", "")))
    asked: list[tuple[set[str], float]] = []

    def synthesize(regions: Any, limit_s: float, meanwhile: Any) -> tuple[PlannedRegion, ...]:
        untuned = [r for r in regions if r.outcome == "untuned"]
        asked.append(({r.fingerprint for r in untuned}, limit_s))
        wins: Any = {"outcome": "new" if forward_wins else "unprofitable", "entry_id": "entry" * forward_wins}
        return tuple(replace(r, **wins) if r in untuned else r for r in regions)

    self: Any = pipeline.Pipeline.__new__(pipeline.Pipeline)
    self.planner, self.job = (
        SimpleNamespace(synthesize=synthesize, preparation=nullcontext(), spent_s=0.0),
        SimpleNamespace(options=Options(budget_s=10.0)),
    )
    self.passes, self.collect_s = PassLog(), 1.0
    collected = replace(plan, regions=(plan.regions[0], region("h", "backward"), plan.regions[2]))
    traced: list[GraphPlanned] = []
    monkeypatch.setattr(pipeline.Pipeline, "collect", lambda self, plan: traced.append(plan) or [])
    monkeypatch.setattr(pipeline.Pipeline, "plan_for", lambda self, graphs: collected)
    found = self.synthesize(plan)
    assert [names for names, _ in asked] == [{"c", "p"}, {"h" if forward_wins else "g"}]
    assert [limit_s for _, limit_s in asked] == pytest.approx([6.0, 10.0], abs=0.5), "none is kept for collecting"
    assert not found.is_open and len(traced) == forward_wins
    opened = replace(found, regions=(*found.regions, region("n", "backward")))
    assert not self.synthesize(opened).is_open and len(traced) == forward_wins, "the same forward, traced again"
    opened = replace(found, regions=(*found.regions, region("n", "forward")))
    self.synthesize(opened)
    assert len(traced) == 2 * forward_wins, "another forward, not traced again"
    opened = replace(found, regions=(*found.regions, region("m", "forward")))
    for limits in ({"settles": False}, {"budget_s": 0.9}):
        done = self.synthesize(replace(opened, collect_s=1.0), **limits)
        assert len(traced) == 2 * forward_wins, "a thread beside the user's may not trace, nor may who has no time"
        assert pipeline.Pipeline._moves_layouts(self, done) == forward_wins, "the next process is not told"
        assert done.regions[-1].outcome == ("new" if forward_wins else "unprofitable")


def test_what_no_time_was_left_to_collect_again_is_collected_by_the_next_process(
    every_region: Calls,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until then the regions of the backward that its forward's kernels change are Inductor's."""
    find, written = planner.Planner.look_up, set[str]()

    def look_up(self: planner.Planner, seen: SeenRegion) -> PlannedRegion:
        return find(self, seen) if seen.fingerprint in written else PlannedRegion(seen, "untuned", "no kernel yet")

    def synthesize(
        self: planner.Planner, regions: Sequence[PlannedRegion], limit_s: float, meanwhile: Any
    ) -> tuple[PlannedRegion, ...]:
        written.update(r.fingerprint for r in regions)
        return tuple(self.look_up(r.seen) for r in regions)

    collected: list[GraphPlanned | None] = []
    collect = pipeline.Pipeline.collect

    def note(self: pipeline.Pipeline, plan: GraphPlanned | None = None) -> list[SeenGraph]:
        collected.append(plan)
        return collect(self, plan)

    monkeypatch.setattr(planner.Planner, "look_up", look_up)
    monkeypatch.setattr(planner.Planner, "synthesize", synthesize)
    monkeypatch.setattr(pipeline.Pipeline, "collect", note)
    module, x = Mixer(), images()
    for budget_s, collects, is_found in ((0.01, 1, False), (60.0, 1, True), (60.0, 0, True)):
        new_process(monkeypatch)
        torch._dynamo.reset()
        every_region.ran.clear()
        collected.clear()
        check(copy.deepcopy(module), x, train=True, budget_s=budget_s)
        assert len(collected) == collects
        plan = every_region.plans[-1]
        assert any(r.seen.may_change for r in plan.regions)
        chosen = set(plan.chosen("all_kernels").values())
        assert (set(every_region.ran) == chosen) == is_found and set(every_region.ran) <= chosen


@pytest.mark.slow  # in every run: a gradient of test_equals_eager
def test_kernels_of_a_forward_without_convolutions_change_nothing_of_its_backward(
    saves: Callable[[str], Calls], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, again = saves("whole"), list[GraphPlanned]()
    finish = pipeline.Pipeline.finish

    def collect_again(self: pipeline.Pipeline, plan: GraphPlanned) -> Any:
        again.append(self.plan_for(self.collect(plan)))
        return finish(self, plan)

    monkeypatch.setattr(pipeline.Pipeline, "finish", collect_again)
    check(Attention(), MODELS["attention"][1](), train=True)
    (plan,), (collected,) = calls.plans, again
    assert [r.fingerprint for r in collected.regions] == [r.fingerprint for r in plan.regions]
    assert collected.anchors == plan.anchors and not any(r.seen.may_change for r in plan.regions)
    chosen = [r for r in plan.regions if r.fingerprint in plan.chosen("all_kernels")]
    assert {r.seen.phase for r in chosen if has_product(r)} == {"forward", "backward"}


def test_the_option_is_part_of_what_caches_know() -> None:
    assert Splice(None, {}).uuid() != Splice(None, {}, products=True).uuid()


# kernels that templates write


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.Linear(8, 32)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm(self.conv(x)))
        return F.gelu(self.out(y.mean((2, 3))))


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A fresh process, where the yardstick of a product is one that reads its operands for every multiplication.

    The host target knows no cache, and by its own yardstick, each operand once, no kernel of a product ever wins.
    """
    plain = host_bench.baseline_cost
    naive = lambda program: plain(program) + 8 * multiplications(program) // LINE_BYTES  # noqa: E731
    monkeypatch.setattr(host_bench, "baseline_cost", naive)
    new_process(monkeypatch)
    monkeypatch.setattr(registry, "_loaded", {})
    with inductor_config.patch(force_disable_caches=True):
        yield
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels last"])
def test_from_partition_to_call(train: bool, last: bool, alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[GraphPlanned] = []
    monkeypatch.setattr(pipeline, "report", lambda plan, kind: plans.append(plan))
    x, module = torch.randn(4, 3, 12, 12), Chain()
    if last:
        x, module = x.to(memory_format=torch.channels_last), module.to(memory_format=torch.channels_last)
    check(module, x, train, generator=TemplateGenerator(), budget_s=150.0, process_budget_s=1e6)
    (plan,) = plans
    won = [r for r in plan.regions if r.has_kernel and r.fingerprint in plan.chosen("all_kernels")]
    assert any(has_product(r) for r in won), "no product runs by a kernel"
    assert len({a for a in plan.anchors if len(a.cuts) > 1}) >= 2
    for region in won:
        assert region.saved > 0, "never slower, by region"
    for anchor in plan.anchors:
        wide = [{r.fingerprint for r in won} & set(cut) - set(anchor.cuts[-1]) for cut in anchor.cuts[:-1]]
        only_apart = set(anchor.cuts[-1]) - {f for cut in anchor.cuts[:-1] for f in cut}
        used = [*wide, {r.fingerprint for r in won} & only_apart]
        assert sum(map(bool, used)) <= 1, "several cuts of an anchor are in use"
