"""What a case suite is made of: cases of large regions slice by slice, tasks that cannot be verified, labels."""

from __future__ import annotations

import pytest
import torch
from judge_checks import CPU, SEED, SOFTMAX, refusals
from torch import Tensor

from benchmarks.redteam.regions import region
from cudal1_compile.judge.checks import case_suite as suite_module
from cudal1_compile.judge.checks import cases as cases_module
from cudal1_compile.judge.checks import division as division_module
from cudal1_compile.judge.checks.case_suite import CaseSuite, NoRoom, Unverifiable, prepare_suite
from cudal1_compile.judge.checks.cases import Case
from cudal1_compile.judge.checks.division import parallel_axis
from cudal1_compile.judge.inputs.make import HUGE
from cudal1_compile.judge.inputs.sizes import tensor_bytes
from cudal1_compile.judge.oracle.chunk_passes import ChunkPlan
from cudal1_compile.judge.oracle.memory import oracle_bytes
from cudal1_fx_passes.program.evaluate import evaluate
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program


def test_a_large_case_is_compared_slice_by_slice_and_finds_one_wrong_element() -> None:
    program = parse_program(SOFTMAX)
    assert parallel_axis(program, {}) == "d0"
    suite = prepare_suite(program, SEED, CPU, 9 * tensor_bytes(program), ("normal", "offset"))
    assert isinstance(suite, CaseSuite)
    case = suite.cases[0]
    assert case.expected is None
    got = evaluate(program, case.inputs)
    assert case.check(got).refusal is None
    got[0][39, 299] += 1e-3
    refusal = case.check(got).refusal
    assert refusal is not None
    assert "1 of" in refusal


def test_a_large_case_that_may_be_kept_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    program = parse_program(SOFTMAX)
    for module in (cases_module, suite_module, division_module):
        monkeypatch.setattr(module, "oracle_bytes", lambda *_: 1 << 32)
    suite = prepare_suite(program, SEED, CPU, 1 << 30, ("normal", "offset"))
    assert isinstance(suite, CaseSuite)
    case = suite.cases[0]
    assert case.expected is None and len(case.kept) > 1
    assert case.expected_bytes == 16 * program.size(program.outputs[0].axes)
    assert {id(t) for t in suite.tensors()} >= {id(part.expected.want) for part in case.kept}  # summed too
    monkeypatch.setattr(cases_module, "expect", None)
    got = evaluate(program, case.inputs)
    assert case.check(got).refusal is None
    got[0][39, 299] += 1e-3
    assert "1 of" in (case.check(got).refusal or "")
    other = suite.cases[1]
    assert not case.with_inputs("normal", other.inputs).kept  # what was kept is of other inputs


@pytest.mark.parametrize("order", [("t1", "t0"), ("t0", "t1")])
def test_the_limits_over_a_whole_output_hold_for_each_output_of_a_large_case(order: tuple[str, str]) -> None:
    text = "region v1\ndims d0=40 d1=300\nin0 f32[d0,d1]\nt0 f32[d0,d1] = exp(in0)\nt1 bool[d0,d1] = gt(t0, 1.0)\n"
    text += "".join(f"out{i} {'bool' if t == 't1' else 'f32'}[d0,d1] = {t}\n" for i, t in enumerate(order))
    program = parse_program(text)
    suite = prepare_suite(program, SEED, CPU, 9 * tensor_bytes(program), ("normal", "offset"))
    assert isinstance(suite, CaseSuite)
    case = suite.cases[0]
    assert case.expected is None
    right = evaluate(program, case.inputs)
    assert case.check(right).refusal is None
    place = order.index("t0")
    rough = [x.clone() for x in right]
    rough[place] = _all_but_out_of_tolerance(case, place)
    refusal = case.check(rough).refusal
    assert refusal is not None
    assert "root mean square" in refusal


def _all_but_out_of_tolerance(case: Case, place: int) -> Tensor:
    """A float output that uses most of what each element may be off; rounded to f32 it must not use all."""
    found = torch.empty([40, 300])
    for part in case.parts():
        if part.output == place:
            want = part.expected
            assert want.tolerance is not None
            part.of(found).copy_(want.want + 0.84 * want.tolerance)
    return found


SUM = """region v1
dims d0=400 d1=300
in0 f32[d0,d1]
t0 f32[d0] = sum(in0) over d1
t1 f32[] = sum(t0) over d0
out0 f32[] = t1
"""


def test_a_sum_over_everything_goes_chunk_by_chunk_where_one_oracle_run_is_too_large() -> None:
    program = parse_program(SUM)
    oracle = oracle_bytes(program, {})
    assert parallel_axis(program, {}) is None
    assert oracle > 20 * tensor_bytes(program)  # most of what a trial needs
    whole, chunked, none = (
        prepare_suite(program, SEED, CPU, room, ("normal", "offset"))
        for room in (int(2.4 * oracle), oracle, oracle // 8)
    )
    assert isinstance(whole, CaseSuite) and isinstance(chunked, CaseSuite) and isinstance(none, NoRoom)
    for case, other in zip(whole.cases, chunked.cases, strict=True):
        assert case.cut is None and isinstance(other.cut, ChunkPlan)
        got = evaluate(program, case.inputs)
        assert case.check(got).refusal is None and other.check(got).refusal is None
        assert case.expected is not None and case.expected[0].tolerance is not None
        got[0] += 3 * case.expected[0].tolerance
        assert "1 of 1" in (case.check(got).refusal or "") and "1 of 1" in (other.check(got).refusal or "")


def test_no_room_is_said_and_not_tried() -> None:
    assert isinstance(prepare_suite(parse_program(SOFTMAX), SEED, CPU, 1000), NoRoom)


INADEQUATE = {
    "a constant": "t0 i64[d0] = mul(in0, 0)\nt1 i64[d0] = add(t0, 1)\nout0 i64[d0] = t1\n",
    "zeros": "t0 i64[d0] = mul(in0, 0)\nout0 i64[d0] = t0\n",
}


@pytest.mark.parametrize("stand_in", INADEQUATE)
def test_a_task_without_adequate_cases_is_unverifiable(stand_in: str) -> None:
    program = parse_program(f"region v1\ndims d0=64\nin0 i64[d0]\n{INADEQUATE[stand_in]}")
    found = prepare_suite(program, SEED, CPU, 1 << 30)
    assert isinstance(found, Unverifiable)
    assert "unverifiable" in found.reason


def test_a_variance_of_what_lies_outside_is_unverifiable() -> None:
    program = parse_program(
        "region v1\ndims d0=8 d1=64\nin0 f32[d0,d1]\n"
        "t0 f32[d0] = var(in0[d1=d1-1], 0.0) over d1\nout0 f32[d0] = t0\n"
    )
    found = prepare_suite(program, SEED, CPU, 1 << 30)
    assert isinstance(found, Unverifiable) and "var has no meaning" in found.reason


def test_one_unlucky_draw_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []

    def draw(program: Program, seed: int, *_: object) -> Unverifiable:
        drawn.append(seed)
        return Unverifiable("not finite")

    monkeypatch.setattr(suite_module, "_draw", draw)
    assert isinstance(prepare_suite(region("softmax"), SEED, CPU, 1 << 30), Unverifiable)
    assert len(set(drawn)) == 2


def test_a_copy_is_verifiable_although_its_input_passes_through() -> None:
    program = parse_program("region v1\ndims d0=64 d1=8\nin0 f32[d0,d1]\nout0 f32[d1,d0] = in0\n")
    suite = prepare_suite(program, SEED, CPU, 1 << 30)
    assert isinstance(suite, CaseSuite)
    good = [[c.inputs[0].t()] for c in suite.cases]
    assert refusals(suite.cases, good) == []
    bad = [[c.inputs[0].t() * (1 + 2**-23)] for c in suite.cases]
    assert refusals(suite.cases, bad)


LABELS = """region v1
dims d0=4 d1=16 d2=50
in0 i64[d0,d1]
in1 f32[d0,d1,d2]
t0 bool[d0,d1] = ne(in0, -100)
t1 f32[d0,d1] = logsumexp(in1) over d2
t2 f32[d0,d1,d2] = sub(in1, t1)
t3 i64[d0,d1] = where(t0, in0, 0)
t4 f32[d0,d1] = neg(t2[d2=t3])
t5 f32[d0,d1] = where(t0, t4, 0.0)
t6 f32[] = sum(t5) over d0,d1
t7 i64[d0,d1] = cast(t0)
t8 i64[] = sum(t7) over d0,d1
out0 f32[] = t6
out1 i64[] = t8
"""


def test_few_cases_of_labels_hold_the_one_that_is_left_out() -> None:
    """Else the count of the others is the same for all inputs, and the task cannot be told from a stand-in."""
    suite = prepare_suite(parse_program(LABELS), SEED, CPU, 1 << 30, HUGE)
    assert isinstance(suite, CaseSuite), suite
