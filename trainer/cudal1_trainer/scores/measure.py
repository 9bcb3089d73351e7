"""One program on one GPU: its kernels checked and timed beside aten, under the device's lock.

    build_all(program, variants, target)             CPU only, no lock
    with lock: measure(program, built, device, ...)  the device to itself

Shared by the score run and the benchmarks. A kernel that breaks the CUDA context raises Fault, so that the pool
replaces this process; the mark tells which kernel it was.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from cudal1_compile.codegen.prior.traffic import bytes_moved
from cudal1_compile.errors import BuildError
from cudal1_compile.judge.timing.baseline import static_sizes
from cudal1_compile.kernel.candidate import Candidate
from cudal1_compile.runtime.build import Binary, build
from cudal1_compile.runtime.launcher import LoadedKernel, load
from cudal1_compile.runtime.target import Target
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.to_aten import to_aten
from cudal1_trainer.scores.gpu_time import Busy, Captured, Contender, capture, copies_needed, time_graphs
from cudal1_trainer.scores.quickcheck import Subject, Unusable, check, empty_outputs, empty_scratch, make_subject
from cudal1_trainer.scores.workers import Fault

log = logging.getLogger(__name__)

Mark = Callable[[str], None]
FALLBACK = ("offset", "coherent")  # distributions for programs that have no finite reference on the wanted ones
RESERVED_BYTES = 2**30  # cached by torch between programs before it is handed back
SLOW, SLOW_US = 10.0, 1000.0  # a contender so many times slower than the fastest and so long is called once only


@dataclass(frozen=True)
class Built:
    """A candidate under a name, and its binary or why it has none."""

    name: str
    candidate: Candidate
    binary: Binary | None
    failure: str | None = None


@dataclass(frozen=True)
class Measurement:
    """Microseconds a call of each contender that ran right; why the others have none."""

    busy: dict[str, Busy]
    failures: dict[str, str]


def build_all(
    program: Program, candidates: Mapping[str, Candidate], target: Target, mark: Mark, check: bool = False
) -> list[Built]:
    """check: with the legality checks and the cost of the host target, for isolated runs."""
    found = []
    for name, candidate in candidates.items():
        mark(f"build {name}")
        try:
            found.append(Built(name, candidate, build(program, candidate, target, check)))
        except BuildError as error:
            found.append(Built(name, candidate, None, f"build: {short(error)}"))
    return found


def measure(
    program: Program,
    built: Sequence[Built],
    device: torch.device,
    target: Target,
    mark: Mark,
    rounds: int = 9,
    distributions: Sequence[str] = ("normal",),
    others: Mapping[str, Callable[..., object]] | None = None,
    cold: bool = False,
) -> Measurement:
    """Checks every kernel, then times the right ones, aten and `others` (callables over the inputs) together.

    cold: every call finds the caches flushed, however little it reads.
    Raises quickcheck.Unusable where the program's reference is not finite, Fault where a kernel broke the context.
    """
    failures = {b.name: b.failure for b in built if b.failure is not None}
    kernels, inputs = _check_all(program, built, device, mark, distributions, failures)
    copies = copies_needed(bytes_moved(program), target.l2_bytes, torch.cuda.mem_get_info(device)[0])
    bench = Bench(program, [inputs, *([copy_storage(x) for x in inputs] for _ in range(copies - 1))], device)
    contenders = {name: bench.kernel_contender(candidate, kernel) for name, (candidate, kernel) in kernels.items()}
    aten = to_aten(static_sizes(program)).to(device)
    contenders |= {
        name: bench.callable_contender(run) for name, run in ({"aten": aten} | dict(others or {})).items()
    }
    graphs = _capture_all(contenders, copies, failures, mark, cold)
    mark("timing")
    busy = _hopeless(graphs)
    for name in busy:
        del graphs[name]
    flush = torch.empty(2 * target.l2_bytes, dtype=torch.int8, device=device) if cold else None
    busy |= time_graphs(graphs, rounds, flush)
    graphs.clear()
    for _, kernel in kernels.values():
        kernel.close()
    del contenders, bench, inputs
    if torch.cuda.memory_reserved(device) > RESERVED_BYTES:
        torch.cuda.empty_cache()
    return Measurement(busy, failures)


@dataclass(frozen=True)
class Bench:
    """Copies of a program's inputs and outputs. All contenders of one measurement write the same outputs."""

    program: Program
    inputs: list[list[Tensor]]
    device: torch.device

    @cached_property
    def outputs(self) -> list[list[Tensor]]:
        return [empty_outputs(self.program, self.device, poison=False)[0] for _ in self.inputs]

    def kernel_contender(self, candidate: Candidate, kernel: LoadedKernel) -> Contender:
        """Scratch is the same in every call, as in a planned graph."""
        scratch = empty_scratch(self.program, candidate, self.device)
        sizes = [a.size for a in self.program.axes if a.symbolic]
        outputs = self.outputs

        def run(n: int) -> None:
            kernel(*outputs[n], *scratch, *self.inputs[n], *sizes, torch.cuda.current_stream().cuda_stream)

        return run

    def callable_contender(self, call: Callable[..., object]) -> Contender:
        def run(n: int) -> None:
            with torch.no_grad():
                call(*self.inputs[n])

        return run


def copy_storage(x: Tensor) -> Tensor:
    """A copy with storage of its own, in the same strides, gaps included."""
    storage = x.untyped_storage().clone()  # type: ignore[no-untyped-call]
    empty = torch.empty(0, dtype=x.dtype, device=x.device)
    return empty.set_(storage, x.storage_offset(), x.shape, x.stride())


def run_once(program: Program, kernel: LoadedKernel) -> Callable[..., None]:
    """The call that `quickcheck.check` wants, on the current stream or, on the host, on none."""
    sizes = [a.size for a in program.axes if a.symbolic]

    def run(outputs: Sequence[Tensor], scratch: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        stream = torch.cuda.current_stream().cuda_stream if inputs and inputs[0].is_cuda else 0
        kernel(*outputs, *scratch, *inputs, *sizes, stream)

    return run


def _check_all(
    program: Program,
    built: Sequence[Built],
    device: torch.device,
    mark: Mark,
    distributions: Sequence[str],
    failures: dict[str, str],
) -> tuple[dict[str, tuple[Candidate, LoadedKernel]], list[Tensor]]:
    """Kernels that are right on every usable distribution, and the inputs of the first; adds to `failures`.

    Normal inputs give NaN where a running variance is an input; `offset` then serves. Raises Unusable for none.
    """
    kernels: dict[str, tuple[Candidate, LoadedKernel]] = {}
    subjects = 0
    inputs: list[Tensor] = []
    for distribution in (*distributions, *(d for d in FALLBACK if d not in distributions)):
        if distribution not in distributions and subjects:
            break
        mark(f"reference on {distribution}")
        try:
            subject = make_subject(program, device, distribution)
        except Unusable as error:
            unusable = error
            continue
        subjects += 1
        for item in built:
            if item.binary is None or item.name in failures:
                continue
            mark(item.name)
            reason = _check_one(subject, item, item.binary, kernels)
            if reason is not None:
                failures[item.name] = reason
                if not subject.checksum.intact:  # the next ones shall not be held against what this one left
                    subject = make_subject(program, device, distribution)
        inputs = inputs or subject.inputs
    if not subjects:
        raise unusable
    return kernels, inputs


def _check_one(
    subject: Subject, item: Built, binary: Binary, kernels: dict[str, tuple[Candidate, LoadedKernel]]
) -> str | None:
    """Loads where it is not loaded yet and checks; a wrong kernel is unloaded. Raises Fault."""
    stage = "launch"
    try:
        if item.name not in kernels:
            kernels[item.name] = (
                item.candidate,
                load(subject.program, item.candidate, binary, subject.device.index or 0),
            )
        wrong = check(subject, item.candidate, run_once(subject.program, kernels[item.name][1]))
        stage = "wrong"
    except RuntimeError as error:
        _raise_if_broken(error)
        wrong = short(error)
    if wrong is None:
        return None
    if item.name in kernels:
        kernels.pop(item.name)[1].close()
    return f"{stage}: {wrong}"


def _capture_all(
    contenders: Mapping[str, Contender], copies: int, failures: dict[str, str], mark: Mark, cold: bool
) -> dict[str, Captured]:
    graphs: dict[str, Captured] = {}
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    for name, contender in contenders.items():
        mark(name)
        try:
            graphs[name] = capture(contender, copies, stream, cold)
        except RuntimeError as error:
            _raise_if_broken(error)
            failures[name] = f"capture: {short(error)}"
    return graphs


def _hopeless(graphs: Mapping[str, Captured]) -> dict[str, Busy]:
    """Contenders far behind the fastest, by the captured call: their rounds would take all the time."""
    times = {name: g.once_us for name, g in graphs.items()}
    limit_us = max(SLOW_US, SLOW * min(times.values(), default=0.0))
    return {name: Busy(us, us, us) for name, us in times.items() if us > limit_us}


@contextmanager
def context_kept() -> Iterator[None]:
    """Fault for any error of a broken CUDA context, wherever it shows: its process would lose every later job."""
    try:
        yield
    except Fault:
        raise
    except Exception as error:
        _raise_if_broken(error)
        raise


def _raise_if_broken(error: Exception) -> None:
    if not torch.cuda.is_available():
        return
    try:
        torch.cuda.synchronize()
    except RuntimeError as broken:
        raise Fault(f"{short(error)}; the CUDA context is gone: {short(broken)}") from error


def short(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
