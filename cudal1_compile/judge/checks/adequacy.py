"""Gate 3, on the task: stand-ins that did not do the work must fail, or no kernel of the task can be trusted.

For each output: zeros, a constant, an input passed through, the result for other inputs, a result half of which
is missing. Each must be refused by at least one case (a candidate has to pass them all). The gate says nothing
about any candidate; it runs once for a region.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cudal1_compile.judge.checks.cases import Case, is_coherent
from cudal1_compile.judge.oracle.compare import Expected, measure_all, measured, refusal
from cudal1_compile.judge.sandbox.device_lock import give_way
from cudal1_fx_passes.program.evaluate import DTYPE_NAME
from cudal1_fx_passes.program.ir import Output, Program, Ref


@dataclass(frozen=True, slots=True)
class Inadequacy:
    """The stand-in that no case refuses."""

    output: str
    stand_in: str

    @property
    def reason(self) -> str:
        return f"{self.output} cannot be told from {self.stand_in}: the task is unverifiable"


def find_inadequacy(program: Program, cases: Sequence[Case]) -> Inadequacy | None:
    """The first stand-in that passes every case, or None where the task can be verified."""
    return min(passing(program, cases), key=lambda found: found.stand_in, default=None)


def passing(program: Program, cases: Sequence[Case]) -> set[Inadequacy]:
    """The stand-ins of the first output that has such which pass every case; of all outputs for a single case."""
    views = [_view(case) for case in cases]
    found: set[Inadequacy] = set()
    for place, out in enumerate(program.outputs):
        wanted = [view[place] for view in views]
        found |= {Inadequacy(out.name, name) for name in _passing(program, out, cases, wanted)}
        if found and len(cases) > 1:
            break
    return found


def _passing(program: Program, out: Output, cases: Sequence[Case], wanted: Sequence[Expected]) -> set[str]:
    """Names of the stand-ins of one output that no case refuses."""
    seen: set[str] = set()
    refused: set[str] = set()
    for i, (case, expected) in enumerate(zip(cases, wanted, strict=True)):
        give_way()
        if expected.want.numel() == 0:
            continue
        stand_ins = dict(_stand_ins(program, out, case, expected, wanted[(i + 1) % len(wanted)]))
        seen |= stand_ins.keys()
        refused |= _refused(stand_ins, expected, is_coherent(case.name))
        if seen == refused:
            break
    return seen - refused


def _view(case: Case) -> list[Expected]:
    """The expectation of a case; of a large one that of the first part of each output."""
    if case.expected is not None:
        return case.expected
    found: dict[int, Expected] = {}
    for part in case.parts():
        found.setdefault(part.output, part.expected)
        if len(found) == len(case.program.outputs):
            break
    return [found[place] for place in range(len(found))]


def _refused(stand_ins: Mapping[str, Tensor], expected: Expected, coherent: bool) -> set[str]:
    """Names of those that one case refuses, in one reading."""
    figures = measure_all(torch.stack(list(stand_ins.values())), expected).tolist()
    rows = zip(stand_ins.items(), figures, strict=True)
    found = {name: (got, measured(row, expected)) for (name, got), row in rows}
    # a wrong element is enough: to name it would synchronise with the device several times
    return {n for n, (got, m) in found.items() if m.wrong > 0 or refusal(m, got, expected, coherent) is not None}


def _stand_ins(
    program: Program, out: Output, case: Case, expected: Expected, other: Expected
) -> Iterator[tuple[str, Tensor]]:
    dtype = _dtype_of(program, out, case)
    right = expected.want.to(dtype)
    yield "zeros", torch.zeros_like(right)
    if right.numel() > 1:
        yield "a constant", _constant(expected.want).to(dtype).expand_as(right)
        yield "a result half of which is missing", _halved(right)
    if other is not expected and other.want.shape == right.shape and _reads_inputs(program, out):
        yield "the result for other inputs", other.want.to(dtype)
    if case.expected is None or _is_copy(program, out):
        return
    for item, x in zip(program.inputs, case.inputs, strict=True):
        if set(item.axes) == set(out.axes):
            turned = x.permute([item.axes.index(a) for a in out.axes])
            yield f"{item.name} passed through", turned.to(dtype)


def _halved(right: Tensor) -> Tensor:
    """The second half is zero; where it rightly is (padding), the first half. Decided on the device."""
    flat = right.flatten()
    first = torch.arange(flat.numel(), device=flat.device) < flat.numel() // 2
    kept = first == (flat.masked_fill(first, 0) != 0).any()
    return flat.masked_fill(~kept, 0).reshape(right.shape)


def _dtype_of(program: Program, out: Output, case: Case) -> torch.dtype:
    name = program.output_dtype(out)
    return next(d for d, n in DTYPE_NAME.items() if n == name)


def _constant(want: Tensor) -> Tensor:
    """The constant closest to a result: its mean, or the more frequent truth value."""
    finite = want.double()
    finite = finite[finite.isfinite()]
    mean = finite.mean() if finite.numel() else torch.zeros((), device=want.device, dtype=torch.float64)
    return mean.round() if not want.is_floating_point() else mean


def _reads_inputs(program: Program, out: Output) -> bool:
    """Whether an output depends on any input; one that does not is the same for all of them."""
    inputs = {i.name for i in program.inputs}
    found, todo = set[str](), [out.value]
    while todo:
        name = todo.pop()
        if name in inputs:
            return True
        if name not in found:
            found.add(name)
            refs = [x for x in program.op[name].operands if isinstance(x, Ref)]
            todo += [r.name for r in refs] + [v for r in refs for v in r.index_values]
    return False


def _is_copy(program: Program, out: Output) -> bool:
    """Whether an output is by its own text an input, passed on or cast: then passing it through is the work."""
    name = out.value
    while name in program.op:
        op = program.op[name]
        source = op.operands[0] if op.operands else None
        if op.fn != "cast" or not isinstance(source, Ref) or source.access:
            return False
        name = source.name
    return True
