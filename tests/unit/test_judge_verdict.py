"""Verdicts survive JSON; what is not a verdict is refused."""

from __future__ import annotations

import pytest

from cudal1_compile.judge.verdict import (
    Accepted,
    Deferred,
    HostCost,
    Proof,
    Rejected,
    Timing,
    Verdict,
    from_json,
    to_json,
)

PROOF = Proof(
    target_key="ab" * 32,
    numerics="reassociates",
    errors=(("normal", 0.25), ("coherent", 0.5)),
    seed=2**40 + 1,
    timing=Timing(3.5, 7.0, None, 2.0, 1.9, 40, final=False),
    host_cost=None,
    versions=(("torch", "2.11"),),
    checks=(("memcheck", "clean"),),
)


@pytest.mark.parametrize(
    "verdict",
    [
        Accepted(PROOF),
        Accepted(Proof("k", "exact", (), 1, None, HostCost(10.0, 40.0))),
        Rejected("verify", 'out0[3] is nan, expected "1"'),
        Deferred("the device is busy"),
    ],
)
def test_json_and_back_is_equal(verdict: Verdict) -> None:
    text = to_json(verdict)
    assert "\n" not in text
    assert from_json(text) == verdict


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"verdict": "maybe"}',
        '{"verdict": "rejected", "stage": "mood", "reason": ""}',
        '{"verdict": "accepted"}',
    ],
)
def test_refuses_what_is_no_verdict(text: str) -> None:
    with pytest.raises(ValueError, match="not a verdict"):
        from_json(text)


def test_a_host_cost_is_a_ratio_and_never_a_speedup() -> None:
    proof = Proof("k", "exact", (), 1, None, HostCost(10.0, 40.0))
    assert proof.host_cost is not None
    assert proof.host_cost.cost_ratio == 0.25
    assert proof.speedup is None
    assert PROOF.speedup == 2.0
