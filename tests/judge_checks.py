"""What tests of the judge share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cudal1_compile.judge.checks.cases import Case

CPU = torch.device("cpu")
SEED = 20261121


def softmax(rows: int, length: int) -> str:
    return f"""region v1
dims d0={rows} d1={length}
in0 f32[d0,d1]
t0 f32[d0] = amax(in0) over d1
t1 f32[d0,d1] = sub(in0, t0)
t2 f32[d0,d1] = exp(t1)
t3 f32[d0] = sum(t2) over d1
t4 f32[d0,d1] = div(t2, t3)
out0 f32[d0,d1] = t4
"""


SOFTMAX = softmax(40, 300)


def refusals(cases: Sequence[Case], results: Sequence[Sequence[Tensor]]) -> list[str]:
    """Why cases refuse their results, of those that do."""
    found = [c.check(r).refusal for c, r in zip(cases, results, strict=True)]
    return [r for r in found if r is not None]
