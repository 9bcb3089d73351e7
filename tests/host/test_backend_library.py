"""Regions that aten runs: right in every setting, decided by the judge's times and the trial, found again, named.

The host target has no clock. So the judge's timing of aten against Inductor, and the trial's clock, are injected
where the real ones stand; synthesis, cache, hook and Inductor are real.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_backend_semantics import _copy, _gradients, randn
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch._inductor import config as inductor_config
from trials import Junk, choose_aten, new_process, time_variants

from cudal1_compile import explain
from cudal1_compile.cli import cache as cache_command
from cudal1_compile.dispatch.kernel_cache import open_store
from cudal1_compile.inductor import library
from cudal1_compile.judge.bench.host import HostBench
from cudal1_compile.judge.verdict import Accepted, Deferred, Proof, Timing, Verdict
from cudal1_compile.pipeline import compile as pipeline
from cudal1_compile.pipeline import process_state
from cudal1_compile.pipeline.choice import MAX_CALLS
from cudal1_fx_passes.program.ir import Program

pytestmark = pytest.mark.host


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """CPU tensors are treated as a GPU's, but for whole graphs by aten."""
    monkeypatch.setattr(pipeline, "is_timed", lambda target: True)
    monkeypatch.setattr(pipeline.Pipeline, "why_not_aten", lambda self, plan: "not here")
    shown = pipeline.report
    monkeypatch.setattr(pipeline, "report", lambda plan, kind: shown(plan, "cuda"))
    new_process(monkeypatch)
    with inductor_config.patch(force_disable_caches=True):
        yield
    torch._dynamo.reset()


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The library operators that were lowered."""
    found: list[str] = []
    handler = library.fallback_handler

    def spy(operator: Any, **settings: Any) -> Any:
        found.append(str(operator))
        return handler(operator, **settings)

    monkeypatch.setattr(library, "fallback_handler", spy)
    return found


@pytest.fixture
def every_region_by_aten(monkeypatch: pytest.MonkeyPatch) -> None:
    choose_aten(monkeypatch)


def compiled(fn: Callable[..., Any], **settings: Any) -> Callable[..., Any]:
    return torch.compile(fn, backend="cudal1", options={"target": "host"}, **settings)  # type: ignore[no-any-return]


# the graph


@pytest.mark.parametrize(
    ("fn", "shape", "operator"),
    [
        (lambda x: F.avg_pool2d(x, 3, 2, 1), (2, 3, 9, 8), "aten.avg_pool2d.default"),
        (lambda x: F.max_pool3d(x, 3, 2, 1), (2, 3, 9, 8, 7), "aten.max_pool3d_with_indices.default"),
        (lambda x: x.sum(1), (8, 65, 16), "aten.sum.dim_IntList"),
    ],
    ids=["pooling", "max pooling", "sum over a middle dim"],
)
def test_a_single_operator_is_eagers_to_the_bit(
    fn: Any, shape: tuple[int, ...], operator: str, called: list[str], every_region_by_aten: None
) -> None:
    x = randn(*shape)
    assert torch.equal(compiled(fn)(x), fn(x))
    assert called == [operator]


def mutate_around(x: Tensor) -> tuple[Tensor, ...]:
    """Read before and after a change, and results that share memory."""
    x.mul_(2)
    total = (x * x).sum(1)
    x.add_(1)
    return total, total.view(4, -1), x.amax(0), x


@pytest.mark.parametrize("products", [False, True])
def test_a_convolution_in_channels_last(products: bool, called: list[str], every_region_by_aten: None) -> None:
    """Pooling reads what Inductor laid out so; what no view of that can say is copied. Nothing is given back."""
    conv = nn.Conv2d(3, 8, 3)

    def fn(x: Tensor) -> Tensor:
        return F.avg_pool2d(conv(x), 2).flatten(1).amax(1)

    x = randn(4, 3, 14, 14)
    with torch.no_grad():
        fast = torch.compile(fn, backend="cudal1", options={"target": "host", "products": products})
        torch.testing.assert_close(fast(x), fn(x))
    convolution = ["aten.convolution.default"] * products
    assert called == [*convolution, "aten.avg_pool2d.default", "aten.amax.default"]


class Down(nn.Module):
    """In training, what both later convolutions read is saved, and lies otherwise for one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 4, 3, 1, 1), nn.Conv2d(4, 8, 3, 2, 1), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.a(x))
        return self.b(y).mean() + self.c(y).square().mean()


@pytest.mark.slow  # in every run: another layout is given back
def test_a_convolution_that_is_given_back(every_region_by_aten: None, caplog: pytest.LogCaptureFixture) -> None:
    model, x = Down(), randn(2, 3, 8, 8)
    twin = copy.deepcopy(model)
    torch.compile(twin, backend="cudal1", options={"target": "host", "products": True})(x).backward()
    model(x).backward()
    for p, q in zip(twin.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-4)
    assert "plain inductor" not in caplog.text


def test_max_pooling_whose_offsets_the_backward_reads_is_inductors(
    called: list[str], every_region_by_aten: None
) -> None:
    x = randn(2, 3, 8, 8, grad=True)
    y = _copy(x)
    out, expected = compiled(lambda x: F.max_pool2d(x, 2))(x), F.max_pool2d(y, 2)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(_gradients(out, (x,)), _gradients(expected, (y,)))
    assert called == []


def test_mutation_and_aliasing(called: list[str], every_region_by_aten: None) -> None:
    fast = compiled(mutate_around)
    x = randn(16, 8)
    y = x.clone()
    got, expected = fast(x), mutate_around(y)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(x, y)
    assert got[0].data_ptr() == got[1].data_ptr() and got[3] is x
    assert sorted(called) == ["aten.amax.default", "aten.sum.dim_IntList"]


@pytest.mark.slow  # test_backend_aten and test_backend_semantics have sizes that change in every run
def test_sizes_that_change(called: list[str], every_region_by_aten: None) -> None:
    def fn(x: Tensor) -> Tensor:
        return F.layer_norm(x.softmax(-1) * x.shape[0], (32,))

    fast = compiled(fn, dynamic=True)
    for rows in (8, 12):
        x = randn(rows, 32, grad=True)
        y = _copy(x)
        out, expected = fast(x), fn(y)
        torch.testing.assert_close(out, expected)
        torch.testing.assert_close(_gradients(out, (x,)), _gradients(expected, (y,)), rtol=1e-5, atol=1e-4)
    assert "aten.var_mean.correction" in called


def test_deterministic_algorithms_are_inductors(called: list[str], every_region_by_aten: None) -> None:
    """On a GPU aten refuses cumsum then; the stored choice of a graph is run without a trial."""
    torch.use_deterministic_algorithms(True)
    try:
        x = randn(8, 64)
        torch.testing.assert_close(compiled(lambda x: x.cumsum(1) + 1)(x), x.cumsum(1) + 1)
    finally:
        torch.use_deterministic_algorithms(False)
    assert called == []


def test_inductors_caches_hold_library_calls(called: list[str], every_region_by_aten: None) -> None:
    counters.clear()
    with inductor_config.patch(force_disable_caches=False):
        for _ in range(2):
            torch._dynamo.reset()
            x = randn(2, 3, 9, 8)
            torch.testing.assert_close(compiled(model)(x), model(x))
    assert counters["aot_autograd"]["autograd_cache_hit"] == 1 and called == ["aten.avg_pool2d.default"]


def test_another_layout_is_given_back(
    called: list[str], every_region_by_aten: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "has_other_layout", lambda x, value: True)
    x = randn(2, 3, 9, 8)
    torch.testing.assert_close(compiled(lambda x: F.avg_pool2d(x, 3))(x), F.avg_pool2d(x, 3))
    assert called == []


# the decision


ALONE = Accepted(Proof("target", "exact", (), 1, Timing(10.0, 10.0, None, 1.0, 1.0, 70, final=True)))


class Judged:
    """The judge's answer for aten against Inductor, for aten alone, and for whom the first was asked."""

    def __init__(self, aten_us: float, inductor_us: float) -> None:
        ratio = inductor_us / aten_us
        timing = Timing(aten_us, aten_us, inductor_us, ratio, ratio - 0.02, 70, final=True)
        self.verdict: Verdict = Accepted(Proof("target", "exact", (), 1, timing))
        self.asked: list[Program] = []

    def __call__(self, program: Program, inductor: bool) -> Future[Verdict]:
        answer: Future[Verdict] = Future()
        answer.set_result(self.verdict if inductor else ALONE)
        self.asked += [program] * inductor
        return answer


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> Judged:
    found = Judged(aten_us=10.0, inductor_us=16.0)
    monkeypatch.setattr(
        HostBench, "submit_baselines", lambda bench, program, seed, inductor: found(program, inductor)
    )
    return found


COST_US = {"inductor": 100.0, "all_kernels": 50.0}


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The variants that ran; `all_kernels` takes half the time of `inductor`."""
    return time_variants(monkeypatch, COST_US)


def model(x: Tensor) -> Tensor:
    return F.avg_pool2d(x, 3, 2) + 1


def run_often(**options: Any) -> None:
    given = {"target": "host", "generator": Junk(), "process_budget_s": 1e6} | options
    fast = torch.compile(model, backend="cudal1", options=given)
    for _ in range(MAX_CALLS + 1):
        x = randn(2, 3, 9, 8)
        torch.testing.assert_close(fast(x), model(x))


def said(captured: pytest.CaptureFixture[str]) -> list[str]:
    """Not on the way, which a slow machine shows."""
    lines = [line.removeprefix("cudal1: ") for line in captured.readouterr().err.splitlines()]
    return [line for line in lines if "unprofitable" in line and "s left" not in line]


COUNTS = "regions: 1, hit 0, new 0, aten 1, unprofitable 0"
DECIDED = ", 100% of their time decided"


def test_measured_tried_stored_and_found_again(
    judged: Judged,
    ran: list[str],
    called: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    cudal1_cache_dir: Path,
) -> None:
    run_often()
    assert said(capsys) == [f"{COUNTS}{DECIDED}; deciding", f"{COUNTS}{DECIDED}; 2.00x over inductor"]
    assert len(judged.asked) == 1 and called == ["aten.avg_pool2d.default"]
    assert set(ran) == {"inductor", "all_kernels"} and ran[-1] == "all_kernels"

    new_process(monkeypatch)
    ran.clear()
    with monkeypatch.context() as warm:
        warm.setattr(pipeline, "collect", lambda *args: pytest.fail("the graph was collected again"))
        run_often()
    assert set(ran) == {"all_kernels"} and len(judged.asked) == 1
    assert said(capsys) == [f"{COUNTS}{DECIDED}; 2.00x over inductor"]

    told = str(explain(model, randn(2, 3, 9, 8), options={"target": "host", "generator": Junk()}))
    assert COUNTS in told and "2 ops: aten 1.60x (24 candidates, none accepted" in told
    with open_store(cudal1_cache_dir) as store:
        (entry,) = store.entries()
        shown = cache_command.describe(entry, store.get_region(entry.fingerprint))
    assert "runs on   aten (aten 10.0 us, inductor 16.0 us: aten 1.60x, at least 1.58x)" in shown


def test_whole_calls_have_the_last_word(
    judged: Judged, ran: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(COST_US, "all_kernels", 101.0)
    run_often()
    assert said(capsys)[-1] == f"{COUNTS}{DECIDED}; inductor runs" and ran[-1] == "inductor"


@pytest.mark.parametrize(("aten_us", "inductor_us"), [(10.0, 10.5), (1.0, 1.6), (16.0, 10.0)])
def test_a_small_gain_is_inductors(
    aten_us: float, inductor_us: float, judged: Judged, ran: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    judged.verdict = Judged(aten_us, inductor_us).verdict
    run_often()
    assert said(capsys) == [f"regions: 1, hit 0, new 0, unprofitable 1{DECIDED}; inductor runs"]
    assert set(ran) == {"inductor"}


def test_a_busy_device_leaves_the_region_open(
    judged: Judged, ran: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The next process asks the judge again, and the generator for nothing."""
    answer, judged.verdict = judged.verdict, Deferred("the device may be busy")
    run_often()
    assert said(capsys) == [
        "regions: 1, hit 0, new 0, unprofitable 0, untuned 1, 0% of their time decided; inductor runs"
    ]
    new_process(monkeypatch)
    judged.verdict = answer
    monkeypatch.setattr(Junk, "propose", lambda *args: pytest.fail("all was tried"))
    run_often()
    assert said(capsys)[0] == f"{COUNTS}{DECIDED}; deciding"
    assert len(judged.asked) == 2  # in the end, and by the next process


def test_a_graph_that_is_left_alone_uses_what_is_known(
    judged: Judged, ran: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`fallback` asks nobody; the other graph's entry is enough."""
    run_often()
    new_process(monkeypatch)
    with open_store(process_state.cache_dir()) as store:
        store.database.write(lambda db: db.table("plans").delete_where())
    ran.clear()
    run_often(on_miss="fallback")
    assert said(capsys)[-1] == f"{COUNTS}{DECIDED}; 2.00x over inductor" and len(judged.asked) == 1
    assert ran[-1] == "all_kernels"
