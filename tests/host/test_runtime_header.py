"""Every function of the device header gives what torch gives, on the host target; NVRTC takes the same text."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import torch
from runtime_kernels import Case, cases
from slow_cases import slow_but

from cudal1_compile.runtime.build import build
from cudal1_compile.runtime.hostrun import HostLimits, run_isolated
from cudal1_compile.runtime.target import GPU_ARCHES, HOST, Target
from tests.toolchain import has_nvrtc

CASES = list(cases())


def of_each_kind() -> Iterator[Case]:
    """Of the cases that differ in their size alone one, so that each size comes round."""
    kinds: dict[str, list[Case]] = {}
    for case in CASES:
        kinds.setdefault(re.sub(r"_\d+$", "", case.name), []).append(case)
    return (alike[at % len(alike)] for at, alike in enumerate(kinds.values()))


KINDS = [*of_each_kind()]


@pytest.mark.parametrize("case", slow_but(KINDS, CASES), ids=lambda c: c.name)
def test_the_host_target_equals_torch(case: Case) -> None:
    inputs = case.inputs()
    program = case.program(len(inputs[0]))
    candidate = case.candidate(program)
    binary = build(program, candidate, HOST, check=True)
    out = torch.zeros(len(inputs[0]), dtype=case.out_dtype())
    buffers = {f"in{i}": x.contiguous() for i, x in enumerate(inputs)} | {"out0": out}
    found = run_isolated(program, candidate, binary.image, buffers, HostLimits(seconds=30.0))
    assert found.ok, found
    torch.testing.assert_close(out, case.want(*inputs), rtol=case.rtol, atol=case.atol, equal_nan=True)


@pytest.mark.skipif(not has_nvrtc(), reason="needs NVRTC")
@pytest.mark.parametrize("case", slow_but(KINDS[::2], CASES), ids=lambda c: c.name)
def test_nvrtc_builds_it(case: Case) -> None:
    """One arch a case, in turn: all five are met by every group of cases."""
    arch = GPU_ARCHES[CASES.index(case) % len(GPU_ARCHES)]
    program = case.program(len(case.inputs()[0]))
    target = Target("cuda", "test", arch, 132, 227 * 1024, 50 << 20)
    binary = build(program, case.candidate(program), target)
    assert binary.image[:4] == b"\x7fELF"
    assert 0 < binary.kernels["k"].registers <= 255
