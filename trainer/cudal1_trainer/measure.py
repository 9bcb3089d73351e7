"""One program on one GPU: its kernels checked and timed beside aten, under the device's lock.

    build_all(program, variants, target)             CPU only, no lock
    with lock: measure(program, built, device, ...)  the device to itself

Shared by the score run and the benchmarks. A kernel that breaks the CUDA context raises Fault, so that the pool
replaces this process; the mark tells which kernel it was.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cudal1_compile.candidate import Candidate
from cudal1_compile.errors import BuildError, LaunchError
from cudal1_compile.judge.baseline import static_sizes
from cudal1_compile.runtime.build import Binary, build
from cudal1_compile.runtime.launcher import LoadedKernel, load
from cudal1_compile.runtime.target import Target
from cudal1_fx_passes.program import Program
from cudal1_fx_passes.to_aten import to_aten
from cudal1_trainer.gpu_time import Arm, Busy, Captured, capture, copies_needed, time_graphs
from cudal1_trainer.quickcheck import (
    Subject,
    bytes_moved,
    check,
    empty_outputs,
    empty_scratch,
    make_subject,
)
from cudal1_trainer.workers import Fault

log = logging.getLogger(__name__)

Mark = Callable[[str], None]
RESERVED_BYTES = 2**30  # cached by torch between programs before it is handed back


@dataclass(frozen=True)
class Built:
    """A candidate under a name, and its binary or why it has none."""

    name: str
    candidate: Candidate
    binary: Binary | None
    failure: str | None = None


@dataclass(frozen=True)
class Measurement:
    """Microseconds a call of each arm that ran right; why the others have none."""

    busy: dict[str, Busy]
    failures: dict[str, str]


def build_all(program: Program, candidates: Mapping[str, Candidate], target: Target, mark: Mark) -> list[Built]:
    found = []
    for name, candidate in candidates.items():
        mark(f"build {name}")
        try:
            found.append(Built(name, candidate, build(program, candidate, target)))
        except BuildError as error:
            found.append(Built(name, candidate, None, f"build: {_short(error)}"))
    return found


def measure(
    program: Program,
    built: Sequence[Built],
    device: torch.device,
    target: Target,
    mark: Mark,
    rounds: int = 9,
    others: Mapping[str, Callable[..., object]] | None = None,
) -> Measurement:
    """Checks every kernel, then times the right ones, aten and `others` (callables over the inputs) together."""
    mark("reference")
    subject = make_subject(program, device)
    failures = {b.name: b.failure for b in built if b.failure is not None}
    kernels: dict[str, tuple[Candidate, LoadedKernel]] = {}
    for item in built:
        if item.binary is None:
            continue
        mark(item.name)
        wrong = _try_kernel(subject, item.candidate, item.binary, device)
        if isinstance(wrong, str):
            failures[item.name] = wrong
        else:
            kernels[item.name] = (item.candidate, wrong)
    copies = copies_needed(bytes_moved(program), target.l2_bytes, torch.cuda.mem_get_info(device)[0])
    inputs = [subject.inputs, *([copy_storage(x) for x in subject.inputs] for _ in range(copies - 1))]
    del subject
    aten = to_aten(static_sizes(program)).to(device)
    callables: dict[str, Callable[..., object]] = {"aten": aten} | dict(others or {})
    graphs, lost = _capture_all(program, kernels, callables, inputs, device, mark)
    mark("timing")
    busy = time_graphs(graphs, rounds)
    graphs.clear()
    for _, kernel in kernels.values():
        kernel.close()
    if torch.cuda.memory_reserved(device) > RESERVED_BYTES:
        del inputs
        torch.cuda.empty_cache()
    return Measurement(busy, failures | lost)


def kernel_arm(
    program: Program,
    candidate: Candidate,
    kernel: LoadedKernel,
    inputs: Sequence[list[Tensor]],
    device: torch.device,
) -> Arm:
    """Calls a loaded kernel on copy n of inputs and outputs; scratch is shared, as in a planned graph."""
    outputs = [empty_outputs(program, device, poison=False)[0] for _ in inputs]
    scratch = empty_scratch(program, candidate, device)
    sizes = [a.size for a in program.axes if a.symbolic]

    def run(n: int) -> None:
        kernel(*outputs[n], *scratch, *inputs[n], *sizes, torch.cuda.current_stream().cuda_stream)

    return run


def copy_storage(x: Tensor) -> Tensor:
    """A copy with storage of its own, in the same strides, gaps included."""
    storage = x.untyped_storage().clone()  # type: ignore[no-untyped-call]
    empty = torch.empty(0, dtype=x.dtype, device=x.device)
    return empty.set_(storage, x.storage_offset(), x.shape, x.stride())


def run_once(program: Program, kernel: LoadedKernel) -> Callable[..., None]:
    """The call that `quickcheck.check` wants."""
    sizes = [a.size for a in program.axes if a.symbolic]

    def run(outputs: Sequence[Tensor], scratch: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        kernel(*outputs, *scratch, *inputs, *sizes, torch.cuda.current_stream().cuda_stream)

    return run


def _try_kernel(
    subject: Subject, candidate: Candidate, binary: Binary, device: torch.device
) -> str | LoadedKernel:
    """A kernel that gave the right result, or why it did not. Raises Fault where the context is gone."""
    kernel: LoadedKernel | None = None
    try:
        kernel = load(subject.program, candidate, binary, device.index or 0)
        wrong = check(subject, candidate, run_once(subject.program, kernel))
    except (LaunchError, RuntimeError) as error:
        _raise_if_broken(error)
        wrong = f"launch: {_short(error)}"
    if wrong is None and kernel is not None:
        return kernel
    if kernel is not None:
        kernel.close()
    return wrong if wrong is not None and wrong.startswith("launch") else f"wrong: {wrong}"


def _capture_all(
    program: Program,
    kernels: Mapping[str, tuple[Candidate, LoadedKernel]],
    callables: Mapping[str, Callable[..., object]],
    inputs: Sequence[list[Tensor]],
    device: torch.device,
    mark: Mark,
) -> tuple[dict[str, Captured], dict[str, str]]:
    arms: dict[str, Arm] = {
        name: kernel_arm(program, candidate, kernel, inputs, device)
        for name, (candidate, kernel) in kernels.items()
    }
    arms |= {name: _callable_arm(run, inputs) for name, run in callables.items()}
    graphs, lost = {}, {}
    for name, arm in arms.items():
        mark(name)
        try:
            graphs[name] = capture(arm, len(inputs))
        except RuntimeError as error:
            _raise_if_broken(error)
            lost[name] = f"capture: {_short(error)}"
    return graphs, lost


def _callable_arm(run: Callable[..., object], inputs: Sequence[list[Tensor]]) -> Arm:
    def arm(n: int) -> None:
        with torch.no_grad():
            run(*inputs[n])

    return arm


def _raise_if_broken(error: Exception) -> None:
    try:
        torch.cuda.synchronize()
    except RuntimeError as broken:
        raise Fault(f"{_short(error)}; the CUDA context is gone: {_short(broken)}") from error


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
