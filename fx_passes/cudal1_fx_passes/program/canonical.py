"""The canonical form of a program and its fingerprints: one text for one computation.

    simplify, fold positions -> merge axes, part inputs -> refine labels -> break ties -> order from the outputs

Labels (weisfeiler_lehman.py) do not depend on names, on the order of operations, inputs and outputs, or on how
commutative operands were written. Labels without sizes come first, so that programs that differ only in sizes have
the same text but for the sizes. Axes are numbered in the memory order of the largest tensors, window axes after
the others. A tie left by Weisfeiler-Lehman refinement is a symmetry, where any choice gives the same text, or very
rarely a false miss; never a false hit, because the whole text is hashed.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod

from cudal1_fx_passes.program.ir import Axis, Domain, Index, Input, Literal, Op, Operand, Output, Program, Ref
from cudal1_fx_passes.program.merge import AGAIN, Parts, merge_axes, part_inputs
from cudal1_fx_passes.program.ops import OPS, Kind
from cudal1_fx_passes.program.positions import fold_positions
from cudal1_fx_passes.program.simplify import commutative_count, simplify
from cudal1_fx_passes.program.text import print_program
from cudal1_fx_passes.program.weisfeiler_lehman import Labels, break_ties, refine_labels


@dataclass(frozen=True, slots=True)
class Canonical:
    """A canonical program and where its parts were before.

    Input i is input number input_order[i] of the original (unused ones are gone, one may come twice), likewise
    outputs; axis i was axis_order[i] (of merged axes the outermost).
    """

    program: Program
    input_order: tuple[int, ...]
    output_order: tuple[int, ...]
    axis_order: tuple[str, ...]


def canonicalise(program: Program) -> Program:
    return canonical_form(program).program


@dataclass(frozen=True, slots=True)
class _Printed:
    """A program as a key: by its text, for -0.0 and 0.0 are equal values, as are 1 and True."""

    text: str
    program: Program = field(compare=False)


def canonical_form(program: Program) -> Canonical:
    return _form_of(_Printed(print_program(program), program))


@lru_cache(maxsize=1024)
def _form_of(printed: _Printed) -> Canonical:
    """Kept: blocks repeat, graphs are cut for every variant, and one program is asked for several names."""
    program = printed.program
    parts = simplify(Parts(program.axes, program.inputs, program.ops, program.outputs))
    while (folded := fold_positions(parts)) is not parts:
        parts = simplify(folded)
    return order(part_inputs(merge_axes(parts)), program)


def fingerprint(program: Program) -> str:
    """sha256 of the canonical text."""
    return hashlib.sha256(print_program(canonicalise(program)).encode()).hexdigest()


def shape_agnostic_fingerprint(program: Program) -> str:
    """The fingerprint without sizes: programs that differ only in extents (and means' counts) share it."""
    return shape_agnostic_of(canonicalise(program))


def shape_agnostic_of(form: Program) -> str:
    """The same of a program that is in canonical form already."""
    return _shape_agnostic_of(_Printed(print_program(form), form))


@lru_cache(maxsize=1024)
def _shape_agnostic_of(printed: _Printed) -> str:
    form = printed.program
    parts = size_free(Parts(form.axes, form.inputs, form.ops, form.outputs))
    return hashlib.sha256(print_program(order(parts, form).program).encode()).hexdigest()


def size_free(parts: Parts) -> Parts:
    """Every axis of size 2, strides reduced to whether they are 1, counts of reductions as literal 2."""
    sizes = {a.name: a.size for a in parts.axes}
    counts = {prod(sizes[a] for a in op.over) for op in parts.ops if op.over}

    def free(x: Operand) -> Operand:
        if not isinstance(x, Literal) or isinstance(x.value, bool) or x.value in (0, 1):
            return x
        counted = any(abs(x.value) == n or abs(x.value) * n == 1 for n in counts)
        return Literal(type(x.value)(2)) if counted else x

    def strides(t: Input | Output) -> tuple[int, ...] | None:
        return None if t.strides is None else tuple(1 if s == 1 else 2 for s in t.strides)

    return Parts(
        tuple(replace(a, size=2, symbolic=False) for a in parts.axes),
        tuple(replace(i, strides=strides(i)) for i in parts.inputs),
        tuple(replace(o, operands=tuple(free(x) for x in o.operands)) for o in parts.ops),
        tuple(replace(o, strides=strides(o)) for o in parts.outputs),
    )


@dataclass(frozen=True, slots=True)
class Ranks:
    """What to sort by: the label without sizes, then the full one; of operands the one of more axes first."""

    blind: Labels
    full: Labels
    widths: dict[str, int]  # axes of every value

    def value(self, name: str) -> tuple[str, str]:
        return self.blind.values[name], self.full.values[name]

    def output(self, at: int) -> tuple[str, str]:
        return self.blind.outputs[at], self.full.outputs[at]

    def axis(self, name: str) -> tuple[str, str]:
        return self.blind.axes[name], self.full.axes[name]

    def operand(self, x: Operand) -> tuple[bool, int, str, str]:
        width = 0 if isinstance(x, Literal) else self.widths[x.name]
        return isinstance(x, Literal), -width, self.blind.operand(x), self.full.operand(x)


def order(parts: Parts, original: Program) -> Canonical:
    """Puts the parts in canonical order and renames everything."""
    widths = {i.name: len(i.axes) for i in parts.inputs} | {o.name: len(o.axes) for o in parts.ops}
    free = size_free(parts)
    blind = refine_labels(free)
    labels = Ranks(blind, break_ties(parts, blind if free == parts else refine_labels(parts)), widths)
    outputs = sorted(range(len(parts.outputs)), key=lambda i: (labels.output(i), i))
    walk = _Walk(parts, labels)
    for i in outputs:
        walk.visit(parts.outputs[i].value)
    axes = _order_axes(parts, labels, walk)
    names = {a.name: new for a, new in axes}
    rename = _Rename(names, walk.names, {new: i for i, (_, new) in enumerate(axes)})
    numbers = {x.name: i for i, x in enumerate(original.inputs)}
    out_numbers = {x.name: i for i, x in enumerate(original.outputs)}
    by_name = {i.name: i for i in parts.inputs}
    by_op = {o.name: o for o in parts.ops}
    program = Program(
        tuple(Axis(new, a.size, a.symbolic) for a, new in axes),
        tuple(rename.input(by_name[name]) for name in walk.inputs),
        tuple(rename.op(by_op[name], labels) for name in walk.ops),
        tuple(rename.output(parts.outputs[i], at) for at, i in enumerate(outputs)),
    )
    return Canonical(
        program,
        tuple(numbers[name.removesuffix(AGAIN)] for name in walk.inputs),
        tuple(out_numbers[parts.outputs[i].name] for i in outputs),
        tuple(a.name for a, _ in axes),
    )


def _order_axes(parts: Parts, labels: Ranks, walk: _Walk) -> list[tuple[Axis, str]]:
    """(axis, new name): tensor axes in the memory order of the largest tensors, then as operations meet them."""
    sizes = {a.name: a.size for a in parts.axes}
    weighed = [(-prod(sizes[a] for a in i.axes), 0, labels.value(i.name), i.axes) for i in parts.inputs]
    weighed += [
        (-prod(sizes[a] for a in o.axes), 1, labels.output(i), o.axes) for i, o in enumerate(parts.outputs)
    ]
    found = dict.fromkeys(a for *_, axes in sorted(weighed) for a in axes)
    by_op = {o.name: o for o in parts.ops}
    for name in walk.ops:
        for axis in _axes_of(by_op[name], labels, list(found)):
            found.setdefault(axis)
    for name in walk.inputs:  # bounds of indices along axes that nothing has any more
        found |= dict.fromkeys(i.domain.below for i in parts.inputs if i.name == name and i.domain.below)
    by_name = {a.name: a for a in parts.axes}
    named = [(by_name[a], f"d{i}") for i, a in enumerate(a for a in found if not a.startswith("k"))]
    return named + [(by_name[a], f"k{i}") for i, a in enumerate(a for a in found if a.startswith("k"))]


def _axes_of(op: Op, labels: Ranks, known: list[str]) -> list[str]:
    """Axes of an operation: those of its accesses in the order of the axes that they read, then the others."""
    position = {a: i for i, a in enumerate(known)}

    def rank(axis: str) -> tuple[int, tuple[str, str]]:
        return position.get(axis, len(position)), labels.axis(axis)

    met: list[str] = []
    for x in sorted_operands(op, labels):
        if isinstance(x, Ref):
            for axis, index in sorted(x.access, key=lambda pair: rank(pair[0])):
                met += [axis, *sorted((a for _, a in index.terms), key=rank)]
    return met + sorted((*op.axes, *op.over), key=rank)


def sorted_operands(op: Op, labels: Ranks) -> tuple[Operand, ...]:
    """Commutative operands by label, literals last."""
    count = commutative_count(op)
    head = sorted(op.operands[:count], key=labels.operand)
    return (*head, *op.operands[count:])


class _Walk:
    """Depth-first search from the outputs: inputs and operations in the order of their first completion."""

    def __init__(self, parts: Parts, labels: Ranks) -> None:
        self._ops = {o.name: o for o in parts.ops}
        self._labels = labels
        self.inputs: list[str] = []
        self.ops: list[str] = []
        self.names: dict[str, str] = {}

    def visit(self, name: str) -> None:
        if name in self.names:
            return
        op = self._ops.get(name)
        if op is None:
            self.names[name] = f"in{len(self.inputs)}"
            self.inputs.append(name)
            return
        for x in sorted_operands(op, self._labels):
            if isinstance(x, Ref):
                self.visit(x.name)
                for _, index in sorted(x.access, key=lambda pair: self._labels.axis(pair[0])):
                    if index.value is not None:
                        self.visit(index.value)
        self.names[name] = f"t{len(self.ops)}"
        self.ops.append(name)


@dataclass(frozen=True, slots=True)
class _Rename:
    axes: dict[str, str]
    values: dict[str, str]
    position: dict[str, int]  # of a new axis name in the program's axis order

    def many(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(self.axes[a] for a in names)

    def sort(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(sorted(self.many(names), key=self.position.__getitem__))

    def input(self, i: Input) -> Input:
        domain = i.domain
        if domain.below is not None:
            domain = Domain(below=self.axes[domain.below])
        return replace(i, name=self.values[i.name], axes=self.many(i.axes), domain=domain)

    def output(self, o: Output, at: int) -> Output:
        return Output(f"out{at}", self.values[o.value], self.many(o.axes), o.strides)

    def op(self, o: Op, labels: Ranks) -> Op:
        operands = tuple(self.operand(x) for x in sorted_operands(o, labels))
        ordered = o.fn in ("argmax", "argmin") or OPS[o.fn].kind in (Kind.SCAN, Kind.IOTA)
        over = self.many(o.over) if ordered else self.sort(o.over)
        return Op(self.values[o.name], o.dtype, self.sort(o.axes), o.fn, operands, over)

    def operand(self, x: Operand) -> Operand:
        if isinstance(x, Literal):
            return x
        access = [(self.axes[axis], self.index(index)) for axis, index in x.access]
        return Ref(self.values[x.name], tuple(sorted(access, key=lambda pair: self.position[pair[0]])))

    def index(self, i: Index) -> Index:
        if i.value is not None:
            return Index(value=self.values[i.value])
        terms = sorted(((c, self.axes[a]) for c, a in i.terms), key=lambda term: self.position[term[1]])
        return Index(tuple(terms), i.offset, i.divisor)
