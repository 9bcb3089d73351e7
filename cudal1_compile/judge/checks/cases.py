"""One case: inputs of one distribution and what the outputs must be; large cases compute that part by part.

    check_together([(case, outputs), ...]) -> one CaseResult each

A small case keeps its expectation. A large one would need many times its outputs in float64, so it is cut
along an axis that nothing reduces, reads shifted or gathers, and each slice is compared on its own; every
element is still compared. Slices that are not shown are held against the native reference first, within what the
oracle allowed in those that are, and against the oracle where they are not near it. Where no such axis exists it
goes by a plan of chunks (oracle/chunk_plan.py), and where there is none either it stays whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cudal1_compile.judge.checks.division import Slices, cut_of
from cudal1_compile.judge.checks.guarded_memory import GuardedMemory, input_specs
from cudal1_compile.judge.inputs.lines import base_of
from cudal1_compile.judge.inputs.names import LITERAL_LARGE, LITERAL_TARGETED, SPARSE_SPIKE, TIED_VALUES
from cudal1_compile.judge.oracle.chunk_passes import ChunkPlan
from cudal1_compile.judge.oracle.chunks import Part, chunked, chunked_roughly
from cudal1_compile.judge.oracle.compare import (
    Expected,
    Measured,
    expect,
    expect_roughly,
    free_where_beyond,
    measure,
    measure_all,
    measured,
    read,
    refusal,
    stack_expected,
    usual_share,
)
from cudal1_compile.judge.oracle.f32_accumulation import expect_f32_accumulation, in_float32
from cudal1_compile.judge.oracle.memory import oracle_bytes
from cudal1_compile.judge.sandbox.device_lock import give_way
from cudal1_fx_passes.program.ir import Program

CALL = "a call"  # the inputs of a user's call, which may be anything
# distributions with many equal terms in a sum, whose roundings do not average out (error_budget.growth)
COHERENT = frozenset(
    {
        "uniform_rows",
        "near_rows",
        "blocks",
        "heavy",
        "edges",
        "integers",
        "nonfinite",
        "mixed",
        LITERAL_TARGETED,
        LITERAL_LARGE,
        CALL,
        TIED_VALUES,
        SPARSE_SPIKE,
    }
)
INTEGRAL = "integers"
ROUNDS_OTHERWISE = "round what each operation in a half type gives, as eager mode does, or nothing before a store"
HIDDEN_SLICES = 2  # of a case at once, where no oracle runs
NEAR = 3.0  # numbers stored in half types take up to twice the root mean square of what they may
ROUGHLY_WRONG = 0.01  # share of the elements that may be off where the native reference alone is at hand


def is_coherent(distribution: str) -> bool:
    return base_of(distribution) in COHERENT


@dataclass(frozen=True, slots=True)
class CaseResult:
    """Worst share of the budget over the outputs, or why the case refuses."""

    worst: float
    refusal: str | None


@dataclass(frozen=True, slots=True)
class Case:
    """`expected` is None for a large case, which computes it part by part as `cut` says, or keeps those parts.

    `wide`: the program as kernels compute it that keep float32 within half types, where it is one of those cases.
    """

    program: Program
    name: str
    image: GuardedMemory  # the inputs, packed and untouched
    sizes: Mapping[str, int]
    expected: list[Expected] | None
    cut: Slices | ChunkPlan | None = None
    wide: Program | None = None
    kept: tuple[Part, ...] = ()  # of a large case, where they may be
    readings: tuple[list[Expected], ...] = ()  # of a small case; float outputs must be right by one of them too
    is_rough: bool = False  # held against the native reference, roughly (rough.py)

    def accumulated_in_f32(self, wide: Program, expected: list[Expected] | None = None) -> Case:
        """The same case for kernels that keep float32. expected: where it is known already."""
        case = replace(self, wide=wide, kept=())
        if self.expected is None:
            return case
        return replace(case, expected=expected or case._expect(self.inputs, self.sizes))

    def with_inputs(self, name: str, inputs: Sequence[Tensor]) -> Case:
        """A case of the same shapes."""
        image = GuardedMemory(self.image.specs, self.image.device, guard_gaps=False)
        image.load(inputs)
        case = replace(self, name=name, image=image, kept=(), readings=())
        return case if self.expected is None else replace(case, expected=case._expect(case.inputs, self.sizes))

    def read_as(self, wide: Program, held: Mapping[str, str]) -> list[Expected]:
        """The expectation of a small case where the results of the operations held are rounded, and no others."""
        coherent, integral = is_coherent(self.name), self.name == INTEGRAL
        return expect_f32_accumulation(self.program, wide, self.inputs, self.sizes, coherent, integral, held)

    def whole(self) -> Case:
        """The same with its expectation."""
        return replace(self, expected=self._expect(self.inputs, self.sizes))

    def _expect(self, inputs: Sequence[Tensor], sizes: Mapping[str, int]) -> list[Expected]:
        if self.is_rough:
            return expect_roughly(self.program, inputs, sizes)
        coherent, integral = is_coherent(self.name), self.name == INTEGRAL
        if self.wide is None:
            found = expect(self.program, inputs, sizes, coherent, integral)
        else:
            found = expect_f32_accumulation(self.program, self.wide, inputs, sizes, coherent, integral)
        return [self._forgiving(e) for e in found]

    def _forgiving(self, expected: Expected) -> Expected:
        """A number that a kernel names may be too large for its region: -3.4e38, from which a maximum begins."""
        return free_where_beyond(expected) if self.name == LITERAL_LARGE else expected

    @property
    def inputs(self) -> list[Tensor]:
        """In the program's order, dims in memory order; not to be written."""
        return self.image.views

    def verdict(self, figures: Sequence[Sequence[float]], outputs: Sequence[Tensor]) -> CaseResult:
        """From figures, a row an output; looks for the first wrong element only where something is wrong."""
        if self.expected is None:
            return self._large_verdict(outputs)
        worst = 0.0
        for row, want, got in zip(figures, self.expected, outputs, strict=True):
            found = measured(row, want)
            reason = self._refusal(found, got, want)
            if reason:
                return CaseResult(found.worst, f"{reason} (inputs: {self.name})")
            worst = max(worst, found.worst)
        return CaseResult(worst, self._refused_by_all(outputs) if self.readings else None)

    def _refusal(self, found: Measured, got: Tensor, want: Expected) -> str | None:
        if self.is_rough and found.wrong <= ROUGHLY_WRONG * found.count:
            return None
        return refusal(found, got, want, is_coherent(self.name))

    def _refused_by_all(self, outputs: Sequence[Tensor]) -> str | None:
        for i, got in enumerate(outputs):
            wanted = [reading[i] for reading in self.readings]
            if wanted[0].discrete:
                continue
            figures = torch.stack([measure(got, want) for want in wanted]).tolist()
            found = [(measured(f, want), got, want) for f, want in zip(figures, wanted, strict=True)]
            # the likeliest at last; to say why one is not met takes several operations
            if all(refusal(*one) for one in reversed(found)):
                return f"{ROUNDS_OTHERWISE}: {refusal(*found[0])} (inputs: {self.name})"
        return None

    def check(self, outputs: Sequence[Tensor]) -> CaseResult:
        return next(check_together([(self, outputs)]))

    def held(self) -> Iterator[Expected]:
        """All that is kept of what outputs are held against."""
        for several in (self.expected or (), *self.readings):
            yield from several
        yield from (part.expected for part in self.kept)

    @property
    def expected_bytes(self) -> int:
        return sum(e.size_bytes for e in self.held())

    def _large_verdict(self, outputs: Sequence[Tensor]) -> CaseResult:
        totals: dict[int, Measured] = {}
        limits: dict[int, float] = {}
        for part in self._parts_in_doubt(outputs):
            got, want = part.of(outputs[part.output]), part.expected
            found = read(measure(got, want), want)
            totals[part.output] = _merge(totals.get(part.output), found)
            limits[part.output] = want.rms_limit
            # rms and exemptions are limits over whole outputs, so a part alone only finds wrong elements
            if found.wrong and (reason := self._refusal(found, got, want)):
                starts = ", ".join(str(lo) for lo, _ in part.ranges)
                return CaseResult(found.worst, f"{reason} (inputs: {self.name}, the part from {starts})")
        for place, total in () if self.is_rough else totals.items():
            name = self.program.outputs[place].name
            whole = Expected(name, outputs[place].new_empty(0), None, None, 0.0, limits[place])
            if reason := refusal(total, outputs[place], whole, is_coherent(self.name)):
                return CaseResult(total.worst, f"{reason} (inputs: {self.name})")
        return CaseResult(max((t.worst for t in totals.values()), default=0.0), None)

    def parts(self) -> Iterator[Part]:
        """What the outputs of a large case must be, every element once."""
        if self.kept:
            yield from self.kept
        elif isinstance(self.cut, Slices):
            for start, stop in self.cut.ranges(self.program, self.sizes):
                yield from self._slice(self.cut.axis, start, stop)
        elif self.cut is not None and self.is_rough:
            yield from chunked_roughly(self.program, self.inputs, self.sizes, self.cut)
        elif self.cut is not None:
            rules = (is_coherent(self.name), self.name == INTEGRAL)
            for part in chunked(self.program, self.inputs, self.sizes, self.cut, *rules, self.wide):
                yield replace(part, expected=self._forgiving(part.expected))

    def _parts_in_doubt(self, outputs: Sequence[Tensor]) -> Iterator[Part]:
        """parts(), and of the slices that they leave out those that are not near the native reference.

        Near is a few times what the oracle usually allows in the others, as a share of the values' sizes.
        """
        if self.is_rough or not isinstance(self.cut, Slices) or self.cut.shown is None:
            yield from self.parts()
            return
        shares: dict[int, float] = {}
        for part in self.parts():
            shares[part.output] = max(shares.get(part.output, 0.0), NEAR * usual_share(part.expected))
            yield part
        for start, stop in self.cut.hidden(self.program, self.sizes, HIDDEN_SLICES):
            give_way()
            if not self._is_near(outputs, start, stop, shares):
                for low in range(start, stop, self.cut.step):
                    yield from self._slice(self.cut.axis, low, min(stop, low + self.cut.step))

    def with_parts(self) -> Case:
        """A large case that keeps what its outputs must be."""
        return replace(self, kept=tuple(self.parts()))

    def _slice(self, axis: str, start: int, stop: int) -> Iterator[Part]:
        inputs, sizes = self._cut(axis, start, stop)
        yield from self._parts_of(axis, start, stop, self._expect(inputs, sizes))

    def _is_near(self, outputs: Sequence[Tensor], start: int, stop: int, shares: Mapping[int, float]) -> bool:
        """Whether a slice of the outputs is the native reference, give or take shares of the values' sizes."""
        assert isinstance(self.cut, Slices)
        inputs, sizes = self._cut(self.cut.axis, start, stop)
        program, inputs = (self.program, inputs) if self.wide is None else (self.wide, in_float32(inputs))
        wanted = expect_roughly(program, inputs, sizes, shares)
        for part in self._parts_of(self.cut.axis, start, stop, wanted):
            if read(measure(part.of(outputs[part.output]), part.expected), part.expected).wrong:
                return False
        return True

    def _cut(self, axis: str, start: int, stop: int) -> tuple[list[Tensor], Mapping[str, int]]:
        """The inputs and sizes of a slice."""
        inputs = [
            x.narrow(i.axes.index(axis), start, stop - start) if axis in i.axes else x
            for x, i in zip(self.inputs, self.program.inputs, strict=True)
        ]
        return inputs, {**self.sizes, axis: stop - start}

    def _parts_of(self, axis: str, start: int, stop: int, wanted: Sequence[Expected]) -> Iterator[Part]:
        for place, (out, want) in enumerate(zip(self.program.outputs, wanted, strict=True)):
            whole = zip(out.axes, want.want.shape, strict=True)
            yield Part(place, tuple((start, stop) if a == axis else (0, n) for a, n in whole), want)


def check_together(results: Sequence[tuple[Case, Sequence[Tensor]]]) -> Iterator[CaseResult]:
    """Compares the outputs of several launches; the figures of all small cases are read together."""
    wanted: list[Sequence[Expected | None]] = [case.expected or [None] * len(outs) for case, outs in results]
    columns = zip(zip(*(outputs for _, outputs in results), strict=True), zip(*wanted, strict=True), strict=True)
    figures = torch.stack([_measure_output(got, want) for got, want in columns], 1)
    for (case, outputs), rows in zip(results, figures.tolist(), strict=True):
        yield case.verdict(rows, outputs)


def _measure_output(got: Sequence[Tensor], wanted: Sequence[Expected | None]) -> Tensor:
    """Figures of one output, [launch, figure], on the device: one shape in one go, zeros for large cases."""
    rows: dict[int, Tensor] = {}
    for shape in {x.shape for x in got}:
        alike = {i: (x, e) for i, (x, e) in enumerate(zip(got, wanted, strict=True)) if x.shape == shape and e}
        whole = stack_expected([e for _, e in alike.values()]) if len(alike) > 1 else None
        if whole is None:
            rows |= {i: measure(x, e) for i, (x, e) in alike.items()}
        else:
            found = measure_all(torch.stack([x for x, _ in alike.values()]), whole)
            if len(alike) == len(got):
                return found
            rows |= zip(alike, found, strict=True)
    nothing = torch.zeros(4, dtype=torch.float64, device=got[0].device)
    return torch.stack([rows.get(i, nothing) for i in range(len(got))])


def make_case(
    program: Program,
    name: str,
    inputs: list[Tensor],
    sizes: Mapping[str, int],
    room_bytes: int,
    keep: bool = True,
    expected: list[Expected] | None = None,
) -> Case:
    """Computes the expectation now where one oracle run fits into `room_bytes` and it may be kept, else in parts.

    `expected`: where it is known already.
    """
    device = inputs[0].device if inputs else torch.device("cpu")
    image = GuardedMemory(input_specs(inputs), device, guard_gaps=False)
    image.load(inputs)
    if expected is not None:
        return Case(program, name, image, sizes, expected)
    cut = None if keep and oracle_bytes(program, sizes) <= room_bytes else cut_of(program, sizes, room_bytes)
    if cut is None:
        expected = expect(program, image.views, sizes, is_coherent(name), name == INTEGRAL)
    return Case(program, name, image, sizes, expected, cut)


def _merge(a: Measured | None, b: Measured) -> Measured:
    if a is None:
        return b
    count = a.count + b.count
    rms = ((a.rms**2 * a.count + b.rms**2 * b.count) / max(1, count)) ** 0.5
    exempt, ambiguous = a.exempt + b.exempt, a.ambiguous + b.ambiguous
    return Measured(a.wrong + b.wrong, max(a.worst, b.worst), rms, exempt, ambiguous, count)
