"""The case suite of a region: made once and used for every candidate.

    program + secret seed -> cases over the distributions -> the task's adequacy gate -> CaseSuite | Unverifiable

A distribution whose reference is not finite in over 1% of the elements gets smaller inputs or is left out,
unless it is there for such values.
Shapes vary along symbolic axes; where an operand is indexed by an expression along one (windows, shifts), they
cannot, and the region gets no kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite

import torch
from torch import Tensor

from cudal1_compile.judge.checks.adequacy import find_inadequacy
from cudal1_compile.judge.checks.cases import INTEGRAL, Case, is_coherent, make_case
from cudal1_compile.judge.checks.division import least_oracle_bytes
from cudal1_compile.judge.inputs.extremes import (
    EXTREMES,
    INFINITE,
    NONFINITE,
    SCALARS,
    ZEROS,
    finite_inputs,
    further_lines,
    has_infinite_scalars,
    has_zeros,
    is_beside_rows,
    is_free_scalar,
    products_in_windows,
    total,
)
from cudal1_compile.judge.inputs.floats import MIXED
from cudal1_compile.judge.inputs.lines import FROM, base_of
from cudal1_compile.judge.inputs.literal_targeted import (
    by_distribution,
    foreign_numbers,
    literal_case_count,
    put_together,
)
from cudal1_compile.judge.inputs.make import (
    ALONG_ROWS,
    DISTRIBUTIONS,
    FULL_SIZE,
    HUGE,
    derive_seed,
    make_inputs,
    with_strides,
    without_zero_divisors,
)
from cudal1_compile.judge.inputs.names import SPARSE_SPIKE, TIED_VALUES
from cudal1_compile.judge.inputs.sizes import (
    LARGE_ELEMENTS,
    OWN_SIZES,
    fixed_symbolic,
    own_sizes,
    size_variants,
    tensor_bytes,
    tensor_elements,
)
from cudal1_compile.judge.inputs.sparse_spikes import BASES, sparse_spikes
from cudal1_compile.judge.oracle.compare import Expected, usable
from cudal1_compile.judge.oracle.f32_accumulation import held_by, keeps_float32, widened
from cudal1_compile.judge.oracle.memory import oracle_bytes
from cudal1_compile.judge.oracle.stacked import expect_stacked, share_rules, stack
from cudal1_compile.kernel.candidate import Candidate
from cudal1_fx_passes.program.evaluate import Meaningless
from cudal1_fx_passes.program.ir import FLOAT_DTYPES, ITEM_BYTES, Literal, Program

HUGE_ELEMENTS = 1 << 26
EXPECTED_BYTES = 16  # an output element's oracle and tolerance
BEYOND_BYTES = 256 << 20  # for the oracle of one more case
MIN_CASES = 2


@dataclass(frozen=True, slots=True)
class CaseSuite:
    program: Program
    seed: int
    cases: tuple[Case, ...]
    left_out: tuple[str, ...]  # distributions whose references are not finite
    f32_cases: tuple[Case, ...] = ()  # for kernels that keep float32 within half types, where the region has such
    # of the cases, by what is held in a half type; made when a first candidate asks for them
    readings: dict[str, list[list[Expected] | None]] = field(default_factory=dict, compare=False)

    def of(self, candidate: Candidate) -> CaseSuite:
        """The case suite that a candidate must pass."""
        strict = self.f32_cases and keeps_float32(self.program, candidate)
        cases = self.f32_cases if strict else self._read(candidate)
        for name, made in self._on_literals(candidate, cases[0]):
            cases = (*cases, cases[0].with_inputs(name, made))
        for sizes in own_sizes(self.program, candidate):
            inputs = make_inputs(self.program, OWN_SIZES, self.seed, cases[0].image.device, sizes)
            case = make_case(self.program, OWN_SIZES, inputs, sizes, BEYOND_BYTES)
            cases = (*cases, case.accumulated_in_f32(wide) if strict and (wide := widened(self.program)) else case)
        return replace(self, cases=cases, f32_cases=())

    def _on_literals(self, candidate: Candidate, first: Case) -> Iterator[tuple[str, list[Tensor]]]:
        """Inputs of further cases, like those of the first, by distribution."""
        numbers = foreign_numbers(self.program, candidate.code) if self.program.inputs else ()
        for name, found in by_distribution(numbers).items():
            for turn in range(literal_case_count(self.program, first.inputs, found)):
                yield name, self._at(name, first, found, turn)
        for name, found in by_distribution(put_together(numbers, candidate.code)).items():
            yield name, self._at(name, first, found, 1)

    def _at(self, name: str, first: Case, numbers: Sequence[float], turn: int) -> list[Tensor]:
        return make_inputs(self.program, name, self.seed, first.image.device, first.sizes, numbers, turn)

    def _read(self, candidate: Candidate) -> tuple[Case, ...]:
        """The cases with the readings of which a candidate that rounds on its way must meet one."""
        wide = widened(self.program)
        if wide is None or all(self.program.output_dtype(o) not in FLOAT_DTYPES for o in self.program.outputs):
            return self.cases
        columns: list[list[list[Expected] | None]] = [[c.expected for c in self.f32_cases]]
        for held in held_by(self.program, candidate):
            key = " ".join(sorted(held))
            if key not in self.readings:
                self.readings[key] = _readings(self.program, wide, self.cases, held)
            columns.append(self.readings[key])
        rows = zip(self.cases, *columns, strict=True)
        return tuple(replace(case, readings=tuple(several)) if all(several) else case for case, *several in rows)

    def tensors(self) -> Iterator[Tensor]:
        """Everything that candidates are held against."""
        for case in (*self.cases, *self.f32_cases):
            yield from case.inputs
            for e in case.held():
                yield from e.tensors

    def beside(self, suite: CaseSuite) -> Iterator[Tensor]:
        """What one candidate is held against and others are not; suite: what all are held against."""
        yield from replace(self, cases=self.cases[len(suite.cases) :]).tensors()
        for case in self.cases[: len(suite.cases)]:
            yield from (t for reading in case.readings for e in reading for t in e.tensors)

    @property
    def size_bytes(self) -> int:
        return sum(c.image.size_bytes + c.expected_bytes for c in self.cases) + sum(
            c.expected_bytes for c in self.f32_cases
        )


@dataclass(frozen=True, slots=True)
class Unverifiable:
    """No candidate can be told from a stand-in (or nothing finite comes out): the region gets no kernel."""

    reason: str


@dataclass(frozen=True, slots=True)
class NoRoom:
    reason: str


def prepare_suite(
    program: Program,
    seed: int,
    device: torch.device,
    room_bytes: int,
    distributions: Sequence[str] | None = None,
) -> CaseSuite | Unverifiable | NoRoom:
    """Makes the cases. Half of `room_bytes` is for one oracle run, half for what the case suite keeps."""
    try:
        found = _draw(program, seed, device, room_bytes, distributions)
        if isinstance(found, Unverifiable):  # of few elements perhaps by bad luck
            found = _draw(program, derive_seed(seed, "again"), device, room_bytes, distributions)
    except Meaningless as error:
        return Unverifiable(str(error))
    return found


def _draw(
    program: Program, seed: int, device: torch.device, room_bytes: int, distributions: Sequence[str] | None
) -> CaseSuite | Unverifiable | NoRoom:
    if fixed := fixed_symbolic(program):
        return Unverifiable(f"no other size of {', '.join(fixed)} can be tried: it is read at a computed place")
    names = distributions or distributions_of(program)
    if (reason := _too_large(program, len(names), room_bytes)) is not None:
        return NoRoom(reason)
    kept_bytes = len(names) * (
        tensor_bytes(program) + EXPECTED_BYTES * sum(program.size(o.axes) for o in program.outputs)
    )
    keep = kept_bytes <= room_bytes // 2
    cases: list[Case] = []
    left_out: list[str] = []
    variants = list(zip(names, size_variants(program, len(names), derive_seed(seed, "sizes")), strict=True))
    alike = [name for name, sizes in variants if not sizes] if keep else []
    made = {name: make_inputs(program, name, seed, device) for name in alike}
    together = _expect_together(program, made, room_bytes // 2)
    known = {name: (made[name], together.get(name)) for name in alike}
    for name, sizes in variants:
        case = _case(program, name, seed, device, sizes, room_bytes // 2, keep, known)
        if case is None:
            left_out.append(name)
        else:
            cases.append(case)
    if sum(base_of(c.name) not in EXTREMES for c in cases) < min(MIN_CASES, len(names)):
        return Unverifiable(f"the reference is not finite for the inputs {', '.join(left_out)}")
    if keep:
        cases += _sparse_spike_cases(program, cases, room_bytes // 2)
    inadequacy = find_inadequacy(program, cases)
    if inadequacy is not None and NONFINITE not in names:
        # a mask of finite rows, say, is all true: other inputs, as long as they are in the domain
        odd = make_inputs(program, NONFINITE, seed, device)
        cases.append(make_case(program, NONFINITE, odd, {}, room_bytes // 2, keep))
        inadequacy = find_inadequacy(program, cases)
    if inadequacy is not None:
        return Unverifiable(inadequacy.reason)
    f32_cases = _f32_cases(program, cases, room_bytes // 2)
    return CaseSuite(program, seed, tuple(cases), tuple(left_out), f32_cases)


def _case(
    program: Program,
    name: str,
    seed: int,
    device: torch.device,
    sizes: Mapping[str, int],
    room_bytes: int,
    keep: bool,
    known: Mapping[str, tuple[list[Tensor], list[Expected] | None]],
) -> Case | None:
    def drawn(distribution: str) -> tuple[list[Tensor], list[Expected] | None]:
        together = None if sizes else known.get(distribution)
        return together or (make_inputs(program, distribution, seed, device, sizes), None)

    inputs, expected = drawn(name)
    found = _usable_case(program, name, inputs, sizes, room_bytes, keep, expected)
    if found is None and (others := without_zero_divisors(program, inputs)) is not None:
        found = _usable_case(program, name, others, sizes, room_bytes, keep)
    if found is None and (sizes or not is_coherent(name)):
        inputs, expected = drawn("small")
        found = _usable_case(program, "small", inputs, sizes, room_bytes, keep, expected)
    return found


def _sparse_spike_cases(program: Program, cases: Sequence[Case], room_bytes: int) -> list[Case]:
    bases = [c.inputs for c in cases if not c.sizes and c.expected is not None and base_of(c.name) in BASES]
    found: list[Case] = []
    for made in sparse_spikes(program, bases):
        inputs = [with_strides(x, item.strides) for x, item in zip(made, program.inputs, strict=True)]
        name = f"{SPARSE_SPIKE}{FROM}{len(found)}"  # each has its own
        found.append(make_case(program, name, inputs, {}, room_bytes))
    return found


def _usable_case(
    program: Program,
    name: str,
    inputs: list[Tensor],
    sizes: Mapping[str, int],
    room_bytes: int,
    keep: bool,
    expected: list[Expected] | None = None,
) -> Case | None:
    """None where too much of the reference is not finite."""
    case = make_case(program, name, inputs, sizes, room_bytes, keep, expected)
    if case.expected is None and keep:  # one run of the oracle is too much, but not what comes of it
        return case.with_parts()
    if case.expected is None or base_of(name) in (*EXTREMES, MIXED, TIED_VALUES) or usable(case.expected):
        return case
    return case if has_nonfinite_literal(program) else None


def _expect_together(
    program: Program,
    made: Mapping[str, list[Tensor]],
    room_bytes: int,
    wide: Program | None = None,
    held: Mapping[str, str] | None = None,
) -> dict[str, list[Expected]]:
    """Expectations of several distributions from one run of the oracle, where there is room.

    wide: the program widened, for what kernels must give that keep float32. held: but for these operations.
    """
    found: dict[str, list[Expected]] = {}
    for group, stacked in _stacks(wide or program, list(made)):
        if 2 * oracle_bytes(stacked, {}) > room_bytes:  # a large case gains nothing
            continue
        coherent, integral = [is_coherent(n) for n in group], [n == INTEGRAL for n in group]
        unwidened = program if wide else None
        wanted = expect_stacked(stacked, [made[n] for n in group], coherent, integral, unwidened, held)
        found |= dict(zip(group, wanted, strict=True))
    return found


def _stacks(program: Program, names: Sequence[str]) -> Iterator[tuple[list[str], Program]]:
    """Distributions that may share a run, all or those of the same rules, and the program for as many cases."""
    if len(names) < 2 or not program.inputs or (stacked := stack(program, len(names))) is None:
        return
    if share_rules(stacked):
        yield list(names), stacked
        return
    rules = {n: (is_coherent(n), n == INTEGRAL) for n in names}
    for rule in sorted(set(rules.values())):
        group = [n for n in names if rules[n] == rule]
        if len(group) > 1 and (stacked := stack(program, len(group))) is not None:
            yield group, stacked


def _f32_cases(program: Program, cases: Sequence[Case], room_bytes: int) -> tuple[Case, ...]:
    """The same cases for kernels that keep float32; none where no operation is in a half type."""
    wide = widened(program)
    if wide is None:
        return ()
    alike = {c.name: c.inputs for c in cases if not c.sizes and c.expected is not None}
    known = _expect_together(program, alike, room_bytes, wide)
    return tuple(c.accumulated_in_f32(wide, None if c.sizes else known.get(c.name)) for c in cases)


def _readings(
    program: Program, wide: Program, cases: Sequence[Case], held: Mapping[str, str]
) -> list[list[Expected] | None]:
    """Expectations of the small cases where the operations held are rounded."""
    alike = {c.name: c.inputs for c in cases if not c.sizes and c.expected is not None}
    known = _expect_together(program, alike, BEYOND_BYTES, wide, held)
    found: list[list[Expected] | None] = []
    for case in cases:
        together = None if case.sizes else known.get(case.name)
        found.append(None if case.expected is None else together or case.read_as(wide, held))
    return found


def has_nonfinite_literal(program: Program) -> bool:
    """Whether the program itself writes infinities or NaN, as masks do."""
    literals = [o.value for op in program.ops for o in op.operands if isinstance(o, Literal)]
    return not all(isfinite(v) for v in literals)


def distributions_of(program: Program) -> Sequence[str]:
    elements = tensor_elements(program)
    windows, finite = any(products_in_windows(program)), _all_finite(program)
    infinite = (INFINITE,) if total(program) is not None and not windows and not finite else ()
    if elements > HUGE_ELEMENTS:
        return (*HUGE, *infinite)
    if elements > LARGE_ELEMENTS:
        return (*FULL_SIZE, *infinite)
    scalars = has_infinite_scalars(program) and not windows and not finite
    skipped = set() if infinite or scalars else {INFINITE}
    if not has_zeros(program):
        skipped |= {ZEROS}
    if not any(op.over for op in program.ops):
        skipped |= {*ALONG_ROWS}
    if finite:
        skipped |= {NONFINITE, SCALARS}
    if windows or not any(is_free_scalar(i) or is_beside_rows(program, i) for i in program.inputs):
        skipped |= {SCALARS}
    further = (name for name in further_lines(program) if base_of(name) not in skipped)
    return [*(name for name in DISTRIBUTIONS if name not in skipped), *further]


def _all_finite(program: Program) -> bool:
    """Whether every float input is one of which an index is computed."""
    floats = {i.name for i in program.inputs if i.dtype in FLOAT_DTYPES}
    return bool(floats) and floats <= finite_inputs(program)


def _too_large(program: Program, cases: int, room_bytes: int) -> str | None:
    """A trial holds each case's inputs, two sets of buffers, a timed result, the baseline, part of the oracle."""
    oracle = least_oracle_bytes(program, room_bytes // 2)
    inputs = sum(program.size(i.axes) * ITEM_BYTES[i.dtype] for i in program.inputs)
    everything = tensor_bytes(program)
    held = (cases + 2) * inputs + 3 * (everything - inputs) + everything
    need = oracle + held
    if need > room_bytes:
        return f"a trial of this region needs about {need >> 20} MiB, {room_bytes >> 20} MiB are free for it"
    return None
