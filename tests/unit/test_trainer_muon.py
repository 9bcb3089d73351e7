"""Muon against torch's own, which takes one matrix at a time."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from cudal1_trainer.model.muon import Muon, orthogonal


def matrices(seed: int) -> list[Tensor]:
    torch.manual_seed(seed)
    return [torch.randn(s).requires_grad_() for s in ((24, 8), (8, 24), (24, 8), (16, 16))]


def test_steps_equal_those_of_torch() -> None:
    ours, theirs = matrices(0), matrices(0)
    mine = Muon(ours, lr=0.02, weight_decay=0.05)
    other = torch.optim.Muon(theirs, lr=0.02, weight_decay=0.05, adjust_lr_fn="match_rms_adamw")
    for step in range(5):
        for group in (ours, theirs):
            torch.manual_seed(step)
            for p in group:
                p.grad = torch.randn_like(p)
        mine.step()
        other.step()  # type: ignore[no-untyped-call]
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=2e-3)  # bfloat16 inside


def test_updates_are_nearly_orthogonal() -> None:
    values = torch.linalg.svdvals(orthogonal(torch.randn(3, 12, 40)).float())
    assert values.min() > 0.5 and values.max() < 1.4, values


def test_goes_on_from_its_state() -> None:
    first, second = matrices(1), matrices(1)
    one, two = Muon(first, 0.02, 0.0), Muon(second, 0.02, 0.0)
    for p, q in zip(first, second, strict=True):
        p.grad = torch.ones_like(p)
        q.grad = torch.ones_like(q)
    one.step()
    with torch.no_grad():
        for p, q in zip(first, second, strict=True):
            q.copy_(p)
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    one.step()
    two.step()
    for p, q in zip(first, second, strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=0)


def test_takes_matrices_only() -> None:
    with pytest.raises(ValueError, match=r"got a tensor of shape \(3,\)"):
        Muon([torch.zeros(3)], 0.02, 0.0)
