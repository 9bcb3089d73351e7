"""How much memory one run of the oracle takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from cudal1_compile.judge.oracle.bounds import last_uses
from cudal1_fx_passes.program.ir import Op, Program, Ref, operand_axes
from cudal1_fx_passes.program.ops import OPS, Kind
from cudal1_fx_passes.program.products import match_convolution

BOUNDED_BYTES = 16  # an element's value and error in float64
PROBE_COPIES = 4  # of the result of one operation, while its error is looked for


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
        peak = max(peak, held + PROBE_COPIES * max(elements(axes) for axes in _spreads(program, op)))
        held -= sum(elements(program.value_axes[name]) for name in last.get(i, ()))
    return BOUNDED_BYTES * peak


def _spreads(program: Program, op: Op) -> list[set[str]]:
    """The axes over which an operation's result lies, and its terms where no library adds them up in place.

    A scan keeps the axis that it runs along. Factors of a product are laid out each for itself.
    """
    refs = [x for x in op.operands if isinstance(x, Ref)]
    if OPS[op.fn].kind is not Kind.DOT:
        return [{*op.axes, *op.over}]
    if not any(x.access for x in refs) or match_convolution(program, op) is not None:
        return [{*op.axes}]
    return [{*op.axes}, *(operand_axes(program.value_axes, x) for x in refs)]
