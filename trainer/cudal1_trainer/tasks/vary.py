"""Varies structures, so that no draw meets one twice and a kernel is learned from its program, not by heart.

    vary(program, rng)      some of: other functions of the same form, other literals, masks and powers, inner
                            values read as inputs, literals as inputs, outputs left out, inner values as outputs

Measured on a model trained without: 92% of replies free of mistakes on structures that it was trained on, 69% on
new ones from models of the same kinds. Literals: 60 were 85% of those drawn, and a model adds a digit to 0.0884.
One that had never met them masked nothing with -inf on the left, raised nothing to 0.75 and multiplied nothing up.
Values are never computed here; a varied program may well overflow.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace

from cudal1_fx_passes.errors import ProgramError
from cudal1_fx_passes.importer.draft import MOST_F16
from cudal1_fx_passes.program.ir import Domain, Input, Literal, Op, Operand, Output, Program, Ref
from cudal1_fx_passes.program.ops import OPS, Kind
from cudal1_trainer.tasks.widen import FLOATS, WIDE, add_inputs, add_outputs, attempt

_UNARY = ("exp", "tanh", "sigmoid", "neg", "abs", "relu", "sqrt", "rsqrt", "erf", "reciprocal", "log1p")
_BINARY = ("add", "sub", "mul", "div", "maximum", "minimum")
_REDUCTIONS = ("sum", "sum", "sum", "mean", "mean", "amax", "amin", "prod")
_MASKS = (-math.inf, -math.inf, math.inf, -1e9, -1e9, -1e4, -65504.0, -1e6, -1e12, 1e10, 0.0, 1.0)
# of what has no sign, and no further than what they stand for
_POWERS = {
    "sqrt": (0.5, 0.5, 0.75, 0.25, 0.3333333333333333, 0.1, 1.5),
    "rsqrt": (-0.5, -0.5, -0.75, -0.25, -0.3333333333333333, -1.5),
    "reciprocal": (-1.0, -0.5, -1.5),
}
_SCANS = ("cumsum", "cumprod")
LARGEST = 1e30  # of a literal that stands for a number; larger ones stand for no end
DIGITS = (1, 2, 2, 3, 4, 5, 6, 8, 17)
_ALIKE = {fn: group for group in (_UNARY, _BINARY, _REDUCTIONS, _SCANS) for fn in group}


def vary(program: Program, rng: random.Random) -> Program:
    """The program as it is where nothing can be changed; not in canonical form."""
    changes = (
        *((swap_functions, 0.6), (change_literals, 0.4), (mask_values, 0.25), (raise_values, 0.15)),
        *((cut_values, 0.5), (add_inputs, 0.15), (drop_outputs, 0.4), (add_outputs, 0.5)),
    )
    for change, share in changes:
        if rng.random() < share:
            program = attempt(change, program, rng)
    return program


def swap_functions(p: Program, rng: random.Random) -> Program:
    """Some operations on floats become others with the same operands."""
    share = rng.uniform(0.05, 0.5)

    def swapped(op: Op) -> Op:
        plain = op.dtype in FLOATS and all(
            p.value_dtype[x.name] == op.dtype for x in op.operands if isinstance(x, Ref)
        )
        if not plain or op.fn not in _ALIKE or rng.random() > share:
            return op
        return replace(op, fn=rng.choice(_ALIKE[op.fn]))

    return replace(p, ops=tuple(swapped(op) for op in p.ops))


def change_literals(p: Program, rng: random.Random) -> Program:
    """Some numbers become others of their sign, of few digits or many: digits are copied, not known by heart."""
    share = rng.uniform(0.2, 1.0)

    def operand(op: Op, x: Operand) -> Operand:
        plain = isinstance(x, Literal) and isinstance(x.value, float) and 0 < abs(x.value) < LARGEST
        if not plain or OPS[op.fn].kind is not Kind.POINTWISE or rng.random() > share:
            return x
        assert isinstance(x, Literal)
        return Literal(float(f"{x.value * 10 ** rng.uniform(-0.7, 0.7):.{rng.choice(DIGITS)}g}"))

    return replace(p, ops=tuple(replace(o, operands=tuple(operand(o, x) for x in o.operands)) for o in p.ops))


def mask_values(p: Program, rng: random.Random) -> Program:
    """Some choices take a number of masks on one side, whichever that is."""

    def masked(op: Op) -> Op:
        values = op.operands[1:]
        if op.fn != "where" or op.dtype not in FLOATS or rng.random() < 0.5:
            return op
        at = rng.choice([i for i in (0, 1) if isinstance(values[1 - i], Ref)] or [2])
        number = rng.choice([n for n in _MASKS if op.dtype != "f16" or abs(n) <= MOST_F16 or math.isinf(n)])
        made = tuple(Literal(number) if i == at else x for i, x in enumerate(values))
        return replace(op, operands=(op.operands[0], *made))

    return without_dead(replace(p, ops=tuple(map(masked, p.ops))))


def raise_values(p: Program, rng: random.Random) -> Program:
    """Some roots and reciprocals become powers."""
    change = {o.name: rng.choice(_POWERS[o.fn]) for o in p.ops if o.fn in _POWERS and rng.random() < 0.6}
    ops = (
        replace(o, fn="pow", operands=(*o.operands, Literal(change[o.name]))) if o.name in change else o
        for o in p.ops
    )
    return replace(p, ops=tuple(ops))


def cut_values(p: Program, rng: random.Random) -> Program:
    """One or two inner values are read from inputs of their own, as if another region had made them."""
    free = [o for o in p.ops if o.dtype in (*FLOATS, "bool") and len(o.axes) <= WIDE]
    chosen = rng.sample(free, min(len(free), rng.choice((1, 1, 2))))
    inputs = {o.name: Input(f"in{len(p.inputs) + i}", o.dtype, o.axes) for i, o in enumerate(chosen)}

    def operand(x: Operand) -> Operand:
        return replace(x, name=inputs[x.name].name) if isinstance(x, Ref) and x.name in inputs else x

    ops = tuple(replace(o, operands=tuple(operand(x) for x in o.operands)) for o in p.ops)
    return without_dead(Program(p.axes, (*p.inputs, *inputs.values()), ops, p.outputs))


def drop_outputs(p: Program, rng: random.Random) -> Program:
    """Some outputs are left out, with what only they need."""
    kept = [o for o in p.outputs if rng.random() < 0.6] or [rng.choice(p.outputs)]
    return without_dead(replace(p, outputs=tuple(kept)))


def without_dead(p: Program) -> Program:
    """Without operations, inputs and axes that no output needs. Raises ProgramError where no operation is left."""
    used = {o.value for o in p.outputs}
    for op in reversed(p.ops):
        if op.name in used:
            used |= {name for x in op.operands if isinstance(x, Ref) for name in _names(x)}
    ops = tuple(o for o in p.ops if o.name in used)
    if not ops:
        raise ProgramError("nothing is computed")
    inputs = [i for i in p.inputs if i.name in used]
    axes = {a for i in inputs for a in i.axes} | {a for o in ops for a in (*o.axes, *o.over)}
    # an index below an axis that nothing has any more is any number
    inputs = [i if i.domain.below in (None, *axes) else replace(i, domain=Domain()) for i in inputs]
    outputs = tuple(Output(f"out{k}", o.value, o.axes) for k, o in enumerate(p.outputs))
    return Program(tuple(a for a in p.axes if a.name in axes), tuple(inputs), ops, outputs)


def _names(x: Ref) -> list[str]:
    return [x.name, *x.index_values]
