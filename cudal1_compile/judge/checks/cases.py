"""One case: inputs of one distribution and what the outputs must be; large cases compute that slice by slice.

    check_together([(case, outputs), ...]) -> one CaseResult each

A small case keeps its expectation. A large one would need many times its outputs in float64, so it is cut
along an axis that nothing reduces, reads shifted or gathers, and each slice is compared on its own; every
element is still compared. Where no such axis exists the case stays whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from cudal1_compile.judge.checks.guarded_memory import GuardedMemory, input_specs
from cudal1_compile.judge.inputs.lines import base_of
from cudal1_compile.judge.inputs.literal_targeted import LITERAL_TARGETED
from cudal1_compile.judge.inputs.sparse_spikes import SPARSE_SPIKE
from cudal1_compile.judge.inputs.tied_values import TIED_VALUES
from cudal1_compile.judge.oracle.bounds import last_uses
from cudal1_compile.judge.oracle.compare import (
    Expected,
    Measured,
    expect,
    expect_roughly,
    measure,
    measure_all,
    measured,
    read,
    refusal,
    stack_expected,
)
from cudal1_compile.judge.oracle.f32_accumulation import expect_f32_accumulation
from cudal1_fx_passes.program.ir import Op, Program, Ref
from cudal1_fx_passes.program.ops import OPS, Kind
from cudal1_fx_passes.program.products import match_convolution

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
        CALL,
        TIED_VALUES,
        SPARSE_SPIKE,
    }
)
INTEGRAL = "integers"
ROUNDS_OTHERWISE = "round what each operation in a half type gives, as eager mode does, or nothing before a store"
BOUNDED_BYTES = 16  # an element's value and error in float64
ROUGHLY_WRONG = 0.01  # share of the elements that may be off where the native reference alone is at hand
PROBE_COPIES = 4  # of the result of one operation, while its error is looked for


def is_coherent(distribution: str) -> bool:
    return base_of(distribution) in COHERENT


@dataclass(frozen=True, slots=True)
class CaseResult:
    """Worst share of the budget over the outputs, or why the case refuses."""

    worst: float
    refusal: str | None


@dataclass(frozen=True, slots=True)
class Case:
    """`expected` is None for a large case, which computes it slice by slice along `axis`, or keeps those slices.

    `wide`: the program as kernels compute it that keep float32 within half types, where it is one of those cases.
    """

    program: Program
    name: str
    image: GuardedMemory  # the inputs, packed and untouched
    sizes: Mapping[str, int]
    expected: list[Expected] | None
    axis: str | None = None
    step: int = 0
    wide: Program | None = None
    parts: tuple[list[Expected], ...] = ()  # the slices' expectations, where they may be kept
    readings: tuple[list[Expected], ...] = ()  # of a small case; float outputs must be right by one of them too
    is_rough: bool = False  # held against the native reference, roughly (rough.py)

    def accumulated_in_f32(self, wide: Program, expected: list[Expected] | None = None) -> Case:
        """The same case for kernels that keep float32. expected: where it is known already."""
        case = replace(self, wide=wide, parts=())
        if self.expected is None:
            return case
        return replace(case, expected=expected or case._expect(self.inputs, self.sizes))

    def with_inputs(self, name: str, inputs: Sequence[Tensor]) -> Case:
        """A case of the same shapes."""
        image = GuardedMemory(self.image.specs, self.image.device, guard_gaps=False)
        image.load(inputs)
        case = replace(self, name=name, image=image, parts=(), readings=())
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
        if self.wide is not None:
            return expect_f32_accumulation(self.program, self.wide, inputs, sizes, coherent, integral)
        return expect(self.program, inputs, sizes, coherent, integral)

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
        for several in (self.expected or (), *self.parts, *self.readings):
            yield from several

    @property
    def expected_bytes(self) -> int:
        return sum(e.size_bytes for e in self.held())

    def _large_verdict(self, outputs: Sequence[Tensor]) -> CaseResult:
        totals: dict[str, Measured] = {}
        limits: dict[str, float] = {}
        for start, stop in self.slices():
            for got, want in self.compared_slice(outputs, start, stop):
                found = read(measure(got, want), want)
                totals[want.name] = _merge(totals.get(want.name), found)
                limits[want.name] = want.rms_limit
                # rms and exemptions are limits over whole outputs, so a slice alone only finds wrong elements
                if found.wrong and (reason := self._refusal(found, got, want)):
                    return CaseResult(found.worst, f"{reason} (inputs: {self.name}, {self.axis} from {start})")
        for got, (name, total) in () if self.is_rough else zip(outputs, totals.items(), strict=True):
            whole = Expected(name, got.new_empty(0), None, None, 0.0, limits[name])
            if reason := refusal(total, got, whole, is_coherent(self.name)):
                return CaseResult(total.worst, f"{reason} (inputs: {self.name})")
        return CaseResult(max((t.worst for t in totals.values()), default=0.0), None)

    def slices(self) -> Iterator[tuple[int, int]]:
        assert self.axis is not None
        extent = self.sizes.get(self.axis, self.program.axis[self.axis].size)
        for start in range(0, extent, self.step):
            yield start, min(extent, start + self.step)

    def compared_slice(
        self, outputs: Sequence[Tensor], start: int, stop: int
    ) -> Iterator[tuple[Tensor, Expected]]:
        """(what was got, what must be) of each output within one slice."""
        assert self.axis is not None
        wanted = self.parts[start // self.step] if self.parts else self._expect_slice(start, stop)
        for got, want, out in zip(outputs, wanted, self.program.outputs, strict=True):
            yield _narrow(got, out.axes, self.axis, start, stop), want

    def with_parts(self) -> Case:
        """A large case that keeps its slices' expectations."""
        return replace(self, parts=tuple(self._expect_slice(*bounds) for bounds in self.slices()))

    def _expect_slice(self, start: int, stop: int) -> list[Expected]:
        assert self.axis is not None
        cut = [
            _narrow(x, i.axes, self.axis, start, stop)
            for x, i in zip(self.inputs, self.program.inputs, strict=True)
        ]
        return self._expect(cut, {**self.sizes, self.axis: stop - start})


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
    """Computes the expectation now where one oracle run fits into `room_bytes` and it may be kept, else slices.

    `expected`: where it is known already.
    """
    device = inputs[0].device if inputs else torch.device("cpu")
    image = GuardedMemory(input_specs(inputs), device, guard_gaps=False)
    image.load(inputs)
    if expected is not None:
        return Case(program, name, image, sizes, expected)
    need = oracle_bytes(program, sizes)
    axis = parallel_axis(program, sizes)
    if (keep and need <= room_bytes) or axis is None:
        expected = expect(program, image.views, sizes, is_coherent(name), name == INTEGRAL)
        return Case(program, name, image, sizes, expected)
    extent = sizes.get(axis, program.axis[axis].size)
    step = max(1, min(extent, int(extent * room_bytes / need)))
    return Case(program, name, image, sizes, None, axis, step)


def oracle_bytes(program: Program, sizes: Mapping[str, int]) -> int:
    """A rough peak of one oracle run: values and errors that live at once, and the copies of one probe."""
    extent = {a.name: a.size for a in program.axes} | dict(sizes)

    def elements(axes: Iterable[str]) -> int:
        return prod(extent[a] for a in axes)

    held = sum(elements(program.value_axes[i.name]) for i in program.inputs)
    peak = held
    last = last_uses(program)
    for i, op in enumerate(program.ops):
        held += elements(op.axes)
        spread = {*op.axes, *_spread_over(program, op)}  # a scan keeps the axis that it runs along
        peak = max(peak, held + PROBE_COPIES * elements(spread))
        held -= sum(elements(program.value_axes[name]) for name in last.get(i, ()))
    return BOUNDED_BYTES * peak


def _spread_over(program: Program, op: Op) -> tuple[str, ...]:
    """The summed axes over which an operation's terms lie side by side: none where a library adds them up."""
    read_in_place = OPS[op.fn].kind is Kind.DOT and not any(isinstance(x, Ref) and x.access for x in op.operands)
    return () if read_in_place or match_convolution(program, op) is not None else op.over


def parallel_axis(program: Program, sizes: Mapping[str, int]) -> str | None:
    """The largest axis along which the program can be cut into independent slices, if there is one."""
    fixed: set[str] = set()
    for op in program.ops:
        fixed |= set(op.over)
        fixed |= {a for a in op.axes if OPS[op.fn].kind is Kind.IOTA}
        for x in op.operands:
            if isinstance(x, Ref):
                for axis, index in x.access:
                    fixed |= {axis, *(a for _, a in index.terms)}
    fixed |= {i.domain.below for i in program.inputs if i.domain.below is not None}
    free = [a.name for a in program.axes if a.name not in fixed and all(a.name in o.axes for o in program.outputs)]
    extent = {a.name: sizes.get(a.name, a.size) for a in program.axes}
    return max(free, key=extent.__getitem__, default=None) if free else None


def _narrow(x: Tensor, axes: Sequence[str], axis: str, start: int, stop: int) -> Tensor:
    return x.narrow(axes.index(axis), start, stop - start) if axis in axes else x


def _merge(a: Measured | None, b: Measured) -> Measured:
    if a is None:
        return b
    count = a.count + b.count
    rms = ((a.rms**2 * a.count + b.rms**2 * b.count) / max(1, count)) ** 0.5
    exempt, ambiguous = a.exempt + b.exempt, a.ambiguous + b.ambiguous
    return Measured(a.wrong + b.wrong, max(a.worst, b.worst), rms, exempt, ambiguous, count)
