"""The canonical form of a program and its fingerprints: one text for one computation.

    simplify -> merge axes -> refine labels -> break ties -> order by depth-first search from the outputs

Labels (refine.py) do not depend on names, on the order of operations, inputs and outputs, or on how commutative
operands were written. Axes are numbered in the memory order of the largest tensors, window axes after
the others. A tie left by refinement is a symmetry, where any choice gives the same text, or very rarely a
false miss; never a false hit, because the whole text is hashed.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from math import prod

from cudal1_fx_passes.merge import Parts, merge_axes
from cudal1_fx_passes.ops import OPS, Kind
from cudal1_fx_passes.program import Axis, Domain, Index, Input, Literal, Op, Operand, Output, Program, Ref
from cudal1_fx_passes.refine import Labels, refine
from cudal1_fx_passes.simplify import commutative_count, simplify
from cudal1_fx_passes.text import print_program


@dataclass(frozen=True, slots=True)
class Canonical:
    """A canonical program and where its parts were before.

    Input i is input number input_order[i] of the original (unused ones are gone), likewise outputs; axis
    i was axis_order[i] (of merged axes the outermost).
    """

    program: Program
    input_order: tuple[int, ...]
    output_order: tuple[int, ...]
    axis_order: tuple[str, ...]


def canonicalise(program: Program) -> Program:
    return canonical_form(program).program


def canonical_form(program: Program) -> Canonical:
    parts = Parts(program.axes, program.inputs, program.ops, program.outputs)
    return order(merge_axes(simplify(parts)), program)


def fingerprint(program: Program) -> str:
    """sha256 of the canonical text."""
    return hashlib.sha256(print_program(canonicalise(program)).encode()).hexdigest()


def relative(program: Program) -> str:
    """The fingerprint without sizes: programs that differ only in extents (and means' counts) share it."""
    parts = size_free(canonicalise(program))
    return hashlib.sha256(print_program(order(parts, program).program).encode()).hexdigest()


def size_free(program: Program) -> Parts:
    """Every axis of size 2, strides reduced to whether they are 1, counts of reductions as literal 2."""
    counts = {program.size(op.over) for op in program.ops if op.over}

    def free(x: Operand) -> Operand:
        if not isinstance(x, Literal) or isinstance(x.value, bool) or x.value in (0, 1):
            return x
        counted = any(abs(x.value) == n or abs(x.value) * n == 1 for n in counts)
        return Literal(type(x.value)(2)) if counted else x

    def strides(t: Input | Output) -> tuple[int, ...] | None:
        return None if t.strides is None else tuple(1 if s == 1 else 2 for s in t.strides)

    return Parts(
        tuple(replace(a, size=2, symbolic=False) for a in program.axes),
        tuple(replace(i, strides=strides(i)) for i in program.inputs),
        tuple(replace(o, operands=tuple(free(x) for x in o.operands)) for o in program.ops),
        tuple(replace(o, strides=strides(o)) for o in program.outputs),
    )


def order(parts: Parts, original: Program) -> Canonical:
    """Puts the parts in canonical order and renames everything."""
    labels = refine(parts)
    axes = _order_axes(parts, labels)
    outputs = sorted(range(len(parts.outputs)), key=lambda i: (labels.outputs[i], i))
    walk = _Walk(parts, labels)
    for i in outputs:
        walk.visit(parts.outputs[i].value)
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
        tuple(numbers[name] for name in walk.inputs),
        tuple(out_numbers[parts.outputs[i].name] for i in outputs),
        tuple(a.name for a, _ in axes),
    )


def _order_axes(parts: Parts, labels: Labels) -> list[tuple[Axis, str]]:
    """(axis, new name): tensor axes in the memory order of the largest tensors, then the rest by label."""
    sizes = {a.name: a.size for a in parts.axes}
    weighed = [(-prod(sizes[a] for a in i.axes), 0, labels.values[i.name], i.axes) for i in parts.inputs]
    weighed += [
        (-prod(sizes[a] for a in o.axes), 1, label, o.axes)
        for o, label in zip(parts.outputs, labels.outputs, strict=True)
    ]
    found = dict.fromkeys(a for *_, axes in sorted(weighed) for a in axes)
    rest = sorted((a.name for a in parts.axes if a.name not in found), key=lambda a: labels.axes[a])
    by_name = {a.name: a for a in parts.axes}
    tensor_axes = [a for a in [*found, *rest] if not a.startswith("k")]
    window_axes = [a for a in [*found, *rest] if a.startswith("k")]
    named = [(by_name[a], f"d{i}") for i, a in enumerate(tensor_axes)]
    return named + [(by_name[a], f"k{i}") for i, a in enumerate(window_axes)]


def sorted_operands(op: Op, labels: Labels) -> tuple[Operand, ...]:
    """Commutative operands by label, literals last."""
    count = commutative_count(op)
    head = sorted(op.operands[:count], key=lambda x: (isinstance(x, Literal), labels.operand(x)))
    return (*head, *op.operands[count:])


class _Walk:
    """Depth-first search from the outputs: inputs and operations in the order of their first completion."""

    def __init__(self, parts: Parts, labels: Labels) -> None:
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
                for _, index in sorted(x.access, key=lambda pair: self._labels.axes[pair[0]]):
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

    def op(self, o: Op, labels: Labels) -> Op:
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
