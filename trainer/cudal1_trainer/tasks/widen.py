"""Makes tasks as wide as the regions of real models: more outputs, more inputs, several reductions.

    widen(program, rng, more) -> a canonical program

Four changes, each at random: values inside become outputs too (what a backward pass saves); literals and repeated
uses of an input become inputs of their own (weights, biases, residuals); a second task is joined on, reading
values of the first, so that rows, columns and totals meet in one program; an axis is split by a tensor that has
one half of it (heads, groups). Measured on the first model: tasks as generated have at most 4 outputs and 7
inputs; 13% of 254 regions cut from models have 5 outputs and more, and on those it failed.

Values are never computed here; a widened program may well overflow, which matters to scores but not to a lesson.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from cudal1_fx_passes.errors import ProgramError
from cudal1_fx_passes.program.canonical import canonicalise
from cudal1_fx_passes.program.ir import Axis, Domain, Input, Literal, Op, Operand, Output, Program, Ref
from cudal1_fx_passes.program.ops import OPS, Kind

MAX_OPS = 64
MAX_INPUTS = 18
MAX_OUTPUTS = 14
MAX_ELEMENTS = 1 << 28
_OPEN = ("add", "sub", "mul", "maximum", "minimum")  # whose literal may become any tensor
WIDE = 5  # dims of a value


def widen(program: Program, rng: random.Random, more: Callable[[], Program]) -> Program:
    """`more`: draws another task to join on. Returns the program as it is where nothing can be changed."""
    wide = program
    if rng.random() < 0.65:
        for _ in range(rng.choice((1, 1, 2))):
            wide = attempt(join, wide, rng, more())
    if rng.random() < 0.2:
        wide = attempt(split_axis, wide, rng)
    if rng.random() < 0.6:
        wide = attempt(add_inputs, wide, rng)
    if rng.random() < 0.75:
        wide = attempt(add_outputs, wide, rng)
    return attempt(lambda p, _: canonicalise(p), wide, rng)


def attempt(change: Callable[..., Program], program: Program, rng: random.Random, *more: Program) -> Program:
    """The changed program, or the old one where the change breaks a rule or a limit."""
    try:
        found = change(program, rng, *more)
    except ProgramError:
        return program
    return found if _fits(found) else program


def _fits(p: Program) -> bool:
    if not (1 <= len(p.ops) <= MAX_OPS and 1 <= len(p.inputs) <= MAX_INPUTS and len(p.outputs) <= MAX_OUTPUTS):
        return False
    return max(p.size(axes) for axes in p.value_axes.values()) < MAX_ELEMENTS


def add_outputs(program: Program, rng: random.Random) -> Program:
    """Some inner values become outputs, in the axis order of the program."""
    taken = {o.value for o in program.outputs}
    free = [o for o in program.ops if o.name not in taken and len(o.axes) <= WIDE]
    room = min(len(free), MAX_OUTPUTS - len(program.outputs))
    if room < 1:
        return program
    count = min(room, 1 + int(rng.expovariate(0.4)))
    chosen = rng.sample(free, count)
    extra = [Output(f"out{len(program.outputs) + i}", o.name, o.axes) for i, o in enumerate(chosen)]
    return replace(program, outputs=(*program.outputs, *extra))


def add_inputs(program: Program, rng: random.Random) -> Program:
    """Literals of sums and products, and repeated uses of an input, become inputs of their own."""
    share = rng.uniform(0.2, 0.9)
    inputs = list(program.inputs)
    by_name = {i.name: i for i in inputs}
    used: set[str] = set()

    def fresh(dtype: str, axes: tuple[str, ...], domain: Domain = Domain()) -> Ref:  # noqa: B008  frozen
        inputs.append(Input(f"in{len(inputs)}", dtype, axes, None, domain))
        return Ref(inputs[-1].name)

    def operand(op: Op, x: Operand) -> Operand:
        if len(inputs) >= MAX_INPUTS or rng.random() > share:
            return x
        if isinstance(x, Literal):
            if op.fn not in _OPEN or isinstance(x.value, bool) or not op.axes or op.dtype not in FLOATS:
                return x
            return fresh(op.dtype, _some_axes(op.axes, rng))
        if x.name in by_name and not x.access and x.name in used:
            old = by_name[x.name]
            return fresh(old.dtype, old.axes, old.domain) if old.strides is None else x
        return x

    ops = []
    for op in program.ops:
        changed = tuple(operand(op, x) for x in op.operands) if OPS[op.fn].kind is Kind.POINTWISE else op.operands
        used |= {x.name for x in op.operands if isinstance(x, Ref)}
        ops.append(replace(op, operands=changed))
    return replace(program, inputs=tuple(inputs), ops=tuple(ops))


FLOATS = ("f32", "f16", "bf16")


def _some_axes(axes: tuple[str, ...], rng: random.Random) -> tuple[str, ...]:
    """All axes, one of them, the last ones, or a random choice: a residual, a weight, a bias of all, any other."""
    kind = rng.random()
    if kind < 0.35:
        return axes
    if kind < 0.65:
        return (rng.choice(axes),)
    if kind < 0.8:
        return axes[rng.randrange(len(axes)) :]
    return tuple(a for a in axes if rng.random() < 0.6)


def split_axis(program: Program, rng: random.Random) -> Program:
    """An axis becomes two, held apart by a product with a new input that has only one of them."""
    if _reads_elsewhere(program) or any(OPS[o.fn].kind in (Kind.SCAN, Kind.IOTA) for o in program.ops):
        raise ProgramError("positions along an axis matter")
    whole = [a for a in program.axes if not a.symbolic]
    cuts = [(a, f) for a in whole for f in (2, 3, 4, 8, 16, 32, 64) if a.size % f == 0 and a.size > f]
    places = [k for k, o in enumerate(program.ops) if OPS[o.fn].kind is Kind.POINTWISE and o.dtype in FLOATS]
    if not cuts or not places:
        raise ProgramError("nothing to split")
    axis, inner = rng.choice(cuts)
    places = [k for k in places if axis.name in program.ops[k].axes]
    if not places:
        raise ProgramError("no operation to hold the halves apart")
    number = 0
    while f"d{number}" in program.axis:
        number += 1
    halves = (axis.name, f"d{number}")
    split = _with_split_axis(program, axis, halves, inner)
    return _hold_apart(split, rng.choice(places), rng.choice(halves))


def _with_split_axis(p: Program, axis: Axis, halves: tuple[str, str], inner: int) -> Program:
    sizes = (Axis(halves[0], axis.size // inner), Axis(halves[1], inner))

    def both(axes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(n for a in axes for n in (halves if a == axis.name else (a,)))

    return Program(
        tuple(n for a in p.axes for n in (sizes if a == axis else (a,))),
        tuple(replace(i, axes=both(i.axes)) for i in p.inputs),
        tuple(replace(o, axes=both(o.axes), over=both(o.over)) for o in p.ops),
        tuple(replace(o, axes=both(o.axes)) for o in p.outputs),
    )


def _hold_apart(p: Program, place: int, half: str) -> Program:
    """Multiplies one operation's result by a new input over `half`; what follows reads the product."""
    op = p.ops[place]
    name, extra = f"t{len(p.ops)}", Input(f"in{len(p.inputs)}", op.dtype, (half,))
    product = Op(name, op.dtype, op.axes, "mul", (Ref(op.name), Ref(extra.name)))

    def moved(o: Op) -> Op:
        operands = tuple(Ref(name) if isinstance(x, Ref) and x.name == op.name else x for x in o.operands)
        return replace(o, operands=operands)

    later = tuple(moved(o) for o in p.ops[place + 1 :])
    outputs = tuple(replace(o, value=name) if o.value == op.name else o for o in p.outputs)
    return replace(p, inputs=(*p.inputs, extra), ops=(*p.ops[: place + 1], product, *later), outputs=outputs)


def join(first: Program, rng: random.Random, second: Program) -> Program:
    """Joins a second task on: one of its inputs is a value of the first, others may be the first's inputs.

    Its axes take the names and sizes of what it reads; programs that read at other indices, or have sizes of
    their own that must fit each other, are left alone (ProgramError).
    """
    if _reads_elsewhere(second) or second.is_symbolic or first.is_symbolic:
        raise ProgramError("its sizes depend on each other")
    links = _links(first, second, rng)
    if not links:
        raise ProgramError("no value of the first fits an input of the second")
    names = _axis_names(first, second, links)
    order = [a.name for a in first.axes]
    axes = [*first.axes, *(Axis(names[a.name], a.size) for a in second.axes if names[a.name] not in order)]
    casts = _casts(first, second, links)
    rename = {i.name: f"in{len(first.inputs) + k}" for k, i in enumerate(second.inputs)} | links
    rename |= {i: c.name for i, c in casts.items()}
    before = len(first.ops) + len(casts)
    rename |= {o.name: f"t{before + k}" for k, o in enumerate(second.ops)}
    place = {a.name: k for k, a in enumerate(axes)}
    inputs = [_renamed_input(i, rename, names) for i in second.inputs if i.name not in links]
    ops = [_renamed_op(o, rename, names, place) for o in second.ops]
    outputs = [
        Output(f"out{len(first.outputs) + k}", rename[o.value], tuple(names[a] for a in o.axes))
        for k, o in enumerate(second.outputs)
    ]
    every = (*first.ops, *casts.values(), *ops)
    return Program(tuple(axes), (*first.inputs, *inputs), every, (*first.outputs, *outputs))


def _casts(first: Program, second: Program, links: dict[str, str]) -> dict[str, Op]:
    """Linked input -> the operation that brings what it reads into its dtype, where the two differ."""
    wanted = {i.name: i.dtype for i in second.inputs}
    found: dict[str, Op] = {}
    for name, value in links.items():
        if first.value_dtype[value] != wanted[name]:
            cast = Op(
                f"t{len(first.ops) + len(found)}", wanted[name], first.value_axes[value], "cast", (Ref(value),)
            )
            found[name] = cast
    return found


def _reads_elsewhere(p: Program) -> bool:
    return any(isinstance(x, Ref) and x.access for o in p.ops for x in o.operands) or any(
        i.strides is not None or i.domain.below is not None for i in p.inputs
    )


def _links(first: Program, second: Program, rng: random.Random) -> dict[str, str]:
    """Input of the second -> value of the first of the same rank; those chosen agree on every axis.

    Dtypes are the same, or both float.
    """
    chosen: dict[str, str] = {}
    axis_of: dict[str, str] = {}
    wanted = [i for i in second.inputs if i.axes]
    rng.shuffle(wanted)
    values = [n for n, axes in first.value_axes.items() if axes]
    for item in wanted:
        if chosen and rng.random() < 0.5:
            continue
        alike = [n for n in values if first.value_dtype[n] == item.dtype]
        if not alike and item.dtype in FLOATS:
            alike = [n for n in values if first.value_dtype[n] in FLOATS]
        fits = [n for n in alike if _agrees(first, n, second, item, axis_of)]
        if fits:
            # later values more often: what a model computed last is what it goes on with
            chosen[item.name] = fits[max(rng.randrange(len(fits)), rng.randrange(len(fits)))]
            axis_of |= dict(zip(second.value_axes[item.name], first.value_axes[chosen[item.name]], strict=True))
    return chosen


def _agrees(first: Program, name: str, second: Program, item: Input, axis_of: dict[str, str]) -> bool:
    theirs, ours = second.value_axes[item.name], first.value_axes[name]
    if len(theirs) != len(ours):
        return False
    mapped = axis_of | dict(zip(theirs, ours, strict=True))
    return len(set(mapped.values())) == len(mapped) and all(mapped[a] == axis_of.get(a, mapped[a]) for a in theirs)


def _axis_names(first: Program, second: Program, links: dict[str, str]) -> dict[str, str]:
    names: dict[str, str] = {}
    for theirs, ours in links.items():
        names |= dict(zip(second.value_axes[theirs], first.value_axes[ours], strict=True))
    taken = {a.name for a in first.axes}
    number = 0
    for axis in second.axes:
        while axis.name not in names:
            candidate = f"{axis.name[0]}{number}"
            number += 1
            if candidate not in taken:
                names[axis.name] = candidate
                taken.add(candidate)
    return names


def _renamed_input(item: Input, rename: dict[str, str], names: dict[str, str]) -> Input:
    return replace(item, name=rename[item.name], axes=tuple(names[a] for a in item.axes))


def _renamed_op(op: Op, rename: dict[str, str], names: dict[str, str], place: dict[str, int]) -> Op:
    operands = tuple(Ref(rename[x.name]) if isinstance(x, Ref) else x for x in op.operands)
    axes = tuple(sorted((names[a] for a in op.axes), key=place.__getitem__))
    return replace(op, name=rename[op.name], axes=axes, operands=operands, over=tuple(names[a] for a in op.over))
