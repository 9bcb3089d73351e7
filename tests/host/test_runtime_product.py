"""product_tile gives what torch gives on the host target, without a fault in the check build; NVRTC takes it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import torch
from product_kernels import CASES, Product
from slow_cases import slow_but

from cudal1_compile.runtime.build import build
from cudal1_compile.runtime.hostrun import HostLimits, run_isolated
from cudal1_compile.runtime.target import GPU_ARCHES, HOST, Target
from cudal1_fx_passes.program.evaluate import TORCH_DTYPE


def of_each_kind() -> Iterator[tuple[int, Product]]:
    """The first case of each way through the header, of whatever stages, and of each arithmetic."""
    seen: set[str] = set()
    for at, case in enumerate(CASES):
        kinds = {re.sub(r"-\d+", "", case.name.partition(f"-{case.arithmetic}-")[0]), case.arithmetic}
        if not kinds <= seen:
            yield at, case
        seen |= kinds


@pytest.mark.usefixtures("built_quickly")
@pytest.mark.parametrize(("at", "case"), slow_but(of_each_kind(), enumerate(CASES)), ids=[c.name for c in CASES])
def test_the_host_target_equals_torch(at: int, case: Product) -> None:
    """Every third in the check build, which takes twice as long."""
    program = case.program()
    candidate = case.candidate(program)
    inputs = case.inputs()
    want = case.want(inputs)
    out = torch.full(want.shape, torch.nan, dtype=TORCH_DTYPE[case.dtype])
    image = build(program, candidate, HOST, check=at % 3 == 0).image
    buffers = {"in0": inputs[0], "in1": inputs[1], "out0": out}
    dims = {a.name: a.size for a in program.axes}
    for s in candidate.scratch:
        dtype = TORCH_DTYPE[s.dtype]
        buffers[s.name] = torch.full((s.size_bytes(dims) // dtype.itemsize,), torch.nan, dtype=dtype)
    found = run_isolated(program, candidate, image, buffers, HostLimits(seconds=60.0))
    assert found.ok, found
    assert (out.double() - want).abs().max() <= case.rtol * want.abs().max()


# sm_90a has a code path of its own; the others share one, so that a case is built for one of them, in turn
OWN = "sm_90a"
OTHERS = [arch for arch in GPU_ARCHES if arch != OWN]
BUILDS = [
    pytest.param(
        case,
        arch,
        id=f"{case.name}-{arch}",
        marks=[] if at % 2 == 0 and arch in (OWN, OTHERS[at // 2 % len(OTHERS)]) else [pytest.mark.slow],
    )
    for at, case in enumerate(CASES[::4])
    for arch in GPU_ARCHES
]


@pytest.mark.parametrize(("case", "arch"), BUILDS)
def test_nvrtc_builds_it_without_spills(case: Product, arch: str) -> None:
    program = case.program()
    target = Target("cuda", "test", arch, 132, 227 * 1024, 50 << 20)
    for resources in build(program, case.candidate(program), target).kernels.values():
        assert resources.local_bytes == 0 and resources.registers <= 255
