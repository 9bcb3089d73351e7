"""The float64 oracle over the chunks of a program.

    chunk -> run() -> values; parts of reductions are joined -> finish() -> Kept, which later chunks read

The error of a reduction is concluded from the joined parts of its rule, so that it is that of the whole, up to
float64's own rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cudal1_compile.judge.oracle.bounds import Run, any_of, apart, decides, last_uses, tidy
from cudal1_compile.judge.oracle.chunk_places import Places, count_of
from cudal1_compile.judge.oracle.chunk_program import Chunk, Place
from cudal1_compile.judge.oracle.error_rules import seen_errors
from cudal1_compile.judge.oracle.exact_values import ExactValues
from cudal1_compile.judge.oracle.partial_sums import (
    COUNTED,
    SCANS,
    At,
    PartialSums,
    State,
    as_reduction,
    concluded,
    joined,
)
from cudal1_compile.judge.oracle.reduction_rules import POSITIONS, contest, position_error, rule_of
from cudal1_compile.judge.oracle.trace import Trace, operands_of
from cudal1_compile.judge.sandbox.device_lock import give_way
from cudal1_fx_passes.program.evaluate import TORCH_DTYPE
from cudal1_fx_passes.program.ir import FLOAT_DTYPES, Op, Program
from cudal1_fx_passes.program.ops import OPS, Kind


@dataclass(frozen=True, slots=True)
class Kept:
    """The result of a reduction over all of its terms, as bounds.Bounded has it; dims in the program's order."""

    value: Tensor
    error: Tensor | None = None
    decided: Tensor | None = None
    free: Tensor | None = None

    def cut(self, at: At) -> Kept:
        return Kept(self.value[at], *(None if x is None else x[at] for x in (self.error, self.decided, self.free)))


class ChunkValues(ExactValues):
    """Of one chunk: elements are numbered as in the whole."""

    def __init__(self, whole: Program, chunk: Chunk) -> None:
        super().__init__(whole)
        self._whole, self._chunk = whole, chunk
        source = {name: place.source for name, place in chunk.places.items()}
        self._decided = frozenset(name for name, s in source.items() if s in self._decided)
        self._ranked = frozenset(name for name, s in source.items() if s in self._ranked)
        self._numbers = {name: self._numbers[s] for name, s in source.items()}

    def positions(self, name: str, value: Tensor) -> Tensor:
        place = self._chunk.places[name]
        axes = self._whole.value_axes[place.source]
        found, stride = torch.zeros([1] * len(axes), dtype=torch.int64, device=value.device), 1
        for dim, axis in reversed(list(enumerate(axes))):
            steps = torch.arange(*place.ranges[axis], device=value.device) * stride
            found = found + steps.reshape([-1 if d == dim else 1 for d in range(len(axes))])
            stride *= self._whole.axis[axis].size
        return found.expand(value.shape)


class ChunkOracle:
    """The float64 oracle; `trace` is that of the whole."""

    def __init__(self, trace: Trace, places: Places) -> None:
        self._trace, self._places = trace, places
        self._discrete = decides(trace.program)
        self._kept: dict[str, Kept] = {}
        self._sums: dict[str, tuple[PartialSums, PartialSums]] = {}  # of values, and of the error rules' parts

    def run(self, chunk: Chunk, inputs: Sequence[Tensor], rivals: bool = False) -> Run:
        """Joins the parts of reductions. rivals: of positions, whose best are known, what may be as good."""
        p = chunk.program
        run = Run(replace(self._trace, program=p), ChunkValues(self._trace.program, chunk), self._discrete)
        for spec, x in zip(p.inputs, inputs, strict=True):
            run.begin(spec, x)
        last_use = last_uses(p)
        for i, op in enumerate(p.ops):
            give_way()
            self._step(run, op, chunk, rivals)
            run.forget(last_use.get(i, ()))
        return run

    def _step(self, run: Run, op: Op, chunk: Chunk, rivals: bool) -> None:
        place = chunk.places[op.name]
        if place.in_parts:
            self._join_rivals(run, op, place) if rivals else self._join(run, op, chunk, place)
            run.values[op.name], run.errors[op.name] = torch.empty(0), None
        elif place.kept:
            kept = self._kept[place.source].cut(self._places.region(place))
            run.values[op.name], run.errors[op.name] = kept.value, kept.error
            run.note(op, kept.decided, kept.free)
        elif OPS[op.fn].kind is Kind.IOTA:
            dtype = torch.float64 if op.dtype in FLOAT_DTYPES else TORCH_DTYPE[op.dtype]
            lo, hi = place.ranges[self._trace.program.op[place.source].over[0]]
            run.values[op.name] = torch.arange(lo, hi, dtype=dtype, device=self._trace.device)
            run.errors[op.name] = None
            run.note(op, None, None)
        elif op.fn in SCANS and not self._places.begins(place):
            self._carry_on(run, op, place)
        else:
            run.step(op)

    def _join(self, run: Run, op: Op, chunk: Chunk, place: Place) -> None:
        shape = self._places.shape(place.source)
        values, errors = self._sums.setdefault(place.source, (PartialSums(shape), PartialSums(shape)))
        at, before = self._places.joins(place)
        count = count_of(chunk, op, run.values, self._trace.device) if op.fn in COUNTED else None

        def part(seen: Mapping[str, Tensor]) -> State:
            return self._places.partial(lambda o: run.trace.run(o, {**run.values, **seen}), op, chunk, count)

        found = {key: part(seen) for key, seen in _readings(run, op).items()}
        values.join_all(as_reduction(op).fn, at, before, found)
        seen = seen_errors(run.trace, op, run.values, run.errors, run.exact_values)
        if op.dtype not in FLOAT_DTYPES and all(seen[n] is None for n in operands_of(op)):
            return
        if op.fn in POSITIONS:
            best = contest(run.trace, op, run.values, seen, run.exact_values.marks).best()
            errors.join("best", "best", at, before, best)
            return
        rule = rule_of(op)
        for key, x in rule.parts(run.trace, as_reduction(op), run.values, seen).items():
            how = rule.merges[key]
            errors.join(key, how, at, before, (x, count) if how == "mean" and count is not None else (x,))

    def _join_rivals(self, run: Run, op: Op, place: Place) -> None:
        errors = self._sums[place.source][1]
        if "best" not in errors.states:
            return
        at, before = self._places.joins(place)
        _, least, mark = (x[at] for x in errors.states["best"])
        seen = seen_errors(run.trace, op, run.values, run.errors, run.exact_values)
        terms = contest(run.trace, op, run.values, seen, run.exact_values.marks)
        errors.join("rivals", "any", at, before, terms.rivals(least, mark))

    def _carry_on(self, run: Run, op: Op, place: Place) -> None:
        """A part of a scan, from what comes before it."""
        values, parts = self._sums[place.source]
        fn = as_reduction(op).fn

        def carried(states: PartialSums, key: str, how: str, x: Tensor) -> Tensor:
            before = states.states.get(key, states.states.get("value"))
            return x if before is None else joined(how, self._places.carry(place, before), (x,))[0].to(x.dtype)

        readings = _readings(run, op)
        found = {
            key: carried(values, key, fn, run.trace.run(op, {**run.values, **readings.get(key, {})}))
            for key in (*values.states, *(readings.keys() - values.states.keys()))
        }
        seen = seen_errors(run.trace, op, run.values, run.errors, run.exact_values)
        run.values[op.name], run.errors[op.name] = found["value"], None
        if parts.states:
            rule = rule_of(op)
            own = rule.parts(run.trace, op, run.values, seen)
            own = {key: carried(parts, key, rule.merges[key], x) for key, x in own.items()}
            error = rule.conclude(run.trace, op, found["value"], own)
            run.errors[op.name] = tidy(error, found["value"])
        run.note(op, found.get("decided"), _free(found))

    def finish(self, name: str) -> Tensor:
        """Concludes a reduction of which all parts are joined, of a scan nothing. Returns what they come to."""
        op = self._trace.program.op[name]
        if op.fn in SCANS:
            return self._sums[name][0].states["value"][0]
        values, parts = self._sums.pop(name)
        dtype = torch.float64 if op.dtype in FLOAT_DTYPES else TORCH_DTYPE[op.dtype]
        found = {key: concluded(op, state).to(dtype) for key, state in values.states.items()}
        error = self._error(op, found["value"], {key: state[0] for key, state in parts.states.items()}, parts)
        error = None if error is None else tidy(error, found["value"])
        self._kept[name] = Kept(found["value"], error, found.get("decided"), _free(found))
        return found["value"]

    def _error(self, op: Op, value: Tensor, found: dict[str, Tensor], parts: PartialSums) -> Tensor | None:
        if not found:
            return None
        if op.fn in POSITIONS:
            return position_error(*parts.states["rivals"])
        return rule_of(op).conclude(self._trace, op, value, found)


def _readings(run: Run, op: Op) -> dict[str, dict[str, Tensor]]:
    """What an operation is run on: its operands, and those of Run.deciding and Run.ends."""
    found: dict[str, dict[str, Tensor]] = {"value": {}}
    if seen := run.deciding(op):
        found["decided"] = seen
    return found | {f"end{n}": seen for n, seen in enumerate(run.ends(op))}


def _free(found: Mapping[str, Tensor]) -> Tensor | None:
    return any_of(apart([x for key, x in found.items() if key.startswith("end")] or [found["value"]]))
