"""Regions too large for copies: one case at a time, in the region's own memory and what a slice takes.

    rough_case(program, distribution, seed, device) -> a Case whose inputs are the only ones
    LeanTrial(program, candidate, runner).verify([case, ...]) -> Right | Wrong

The candidate reads the case's inputs themselves, which a checksum watches, and writes into outputs with canaries
around them. Inputs are drawn for a shorter outermost axis, of a prime size, and repeated along it: what reads at
a wrong place finds another number unless it is off by a multiple of that prime. References are computed part by
part (division.py). LEAN_BYTES beside the region's tensors are enough for all of it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from cudal1_compile.judge.checks.case_suite import distributions_of
from cudal1_compile.judge.checks.cases import Case
from cudal1_compile.judge.checks.checksum import Checksum, Digest
from cudal1_compile.judge.checks.division import Slices, cut_of, least_oracle_bytes
from cudal1_compile.judge.checks.guarded_memory import (
    FINITE_POISON,
    POISONS,
    BufferSpec,
    GuardedMemory,
    invalid_bools,
    output_specs,
    scratch_specs,
)
from cudal1_compile.judge.checks.trial import Right, Runner, Wrong
from cudal1_compile.judge.inputs.literal_targeted import by_distribution, foreign_numbers
from cudal1_compile.judge.inputs.make import make_inputs
from cudal1_compile.judge.inputs.names import LITERAL_TARGETED
from cudal1_compile.judge.inputs.sizes import tensor_bytes, tensor_elements
from cudal1_compile.judge.oracle.f32_accumulation import keeps_float32, widened
from cudal1_compile.judge.oracle.memory import oracle_bytes
from cudal1_compile.kernel.candidate import Candidate
from cudal1_fx_passes.program.evaluate import TORCH_DTYPE
from cudal1_fx_passes.program.ir import Input, Program

LEAN_ELEMENTS = 1 << 26  # of all inputs and outputs, beyond which nothing is copied
LEAN_BYTES = 2 << 30  # beside the tensors: drawn inputs, the reference of a slice
SLICE_BYTES = (
    3 << 28
)  # roughly: what an oracle takes is estimated; GPT-2's loss with its last product needs 594 MiB
LINE_BYTES = 5 << 28  # of one line that is a slice: a convolution's chunks take ten times as long
ROUGH_SLICES = 2  # times as large, where no oracle runs
SHOWN = 8  # slices of which a reference is made in each case, of SLICE_BYTES together for a timing where they may
KEPT_ELEMENTS = 1 << 24  # of outputs that no slice divides
DRAWN_ELEMENTS = 1 << 23  # of one input
PRIMES = (3, 7, 13, 31, 61, 127, 251, 509, 1021, 2039, 4093, 8191, 16381, 32749, 65521, 131071, 262139, 524287)
REPEATS = 2  # of the first case at most: each takes as long as all the others' launches


def is_lean(program: Program) -> bool:
    """Not where sizes vary, which a case suite tries."""
    return tensor_elements(program) > LEAN_ELEMENTS and not program.is_symbolic


def lean_bytes(program: Program, scratch_bytes: int = 0) -> int:
    """Of the device, that a trial or a timing of the region takes."""
    return tensor_bytes(program) + scratch_bytes + LEAN_BYTES


def why_no_parts(program: Program) -> str | None:
    """Why its reference cannot be computed within SLICE_BYTES; None where it can."""
    need = least_oracle_bytes(program, SLICE_BYTES)
    return None if need <= SLICE_BYTES else f"its reference takes {need >> 20} MiB at once, however it is cut"


def rough_case(program: Program, name: str, seed: int, device: torch.device) -> Case:
    """At the example's sizes, with the native reference of SHOWN slices, which it keeps."""
    case = _case(program, name, _image(program, device, _drawn(program, name, seed, device)), is_rough=True)
    if isinstance(case.cut, Slices):
        return replace(case, cut=_shown(program, case.cut, seed)).with_parts()
    is_small = sum(program.size(out.axes) for out in program.outputs) <= KEPT_ELEMENTS
    return case.with_parts() if case.cut is not None and is_small else case


def _shown(program: Program, cut: Slices, seed: int) -> Slices:
    """The first slice, the last one and secret others: few and thin ones, as far as they can be thin."""
    of_one = max(1, oracle_bytes(program, {}) // _size(program, cut.axis))
    step = max(1, min(cut.step, SLICE_BYTES // SHOWN // of_one))
    return _some(program, replace(cut, step=step), max(2, min(SHOWN, SLICE_BYTES // (step * of_one))), str(seed))


def _some(program: Program, cut: Slices, most: int, seed: str) -> Slices:
    """All slices where they are few, else the first, the last and secret ones."""
    count = -(-_size(program, cut.axis) // cut.step)
    if count <= most:
        return cut
    between = random.Random(seed).sample(range(1, count - 1), most - 2)
    return replace(cut, shown=sorted({0, *between, count - 1}))


def lean_cases(
    program: Program, candidate: Candidate, seed: int, device: torch.device, is_right_smaller: bool = False
) -> Iterable[Case]:
    """One after the other: what a candidate must pass. The one before may be given up by then.

    is_right_smaller: at smaller sizes, also where its own numbers lie; the oracle is asked for some slices then.
    """
    numbers = foreign_numbers(program, candidate.code) if program.inputs and not is_right_smaller else ()
    wide = widened(program) if keeps_float32(program, candidate) else None
    wanted: list[tuple[str, tuple[float, ...], int]] = [(name, (), 0) for name in distributions_of(program)]
    for name, found in by_distribution(numbers).items():
        # with the others at rest, and all at once where that leaves anything finite
        turns = (0, 1) if len(program.inputs) > 1 and name == LITERAL_TARGETED else (0,)
        wanted += [(name, found, turn) for turn in turns]
    for name, found, turn in wanted:
        image = _image(program, device, _drawn(program, name, seed, device, found, turn))
        case = _case(program, name, image, is_rough=False)
        if is_right_smaller and isinstance(case.cut, Slices):
            case = replace(case, cut=_some(program, case.cut, SHOWN, f"{seed} {name}"))
        del image
        yield case if wide is None else case.accumulated_in_f32(wide)
        del case


def _case(program: Program, name: str, image: GuardedMemory, is_rough: bool) -> Case:
    room = ROUGH_SLICES * SLICE_BYTES if is_rough else SLICE_BYTES
    cut = cut_of(program, {}, room, LINE_BYTES) if oracle_bytes(program, {}) > room else None
    case = Case(program, name, image, {}, None, cut, is_rough=is_rough)
    return case.whole() if cut is None else case


def _size(program: Program, axis: str) -> int:
    return program.axis[axis].size


def _drawn(
    program: Program, name: str, seed: int, device: torch.device, numbers: Sequence[float] = (), turn: int = 0
) -> list[Tensor]:
    """Inputs of fewer lines each: dims in memory order, the outermost shorter where that is long."""
    sizes: dict[str, int] = {}
    for item in program.inputs:
        if (short := _short(program, item)) is not None:
            sizes[item.axes[0]] = min(short, sizes.get(item.axes[0], short))
    return make_inputs(program, name, seed, device, sizes, numbers, turn)


def _short(program: Program, item: Input) -> int | None:
    """A prime size of the outermost axis; None for an input that is small."""
    elements = program.size(item.axes)
    if not item.axes or elements <= DRAWN_ELEMENTS or item.strides is not None:
        return None
    most = max(PRIMES[0], DRAWN_ELEMENTS * _size(program, item.axes[0]) // elements)
    return max((p for p in PRIMES if p <= most), default=PRIMES[0])


def _image(program: Program, device: torch.device, drawn: list[Tensor]) -> GuardedMemory:
    """The inputs at their full sizes."""
    specs = [_spec(program, item, i) for i, item in enumerate(program.inputs)]
    image = GuardedMemory(specs, device, guard_gaps=False)
    for view, short in zip(image.views, drawn, strict=True):
        if view.shape == short.shape:
            view.copy_(short)
            continue
        for d in range(1, view.dim()):  # axes that another input's outermost one made shorter
            if short.shape[d] < view.shape[d]:
                count = -(-view.shape[d] // short.shape[d])
                short = torch.cat([short] * count, d).narrow(d, 0, view.shape[d])
        for start in range(0, view.shape[0], short.shape[0]):
            part = view[start : start + short.shape[0]]
            part.copy_(short[: part.shape[0]])
    return image


def _spec(program: Program, item: Input, place: int) -> BufferSpec:
    shape = tuple(_size(program, a) for a in item.axes)
    return BufferSpec(f"in{place}", TORCH_DTYPE[item.dtype], shape, item.strides)


class LeanCall:
    """One launch into new outputs and scratch, with canaries around them and poison in them."""

    def __init__(self, program: Program, candidate: Candidate, runner: Runner, case: Case) -> None:
        self._specs = [*output_specs(program, {}), *scratch_specs(program, candidate, {})]
        self._outputs = len(program.outputs)
        self.device = case.image.device
        self._runner = runner
        self._case: Case | None = case
        self._memory: GuardedMemory | None = None

    def prepare(self, poison: int = POISONS[0]) -> None:
        self._memory = None  # before there is another
        self._memory = GuardedMemory(self._specs, self.device, guard_gaps=False)
        self._memory.poison(poison)

    def prepare_again(self, case: Case) -> None:
        """For other inputs in the same memory. What scratch holds stays: a flag or a counter in it goes on."""
        assert self._memory is not None
        self._case = case
        self._memory.poison(FINITE_POISON, self._outputs)

    def launch(self) -> None:
        views = self._views
        outputs, scratch = views[: self._outputs], views[self._outputs :]
        assert self._case is not None
        self._runner.launch(outputs, scratch, self._case.inputs, {})

    def outcome(self, digest: Digest) -> list[int] | None:
        """Once it is done: the same for the same results; None of outputs with gaps."""
        outputs = self._views[: self._outputs]
        return digest.of(outputs) if all(x.is_contiguous() for x in outputs) else None

    def damage(self) -> str | None:
        """Once it is done: what it wrote that nothing may."""
        outputs = self._views[: self._outputs]
        assert self._memory is not None and self._case is not None
        if not bool(torch.stack([self._memory.damaged(), *invalid_bools(outputs)]).any()):
            return None
        return f"the kernel writes outside its buffers, or a byte that is no bool (inputs: {self._case.name})"

    def refusal(self) -> str | None:
        """Once it is done: what is wrong with what it left."""
        assert self._case is not None
        return self.damage() or self._case.check(self._views[: self._outputs]).refusal

    def forget_case(self) -> None:
        """Its inputs are given up, the memory stays."""
        self._case = None

    def release(self) -> None:
        self._memory = None

    @property
    def _views(self) -> list[Tensor]:
        assert self._memory is not None, "it is prepared before it is launched"
        return self._memory.views


class LeanTrial:
    """As Trial, over cases that come one after the other."""

    def __init__(self, program: Program, candidate: Candidate, runner: Runner) -> None:
        self._program, self._candidate, self._runner = program, candidate, runner

    def verify(self, cases: Iterable[Case], repeats: int) -> Right | Wrong:
        """Runs every case, the first one again. Raises TrialStopped."""
        errors: dict[str, float] = {}
        call: LeanCall | None = None
        for case in cases:
            watched = Checksum([case.image.bytes])
            if call is None:
                call = LeanCall(self._program, self._candidate, self._runner, case)
                reason = self._run_repeatedly(call, min(repeats, REPEATS))
            else:
                call.prepare_again(case)
                reason = self._run(call)
            if reason is not None:
                return Wrong(reason)
            if not watched.intact:
                return Wrong(f"the kernel writes into an input, or next to one (inputs: {case.name})")
            errors[case.name] = 0.0
            call.forget_case()
            del case, watched  # before there is another
        return Right(tuple(errors.items()))

    def _run_repeatedly(self, call: LeanCall, repeats: int) -> str | None:
        """What comes out again as it was is right again: a reference takes many times as long as a launch."""
        call.prepare(POISONS[0])
        reason = self._run(call)
        if reason is not None or not repeats:
            return reason
        digest = Digest(call.device)
        known = call.outcome(digest)
        for turn in range(1, 1 + repeats):
            call.prepare(POISONS[turn % len(POISONS)])
            self._launch(call)
            same = known is not None and call.damage() is None and call.outcome(digest) == known
            if not same and (reason := call.refusal()) is not None:
                return reason
        return None

    def _launch(self, call: LeanCall) -> None:
        if call.device.type == "cuda":  # a reference that is still computed is not the candidate's time
            torch.cuda.synchronize(call.device)
        call.launch()
        self._runner.wait()

    def _run(self, call: LeanCall) -> str | None:
        self._launch(call)
        return call.refusal()
