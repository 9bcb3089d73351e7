"""Memory order of a tensor over atoms, from the strides of its fake tensor.

Dims are sorted by stride, outermost first; dims of size 1 and expanded dims (stride 0) have no place in
memory. Strides are kept only where the tensor is not dense in that order. Sizes and strides may be
symbolic: they are compared as expressions and ordered by the example's values, never guarded on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from cudal1_fx_passes.importer.lowering import extent, hint
from cudal1_fx_passes.importer.unify import Atom, AxisConflict, Dim, Extent, leaves, new_atom
from cudal1_fx_passes.program.ir import Input, Output, Program


@dataclass(frozen=True, slots=True)
class Layout:
    """Dims of one tensor in memory order, outermost first; stride in elements."""

    dims: tuple[Dim, ...]
    strides: tuple[int, ...] | None


def input_dims(meta: torch.Tensor) -> tuple[Dim, ...]:
    """Fresh dims of an input: one atom a dim, none where the size is 1."""
    return tuple(() if extent(size) == 1 else (new_atom(extent(size), hint(size)),) for size in meta.shape)


def memory_order(meta: torch.Tensor, dims: Sequence[Dim]) -> list[tuple[Dim, Extent, int]]:
    """(dim, stride, example stride) of every dim that lies in memory, outermost first."""
    found = []
    for at, (dim, stride) in enumerate(zip(dims, meta.stride(), strict=True)):
        step = extent(stride)
        if not dim or step == 0:
            continue
        found.append((hint(stride), -at, dim, step))
    found.sort(key=lambda item: (-item[0], -item[1]))
    return [(dim, step, example) for example, _, dim, step in found]


def layout_of(meta: torch.Tensor, dims: Sequence[Dim]) -> Layout:
    """The layout over atoms as they are now: a split dim becomes its parts, each with its own stride."""
    order = memory_order(meta, dims)
    dense: Extent = 1
    is_dense = True
    for dim, step, _ in reversed(order):
        is_dense = is_dense and step == dense
        for atom in leaves(dim):
            dense = dense * atom.extent
    if is_dense:
        return Layout(tuple((a,) for dim, _, _ in order for a in leaves(dim)), None)
    made: list[tuple[Dim, int]] = []
    for dim, step, _ in order:
        if not isinstance(step, int):
            raise AxisConflict(f"a symbolic stride {step} of a tensor that is not dense")
        made += _spread(leaves(dim), step)
    return Layout(tuple(d for d, _ in made), tuple(s for _, s in made))


def can_be_said(meta: torch.Tensor) -> bool:
    """Whether a program can hold the tensor's layout: a symbolic stride must be that of a dense tensor."""
    try:
        layout_of(meta, input_dims(meta))
    except AxisConflict:
        return False
    return True


def _spread(atoms: list[Atom], step: int) -> list[tuple[Dim, int]]:
    found: list[tuple[Dim, int]] = []
    for atom in reversed(atoms):
        found.append(((atom,), step))
        if not isinstance(atom.extent, int):
            if atom is not atoms[0]:
                raise AxisConflict("a symbolic stride inside a split dim")
            break
        step *= atom.extent
    return list(reversed(found))


def memory_view(program: Program, item: Input | Output, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's memory as the program sees it: dims in memory order, merged and split as the axes say.

    The tensor must have the strides that its fake tensor had at import.
    """
    sizes = [program.axis[a].size for a in item.axes]
    strides = item.strides
    if strides is None:
        dense = [1]
        for size in reversed(sizes[1:]):
            dense.append(dense[-1] * size)
        strides = tuple(reversed(dense)) if sizes else ()
    return tensor.as_strided(sizes, list(strides), tensor.storage_offset())
