"""compute-sanitizer over finalists: honest kernels are clean, each tool finds its own kind of fault."""

from __future__ import annotations

import pytest
import torch
from product_kernels import CASES, Product

from benchmarks.redteam.honest import COLUMN_ATOMIC, HONEST, SILU_SCALAR, SOFTMAX_BLOCK, Honest
from benchmarks.redteam.regions import region
from cudal1_compile.judge.checks import sanitizer
from cudal1_compile.judge.checks.memcheck import CheckReport
from cudal1_compile.judge.checks.sanitizer import TOOLS, find_fault_on_device
from cudal1_compile.judge.judge import Judge
from cudal1_compile.judge.limits import Limits
from cudal1_compile.judge.verdict import Accepted
from cudal1_compile.kernel.candidate import parse_candidate
from cudal1_compile.runtime.build import build
from cudal1_compile.runtime.target import Target, detect_target

if not torch.cuda.is_available() or sanitizer.installed() is None:
    pytest.skip("needs a CUDA device and compute-sanitizer", allow_module_level=True)

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def target() -> Target:
    return detect_target(torch.device("cuda"))


def _look(name: str, code: str, target: Target) -> CheckReport:
    program = region(name)
    candidate = parse_candidate(code, program)
    return find_fault_on_device(program, candidate, build(program, candidate, target), 5, 0, 60.0)


CLEAN = tuple((check, "clean") for check in TOOLS)


@pytest.mark.parametrize("honest", HONEST[::4], ids=lambda h: h.name)
def test_honest_kernels_are_clean(honest: Honest, target: Target) -> None:
    assert _look(honest.region, honest.code, target) == CheckReport(None, CLEAN)


@pytest.mark.parametrize("case", [c for c in CASES if c.warp[0] or c.wide or c.bulk], ids=lambda c: c.name)
def test_pipelined_products_are_clean(case: Product, target: Target) -> None:
    """Tiles in flight, and float32 ones that warp groups multiply in place."""
    program = case.program()
    candidate = case.candidate(program)
    found = find_fault_on_device(program, candidate, build(program, candidate, target), 5, 0, 60.0)
    assert found == CheckReport(None, CLEAN)


def _edit(code: str, old: str, new: str) -> str:
    assert old in code
    return code.replace(old, new)


FAULTS = {
    "memcheck": ("silu", _edit(SILU_SCALAR, "if (i >= d0 * d1) return;", "if (i > d0 * d1) return;")),
    "racecheck": (
        "softmax",
        _edit(
            SOFTMAX_BLOCK,
            "s = block_sum(s);",
            "__shared__ float w[128]; w[threadIdx.x] = s; s = w[(threadIdx.x + 40) % 128]; s = block_sum(s);",
        ),
    ),
    "initcheck": ("column_sum", _edit(COLUMN_ATOMIC, "[d1] = 0", "[d1]")),
}


@pytest.mark.parametrize("check", TOOLS)
def test_each_tool_finds_its_fault(check: str, target: Target) -> None:
    found = _look(*FAULTS[check], target)
    assert found.fault is not None, found
    assert found.fault.startswith(check)


def test_a_finalists_proof_names_the_tools(target: Target) -> None:
    with Judge(target, Limits(sanitize=True)) as judge:
        (verdict,) = judge.finalists(region("silu"), [SILU_SCALAR])
    assert isinstance(verdict, Accepted), verdict
    assert verdict.proof.checks == (("host check build", "clean"), *CLEAN)
