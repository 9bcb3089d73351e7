"""What the tests of the judge's budget share."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from cudal1_compile.judge.cases import Case


def refusals(cases: Sequence[Case], results: Sequence[Sequence[Tensor]]) -> list[str]:
    """Why cases refuse their results, of those that do."""
    found = [c.check(r).refusal for c, r in zip(cases, results, strict=True)]
    return [r for r in found if r is not None]
