"""Gates 4 and 5 for one candidate on one device: is it right, and does it touch only what is its own?

Two sets of buffers take turns within guarded memory, so that the same pointers hold new content (every other
case), other pointers hold the next one, and two results are alive when either is compared. The first case runs
twice, into memory with two different poisons. The second set lies no better aligned than a caller's tensors must
be. In one run each kind lies in reverse and each buffer is aligned otherwise, in the last ones inputs and outputs
lie side by side, either first: no answer may go by addresses. Later runs
find, in turns, poison and what the run before the last left behind: work skipped because memory looks untouched,
or looks finished, is caught either way.

How a candidate is launched and waited for is the Runner's business: a loaded kernel here, anything in tests.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol

import torch
from torch import Tensor

from cudal1_compile.judge.checks.case_suite import CaseSuite
from cudal1_compile.judge.checks.cases import Case, check_together
from cudal1_compile.judge.checks.guarded_memory import (
    ALIGNMENT,
    FINITE_POISON,
    POISONS,
    guarded_bytes,
    invalid_bools,
    neighbours,
    output_specs,
    scratch_specs,
)
from cudal1_compile.judge.checks.redzones import Take, lone_memory
from cudal1_compile.judge.inputs.make import as_one
from cudal1_compile.judge.inputs.names import TIED_VALUES
from cudal1_compile.kernel.candidate import Candidate
from cudal1_compile.runtime.launch_table import ALIGNMENT as SKEW
from cudal1_fx_passes.program.ir import Program

PLACES = 256  # at which a set of buffers may begin
PAGE = 4096 // ALIGNMENT  # places
MOVES = (7, 11)  # runs of a trial
MOVED_BYTES = 1 << 20  # of a set that is moved during a trial, since chance alone may not meet an odd page


class TrialStopped(Exception):
    """The candidate hung or faulted; the device context is no longer usable."""


def wants_memory(error: Exception) -> bool:
    """Whether a device's error says that it is full, however torch or the driver spells it."""
    return "out of memory" in str(error).lower().replace("_", " ")


class Runner(Protocol):
    """Launches a candidate without waiting; `wait` returns when all is done or raises TrialStopped."""

    def launch(
        self,
        outputs: Sequence[Tensor],
        scratch: Sequence[Tensor],
        inputs: Sequence[Tensor],
        sizes: Mapping[str, int],
    ) -> None: ...

    def wait(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Right:
    """Worst share of the error budget by distribution."""

    errors: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Wrong:
    reason: str


SetLayout = Literal["aligned", "skewed", "ragged", "inputs first", "outputs first"]


class BufferSet:
    """Inputs, outputs and scratch of one call, each kind with guards of its own or both side by side."""

    def __init__(
        self,
        program: Program,
        candidate: Candidate,
        case: Case,
        take: Callable[[int], Tensor],
        layout: SetLayout,
        last_place: int | None,
    ) -> None:
        """last_place: of the set that lay in the same memory, if this one is to lie on other pages."""
        outputs = output_specs(program, case.sizes)
        given, written = case.image.specs, [*outputs, *scratch_specs(program, candidate, case.sizes)]
        self.layout = layout
        touching, ragged = layout in ("inputs first", "outputs first"), layout == "ragged"
        # anywhere, so that no answer may go by addresses; side by side at the start of a huge page
        skew = SKEW if layout == "skewed" else 0
        self.place = random.randrange(PLACES)
        if last_place is not None:
            self.place = (last_place + PAGE * random.randrange(1, 16, 2)) % PLACES
        start = 0 if touching else ALIGNMENT * self.place + skew
        memory = take(start + guarded_bytes(given, ragged) + guarded_bytes(written, ragged))[start:]
        if layout == "outputs first":
            self.written, self.inputs = neighbours(written, given, memory, (True, False), touching)
        else:
            self.inputs, self.written = neighbours(given, written, memory, (False, True), touching, ragged)
        self.outputs = self.written.views[: len(outputs)]
        self.scratch = self.written.views[len(outputs) :]

    @property
    def size_bytes(self) -> int:
        return self.inputs.size_bytes + self.written.size_bytes

    def fits(self, case: Case, layout: SetLayout) -> bool:
        """Whether a case has the shapes that these buffers were made for."""
        return self.layout == layout and self.inputs.specs == case.image.specs


class Trial:
    """The buffers of one candidate, and the verification that runs over them."""

    def __init__(
        self,
        suite: CaseSuite,
        candidate: Candidate,
        runner: Runner,
        device: torch.device,
        held_elements: int = 0,
        take: Take | None = None,
    ) -> None:
        """held_elements: of results that are kept and compared together; 0: each is compared at once.

        take: gives memory, as Redzones do.
        """
        self.suite = suite
        self.candidate = candidate
        self.runner = runner
        self.device = device
        self._take = take or lone_memory(device)
        self._held_elements = held_elements
        self._sets: list[BufferSet | None] = [None, None]

    def verify(self, repeats: int = 1) -> Right | Wrong:
        """Runs every case; `repeats` further runs of the first one look for races. Raises TrialStopped."""
        first, *others = self.suite.cases
        errors: dict[str, float] = {}
        seen: list[Seen] = []
        pending: tuple[Case, BufferSet] | None = None
        cases = [first] * (1 + repeats) + others
        for turn, case in enumerate(cases):
            buffers = self._launch(case, turn, _layout(turn, len(cases)))
            # queued behind a launch that had the chance to spoil it: one wait serves both
            last = observe(*pending, self._held_elements) if pending is not None else None
            self.runner.wait()
            if last is not None:
                seen.append(last)
                if reason := last.damage() or self._compare(seen, errors):
                    return Wrong(reason)
            pending = (case, buffers)
        assert pending is not None
        last = observe(*pending, self._held_elements)
        reason = last.damage() or compare([*seen, last], errors)
        return Wrong(reason) if reason else Right(tuple(errors.items()))

    def _compare(self, seen: list[Seen], errors: dict[str, float]) -> str | None:
        """Compares and forgets what was seen, unless it may wait for others.

        Not the first result, nor one of other sizes: a kernel that is wrong there is not launched on and on,
        out of its bounds perhaps. Nor one of a large case, whose memory is needed.
        """
        case = seen[-1].case
        waits = errors and not case.sizes and case.expected is not None
        if waits and sum(s.elements for s in seen) < self._held_elements:
            return None
        reason = compare(seen, errors)
        seen.clear()
        return reason

    def timing_cases(self) -> list[Case]:
        """Up to two cases of the example's sizes; the calls of a timed graph take turns with them."""
        return [c for c in self.suite.cases if not c.sizes][:2]

    def timing_sets(self) -> list[BufferSet]:
        """Buffers loaded with the timing cases, aligned as those of the baselines."""
        self._sets[1] = None
        found = []
        for turn, case in enumerate(self.timing_cases()):
            buffers = self._buffers(case, turn, "aligned")
            buffers.inputs.copy_image(case.image)
            found.append(buffers)
        return found

    def _launch(self, case: Case, turn: int, layout: SetLayout) -> BufferSet:
        # of one set what it holds stays: a counter in it goes on
        buffers = self._buffers(case, turn % 2, layout, moves=turn in MOVES)
        buffers.inputs.copy_image(case.image)
        if turn < 2:
            buffers.written.poison(POISONS[turn % 2])
        elif (turn // 2) % 2 == 0:  # what scratch holds stays: a flag or a counter in it goes on
            buffers.written.poison(FINITE_POISON, len(buffers.outputs))
        if turn == 1:  # what no kernel can know, so that it cannot look out for poison
            for scratch in buffers.scratch:
                scratch.view(torch.uint8).random_(0, 256)
        views = buffers.inputs.views
        given = as_one(self.suite.program, views, case.sizes) if case.name == TIED_VALUES else views
        self.runner.launch(buffers.outputs, buffers.scratch, given, case.sizes)
        return buffers

    def take(self, segment: Hashable, size: int) -> Tensor:
        """Memory for calls of this candidate; what the segment held before is given up."""
        return self._take((self, segment), size)

    def _buffers(self, case: Case, turn: int, layout: SetLayout, moves: bool = False) -> BufferSet:
        """moves: small ones to other pages."""
        last = self._sets[turn]
        moves = moves and last is not None and last.size_bytes <= MOVED_BYTES
        if last is not None and last.fits(case, layout) and not moves:
            return last
        place = last.place if last is not None and moves else None
        self._sets[turn] = last = None  # its memory serves the next one
        take = partial(self.take, turn)
        found = BufferSet(self.suite.program, self.candidate, case, take, layout, place)
        found.written.poison(FINITE_POISON, len(found.outputs))  # a NaN may be what must be written
        self._sets[turn] = found
        return found


def _layout(turn: int, turns: int) -> SetLayout:
    """The last runs but never the first two are special."""
    if turn >= max(2, turns - 3):
        special: tuple[SetLayout, ...] = ("outputs first", "inputs first", "ragged")
        return special[turns - 1 - turn]
    return "skewed" if turn % 2 else "aligned"


@dataclass(frozen=True, slots=True)
class Seen:
    """What a launch left behind."""

    case: Case
    flags: Tensor  # of damage, in the order of _DAMAGE, the last kind once a bool output; read by `landed`
    outputs: Sequence[Tensor]

    @property
    def elements(self) -> int:
        return sum(x.numel() for x in self.outputs)

    def damage(self) -> str | None:
        """Read after every launch: a candidate that writes where it may not is not launched again."""
        found = [i for i, changed in enumerate(landed(self.flags, self.outputs[0].device)) if changed]
        return f"{_DAMAGE[min(found[0], 2)]} (inputs: {self.case.name})" if found else None


_DAMAGE = (
    "the kernel writes outside its buffers",
    "the kernel writes into an input, or next to one",
    "a bool output holds a byte that is neither 0 nor 1",
)


def observe(case: Case, buffers: BufferSet, held_elements: int) -> Seen:
    """Results of less than so many elements are copied: the memory may serve a launch before they are compared."""
    damage = buffers.written.damaged(), buffers.inputs.differs_from_image(case.image)
    flags = on_its_way(torch.stack([*damage, *invalid_bools(buffers.outputs)]))
    held = sum(x.numel() for x in buffers.outputs) < held_elements and case.expected is not None
    return Seen(case, flags, [x.clone() for x in buffers.outputs] if held else buffers.outputs)


def on_its_way(x: Tensor) -> Tensor:
    """Copied to the host behind what is queued, so that whoever waits for that has it: a wait less a launch.

    Where several processes share a device, each wait may last until the others let go of it.
    """
    if not x.is_cuda:
        return x
    return torch.empty(x.shape, dtype=x.dtype, pin_memory=True).copy_(x, non_blocking=True)


def landed(x: Tensor, device: torch.device) -> list[bool]:
    """What `on_its_way` has copied from a device; costs nothing where its stream has been waited for."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    return [bool(flag) for flag in x.tolist()]


def compare(seen: Sequence[Seen], errors: dict[str, float]) -> str | None:
    """Why the first wrong one of these results refuses the candidate; notes the errors of the others."""
    for one, found in zip(seen, check_together([(s.case, s.outputs) for s in seen]), strict=True):
        errors[one.case.name] = max(found.worst, errors.get(one.case.name, 0.0))
        if found.refusal:
            return found.refusal
    return None
