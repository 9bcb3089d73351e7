"""Cases in one run of the oracle expect what they expect alone, in far fewer operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from slow_cases import slow_but
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.redteam.regions import region, region_names
from cudal1_compile.judge.checks import case_suite as suite_module
from cudal1_compile.judge.checks.case_suite import CaseSuite, prepare_suite
from cudal1_compile.judge.checks.cases import check_together
from cudal1_compile.judge.oracle.stacked import CASES, share_rules, stack
from cudal1_fx_passes.program.evaluate import evaluate
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program

CPU = torch.device("cpu")
ROOM = 4 << 30
# an index from an input, a mask over positions, and an output that reads no input
MIXED = """region v1
dims d0=6 d1=5 d2=7
in0 f16[d0,d1]
in1 i64[d2] in [0,d0)
in2 f32[d2]
t0 i64[d1] = iota() over d1
t1 bool[d1] = gt(t0, 2)
t2 f16[d1,d2] = relu(in0[d0=in1])
t3 f16[d1,d2] = where(t1, t2, 0.5)
t4 f32[d1,d2] = cast(t3)
t5 f32[d1,d2] = add(in2, t4)
t6 f32[d2] = amax(t5) over d1
out0 f32[d2] = t6
out1 bool[d1] = t1
"""


class Count(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        self.operations += 1
        return func(*args, **(kwargs or {}))


def alone(program: Program, monkeypatch: pytest.MonkeyPatch) -> Any:
    def nothing(*_: object) -> Mapping[str, Any]:
        return {}

    with monkeypatch.context() as patch:
        patch.setattr(suite_module, "_expect_together", nothing)
        return prepare_suite(program, 3, CPU, ROOM)


def check(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    together, single = prepare_suite(program, 3, CPU, ROOM), alone(program, monkeypatch)
    assert type(together) is type(single)
    if not isinstance(together, CaseSuite):
        return
    assert together.left_out == single.left_out
    both = zip((*together.cases, *together.f32_cases), (*single.cases, *single.f32_cases), strict=True)
    for case, other in both:
        assert (case.name, case.wide) == (other.name, other.wide) and case.expected is not None
        for mine, wanted in zip(case.expected, other.expected, strict=True):
            assert (mine.name, mine.nonfinite_share) == (wanted.name, wanted.nonfinite_share)
            torch.testing.assert_close(mine.want, wanted.want, rtol=1e-12, atol=0, equal_nan=True)
            for a, b in ((mine.tolerance, wanted.tolerance), (mine.other, wanted.other)):
                assert (a is None) == (b is None)
                if a is not None and b is not None:
                    # the native reference may sum in another order, or round otherwise where vectors begin
                    # elsewhere, and its error is part of the tolerance
                    rtol = 1.0 if any(op.over for op in program.ops) else 1e-3
                    torch.testing.assert_close(a, b, rtol=rtol, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("name", slow_but(region_names()[::3], region_names()))
def test_regions_expect_what_they_expect_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(region(name), monkeypatch)


def test_accesses_and_values_without_inputs_stack_too(monkeypatch: pytest.MonkeyPatch) -> None:
    program = parse_program(MIXED)
    stacked = stack(program, 3)
    assert stacked is not None
    assert [CASES in o.axes for o in stacked.outputs] == [True, False]
    assert isinstance(prepare_suite(program, 3, CPU, ROOM), CaseSuite)
    check(program, monkeypatch)


def test_a_tensor_with_all_dims_cannot_be_stacked() -> None:
    text = "region v1\ndims d0=2 d1=2 d2=2 d3=2 d4=2 d5=2\nin0 f32[d0,d1,d2,d3,d4,d5]\n"
    text += "t0 f32[d0,d1,d2,d3,d4,d5] = exp(in0)\nout0 f32[d0,d1,d2,d3,d4,d5] = t0\n"
    assert stack(parse_program(text), 4) is None
    assert isinstance(prepare_suite(parse_program(text), 3, CPU, ROOM), CaseSuite)


def test_a_case_suite_takes_far_fewer_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    program = region("layernorm")
    with Count() as together:
        prepare_suite(program, 3, CPU, ROOM)
    with Count() as single:
        alone(program, monkeypatch)
    assert together.operations < 0.5 * single.operations


# a rounded value that no input reaches: its error bound is another one where terms of sums are alike
TABLE = """region v1
dims d0=6 d1=5
in0 f32[d0,d1]
t0 i64[d1] = iota() over d1
t1 f32[d1] = cast(t0)
t2 f32[d1] = exp(t1)
t3 f32[] = sum(t2) over d1
t4 f32[d0,d1] = div(in0, t3)
t5 f32[d0] = sum(t4) over d1
out0 f32[d0] = t5
out1 f32[] = t3
"""


def test_rules_by_case_need_cases_in_every_rounded_value(monkeypatch: pytest.MonkeyPatch) -> None:
    shared, apart = stack(region("layernorm"), 2), stack(parse_program(TABLE), 2)
    assert shared is not None and share_rules(shared)
    assert apart is not None and not share_rules(apart)
    check(parse_program(TABLE), monkeypatch)


def test_results_compared_together_have_the_figures_that_they_have_alone() -> None:
    program = parse_program(MIXED)
    suite = prepare_suite(program, 3, CPU, ROOM)
    assert isinstance(suite, CaseSuite)
    results = [(case, evaluate(program, case.inputs)) for case in suite.cases]
    for i, (_, (out, mask)) in enumerate(results):
        out += 1e6 * (i > 0)  # wrong from the second on
        mask[0] ^= i == 3
    together = list(check_together(results))
    assert together == [case.check(outputs) for case, outputs in results]
    assert together[0].refusal is None and all(r.refusal for r in together[1:])
