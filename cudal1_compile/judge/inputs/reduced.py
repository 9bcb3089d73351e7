"""A large region at smaller sizes, at which a kernel's tiles, tails and grids have the shapes that they had.

    reduced(program) -> the same program with shorter axes | None

Shortened are axes that nothing reads at a computed place: for the rest of its tiles' work a kernel treats them
alike. A shorter axis keeps its remainder by what tiles and vectors take of it, and stays longer than two of them.
"""

from __future__ import annotations

import re
from dataclasses import replace

from cudal1_compile.judge.inputs.sizes import body_of
from cudal1_compile.kernel.candidate import Candidate
from cudal1_fx_passes.program.ir import Axis, Program, Ref
from cudal1_fx_passes.program.ops import OPS, Kind
from cudal1_fx_passes.program.products import match_convolution

OUTER, PRODUCT, INNER = (
    32,
    256,
    1024,
)  # what is kept of an axis: blocks of rows, tiles of products, blocks of threads
BATCH = 64  # a shorter outer axis is left with two or three
IMAGES = 4  # of a product's batch, with what is left by as many: tiles run over the ends of images, and end alike
_WHOLE = re.compile(r"(?<![\w.])\d{2,10}(?=[uUlL]*\b(?!['.]))")


def reduced(program: Program) -> Program | None:
    """None where no axis can be shorter."""
    fixed, inner, products, batches = _fixed(program), _inner(program), _of_products(program), _batches(program)

    def shorter(axis: Axis) -> Axis:
        if axis.name in fixed or axis.symbolic:
            return axis
        if axis.name in batches:
            return replace(axis, size=min(axis.size, IMAGES + axis.size % IMAGES))
        keeps = INNER if axis.name in inner else PRODUCT if axis.name in products else OUTER
        if keeps == OUTER and 3 < axis.size <= BATCH:
            return replace(axis, size=2 + axis.size % 2)
        least = axis.size % keeps + 2 * keeps
        return replace(axis, size=min(axis.size, least))

    axes = tuple(shorter(axis) for axis in program.axes)
    return None if axes == program.axes else replace(program, axes=axes)


def names_sizes(program: Program, candidate: Candidate) -> bool:
    """Whether the code names a number where a size belongs, so that it is right at these sizes alone."""
    shorter = reduced(program) or program
    before = {a.size for a, b in zip(program.axes, shorter.axes, strict=True) if a.size != b.size}
    named = {int(n) for n in _WHOLE.findall(body_of(candidate.code))}
    return any(n in before or any(n > a and n % a == 0 for a in before if a > BATCH) for n in named)


def _fixed(program: Program) -> set[str]:
    """Axes of which a place is computed, or a bound."""
    found = {i.domain.below for i in program.inputs if i.domain.below is not None}
    for op in program.ops:
        found |= {*op.axes, *op.over} if OPS[op.fn].kind is Kind.IOTA else set()
        for x in op.operands:
            if isinstance(x, Ref):
                for axis, index in x.access:
                    found |= {axis, *(a for _, a in index.terms)}
    return found


def _inner(program: Program) -> set[str]:
    """The last axis of an input or an output, along which threads lie."""
    several = [*(i.axes for i in program.inputs), *(o.axes for o in program.outputs)]
    return {axes[-1] for axes in several if axes}


def _batches(program: Program) -> set[str]:
    """Of each product, which sums no others; axes that any product uses otherwise are none."""
    found: set[str] = set()
    others: set[str] = set()
    for op in (op for op in program.ops if OPS[op.fn].kind is Kind.DOT):
        if (convolution := match_convolution(program, op)) is not None:
            own = set(convolution.batch)
        else:
            several = [set(program.value_axes[x.name]) for x in op.operands if isinstance(x, Ref)]
            own = set.intersection(set(op.axes), *several)
        found |= own - set(op.over)
        others |= {*op.axes, *op.over} - own
    return found - others


def _of_products(program: Program) -> set[str]:
    dots = [op for op in program.ops if OPS[op.fn].kind is Kind.DOT]
    return {a for op in dots for a in (*op.axes, *op.over)}
