"""Recorded training steps on a GPU: the same gradients, buffers and losses as without."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from captures import Layers, batch, compiled
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cudal1_compile.pipeline import choice
from cudal1_compile.pipeline.captured import WARM_UP_CALLS, Captured
from cudal1_compile.pipeline.captured_step import CapturedStep
from cudal1_compile.pipeline.process_state import last_plans

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("fresh")]

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def step(model: Any, optimiser: torch.optim.Optimizer, x: Tensor) -> Tensor:
    optimiser.zero_grad()
    loss: Tensor = model(x).square().mean()
    loss.backward()
    optimiser.step()
    return loss.detach()


def pair() -> tuple[nn.Module, nn.Module]:
    model = Layers().cuda().train()
    return model, copy.deepcopy(model)


def check_same(model: nn.Module, twin: nn.Module) -> None:
    for (name, got), due in zip(model.state_dict().items(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(got, due, **CLOSE, msg=lambda m, name=name: f"{name}: {m}")


def test_training_with_statistics_and_an_optimiser(recorded: list[Captured]) -> None:
    model, twin = pair()
    fast = compiled(model)
    ours, plain = torch.optim.SGD(model.parameters(), 1e-2), torch.optim.SGD(twin.parameters(), 1e-2)
    for _ in range(WARM_UP_CALLS + 10):
        x = batch()
        torch.testing.assert_close(step(fast, ours, x), step(twin, plain, x), **CLOSE)
    check_same(model, twin)
    (run,) = recorded
    assert isinstance(run, CapturedStep) and run.why_not == "" and len(run._recordings) == 1


def test_gradients_accumulate_over_two_forwards(recorded: list[Captured]) -> None:
    model, twin = pair()
    fast = compiled(model)
    for _ in range(WARM_UP_CALLS + 4):
        x, y = batch(), batch()
        for module in (fast, twin):
            a, b = module(x), module(y)
            (a.square().mean() + b.square().mean()).backward()
            module(x).square().mean().backward()
    for got, due in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(got.grad, due.grad, rtol=1e-3, atol=1e-4)
    check_same(model, twin)
    assert recorded[0].why_not == "" and recorded[0]._recordings


def test_a_gradient_of_the_input_and_another_stream(recorded: list[Captured]) -> None:
    model, twin = pair()
    fast, side = compiled(model), torch.cuda.Stream()
    for i in range(WARM_UP_CALLS + 6):
        x = batch().requires_grad_()
        torch.cuda.synchronize()
        with torch.cuda.stream(side if i % 2 else torch.cuda.current_stream()):
            (got,) = torch.autograd.grad(fast(x).square().mean(), x)
        torch.cuda.synchronize()
        (due,) = torch.autograd.grad(twin(x).square().mean(), x)
        torch.testing.assert_close(got, due, **CLOSE)
    assert recorded[0].why_not == "" and recorded[0]._recordings


def test_what_autograd_refuses_it_refuses_here(recorded: list[Captured]) -> None:
    model, _ = pair()
    fast = compiled(model)
    for _ in range(WARM_UP_CALLS + 2):
        fast(batch()).sum().backward()
    out = fast(batch())
    with torch.no_grad():
        model.layers[3].weight.mul_(2.0)  # type: ignore[union-attr,index]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
    out = fast(batch())
    out.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        out.sum().backward()
    assert recorded[0].why_not == "" and recorded[0]._recordings


def test_parameters_that_move_before_the_backward(recorded: list[Captured]) -> None:
    model, twin = pair()
    fast = compiled(model)
    plain = torch.compile(twin, backend="inductor")  # eager keeps the memory that weight.t() was of
    optimisers = [torch.optim.SGD(m.parameters(), 0.1) for m in (model, twin)]
    for moves in (False,) * 6 + (True, False):
        x = batch()
        for m, run, optimiser in zip((model, twin), (fast, plain), optimisers, strict=True):
            optimiser.zero_grad()
            loss = run(x).square().mean()
            if moves:
                for p in m.parameters():
                    p.data = p.data * 0.5
            loss.backward()
            optimiser.step()
        check_same(model, twin)
    assert "moves between" in recorded[0].why_not


def test_checkpoints_are_right(recorded: list[Captured]) -> None:
    model, twin = Layers().cuda().eval(), Layers().cuda().eval()
    twin.load_state_dict(model.state_dict())
    fast = compiled(model)
    for _ in range(WARM_UP_CALLS + 2):
        fast(batch()).sum().backward()
    model.zero_grad()
    for is_reentrant in (False, True):
        x = batch().requires_grad_()
        for module in (fast, twin):
            checkpoint(module, x, use_reentrant=is_reentrant).square().mean().backward()
    for got, due in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(got.grad, due.grad, **CLOSE)


def test_dropout_is_not_recorded_and_draws_anew(recorded: list[Captured]) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5), nn.Linear(64, 64)).cuda()
    fast, x = compiled(model), batch()
    outs = []
    for _ in range(WARM_UP_CALLS + 3):
        outs.append(fast(x))
        outs[-1].sum().backward()
    assert "generator" in recorded[0].why_not and not recorded[0]._recordings
    assert len({float(out.detach().sum()) for out in outs}) == len(outs)
    torch.testing.assert_close(F.dropout(torch.ones(4, device="cuda"), 0.0), torch.ones(4, device="cuda"))


@pytest.mark.slow
def test_a_trial_takes_a_step_where_the_host_is_what_it_waits_for() -> None:
    model = Layers(64, 30).cuda().train()
    fast, optimiser = compiled(model), torch.optim.SGD(model.parameters(), 1e-3)
    for _ in range(choice.SETTLED):
        step(fast, optimiser, batch())
        torch.cuda.synchronize()
    (last,) = last_plans()
    assert last.plan.choice == "captured_inductor", last.plan.why_not_captured
    assert (last.plan.ratio or 0.0) > 1.1
