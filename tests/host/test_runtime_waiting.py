"""Blocks that wait for each other: a right kernel in every order of blocks, and each way to do it wrong."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from waiting_kernel import GROUPS, NORM, PARTS, PROGRAM, SIZE, wanted

from cudal1_compile.errors import BuildError
from cudal1_compile.kernel.candidate import Candidate, parse_candidate
from cudal1_compile.runtime import nvrtc
from cudal1_compile.runtime.build import build
from cudal1_compile.runtime.hostrun import HostLimits, HostRun, run_isolated
from cudal1_compile.runtime.launcher import load
from cudal1_compile.runtime.target import HOST, Target

pytestmark = pytest.mark.host

WRONG = {
    "a block too many": ("s1 + round * d0 + row, 4", "s1 + round * d0 + row, 5", "deadlock"),
    "a block too few": ("s1 + round * d0 + row, 4", "s1 + round * d0 + row, 3", "uninitialised"),
    "one counter for two waits": ("s1 + round * d0 + row, 4", "s1 + row, 4", "bad_wait"),
    "a counter that is not zeroed": ("i32[10] = 0", "i32[10]", "bad_wait"),
    "too many for any device": ("s1 + round * d0 + row, 4", "s1 + round * d0 + row, 65", "bad_wait"),
    "a counter outside": ("s1 + round * d0 + row, 4", "s1 + 100 + row, 4", "out_of_bounds"),
    "no wait": ("wait_for_blocks(s1 + round * d0 + row, 4);", "__syncthreads();", "uninitialised"),
    "read before the wait": ("    wait_for", "    x[0] += 0.0f * parts[0];\n    wait_for", "uninitialised"),
    "half the threads": ("    wait_for", "    if (thread_id() < 32) wait_for", "race"),
}


def norm(code: str = NORM) -> Candidate:
    return parse_candidate(code, PROGRAM)


def run(candidate: Candidate, x: Tensor, order: str = "forward", check: bool = True) -> tuple[HostRun, Tensor]:
    image = build(PROGRAM, candidate, HOST, check=check).image
    out = torch.full((GROUPS, SIZE), float("nan"))
    memory = {"s0": torch.full((40,), float("nan")), "s1": torch.full((10,), 77, dtype=torch.int32)}
    limits = HostLimits(seconds=30.0, order=order, seed=3)
    return run_isolated(PROGRAM, candidate, image, {"in0": x, "out0": out} | memory, limits), out


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
def test_blocks_see_what_those_they_waited_for_had_stored(order: str, check: bool) -> None:
    x = torch.randn(GROUPS, SIZE)
    found, out = run(norm(), x, order, check)
    assert found.ok, found
    torch.testing.assert_close(out, wanted(x), rtol=1e-4, atol=1e-5)


def test_memory_that_is_read_once_costs_once() -> None:
    """A block that runs again up to its wait on the host does not on a GPU."""
    again = "      if (there && round == 0) x[k] = ld(in0 + row * d1 + from + k * 64);\n"
    twice = NORM.replace("      if (round == 0) x[k] -=", f"{again}      if (round == 0) x[k] -=")
    x = torch.randn(GROUPS, SIZE)
    once_cost, twice_cost = run(norm(), x)[0].cost, run(norm(twice), x)[0].cost
    assert once_cost is not None and twice_cost is not None
    lines = GROUPS * PARTS * 8  # of 128 bytes
    assert lines <= twice_cost - once_cost <= 2 * lines + GROUPS * PARTS  # a part is not aligned to a line


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_wait_is_a_fault(name: str) -> None:
    before, after, kind = WRONG[name]
    assert before in NORM
    found, _ = run(norm(NORM.replace(before, after)), torch.randn(GROUPS, SIZE), "random")
    assert found.status == "fault", found
    assert found.kind == kind, found


def test_it_runs_in_the_users_process_too() -> None:
    candidate = norm()
    kernel = load(PROGRAM, candidate, build(PROGRAM, candidate, HOST))
    x, out = torch.randn(GROUPS, SIZE), torch.empty(GROUPS, SIZE)
    kernel(out, torch.empty(40), torch.empty(10, dtype=torch.int32), x, 0)
    kernel.close()
    torch.testing.assert_close(out, wanted(x), rtol=1e-4, atol=1e-5)


def test_nvrtc_builds_it() -> None:
    try:
        nvrtc.library()
    except BuildError:
        pytest.skip("needs NVRTC")
    target = Target("cuda", "test", "sm_90a", 132, 227 * 1024, 50 << 20)
    assert build(PROGRAM, norm(), target).image[:4] == b"\x7fELF"
