"""Merges adjacent axes that no operation tells apart: [d0=8,d1=64] becomes [d0=512] where both always go together.

    in0 f32[d0,d1]               in0 f32[d0]
    t0 f32[d0,d1] = exp(in0)  ->  t0 f32[d0] = exp(in0)

Legal where every tensor holds both, next to each other, in the same order and dense, or neither; every
value varies over both or neither; every reduction removes both or neither; and neither is symbolic,
accessed, scanned, counted (iota, argmax) or named by a domain. Works on the parts of a program, because
the limit of dims a tensor holds only after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

from cudal1_fx_passes.program.ir import Axis, Index, Input, Literal, Op, Operand, Output, Program, Ref
from cudal1_fx_passes.program.ops import OPS, Kind

AGAIN = "+"  # behind the name of an input that is read as another one too


@dataclass(frozen=True, slots=True)
class Parts:
    """A program's fields, without its checks."""

    axes: tuple[Axis, ...]
    inputs: tuple[Input, ...]
    ops: tuple[Op, ...]
    outputs: tuple[Output, ...]

    @property
    def tensors(self) -> list[Input | Output]:
        return [*self.inputs, *self.outputs]

    def build(self) -> Program:
        return Program(self.axes, self.inputs, self.ops, self.outputs)


def merge_axes(parts: Parts) -> Parts:
    """Returns the parts with every legal merge done; axes that nothing uses are dropped."""
    parts = drop_unused(parts)
    runs = _runs(parts)
    return _rename(parts, runs) if runs else parts


def part_inputs(parts: Parts) -> Parts:
    """An input that a product reads along axes that it also writes, as beside a residual, becomes two.

        dot(in0[d2=d2+k0-1], in1), add(t0, in0)   ->   dot(in0+[d4=d2+k0-1], in1), add(t0, in0)

    A position along what is read and one along the result then have two names; the same tensor is passed twice.
    """
    inputs = {i.name: i for i in parts.inputs}
    fixed = {a.name for a in parts.axes if a.symbolic}
    dots = {op.name for op in parts.ops if OPS[op.fn].kind is Kind.DOT}
    read = [x for op in parts.ops if op.name in dots for x in op.operands if isinstance(x, Ref)]
    own: dict[str, dict[str, str]] = {}  # input -> axis -> the new one
    for name, axis, index in ((x.name, *position) for x in read if x.name in inputs for position in x.access):
        if axis not in fixed and any(axis == a for _, a in index.terms):
            own.setdefault(name, {})[axis] = f"{axis} of {name}"
    if not own:
        return parts

    def operand(x: Operand) -> Operand:
        if isinstance(x, Literal) or x.name not in own or not own[x.name].keys() & dict(x.access).keys():
            return x
        new = own[x.name]
        access = {a: Index(((1, a),)) for a in new} | dict(x.access)
        return Ref(x.name + AGAIN, tuple((new.get(a, a), index) for a, index in access.items()))

    size = {a.name: a for a in parts.axes}
    again = [
        replace(inputs[name], name=name + AGAIN, axes=tuple(new.get(a, a) for a in inputs[name].axes))
        for name, new in own.items()
    ]
    return drop_unused(
        Parts(
            (*parts.axes, *(replace(size[a], name=name) for new in own.values() for a, name in new.items())),
            (*parts.inputs, *again),
            tuple(
                replace(o, operands=tuple(map(operand, o.operands))) if o.name in dots else o for o in parts.ops
            ),
            parts.outputs,
        )
    )


def drop_unused(parts: Parts) -> Parts:
    used: set[str] = set()
    for t in parts.tensors:
        used |= set(t.axes)
    for i in parts.inputs:
        if i.domain.below is not None:
            used.add(i.domain.below)
    for op in parts.ops:
        used |= {*op.axes, *op.over}
        for axis, index in _accesses(op):
            used |= {axis, *(a for _, a in index.terms)}
    return replace(parts, axes=tuple(a for a in parts.axes if a.name in used))


def _accesses(op: Op) -> Iterable[tuple[str, Index]]:
    for x in op.operands:
        if isinstance(x, Ref):
            yield from x.access


def _runs(parts: Parts) -> list[list[str]]:
    """Maximal chains of axes to merge, outermost first."""
    follows = _follows(parts)
    before = set(follows.values())
    runs = []
    for axis in parts.axes:
        if axis.name in follows and axis.name not in before:
            run = [axis.name]
            while run[-1] in follows:
                run.append(follows[run[-1]])
            runs.append(run)
    return runs


def _follows(parts: Parts) -> dict[str, str]:
    """outer axis -> the inner axis that it may be merged with."""
    fixed = _fixed(parts)
    together: dict[str, set[int]] = {a.name: set() for a in parts.axes}
    groups: list[Sequence[str]] = [t.axes for t in parts.tensors]
    groups += [op.axes for op in parts.ops] + [op.over for op in parts.ops if op.over]
    for number, group in enumerate(groups):
        for name in group:
            together[name].add(number)
    sizes = {a.name: a.size for a in parts.axes}
    follows: dict[str, str] = {}
    for tensor in parts.tensors:
        for outer, inner in zip(tensor.axes, tensor.axes[1:], strict=False):
            if outer not in fixed and inner not in fixed and together[outer] == together[inner]:
                follows.setdefault(outer, inner)
    for tensor in parts.tensors:
        position = {name: i for i, name in enumerate(tensor.axes)}
        for outer, inner in list(follows.items()):
            if outer not in position:
                continue
            at = position[outer]
            dense = tensor.strides is None or tensor.strides[at] == tensor.strides[position[inner]] * sizes[inner]
            if position[inner] != at + 1 or not dense:
                del follows[outer]
    return follows


def _fixed(parts: Parts) -> set[str]:
    """Axes that must stay as they are."""
    fixed = {a.name for a in parts.axes if a.symbolic or a.name.startswith("k")}
    fixed |= {i.domain.below for i in parts.inputs if i.domain.below is not None}
    for op in parts.ops:
        if OPS[op.fn].kind in (Kind.SCAN, Kind.IOTA) or op.fn in ("argmax", "argmin"):
            fixed |= set(op.over)
        for x in op.operands:
            if isinstance(x, Literal):
                continue
            for axis, index in x.access:
                fixed |= {axis, *(a for _, a in index.terms)}
    return fixed


def _rename(parts: Parts, runs: list[list[str]]) -> Parts:
    """Keeps the first axis of each run, with the run's size."""
    gone = {name for run in runs for name in run[1:]}
    sizes = {a.name: a.size for a in parts.axes}
    grown = {run[0]: prod(sizes[name] for name in run) for run in runs}
    last = {run[0]: run[-1] for run in runs}

    def keep(axes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(a for a in axes if a not in gone)

    def strides(tensor: Input | Output) -> tuple[int, ...] | None:
        if tensor.strides is None:
            return None
        step = dict(zip(tensor.axes, tensor.strides, strict=True))
        return tuple(step[last.get(a, a)] for a in keep(tensor.axes))

    return Parts(
        tuple(replace(a, size=grown.get(a.name, a.size)) for a in parts.axes if a.name not in gone),
        tuple(replace(i, axes=keep(i.axes), strides=strides(i)) for i in parts.inputs),
        tuple(replace(o, axes=keep(o.axes), over=keep(o.over)) for o in parts.ops),
        tuple(replace(o, axes=keep(o.axes), strides=strides(o)) for o in parts.outputs),
    )
