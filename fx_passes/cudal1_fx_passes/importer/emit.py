"""Turns a finished draft into a Program: atoms become named axes, sources become in*, t* and out*.

Dead operations are dropped and mergeable axes merged (a tensor may have at most MAX_DIMS dims only after that).
Names are not canonical yet; canonical.py does that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from cudal1_fx_passes.importer.draft import Draft, DraftIndex, DraftOp, DraftRef, Value
from cudal1_fx_passes.importer.layout import Layout, layout_of
from cudal1_fx_passes.importer.unify import Atom, AxisConflict, Dim, Extent, find, leaves
from cudal1_fx_passes.program.ir import (
    ANY,
    MAX_DIMS,
    Axis,
    Domain,
    Index,
    Input,
    Literal,
    Op,
    Operand,
    Output,
    Program,
    Ref,
)
from cudal1_fx_passes.program.merge import Parts, merge_axes
from cudal1_fx_passes.program.ops import OPS, Kind
from cudal1_fx_passes.program.simplify import simplify


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output of the region: its fake tensor and its dims over atoms."""

    name: str
    meta: torch.Tensor
    dims: tuple[Dim, ...]
    dtype: str
    domain: Domain = ANY


class LayoutConflict(AxisConflict):
    """The memory layout of an input or output cannot be said; the message begins with its name."""


class TooManyDims(AxisConflict):
    """A tensor has more dims than a program allows, even after merging."""


@dataclass(frozen=True, slots=True)
class Emitted:
    program: Program
    symbols: tuple[Extent, ...]  # one expression a symbolic axis, in the program's axis order
    origins: dict[str, str]  # operation -> FX node


def emit(draft: Draft, inputs: Sequence[Tensor], outputs: Sequence[tuple[Tensor, Value]]) -> Emitted:
    """Raises AxisConflict where an output cannot be written in the layout that its fake tensor has."""
    ops = _live(draft, outputs)
    naming = _Naming(draft, inputs, outputs, ops)
    made: list[Op] = []
    origins: dict[str, str] = {}
    names = {i.name: i.name for i in inputs}
    for op in ops:
        for new in _emit_op(op, naming, names, len(made)):
            made.append(new)
            origins[new.name] = op.origin
        names[op.name] = made[-1].name
    parts = Parts(
        tuple(naming.axes),
        tuple(_emit_input(i, draft, naming) for i in inputs),
        tuple(made),
        tuple(_emit_output(t, v, draft, naming, names) for t, v in outputs),
    )
    parts = merge_axes(simplify(parts, keep_inputs=True))
    for t in parts.tensors:
        if len(t.axes) > MAX_DIMS:
            raise TooManyDims(f"{t.name}: {len(t.axes)} dims, at most {MAX_DIMS} are allowed")
    program = parts.build()
    symbols = tuple(naming.extents[a.name] for a in program.axes if a.symbolic)
    return Emitted(program, symbols, origins)


def _live(draft: Draft, outputs: Sequence[tuple[Tensor, Value]]) -> list[DraftOp]:
    needed = {v.source for _, v in outputs if isinstance(v.source, str)}
    found: list[DraftOp] = []
    for op in reversed(draft.ops):
        if op.name not in needed:
            continue
        found.append(op)
        for x in op.operands:
            if isinstance(x, DraftRef):
                needed.add(x.source)
                needed |= {p.value for _, p in x.access if p.value is not None}
    return list(reversed(found))


class _Naming:
    """Names of the leaves, in the memory order of the largest tensors first."""

    def __init__(
        self,
        draft: Draft,
        inputs: Sequence[Tensor],
        outputs: Sequence[tuple[Tensor, Value]],
        ops: Sequence[DraftOp],
    ) -> None:
        self.draft = draft
        self.names: dict[Atom, str] = {}
        self.axes: list[Axis] = []
        self.extents: dict[str, Extent] = {}
        self._count = {"d": 0, "k": 0}
        tensors = [*inputs, *(t for t, _ in outputs)]
        weighed = [(self._hint(atoms), atoms) for atoms in (self._memory(t) for t in tensors)]
        for _, atoms in sorted(weighed, key=lambda item: -item[0]):
            self._name_all(atoms)
        for op in ops:
            self._name_all(leaves(draft.atoms[op.name]))
            self._name_all(leaves(op.over))
            for x in op.operands:
                if isinstance(x, DraftRef):
                    self._name_all(leaves(a for key, p in x.access for a in (key, *(t for _, t in p.terms))))
        self.order = {a.name: i for i, a in enumerate(self.axes)}

    @staticmethod
    def _memory(t: Tensor) -> list[Atom]:
        return [a for dim in _layout(t, t.dims).dims for a in leaves(dim)]

    @staticmethod
    def _hint(atoms: list[Atom]) -> int:
        count = 1
        for a in atoms:
            count *= a.hint
        return count

    def _name_all(self, atoms: Iterable[Atom]) -> None:
        for atom in atoms:
            if atom in self.names:
                continue
            letter = "k" if atom.window else "d"
            name = f"{letter}{self._count[letter]}"
            self._count[letter] += 1
            self.names[atom] = name
            self.axes.append(Axis(name, atom.hint, atom.symbolic))
            self.extents[name] = atom.extent

    def sort(self, atoms: Iterable[Atom]) -> tuple[str, ...]:
        return tuple(sorted({self.names[a] for a in atoms}, key=self.order.__getitem__))


def _layout(t: Tensor, dims: tuple[Dim, ...]) -> Layout:
    """layout_of, its conflicts named by the tensor."""
    try:
        return layout_of(t.meta, dims)
    except AxisConflict as conflict:
        raise LayoutConflict(f"{t.name}: {conflict}") from None


def _emit_input(t: Tensor, draft: Draft, naming: _Naming) -> Input:
    layout = _layout(t, t.dims)
    domain = draft.domains.get(t.name, t.domain)
    axis = draft.below.get(t.name)
    if axis is not None and find(axis) in naming.names:
        domain = Domain(below=naming.names[find(axis)])
    return Input(t.name, t.dtype, tuple(naming.names[a] for d in layout.dims for a in d), layout.strides, domain)


def _emit_output(t: Tensor, value: Value, draft: Draft, naming: _Naming, names: dict[str, str]) -> Output:
    if not isinstance(value.source, str):
        raise AxisConflict("an output that is a constant")
    if value.access:
        raise AxisConflict("an output that is a slice")
    layout = _layout(t, value.dims)
    axes = tuple(naming.names[a] for d in layout.dims for a in d)
    if set(axes) != {naming.names[a] for a in draft.varies_over(value)}:
        raise AxisConflict("an output that is the same along a whole dim (an expanded value)")
    return Output(t.name, names[value.source], axes, layout.strides)


def _emit_op(op: DraftOp, naming: _Naming, names: dict[str, str], at: int) -> list[Op]:
    if OPS[op.fn].kind is Kind.IOTA and len(leaves(op.over)) > 1:
        return _split_iota(op, naming, at)
    operands = tuple(_operand(x, naming, names) for x in op.operands)
    over = [naming.names[a] for a in leaves(op.over)]
    if op.fn not in ("argmax", "argmin"):  # their order is the meaning of the index
        over.sort(key=naming.order.__getitem__)
    axes = naming.sort(leaves(naming.draft.atoms[op.name]))
    return [Op(f"t{at}", op.dtype, axes, op.fn, operands, tuple(over))]


def _split_iota(op: DraftOp, naming: _Naming, at: int) -> list[Op]:
    """The position along an axis that was split: (i0 * size1 + i1) ..."""
    made: list[Op] = []
    total: str | None = None
    axes: list[Atom] = []
    for atom in leaves(op.over):
        name = naming.names[atom]
        made.append(Op(f"t{at + len(made)}", op.dtype, (name,), "iota", (), (name,)))
        here = made[-1].name
        if total is not None:
            if atom.symbolic:
                raise AxisConflict("the position along a symbolic axis that was split")
            scaled = Op(f"t{at + len(made)}", op.dtype, naming.sort(axes), "mul", (Ref(total), Literal(atom.hint)))
            made.append(scaled)
            operands = (Ref(scaled.name), Ref(here))
            made.append(Op(f"t{at + len(made)}", op.dtype, naming.sort([*axes, atom]), "add", operands))
        axes.append(atom)
        total = made[-1].name
    return made


def _operand(x: DraftRef | Literal, naming: _Naming, names: dict[str, str]) -> Operand:
    if isinstance(x, Literal):
        return x
    access = []
    for atom, index in x.access:
        if not index.is_plain(find(atom)):
            access.append((naming.names[find(atom)], _index(index, naming, names)))
    return Ref(names[x.source], tuple(sorted(access, key=lambda pair: naming.order[pair[0]])))


def _index(index: DraftIndex, naming: _Naming, names: dict[str, str]) -> Index:
    if index.value is not None:
        return Index(value=names[index.value])
    terms: list[tuple[int, str]] = []
    for coefficient, atom in index.terms:
        step = coefficient
        for leaf in reversed(leaves((atom,))):
            terms.append((step, naming.names[leaf]))
            if leaf is not leaves((atom,))[0]:
                if leaf.symbolic:
                    raise AxisConflict("an access along a symbolic axis that was split")
                step *= leaf.hint
    terms.sort(key=lambda term: naming.order[term[1]])
    return Index(tuple(terms), index.offset, index.divisor)
