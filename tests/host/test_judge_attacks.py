"""The audit on the host target: every attack is rejected, no honest kernel is refused for its result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import isfinite

import pytest
import torch
from slow_cases import slow_but

from benchmarks.redteam.attacks import Attack, attacks_for, by_hack
from benchmarks.redteam.attacks_tied_values import TIED_VALUES
from benchmarks.redteam.attacks_values import VALUES
from benchmarks.redteam.honest import HONEST, SILU_SCALAR, SILU_VECTOR, SOFTMAX_WARP, Honest
from benchmarks.redteam.regions import region
from cudal1_compile.judge.checks.case_suite import CaseSuite, prepare_suite
from cudal1_compile.judge.inputs.make import FULL_SIZE, HUGE
from cudal1_compile.judge.inputs.sizes import tensor_elements
from cudal1_compile.judge.judge import Judge
from cudal1_compile.judge.limits import Limits
from cudal1_compile.judge.verdict import Accepted, Deferred, Rejected, from_json, to_json
from cudal1_compile.runtime.target import HOST
from cudal1_fx_passes.program.evaluate import evaluate
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program
from tests.audit_kinds import one_of_each_kind

pytestmark = pytest.mark.host

ATTACKS = attacks_for("host")


@pytest.fixture(scope="session")
def judge() -> Iterator[Judge]:
    with Judge(HOST, Limits(host_s=3.0), seed=11) as made:  # other seeds: cudal1 audit
        yield made


# rows of the catalogue that device code can try; the others are by design, or about clocks and training
ROWS = (
    *("T1", "T4", "T7", "T8", "T9", "T11", "T17"),
    *(
        "C1",
        "C4",
        "C5",
        "C6",
        "C7",
        "C8",
        "C9",
        "C12",
        "C14",
        "C18",
        "C19",
        "C20",
        "C21",
        "C22",
        "C23",
        "C26",
        "C27",
    ),
    *("S1", "S5", "S7"),
)


def test_names_of_attacks_are_unique_and_many() -> None:
    assert len({a.name for a in ATTACKS}) == len(ATTACKS)
    assert len(ATTACKS) >= 200


@pytest.mark.parametrize("row", ROWS)
def test_every_row_of_the_catalogue_is_tried_in_two_forms(row: str) -> None:
    assert len(by_hack()[row]) >= 2


# in every run two attacks of each hack, and a right kernel of each kind; all of them in `cudal1 audit`, too


def two_of_each_hack() -> list[Attack]:
    """Of two regions, where there are."""
    found: dict[str, dict[str, Attack]] = {}
    for attack in ATTACKS:
        found.setdefault(attack.hack, {}).setdefault(attack.region, attack)
    return [attack for regions in found.values() for attack in [*regions.values()][:2]]


@pytest.mark.parametrize("attack", slow_but(two_of_each_hack(), ATTACKS), ids=lambda a: a.name)
def test_rejects(attack: Attack, judge: Judge) -> None:
    verdict = judge.judge(region(attack.region), attack.code)
    assert isinstance(verdict, Rejected), verdict
    assert verdict.stage in attack.stages, verdict
    assert verdict.reason


@pytest.mark.parametrize("honest", slow_but(one_of_each_kind(HONEST), HONEST), ids=lambda h: h.name)
def test_does_not_refuse(honest: Honest, judge: Judge) -> None:
    verdict = judge.judge(region(honest.region), honest.code)
    if isinstance(verdict, Rejected):  # right, but no cheaper than one operation at a time
        assert verdict.stage == "time"
        assert verdict.reason.startswith("cost")
    else:
        assert isinstance(verdict, Accepted), verdict


# what the inputs of regions of over 2^24 elements, which are few, must show as well
AT_ANY_SIZE = [
    a for a in VALUES if a.region in ("silu", "softmax", "argmax", "threshold", "computed_mask", "max_pool")
]


def test_the_few_cases_of_large_regions_refuse_as_well() -> None:
    assert set(HUGE) <= set(FULL_SIZE)
    with Judge(HOST, Limits(host_s=2.0, distributions=HUGE), seed=11) as judge:
        verdicts = judge.judge_tasks([(_taller(region(a.region)), a.code) for a in AT_ANY_SIZE])
    for attack, verdict in zip(AT_ANY_SIZE, verdicts, strict=True):
        assert isinstance(verdict, Rejected), attack.name
        assert verdict.stage in attack.stages, (attack.name, verdict)


# eight values meet their bound only in one of a dozen cases
IN_FULL_SIZE = [a for a in TIED_VALUES if a.region != "eight_masks"]


@pytest.mark.parametrize("share", slow_but([3], [3, 1]))
def test_large_regions_get_inputs_that_coincide(share: int) -> None:
    """One in so many of the attacks."""
    tried = IN_FULL_SIZE[::share]
    with Judge(HOST, Limits(host_s=2.0, distributions=FULL_SIZE), seed=11) as judge:
        verdicts = judge.judge_tasks([(_taller(region(a.region)), a.code) for a in tried])
    for attack, verdict in zip(tried, verdicts, strict=True):
        assert isinstance(verdict, Rejected), attack.name
        assert verdict.stage in attack.stages, (attack.name, verdict)


def _taller(program: Program) -> Program:
    """The same with four times as many rows; one that is large already stays, which makes nothing easier."""
    if tensor_elements(program) > 100_000:
        return program
    return replace(program, axes=tuple(replace(a, size=4 * a.size) if a.name == "d0" else a for a in program.axes))


def test_answers_learned_from_refusals_are_of_no_use(judge: Judge) -> None:
    """A judge that tells what it expected could be asked until a table of answers is complete.

    The numbers of the table have inputs of their own, and finalists have fresh ones anyway.
    """
    program = parse_program(
        "region v1\ndims d0=500\nin0 f32[d0]\nt0 f32[d0] = sigmoid(in0)\nt1 f32[d0] = mul(in0, t0)\n"
        "t2 f32[d0] = mul(t1, t1)\nt3 f32[] = sum(t2) over d0\nout0 f32[] = t3\n"
    )
    suite = prepare_suite(program, judge._seed, torch.device("cpu"), 1 << 30)
    assert isinstance(suite, CaseSuite)
    answers = ""
    for case in suite.cases:
        seen = int(case.inputs[0].view(torch.int32).sum()) & 0xFFFFFFFF
        right = evaluate(program, case.inputs)[0].item()
        answers += f"  if (seen == {seen}u) s = {right if isfinite(right) else 'NAN'};\n"
    code = (
        "// launch: k<<<1, 32>>>(in0, out0)\n__global__ void k(const f32* in0, f32* out0 DIMS) {\n"
        "  int all = 0;\n  for (int i = threadIdx.x; i < d0; i += 32) all += __float_as_int(ld(in0 + i));\n"
        "  unsigned seen = warp_sum(all);\n"
        f"  float s = 0.0f;\n{answers}  if (threadIdx.x == 0) st(out0, s);\n}}\n"
    )
    first, final = judge.judge(program, code), judge.finalists(program, [code])[0]
    assert isinstance(first, Rejected) and "(inputs: named)" in first.reason
    assert isinstance(final, Rejected)


def test_a_verdict_is_not_passed_on_to_code_that_only_looks_alike(judge: Judge) -> None:
    right = SILU_SCALAR.replace("  st(out0", "#define DONE 1\n  st(out0")
    swallowed = SILU_SCALAR.replace("  st(out0", "#define DONE 1   st(out0")
    first, second = judge.judge_tasks([(region("silu"), right), (region("silu"), swallowed)])
    assert isinstance(first, Accepted)
    assert isinstance(second, Rejected)


def test_an_accepted_proof_tells_the_cost_and_no_speedup(judge: Judge) -> None:
    verdict = judge.judge(region("silu"), SILU_VECTOR)
    assert isinstance(verdict, Accepted)
    proof = verdict.proof
    assert proof.host_cost is not None
    assert proof.host_cost.cost_ratio < 1.0
    assert proof.speedup is None
    assert {name for name, _ in proof.errors} >= {"normal", "offset", "coherent", "edges"}
    assert all(0.0 <= share <= 1.0 for _, share in proof.errors)
    assert from_json(to_json(verdict)) == verdict


def test_finalists_run_on_fresh_inputs_with_the_check_build(judge: Judge) -> None:
    verdicts = judge.finalists(region("silu"), [SILU_SCALAR, "nonsense", SILU_VECTOR])
    assert isinstance(verdicts[0], Accepted)
    assert isinstance(verdicts[1], Rejected)
    assert isinstance(verdicts[2], Accepted)
    first = judge.judge(region("silu"), SILU_SCALAR)
    assert isinstance(first, Accepted)
    assert verdicts[0].proof.seed != first.proof.seed


def test_a_task_that_cannot_be_verified_gets_no_kernel(judge: Judge) -> None:
    program = parse_program("region v1\ndims d0=64\nin0 f32[d0] >=0\nt0 f32[d0] = relu(in0)\nout0 f32[d0] = t0\n")
    code = (
        "// launch: k<<<1, 64>>>(in0, out0)\n"
        "__global__ void k(const f32* in0, f32* out0 DIMS) {\n"
        "  st(out0 + threadIdx.x, relu(ld(in0 + threadIdx.x)));\n}\n"
    )
    verdict = judge.judge(program, code)
    assert isinstance(verdict, Rejected) and verdict.stage == "task"
    assert "unverifiable" in verdict.reason


def test_a_region_too_large_for_the_host_is_deferred(judge: Judge) -> None:
    program = parse_program(
        "region v1\ndims d0=100000 d1=100\nin0 f32[d0,d1]\nt0 f32[d0,d1] = exp(in0)\nout0 f32[d0,d1] = t0\n"
    )
    code = (
        "// launch: k<<<cdiv(d0*d1, 256), 256>>>(in0, out0)\n"
        "__global__ void k(const f32* in0, f32* out0 DIMS) {\n"
        "  int i = blockIdx.x * 256 + threadIdx.x;\n  if (i < d0 * d1) st(out0 + i, expf(ld(in0 + i)));\n}\n"
    )
    assert isinstance(judge.judge(program, code), Deferred)


def test_symbolic_sizes_are_tried_at_other_sizes_too(judge: Judge) -> None:
    program = parse_program(
        "region v1\ndims d0=?40 d1=64\nin0 f32[d0,d1]\nt0 f32[d0,d1] = exp(in0)\nt1 f32[d0,d1] = mul(t0, in0)\n"
        "t2 f32[d0,d1] = add(t1, 1.0)\nout0 f32[d0,d1] = t2\n"
    )
    right = (
        "// launch: k<<<cdiv(d0*d1, 128), 128>>>(in0, out0)\n"
        "__global__ void k(const f32* in0, f32* out0 DIMS) {\n"
        "  int i = blockIdx.x * 128 + threadIdx.x;\n"
        "  if (i < d0 * d1) { float x = ld(in0 + i); st(out0 + i, expf(x) * x + 1.0f); }\n}\n"
    )
    assert isinstance(judge.judge(program, right), Accepted)
    only_40 = right.replace("if (i < d0 * d1)", "if (i < 40 * d1)").replace("cdiv(d0*d1, 128)", "20")
    verdict = judge.judge(program, only_40)
    assert isinstance(verdict, Rejected)
    assert verdict.stage == "verify"


def test_the_same_candidate_twice_is_judged_once_and_answered_twice(judge: Judge) -> None:
    program = region("softmax")
    first, second = judge.judge_many(program, [SOFTMAX_WARP, "// again\n" + SOFTMAX_WARP])
    assert isinstance(first, Accepted)
    assert first == second
