"""What any correct kernel must move: the outputs, and the parts of inputs that the program reads."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from cudal1_compile.runtime.host_cost import lines
from cudal1_fx_passes.program.ir import ITEM_BYTES, Index, Input, Program, Ref

MAX_PLACES = 1 << 20  # beyond it an access counts as reading nothing, which only lowers the floor


def least_bytes(program: Program) -> int:
    """A lower bound; inputs that are gathered (indexed by data) count as not read."""
    return sum(_tensor_bytes(program))


def floor_cost(program: Program) -> int:
    """The same in cost units of the host target, below which no kernel's cost is."""
    return sum(map(lines, _tensor_bytes(program)))


def _tensor_bytes(program: Program) -> Iterator[int]:
    yield from (program.size(o.axes) * ITEM_BYTES[program.output_dtype(o)] for o in program.outputs)
    yield from (_read_elements(program, i) * ITEM_BYTES[i.dtype] for i in program.inputs)


def _read_elements(program: Program, item: Input) -> int:
    """Of the ways in which operations read an input, the one that reads most."""
    refs = [x for op in program.ops for x in op.operands if isinstance(x, Ref) and x.name == item.name]
    if any(o.value == item.name for o in program.outputs):
        return program.size(item.axes)
    return max((_ref_elements(program, item, r) for r in refs), default=0)


def _ref_elements(program: Program, item: Input, ref: Ref) -> int:
    access = dict(ref.access)
    return prod(
        _places(program, access[a], program.axis[a].size) if a in access else program.axis[a].size
        for a in item.axes
    )


def _places(program: Program, index: Index, size: int) -> int:
    """Distinct in-bounds places of one index."""
    if index.value is not None:
        return 0
    places = {index.offset}
    for coefficient, axis in index.terms:
        extent = program.axis[axis].size
        if len(places) * extent > MAX_PLACES:
            return 0
        places = {p + coefficient * i for p in places for i in range(extent)}
    exact = (p // index.divisor for p in places if p % index.divisor == 0)
    return sum(0 <= p < size for p in exact)
