"""Faults of this backend while a graph is lowered, forward or backward: plain Inductor's results, said once.

A backward is lowered at its first call, when the backend has long returned. What plain Inductor refuses too is
the user's to see, in plain Inductor's words.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from backend_reference import Calls, compiled, every_region  # noqa: F401  a fixture
from slow_cases import slow_but
from torch import Tensor, fx
from torch._inductor.exc import InductorError
from torch._inductor.virtualized import V

import cudal1_compile
from cudal1_compile.inductor import collect, fused_lowering, hook, splice

Patch = pytest.MonkeyPatch
BACKWARD, FORWARD = "the backward", "the graph"


@pytest.fixture(autouse=True, scope="module")
def self_tested() -> None:
    """Before a fault is planted: what the hook's self-test finds holds for the process."""
    assert hook.self_test() is None


def model(x: Tensor, w: Tensor) -> Tensor:
    return torch.softmax(x * w, -1).exp() + 1


def inputs() -> tuple[Tensor, Tensor]:
    """In float64, where the order of a sum decides nothing."""
    x, w = torch.randn(16, 32, dtype=torch.float64), torch.randn(32, dtype=torch.float64)
    return x.requires_grad_(), w.requires_grad_()


def step(fn: Callable[..., Tensor]) -> list[Tensor]:
    """The result and the gradients of two calls."""
    torch.manual_seed(0)
    x, w = inputs()
    for _ in range(2):
        y = fn(x, w)
        y.square().sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None and w.grad is not None
    return [y.detach(), x.grad, w.grad]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    ours = (r for r in caplog.records if r.name.startswith("cudal1"))
    return [r.getMessage() for r in ours if r.levelno >= logging.WARNING]


def is_backward(graph: fx.Graph | None = None) -> bool:
    graph = graph or V.graph.graph
    return any("tangents" in n.name for n in graph.nodes if n.op == "placeholder")


def fail_at(patch: Patch, owner: Any, name: str, is_due: Callable[[], bool]) -> None:
    real = getattr(owner, name)

    def planted(*args: Any, **kwargs: Any) -> Any:
        if is_due():
            raise AttributeError("planted")
        return real(*args, **kwargs)

    patch.setattr(owner, name, planted)


def in_the_pass(patch: Patch, is_due: Callable[[fx.Graph | None], bool]) -> None:
    real = splice.Splice._splice

    def planted(self: splice.Splice, graph: fx.Graph, *rest: Any) -> None:
        real(self, graph, *rest)  # what is left behind is half done
        if is_due(graph):
            raise AttributeError("planted")

    patch.setattr(splice.Splice, "_splice", planted)


def in_the_lowering(patch: Patch, is_due: Callable[[], bool]) -> None:
    fail_at(patch, fused_lowering, "_realize", is_due)


def in_the_code(patch: Patch, is_due: Callable[[], bool]) -> None:
    fail_at(patch, fused_lowering.KernelCall, "codegen", is_due)


def in_inductor(patch: Patch, is_due: Callable[[], bool]) -> None:
    """What our lowering gives is what Inductor cannot go on with."""
    real = torch._inductor.lowering.lowerings[fused_lowering.FUSED]
    patch.setitem(
        torch._inductor.lowering.lowerings,
        fused_lowering.FUSED,
        lambda *args, **kwargs: [] if is_due() else real(*args, **kwargs),
    )


PLACES = [in_the_lowering, in_the_code, in_inductor]
BACKWARD_PLACES = [(in_the_pass, True), (in_the_lowering, False), (in_the_code, True), (in_inductor, False)]


@pytest.mark.parametrize(("place", "dynamic"), slow_but(BACKWARD_PLACES[1:3], BACKWARD_PLACES))
def test_a_backward_that_cannot_be_lowered(
    place: Callable[..., None],
    dynamic: bool,
    every_region: Calls,  # noqa: F811
    monkeypatch: Patch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    place(monkeypatch, is_backward)
    found = step(compiled(model, dynamic=dynamic))
    torch.testing.assert_close(found, step(model))
    assert len(every_region) == 2, "the forward keeps its kernel, in both calls"
    told = warnings(caplog)
    assert len(told) == 1 and told[0].startswith("plain inductor for the backward, because of "), told


@pytest.mark.parametrize("place", slow_but(PLACES[:1], PLACES))
def test_a_forward_that_cannot_be_lowered(
    place: Callable[..., None],
    every_region: Calls,  # noqa: F811
    monkeypatch: Patch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    place(monkeypatch, lambda *_: True)
    found = step(compiled(model))
    torch.testing.assert_close(found, step(model))
    assert len(every_region) == 0
    told = warnings(caplog)
    assert len(told) == 1 and told[0].startswith("plain inductor, because of "), told


@pytest.mark.usefixtures("no_loops")
def test_explain_says_why(every_region: Calls, monkeypatch: Patch) -> None:  # noqa: F811
    def explanation() -> str:
        return str(cudal1_compile.explain(model, *inputs(), options={"target": "host"}))

    def compile_with(is_due: Callable[..., bool]) -> str:
        with monkeypatch.context() as patch:
            in_the_code(patch, is_due)
            step(compiled(model))
        torch._dynamo.reset()
        return explanation()

    line = "without kernels in the last compile: {}, because of "
    assert line.format(BACKWARD) in (text := compile_with(is_backward)) and "planted" in text
    assert line.format(FORWARD) in compile_with(lambda: True)
    assert "without kernels" not in compile_with(lambda: False), "it is of the last compile"
    fail_at(monkeypatch, collect, "view_to_reshape", lambda: True)
    assert "plain inductor: " in (text := explanation()) and "planted" in text


@pytest.mark.parametrize("of_backward", [False, True])
def test_the_users_own_errors_are_plain_inductors(
    of_backward: bool,
    every_region: Calls,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(graph: fx.Graph) -> None:
        if is_backward(graph) == of_backward:
            raise RuntimeError("the user's pass")

    raised = []
    for backend, more in (("inductor", {}), ("cudal1", {"target": "host"})):
        torch._dynamo.reset()
        options: dict[str, Any] = {"post_grad_custom_post_pass": refuse} | more
        with pytest.raises(InductorError) as error:
            step(torch.compile(model, backend=backend, options=options))
        raised.append((str(error.value), type(error.value.__context__)))
    assert raised[0] == raised[1] and "the user's pass" in raised[0][0]
    assert warnings(caplog) == []
