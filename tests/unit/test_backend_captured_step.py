"""Recorded training steps on the CPU, where a replay computes anew into the memory of the recording."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from replays import Replays
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

from cudal1_compile.pipeline.captured_step import CapturedStep


class Product(torch.autograd.Function):
    """As AOTAutograd's: one node, which saves what its backward reads."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, w)
        y = x @ w
        ctx.mark_non_differentiable(count := y.sum().round())
        return y, count

    @staticmethod
    def backward(ctx: Any, *tangents: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        return tangents[0] @ w.t(), x.t() @ tangents[0]


def product(x: Tensor, w: Tensor) -> tuple[Any, ...]:
    return Product.apply(x, w)  # type: ignore[no-untyped-call,no-any-return]


class Curved(torch.autograd.Function):
    """With a result of the call's own that its backward reads."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        y = (x @ w).tanh()
        ctx.save_for_backward(x, w, y)
        return y

    @staticmethod
    def backward(ctx: Any, *tangents: Tensor) -> tuple[Tensor, Tensor]:
        x, w, y = ctx.saved_tensors
        slope = tangents[0] * (1.0 - y * y)
        return slope @ w.t(), x.t() @ slope


def gradients(y: Tensor, *of: Tensor, **settings: bool) -> tuple[Tensor, ...]:
    return torch.autograd.grad((y * y).sum(), of, **settings)


@pytest.fixture
def w() -> nn.Parameter:
    return nn.Parameter(torch.randn(4, 4))


def x_of(rows: int = 3) -> Tensor:
    return torch.randn(rows, 4, requires_grad=True)


def recorded(w: Tensor, run: Callable[..., Any] = product, calls: int = 4) -> tuple[CapturedStep, Replays]:
    device = Replays()
    step = CapturedStep(run, device)
    for _ in range(calls):
        check(step, w)
    return step, device


def check(step: CapturedStep, w: Tensor) -> None:
    x = x_of()
    y, count = step(x, w)
    assert not count.requires_grad
    torch.testing.assert_close(y, x @ w)
    for got, due in zip(gradients(y, x, w), gradients(x @ w, x, w), strict=True):
        torch.testing.assert_close(got, due)


def test_forward_and_backward_are_replayed_as_a_pair(w: nn.Parameter) -> None:
    step, device = recorded(w)
    assert (device.recorded, device.replayed, step.why_not) == (1, 2, "")
    optimiser = torch.optim.SGD([w], 0.1)
    for _ in range(3):
        x, before = x_of(), w.detach().clone()
        step(x, w)[0].square().sum().backward()
        torch.testing.assert_close(w.grad, 2 * x.detach().t() @ (x.detach() @ before))
        optimiser.step()
        optimiser.zero_grad()
    assert (device.recorded, device.replayed) == (1, 8)


def test_gradients_are_the_callers(w: nn.Parameter) -> None:
    step, _ = recorded(w)
    x, due = x_of(), torch.zeros(4, 4)
    for _ in range(3):
        step(x, w)[0].square().sum().backward()
        due += 2 * x.detach().t() @ (x.detach() @ w.detach())
    torch.testing.assert_close(w.grad, due)


def test_a_second_call_before_the_backward_of_the_first_runs_as_it_is(w: nn.Parameter) -> None:
    step, device = recorded(w)
    a, b = x_of(), x_of()
    first, second = step(a, w)[0], step(b, w)[0]
    assert device.replayed == 3
    for y, x in ((first, a), (second, b)):
        for got, due in zip(gradients(y, x, w), gradients(x @ w, x, w), strict=True):
            torch.testing.assert_close(got, due)
    assert device.replayed == 4
    step(a, w)  # and let go of without a backward
    check(step, w)
    assert device.replayed == 7


def test_nothing_is_recorded_without_a_backward(w: nn.Parameter) -> None:
    device = Replays()
    step = CapturedStep(product, device)
    for _ in range(6):
        step(x_of(), w)
    assert (device.recorded, step.why_not) == (0, "")
    check(step, w)
    check(step, w)
    assert device.recorded == 1


def test_a_backward_that_keeps_its_graph_is_never_recorded(w: nn.Parameter) -> None:
    device = Replays()
    step = CapturedStep(product, device)
    for _ in range(4):
        x = x_of()
        y = step(x, w)[0]
        torch.testing.assert_close(gradients(y, x, retain_graph=True), gradients(y, x))
    assert device.recorded == 0 and "keeps its graph" in step.why_not


def test_a_graph_that_is_kept_later_on_is_refused_a_second_backward(w: nn.Parameter) -> None:
    step, device = recorded(w)
    x = x_of()
    y = step(x, w)[0]
    torch.testing.assert_close(gradients(y, x, retain_graph=True), gradients(x @ w, x))
    check(step, w)
    assert device.replayed == 4  # not the call in between
    with pytest.raises(RuntimeError, match="'capture': False"):
        gradients(y, x)


def test_a_parameter_that_was_changed_before_the_backward_is_refused(w: nn.Parameter) -> None:
    step, _ = recorded(w)
    y = step(x_of(), w)[0]
    # the stand-in's replay would refuse it too, a graph's would not
    assert y.grad_fn is not None and any(x is w for x in y.grad_fn.saved_tensors)  # type: ignore[attr-defined]
    with torch.no_grad():
        w.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    check(step, w)


def test_a_parameter_that_moved_before_the_backward_is_read_where_it_lies(w: nn.Parameter) -> None:
    """And nothing else is: what the call has made is that of the parameter as it was."""
    calls, twin = torch.zeros(()), nn.Parameter(w.detach().clone())

    def counts(x: Tensor, w: Tensor, calls: Tensor) -> tuple[Any, ...]:
        calls.add_(1)
        return (Curved.apply(x, w),)  # type: ignore[no-untyped-call]

    device = Replays()
    step = CapturedStep(counts, device, changed=(2,))
    for moves in (False, False, False, False, True, False):
        calls.zero_()
        x = x_of()
        y, due = step(x, w, calls)[0], Curved.apply(x, twin)  # type: ignore[no-untyped-call]
        torch.testing.assert_close(y, due)
        if moves:
            for each in (w, twin):
                each.data = each.data * 2.0  # autograd counts no version
        torch.testing.assert_close(gradients(y, x, w), gradients(due, x, twin))
        assert calls == 1 or not moves  # the stand-in runs what it records
    assert device.recorded == 1 and "moves between" in step.why_not


def test_hooks_on_what_is_saved_and_checkpoints_run_as_it_is(w: nn.Parameter) -> None:
    step, device = recorded(w)
    x = x_of()
    with save_on_cpu():
        y = step(x, w)[0]
    torch.testing.assert_close(gradients(y, x), gradients(x @ w, x))
    y = checkpoint(lambda x: step(x, w)[0], x, use_reentrant=False)
    torch.testing.assert_close(gradients(y, x), gradients(x @ w, x))
    assert device.replayed == 2
    y = checkpoint(lambda x: step(x, w)[0], x, use_reentrant=True)
    y.square().sum().backward()
    torch.testing.assert_close(x.grad, gradients(x @ w, x)[0])


def test_an_output_without_a_tangent_has_none(w: nn.Parameter) -> None:
    def two(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return product(x, w)[0], product(x, w * 2.0)[0]

    device = Replays()
    step = CapturedStep(two, device)
    for _ in range(5):
        x = x_of()
        torch.testing.assert_close(gradients(step(x, w)[1], x, w), gradients(x @ (w * 2.0), x, w))
    assert device.recorded == 1 and device.replayed == 4


def test_what_has_a_gradient_and_is_written_is_not_recorded(w: nn.Parameter) -> None:
    device = Replays()
    step = CapturedStep(product, device, changed=(1,))
    for _ in range(4):
        check(step, w)
    assert device.recorded == 0 and "changes an input" in step.why_not


def test_what_is_read_in_place_lives_until_the_backward(w: nn.Parameter) -> None:
    step, still = recorded(w, calls=1)[0], torch.randn(3, 4)
    for _ in range(3):
        (gradient,) = gradients(step(still, w)[0], w)
        torch.testing.assert_close(gradient, gradients(still @ w, w)[0])
    (pair,) = step._recordings
    assert pair.inputs.copied == []
    y = step(still, w)[0]
    assert y.grad_fn is not None and any(x is still for x in y.grad_fn.kept)  # type: ignore[attr-defined]
    gradients(y, w)
    assert y.grad_fn.kept is None  # type: ignore[attr-defined]


class Pair(NamedTuple):
    """The same call twice, as it is and recorded."""

    x: Tensor
    plain: Tensor
    ours: Tensor


def outcome(y: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, ...] | str:
    try:
        return gradients(y, x, w)
    except RuntimeError as error:
        return str(error)[:40]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["forward", "backward", "let go", "change", "move", "free"]), st.integers(0, 3))
    )
)
def test_calls_in_any_order_are_as_they_are_without(steps: list[tuple[str, int]]) -> None:
    w = nn.Parameter(torch.randn(4, 4))
    step, _ = recorded(w)
    live: list[Pair] = []
    for what, which in steps:
        if what == "forward" and len(live) < 4:
            x = x_of()
            live.append(Pair(x, product(x, w)[0], step(x, w)[0]))
            torch.testing.assert_close(live[-1].ours, live[-1].plain)
        elif what == "change":
            with torch.no_grad():
                w.mul_(0.5)
        elif what == "move":
            w.data = w.data * 0.5
        elif live:
            x, plain, ours = live[which % len(live)]
            if what == "backward":
                due, got = outcome(plain, x, w), outcome(ours, x, w)
                assert type(due) is type(got)
                torch.testing.assert_close(got, due) if isinstance(due, tuple) else None
            elif what == "let go":
                del live[which % len(live)], x, plain, ours
            else:
                live.clear()
    assert step.why_not == "" or "move" in dict(steps)
