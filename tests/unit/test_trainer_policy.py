"""The policy's loss: where the ratio is clipped nothing is learned, and KL pulls back to the reference."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from cudal1_trainer.rl.policy import Objective, loss_of

CLIPPED = Objective(ratio_clip=0.2, kl=0.0)
ZERO = torch.zeros(1)


def _gradient(
    objective: Objective, ratio: float, advantage: float, reference: float = 0.0
) -> tuple[float, Tensor]:
    """Of the loss by the token's log-probability; `ratio` is to the policy that sampled it."""
    logp = torch.tensor([math.log(ratio)], requires_grad=True)
    loss, figures = loss_of(objective, logp, torch.tensor([advantage]), ZERO, torch.tensor([reference]))
    loss.backward()  # type: ignore[no-untyped-call]
    assert logp.grad is not None
    return float(logp.grad), figures


@pytest.mark.parametrize("advantage", [1.5, -1.5])
def test_on_policy_the_gradient_is_the_advantage(advantage: float) -> None:
    found, (kl, clipped) = _gradient(CLIPPED, 1.0, advantage)
    assert found == pytest.approx(-advantage) and (kl, clipped) == (0, 0)


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"), [(1.3, 1.0, 0.0), (0.7, -1.0, 0.0), (1.3, -1.0, 1.3), (0.7, 1.0, -0.7)]
)
def test_a_ratio_is_clipped_only_where_it_has_gone_the_way_of_the_advantage(
    ratio: float, advantage: float, expected: float
) -> None:
    found, (_, clipped) = _gradient(CLIPPED, ratio, advantage)
    assert found == pytest.approx(expected) and clipped == 1


def test_a_ratio_far_from_one_teaches_nothing() -> None:
    for ratio, advantage in ((5.0, -1.0), (1e5, -1.0), (5.0, 1.0)):
        found, (_, clipped) = _gradient(CLIPPED, ratio, advantage)
        assert found == 0.0 and clipped == 1


def test_kl_is_never_negative_and_pulls_to_the_reference_as_hard_as_it_is_far() -> None:
    for reference in (-13.0, -0.5, 0.0, 0.5, 13.0):
        found, (kl, _) = _gradient(Objective(0.2, 0.1), 1.0, 0.0, reference)
        assert float(kl) == pytest.approx(reference**2 / 2)
        assert found == pytest.approx(-0.1 * reference)  # down the gradient is towards it


def test_plain_likelihood_learns_what_is_kept_and_nothing_else() -> None:
    plain = Objective(ratio_clip=0.0, kl=0.0)
    assert _gradient(plain, 5.0, 1.0)[0] == -1.0 and _gradient(plain, 5.0, 0.0)[0] == 0.0
