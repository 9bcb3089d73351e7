"""Kernels against aten and Inductor, program by program, in many worker processes on one GPU.

    for row in duel(jobs, config): ...    GPU-busy us of every contender that ran right, why others did not

A worker builds the candidates and compiles the program alone with Inductor (dynamic=False) while others do the
same; then it takes the device's lock, lets Inductor run (and tune itself) for the first time, checks every
candidate against the float64 oracle on several distributions, and times all contenders interleaved in CUDA graphs.

Without a GPU (`dry`) candidates run on the host target and the numbers are its declared costs: a proof that the
script works, never a result.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from cudal1_compile.judge.timing.baseline import static_sizes
from cudal1_compile.kernel.candidate import Candidate, CandidateError, parse_candidate
from cudal1_compile.runtime.host_cost import baseline_cost
from cudal1_compile.runtime.hostrun import run_isolated
from cudal1_compile.runtime.target import Target, detect_target
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.precision import products_in_tf32
from cudal1_fx_passes.program.text import parse_program
from cudal1_fx_passes.program.to_aten import to_aten
from cudal1_trainer.scores.gpu_time import Busy
from cudal1_trainer.scores.measure import Built, Mark, Measurement, build_all, context_kept, measure, short
from cudal1_trainer.scores.quickcheck import Unusable, compare, empty_outputs, empty_scratch, make_subject
from cudal1_trainer.scores.workers import Exclusive, Finished, Lost, run_jobs

LIMIT_S = 90.0  # silence after which a worker counts as hung; an Inductor compile says nothing meanwhile
MAX_LOSSES = 10  # of one program: each takes one candidate out


@dataclass(frozen=True, slots=True)
class Job:
    ident: str
    text: str  # of the program
    codes: tuple[tuple[str, str], ...]  # (name, code block)
    blamed: tuple[str, ...] = ()  # candidates that broke a worker
    losses: int = 0
    tf32: bool = False  # whether aten and Inductor may use TF32 in products


@dataclass(frozen=True, slots=True)
class Row:
    """One program. busy: of a contender median, lower and upper quartile; failures: its stage and reason."""

    ident: str
    busy: dict[str, tuple[float, float, float]]
    failures: dict[str, str]
    seconds: dict[str, float] = field(default_factory=dict)  # where the worker's time went

    def us(self, contender: str) -> float | None:
        return self.busy[contender][0] if contender in self.busy else None


@dataclass(frozen=True, slots=True)
class Config:
    """How to measure. workers: processes; distributions: inputs on which a kernel must be right."""

    workers: int
    rounds: int = 15
    distributions: tuple[str, ...] = ("normal", "offset", "coherent")
    inductor: bool = True
    dry: bool = False
    cold: bool = False  # L2 flushed before every call, small programs included
    arch: str = ""  # that is built for; the device's own by default


@dataclass(frozen=True, slots=True)
class Setup:
    config: Config
    lock: Path

    def __call__(self) -> Worker:
        torch.set_num_threads(1)
        device = torch.device("cpu") if self.config.dry else torch.device("cuda", 0)
        if not self.config.dry:
            import torch._inductor.config as inductor

            inductor.compile_threads = 1  # the workers are the parallelism
            torch.zeros(1, device=device)
        target = detect_target(device)
        target = replace(target, arch=self.config.arch or target.arch)
        return Worker(self.config, device, target, Exclusive(self.lock))


@dataclass(frozen=True)
class Worker:
    config: Config
    device: torch.device
    target: Target
    lock: Exclusive


def duel(jobs: Sequence[Job], config: Config, deadline: float = float("inf")) -> Iterator[Row]:
    """Rows as they come. A program that cannot be measured gives a row with an empty `busy`."""
    with tempfile.TemporaryDirectory(prefix="cudal1-duel-") as folder:
        setup = Setup(config, Path(folder) / "lock")
        for outcome in run_jobs(work, setup, iter(jobs), config.workers, LIMIT_S, deadline, _again):
            if isinstance(outcome, Finished):
                yield outcome.result
            elif _again(outcome) is None:
                yield Row(
                    outcome.job.ident, {}, {"program": f"lost at {outcome.mark}: {last_line(outcome.reason)}"}
                )


def duel_into(
    path: Path, jobs: Sequence[Job], config: Config, start: float, deadline: float, go_on: bool = False
) -> list[Row]:
    """Every row, each also written to `path` as it comes; `start` and `deadline` in monotonic seconds.

    go_on: jobs of whose ident `path` has a row are not measured again.
    """
    rows = _known_rows(path, {job.ident for job in jobs}) if go_on else []
    known = {row.ident for row in rows}
    with path.open("a" if go_on else "w") as stream:
        for row in duel([job for job in jobs if job.ident not in known], config, deadline):
            rows.append(row)
            stream.write(json.dumps(asdict(row)) + "\n")
            stream.flush()
            progress(len(rows), len(jobs), start)
    return rows


def _known_rows(path: Path, idents: Collection[str]) -> list[Row]:
    lines = path.read_text().splitlines() if path.is_file() else []
    return [row for row in (Row(**json.loads(line)) for line in lines) if row.ident in idents]


@context_kept()
def work(worker: Worker, job: Job, mark: Mark) -> Row:
    program = parse_program(job.text)
    failures = dict.fromkeys(job.blamed, "crash: broke its process or hung")
    candidates: dict[str, Candidate] = {}
    for name, code in job.codes:
        if name not in failures:
            try:
                candidates[name] = parse_candidate(code, program)
            except CandidateError as error:
                failures[name] = f"text: {short(error)}"
    watch = Stopwatch()
    built = build_all(program, candidates, worker.target, mark, check=worker.config.dry)
    watch.lap("build")
    try:
        with products_in_tf32() if job.tf32 else nullcontext():
            found = (
                _measure_host(program, built, mark)
                if worker.config.dry
                else _measure(worker, program, built, mark, watch)
            )
    except Unusable as error:
        return Row(job.ident, {}, failures | {"program": f"unusable: {error}"})
    busy = {name: (b.median_us, b.low_us, b.high_us) for name, b in found.busy.items()}
    watch.lap("device")
    return Row(job.ident, busy, failures | found.failures, watch.laps)


class Stopwatch:
    """Seconds between laps, by name."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.monotonic()

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.laps[name] = round(now - self._last, 3)
        self._last = now


def _measure(
    worker: Worker, program: Program, built: Sequence[Built], mark: Mark, watch: Stopwatch
) -> Measurement:
    others: dict[str, Callable[..., object]] = {}
    failures: dict[str, str] = {}
    if worker.config.inductor:
        mark("inductor compiles")
        try:
            others["inductor"] = compile_alone(program, worker.device)
        except (RuntimeError, torch._dynamo.exc.TorchDynamoException) as error:
            failures["inductor"] = f"compile: {short(error)}"
    watch.lap("inductor")
    mark("waits for the device")
    with worker.lock:
        watch.lap("wait")
        found = measure(
            program,
            built,
            worker.device,
            worker.target,
            mark,
            worker.config.rounds,
            worker.config.distributions,
            others,
            worker.config.cold,
        )
    torch._dynamo.reset()
    return Measurement(found.busy, failures | found.failures)


class _NotYet(Exception):
    """Raised where compiled code would run before its time."""


def compile_alone(program: Program, device: torch.device) -> Callable[..., object]:
    """The program compiled by Inductor (dynamic=False) but not run yet: tuning happens at the first call."""
    from torch._inductor.compile_fx import compile_fx

    gate = {"open": False}

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Tensor]) -> Callable[..., Any]:
        compiled: Any = compile_fx(gm, example_inputs)

        def run(*args: Any) -> Any:
            if not gate["open"]:
                raise _NotYet
            return compiled(*args)

        return run

    torch._dynamo.reset()
    module = to_aten(static_sizes(program)).to(device)
    compiled: Any = torch.compile(module, backend=backend, dynamic=False)
    try:
        with torch.no_grad():
            compiled(*_empty_inputs(program, device))
    except _NotYet:
        gate["open"] = True
        return cast(Callable[..., object], compiled)
    raise RuntimeError("Dynamo compiled nothing for this program")


def _empty_inputs(program: Program, device: torch.device) -> list[Tensor]:
    """Tensors of the inputs' layouts with undefined values: nothing runs on the device for them."""
    from cudal1_fx_passes.program.evaluate import TORCH_DTYPE

    found = []
    for item in program.inputs:
        sizes = [program.axis[a].size for a in item.axes]
        dtype = TORCH_DTYPE[item.dtype]
        if item.strides is None:
            found.append(torch.empty(sizes, dtype=dtype, device=device))
        else:
            found.append(torch.empty_strided(sizes, item.strides, dtype=dtype, device=device))
    return found


def _measure_host(program: Program, built: Sequence[Built], mark: Mark) -> Measurement:
    """The dry run: each candidate in a child process on the host target; declared costs in place of times."""
    subject = make_subject(program, torch.device("cpu"))
    cost = float(baseline_cost(program))
    busy = {"aten": Busy(cost, cost, cost), "inductor": Busy(cost, cost, cost)}
    failures = {b.name: b.failure for b in built if b.failure is not None}
    for item in built:
        if item.binary is None:
            continue
        mark(item.name)
        outputs, _ = empty_outputs(program, subject.device)
        scratch = empty_scratch(program, item.candidate, subject.device)
        buffers = dict(zip((o.name for o in program.outputs), outputs, strict=True))
        buffers |= dict(zip((s.name for s in item.candidate.scratch), scratch, strict=True))
        buffers |= dict(zip((i.name for i in program.inputs), subject.inputs, strict=True))
        ran = run_isolated(program, item.candidate, item.binary.image, buffers)
        wrong = compare(subject, outputs) if ran.ok else f"{ran.status}: {ran.message}"
        if wrong is not None:
            failures[item.name] = f"wrong: {wrong}"
        else:
            units = float(ran.cost or 1)
            busy[item.name] = Busy(units, units, units)
    return Measurement(busy, failures)


def _again(lost: Lost) -> Job | None:
    job: Job = lost.job
    if job.losses + 1 >= MAX_LOSSES:
        return None
    names = {name for name, _ in job.codes}
    blamed = (*job.blamed, lost.mark) if lost.mark in names else job.blamed
    return replace(job, blamed=blamed, losses=job.losses + 1)


def last_line(text: str) -> str:
    return text.strip().splitlines()[-1][:200]


def progress(done: int, total: int, start: float, every: int = 20) -> None:
    if done % every == 0 or done == total:
        print(f"{done} of {total} programs, {time.monotonic() - start:.0f} s", flush=True)
