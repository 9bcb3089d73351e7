"""The backend changes nothing but speed: outputs, gradients, mutation and aliasing equal eager's.

Every region of every graph is spliced, with a kernel that runs the region with aten: what is tested is the hook
(collecting, splicing, lowering, views, layouts), not kernels. Each case also says whether regions must be found.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import itertools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from backend_reference import Calls, compiled, every_region  # noqa: F401  a fixture
from slow_cases import slow_but
from torch import Tensor, fx, nn

from cudal1_compile.cli.demo_models import Cnn
from cudal1_compile.inductor import splice
from cudal1_compile.inductor.graph_plan import ChosenKernel
from cudal1_fx_passes.fusion.partition import Region

pytestmark = pytest.mark.host


@dataclass(frozen=True)
class Case:
    name: str
    fn: Callable[..., Any]
    make: Callable[[], tuple[Tensor, ...]]
    regions: int = 1  # at least so many kernel calls in all runs
    grad: bool = False
    context: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    dynamic: bool | None = None
    runs: int = 2


def randn(*size: int, grad: bool = False) -> Tensor:
    return torch.randn(*size, requires_grad=grad)


def mutate_after(x: Tensor) -> Tensor:
    y = torch.sin(x) * 3
    x.add_(1)
    return y


def mutate_around(x: Tensor) -> tuple[Tensor, Tensor]:
    x.mul_(2).add_(1)
    y = torch.exp(-x) * 3
    x.sub_(y)
    return y, x.sum()


def mutate_view(x: Tensor) -> Tensor:
    x[0].add_(1)
    return torch.cos(x) * 2 + 1


def alias_outputs(x: Tensor) -> tuple[Tensor, ...]:
    y = torch.sin(x) * 3
    return y, y.view(-1), y[1:]


def return_inputs(x: Tensor) -> tuple[Tensor, ...]:
    return x, x * 2 + 1, x.t()


def scatter(x: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.sin(x) * 2
    return y.index_put((at,), torch.ones(())) + torch.cos(y) * 2, y


def graph_break(x: Tensor) -> Tensor:
    y = torch.sin(x) * 2 + 1
    torch._dynamo.graph_break()
    return torch.softmax(y, -1)


def vary_rows(rows: list[int]) -> Callable[[], tuple[Tensor, ...]]:
    turns = itertools.cycle(rows)
    return lambda: (randn(next(turns), 32, grad=True),)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) * 0.25, -1) @ v


def sum_in_two_shapes(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """One region, whose result has one dim here and two there; views then follow from its fake result."""
    return x.sum(0)[:, None] @ y[:1], y.sum(0, keepdim=True).t() @ x[:1]


def unsupported(x: Tensor) -> tuple[Tensor, Tensor]:
    values, _ = torch.sort(torch.sin(x) * 2)
    return torch.exp(values) + 1, torch.linalg.svdvals(x)


CASES = [
    Case("layer_norm", lambda x: F.layer_norm(x, (32,)), lambda: (randn(16, 32, grad=True),), 2, grad=True),
    Case("softmax", lambda x: torch.softmax(x, -1) * 2, lambda: (randn(16, 32, grad=True),), 2, grad=True),
    Case("attention", attention, lambda: tuple(randn(2, 8, 16, grad=True) for _ in range(3)), 2, grad=True),
    Case("group_norm", lambda x: F.group_norm(x, 2), lambda: (randn(2, 4, 6, 6, grad=True),), 2, grad=True),
    Case("max_pool", lambda x: F.relu(F.max_pool2d(x, 2)), lambda: (randn(2, 4, 8, 8, grad=True),), 0, grad=True),
    Case("no_grad", lambda x: torch.sin(x) * 3 + 1, lambda: (randn(16, 8),), context=torch.no_grad),
    Case("inference_mode", lambda x: torch.sin(x) * 3 + 1, lambda: (randn(16, 8),), context=torch.inference_mode),
    Case("mutation after a read", mutate_after, lambda: (randn(16, 8),)),
    Case("mutation around", mutate_around, lambda: (randn(16, 8),)),
    Case("mutation of a view", mutate_view, lambda: (randn(16, 8),)),
    Case("aliasing outputs", alias_outputs, lambda: (randn(16, 8),)),
    Case("inputs returned", return_inputs, lambda: (randn(16, 8),)),
    Case("scatter", scatter, lambda: (randn(16, 8), torch.tensor([1, 3]))),
    Case("scalar tensor operand", lambda x, s: torch.sin(x) * s + 1, lambda: (randn(16, 8), torch.tensor(2.0))),
    Case("0-dim", lambda x: torch.sin(x) * 3 + 1, lambda: (torch.tensor(0.5),), 0),
    Case("empty", lambda x: torch.sin(x) * 3 + 1, lambda: (randn(0, 8),), 0),
    Case("transposed", lambda x: torch.sin(x.t()) * 3 + 1, lambda: (randn(16, 8),)),
    Case("strided input", lambda x: torch.softmax(x, -1) * 2, lambda: (randn(16, 32)[:, ::2],)),
    Case("unaligned input", lambda x: torch.sin(x) * 2 + 1, lambda: (randn(17, 7)[1:],)),
    Case("unaligned view", lambda x: torch.sin(x[1:]) * 2 + 1, lambda: (randn(17, 7),)),
    Case(
        "channels last",
        lambda x: torch.sin(x) * 3 + x.mean((2, 3), keepdim=True),
        lambda: (randn(2, 4, 5, 5).to(memory_format=torch.channels_last),),
    ),
    Case(  # what lies channels-last cannot be viewed so
        "flattened convolution",
        lambda x, w: torch.softmax(F.conv2d(x, w).flatten() * 2, -1),
        lambda: (randn(2, 3, 6, 6), randn(4, 3, 3, 3)),
    ),
    Case("expanded", lambda x: torch.sin(x.expand(16, 8)) * 3 + 1, lambda: (randn(1, 8),), 0),
    Case(
        "autocast",
        lambda x, w: F.gelu(x @ w) * 2,
        lambda: (randn(16, 8, grad=True), randn(8, 8, grad=True)),
        grad=True,
        context=lambda: torch.autocast("cpu", torch.bfloat16),
    ),
    Case(
        "checkpoint",
        lambda x: torch.utils.checkpoint.checkpoint(lambda y: torch.sin(y).exp() * 2, x, use_reentrant=False),
        lambda: (randn(16, 8, grad=True),),
        2,
        grad=True,
    ),
    Case("vmap", torch.vmap(lambda row: torch.softmax(row, 0) * 2), lambda: (randn(16, 8),)),
    Case("graph break", graph_break, lambda: (randn(16, 8),), 2),
    Case("one region in two shapes", sum_in_two_shapes, lambda: (randn(16, 32), randn(16, 32)), 4),
    Case("unsupported operators", unsupported, lambda: (randn(16, 8),)),
    Case(
        "dynamic",
        lambda x: torch.softmax(x, -1) * x.shape[0] + x.shape[1] / 2,
        vary_rows([8, 12, 16]),
        2,
        grad=True,
        dynamic=True,
        runs=3,
    ),
    Case("second batch size", lambda x: F.layer_norm(x, (32,)) * 2, vary_rows([8, 12, 9]), 3, True, runs=3),
]


# seconds each, of what others have as well: test_backend_aten runs them all, with aten in the kernels' place
ALIKE = {"second batch size", "autocast", "group_norm", "attention", "unaligned view", "expanded", "strided input"}
ALIKE |= {"unaligned input", "mutation after a read", "scatter", "scalar tensor operand", "0-dim"}


@pytest.mark.parametrize("case", slow_but([c for c in CASES if c.name not in ALIKE], CASES), ids=lambda c: c.name)
def test_equals_eager(case: Case, every_region: Calls) -> None:  # noqa: F811
    fast = compiled(case.fn, dynamic=case.dynamic)
    for run in range(case.runs):
        torch.manual_seed(run)
        ours = case.make()
        theirs = tuple(_copy(t) for t in ours)
        with case.context():
            expected, got = case.fn(*theirs), fast(*ours)
        torch.testing.assert_close(got, expected)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a.detach(), b.detach())
        if case.grad:
            torch.testing.assert_close(_gradients(got, ours), _gradients(expected, theirs), rtol=1e-5, atol=1e-4)
    assert len(every_region) >= case.regions


@pytest.mark.parametrize("dynamic", [False, True])
def test_scratch_is_planned_by_inductor(every_region: Calls, dynamic: bool) -> None:  # noqa: F811
    every_region.scratch = "// scratch: s0 f32[cdiv(d0, 4)]\n// scratch: s1 i32[min(d0, 2), 3] = 0"
    fast = compiled(lambda x: torch.softmax(x, -1) + 1, dynamic=dynamic)
    for rows in (16, 10):
        x = randn(rows, 32)
        torch.testing.assert_close(fast(x), torch.softmax(x, -1) + 1)
        _, first, second, *_ = every_region.buffers[-1]
        assert first == (torch.float32, (-(-rows // 4),))
        assert second == (torch.int32, (6,))


def fed(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """The last region begins before the first, reads its result, and reads it again through a product."""
    early = torch.sum(torch.cos(x) * 3, 0)
    first = torch.softmax(x, -1) * 2
    return F.layer_norm(first @ w + first + early, (32,)), first


def test_regions_that_feed_each_other(every_region: Calls, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    made: list[fx.Node] = []
    reads: list[int] = []  # of each region, results of regions that were replaced before it

    def spy(graph: fx.Graph, region: Region, kernel: ChosenKernel) -> dict[fx.Node, fx.Node]:
        reads.append(len(set(region.inputs) & set(made)))
        moved = replace(graph, region, kernel)
        made.extend(moved.values())
        return moved

    replace = splice._replace
    monkeypatch.setattr(splice, "_replace", spy)
    x, w = randn(16, 32, grad=True), randn(32, 32, grad=True)
    y, v = _copy(x), _copy(w)
    got, expected = compiled(fed)(x, w), fed(y, v)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(_gradients(got, (x, w)), _gradients(expected, (y, v)), rtol=1e-5, atol=1e-4)
    assert sum(reads) >= 2 and len(every_region) >= 4, reads


@pytest.mark.slow  # in every run: test_backend_products and test_backend_library
def test_regions_follow_convolutions_into_channels_last(every_region: Calls) -> None:  # noqa: F811
    """Inductor runs convolutions channels-last; a region cut for contiguous tensors would be given back."""
    model = Cnn()
    twin = copy.deepcopy(model)
    fast = compiled(twin)
    x = torch.randn(4, 3, 16, 16)
    out, expected = fast(x), model(x)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    out.square().sum().backward()
    expected.square().sum().backward()
    for p, q in zip(twin.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-4)
    for p, q in zip(twin.buffers(), model.buffers(), strict=True):
        torch.testing.assert_close(p, q)
    plan = every_region.plans[0]
    assert {r.seen.phase for r in plan.regions} == {"forward", "backward"}
    chosen = plan.chosen("all_kernels")
    assert len(every_region) == sum(r.seen.count for r in plan.regions if r.fingerprint in chosen), "given back"


def test_a_nested_tensor(every_region: Calls) -> None:  # noqa: F811
    def fn(x: Tensor) -> Tensor:
        return (torch.sin(x) * 2 + 1).values()

    x = torch.nested.nested_tensor([randn(3, 64), randn(5, 64)], layout=torch.jagged)
    torch.testing.assert_close(compiled(fn)(x), fn(x))
    assert len(every_region) == 1


def test_the_examples_tensors_do_not_live_on(every_region: Calls) -> None:  # noqa: F811
    fast = compiled(lambda x: torch.softmax(x * 2, -1))
    x = randn(16, 32, grad=True)
    out = fast(x)
    alive = weakref.ref(x)
    del x, out
    gc.collect()
    assert alive() is None, "before the backward was compiled"
    x = randn(16, 32, grad=True)
    fast(x).sum().backward()
    alive = weakref.ref(x)
    del x
    gc.collect()
    assert alive() is None and len(every_region) >= 3


def _copy(t: Tensor) -> Tensor:
    """Same sizes, strides, offset and values in memory of its own."""
    base = t.detach() if t._base is None else t._base.detach()
    held = base.clone()
    copy = held.as_strided(t.shape, t.stride(), t.storage_offset())
    return copy.detach().requires_grad_(t.requires_grad)


def _gradients(outputs: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    loss = sum((o.float().square().sum() for o in outputs if o.requires_grad), torch.zeros(()))
    return torch.autograd.grad(loss, [t for t in inputs if t.requires_grad])


def test_parameters_stay_static_inputs(every_region: Calls) -> None:  # noqa: F811
    """A CUDA graph copies every input that is not known as static: each parameter, at each call."""
    found: list[list[int]] = []

    def note(graph: fx.Graph) -> None:
        metadata = torch._guards.TracingContext.get().fw_metadata
        found.append(list(metadata.static_input_indices) if metadata is not None else [])

    model, x = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)), randn(4, 8)
    with torch._inductor.config.patch(post_grad_custom_post_pass=note):
        torch.compile(model, backend="inductor")(x)
        torch._dynamo.reset()
        compiled(model)(x)
    assert found[0] and len(found) >= 2 and all(f == found[0] for f in found), found
