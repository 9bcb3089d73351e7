"""A launch plan with numbers: every expression of a candidate evaluated for given axis sizes.

The launcher, the isolated host run and the judge's audits all read their launches from here, so that the order of
a kernel's arguments and the limits of a grid are told once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cudal1_compile.errors import LaunchError
from cudal1_compile.kernel.candidate import MAX_BLOCK, MAX_GRID, Candidate, CandidateError, Launch
from cudal1_compile.runtime.preamble import symbolic_axes
from cudal1_fx_passes.program.ir import ITEM_BYTES, MAX_ELEMENTS, Input, Output, Program

Dim3 = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class PlannedLaunch:
    """One launch. The kernel's parameters are the pointers of `args`, then the symbolic sizes."""

    kernel: str
    grid: Dim3
    block: Dim3
    shared_bytes: int
    args: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    launches: tuple[PlannedLaunch, ...]
    zeroed: tuple[tuple[str, int], ...]  # scratch buffers to clear before the first launch, with their bytes


def axis_sizes(program: Program, sizes: Mapping[str, int] | None = None) -> dict[str, int]:
    """The size of every axis; `sizes` overrides those of symbolic axes."""
    found = {a.name: a.size for a in program.axes}
    for name, size in (sizes or {}).items():
        if name not in found or (size != found[name] and not program.axis[name].symbolic):
            raise LaunchError(f"size {size} given for {name}: only symbolic axes may change")
        found[name] = size
    return found


def plan(program: Program, candidate: Candidate, sizes: Mapping[str, int] | None = None) -> LaunchPlan:
    """Evaluates the launch plan. Raises LaunchError where there is none, or one is outside the limits."""
    dims = axis_sizes(program, sizes)
    tensors: tuple[Input | Output, ...] = (*program.outputs, *program.inputs)
    largest = max(span_elements(t, dims) for t in tensors)
    if largest > MAX_ELEMENTS:
        raise LaunchError(f"a tensor spans {largest} elements; a kernel counts in int, to {MAX_ELEMENTS}")
    try:
        scratch = [(s, s.size_bytes(dims)) for s in candidate.scratch]
        return LaunchPlan(
            launches=tuple(_planned(launch, dims) for launch in candidate.launches),
            zeroed=tuple((s.name, size) for s, size in scratch if s.zeroed),
        )
    except CandidateError as error:  # a division by zero at these sizes
        raise LaunchError(f"{error}, for sizes {dict(dims)}") from None


def buffer_names(program: Program, candidate: Candidate) -> list[str]:
    """Names of the tensors of a call, in its order: outputs, scratch, inputs."""
    outputs, scratch = [o.name for o in program.outputs], [s.name for s in candidate.scratch]
    return outputs + scratch + [i.name for i in program.inputs]


def symbolic_names(program: Program) -> list[str]:
    """Names of the integers of a call, in its order: symbolic axes."""
    return symbolic_axes(program)


def span_elements(tensor: Input | Output, dims: Mapping[str, int]) -> int:
    """How many elements lie between the first and the last one of a tensor, both included."""
    extents = [dims[a] for a in tensor.axes]
    if any(n == 0 for n in extents):
        return 0
    if tensor.strides is None:
        total = 1
        for n in extents:
            total *= n
        return total
    return 1 + sum((n - 1) * stride for n, stride in zip(extents, tensor.strides, strict=True))


def buffer_bytes(program: Program, candidate: Candidate, sizes: Mapping[str, int] | None = None) -> dict[str, int]:
    """Bytes from the first to the last element of every buffer of a call."""
    dims = axis_sizes(program, sizes)
    found = {o.name: span_elements(o, dims) * ITEM_BYTES[program.output_dtype(o)] for o in program.outputs}
    found |= {s.name: s.size_bytes(dims) for s in candidate.scratch}
    return found | {i.name: span_elements(i, dims) * ITEM_BYTES[i.dtype] for i in program.inputs}


def _planned(launch: Launch, dims: Mapping[str, int]) -> PlannedLaunch:
    grid = _dim3(launch.grid[0].evaluate(dims), launch.grid[1].evaluate(dims), launch.grid[2].evaluate(dims))
    block = _dim3(launch.block[0].evaluate(dims), launch.block[1].evaluate(dims), launch.block[2].evaluate(dims))
    shared = launch.shared.evaluate(dims)
    threads = block[0] * block[1] * block[2]
    if not all(1 <= g <= limit for g, limit in zip(grid, MAX_GRID, strict=True)):
        raise LaunchError(f"{launch.kernel}: grid {grid} for sizes {dict(dims)}; each must lie in 1..{MAX_GRID}")
    if min(block) < 1 or threads > MAX_BLOCK or shared < 0:
        raise LaunchError(f"{launch.kernel}: block {block}, shared memory {shared} for sizes {dict(dims)}")
    return PlannedLaunch(launch.kernel, grid, block, shared, launch.args)


def _dim3(x: int, y: int, z: int) -> Dim3:
    return x, y, z
