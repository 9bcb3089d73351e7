"""Gate 6: the host's check build finds what a GPU may let pass, and has nothing against honest kernels."""

from __future__ import annotations

import pytest

from benchmarks.redteam.attacks import ATTACKS, Attack
from benchmarks.redteam.honest import HONEST, Honest
from benchmarks.redteam.regions import region
from benchmarks.redteam.suite import attack_suite
from cudal1_compile.judge.checks.memcheck import MAX_ELEMENTS, CheckReport, find_fault
from cudal1_compile.kernel.candidate import parse_candidate
from cudal1_fx_passes.program.text import parse_program
from tests.audit_kinds import one_of_each_kind

pytestmark = pytest.mark.host

# by what comes of it, not by a rule that a line breaks
BY_RESULT = (
    "zeros where an input lies a third of itself behind another",
    "a warp's sum over the lanes that happen to run together",
)
LEAVES = "a return to another function"  # so that its fault is at no line of the code
NO_RULE = ("depends on the order of blocks", LEAVES, *BY_RESULT)
HIDDEN = [a for a in ATTACKS if a.where == "host" and "verify" in a.stages and a.name not in NO_RULE]
OTHERS = (
    *("a race between blocks", "writes behind its output", "writes its input"),
    "a read behind the input where a value is large",
)
HIDDEN += [a for a in ATTACKS if a.name in OTHERS]
ELSEWHERE = [a for a in ATTACKS if a.name in BY_RESULT]


FOUND = [(a, "line") for a in HIDDEN] + [(a, "where buffers lie otherwise") for a in ELSEWHERE]


@pytest.mark.parametrize(("attack", "said"), FOUND, ids=[a.name for a, _ in FOUND])
def test_finds_what_a_gpu_may_let_pass(attack: Attack, said: str) -> None:
    program = region(attack.region)
    fault = find_fault(program, parse_candidate(attack.code, program), seed=3, seconds=5.0).fault
    assert fault is not None
    assert said in fault


ATOMIC = "atomicAdd(flag + at - 1, 0)"


WAITS = (
    *(ATOMIC, "*(volatile i32*)(flag + at - 1)", "atomicCAS(flag + at - 1, 5, 5)"),
    "(atomicAdd(flag + at - 1, 0) & atomicAdd(flag + at, 0) + 1)",
)


@pytest.mark.parametrize("look", WAITS)
def test_finds_a_wait_for_a_later_block_however_it_looks(look: str) -> None:
    (case,) = (c for c in attack_suite("cuda") if c.attack.name == "blind scan waits for a later block")
    assert ATOMIC in case.attack.code
    code = case.attack.code.replace(ATOMIC, look)
    fault = find_fault(case.program, parse_candidate(code, case.program), seed=3, seconds=10.0).fault
    assert fault is not None
    assert "waits without end" in fault


# the host's bench runs the check build of all of them (test_judge_attacks)
@pytest.mark.parametrize("honest", one_of_each_kind(HONEST), ids=lambda h: h.name)
def test_has_nothing_against_honest_kernels(honest: Honest) -> None:
    program = region(honest.region)
    found = find_fault(program, parse_candidate(honest.code, program), seed=3, seconds=10.0)
    assert found == CheckReport(None, (("host check build", "clean"),))


def test_a_region_too_large_is_not_looked_at_and_that_is_said() -> None:
    program = parse_program(
        f"region v1\ndims d0={MAX_ELEMENTS}\nin0 f32[d0]\nt0 f32[d0] = exp(in0)\nout0 f32[d0] = t0\n"
    )
    code = (
        "// launch: k<<<1, 32>>>(in0, out0)\n"
        "__global__ void k(const f32* in0, f32* out0 DIMS) { st(out0 - 9, 1.0f); }\n"
    )
    found = find_fault(program, parse_candidate(code, program), seed=3, seconds=5.0)
    assert found == CheckReport(None, (("host check build", "not run: the region is too large"),))
