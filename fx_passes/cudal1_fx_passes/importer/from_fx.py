"""Imports a region of a post-grad aten graph as a Program.

Nodes are lowered in order (lower_*.py) into a draft over atoms (unify.py), which is emitted once all axes
are known (emit.py). Views inside the region disappear into axes and accesses; views at its boundary are
inputs with strides. Constants are lowered anew for every reader, so that one iota may count rows and columns.
Node names play no role.

    conv(y) + y   ->   in0 is what the product reads, in1 the same tensor again, as any other residual

Refused, naming the node (ImportRefused): operators without a lowering, an axis that would occur twice in
one value, sizes that do not divide, complex numbers, sizes known only at run time, empty tensors, tensors
of 2^31 elements or more, tensors on different devices.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import sympy
import torch
from torch import fx

from cudal1_fx_passes.errors import ImportRefused, NodeRefused, ProgramError, RegionTooWide
from cudal1_fx_passes.importer import lower_views
from cudal1_fx_passes.importer.boundary import (
    constant_nodes,
    is_bundle,
    is_product,
    is_view,
    lowering_of,
    region_inputs,
    region_outputs,
)
from cudal1_fx_passes.importer.domain import Span, domain_of, with_demands
from cudal1_fx_passes.importer.draft import Draft, Value, dtype_name
from cudal1_fx_passes.importer.emit import Emitted, LayoutConflict, Tensor, TooManyDims, emit
from cudal1_fx_passes.importer.layout import input_dims
from cudal1_fx_passes.importer.lowering import Call, Result, find_overload, hint
from cudal1_fx_passes.importer.unify import AxisConflict, keep_apart, leaves
from cudal1_fx_passes.program.ir import MAX_ELEMENTS, Program

CHUNKED = {
    find_overload(f"aten.{x}") for x in ("slice.Tensor", "split.Tensor", "split_with_sizes.default", "glu.default")
}
CHUNKED |= {find_overload(f"aten.{x}") for x in ("cat.default", "slice_scatter.default")}
MAX_DRAFT = 512  # operations before simplification; more is a runaway


@dataclass(frozen=True, slots=True)
class ImportedRegion:
    """A program, and the FX nodes that its inputs and outputs are, in the program's order."""

    program: Program
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]
    symbols: tuple[sympy.Expr, ...]  # one a symbolic axis, in axis order
    origins: dict[str, str]  # operation of the program -> FX node


def import_region(
    nodes: Sequence[fx.Node], max_ops: int | None = None, again: frozenset[str] = frozenset()
) -> ImportedRegion:
    """Returns the region's program.

    nodes: in topological order, each with meta['val']. again: those that read the region's inputs under names of
    their own, which is found out here. Raises ImportRefused.
    """
    try:
        return _import(nodes, max_ops, again)
    except NodeRefused:
        raise
    except ImportRefused as refusal:
        if refusal.node in again or not _reads_beside_a_product(nodes, refusal.node):
            raise
        return import_region(nodes, max_ops, again | {refusal.node})


def _import(nodes: Sequence[fx.Node], max_ops: int | None, again: frozenset[str]) -> ImportedRegion:
    try:
        return _Importer(nodes, True, again).run(max_ops)
    except NodeRefused:
        raise
    except ImportRefused as refusal:
        if not any(n.target in CHUNKED for n in nodes):
            raise
        try:  # a dim that was split into chunks may be needed whole
            return _Importer(nodes, False, again).run(max_ops)
        except ImportRefused:
            raise refusal from None


def _reads_beside_a_product(nodes: Sequence[fx.Node], name: str) -> bool:
    """Whether the node reads an input of a product's region that others in it read as well."""
    reader = next(n for n in nodes if n.name == name)
    others = set(nodes) - {reader}
    outside = [a for a in reader.all_input_nodes if a not in others]
    return any(map(is_product, others)) and any(others & a.users.keys() for a in outside)


class _Importer:
    def __init__(self, nodes: Sequence[fx.Node], chunks: bool, again: frozenset[str]) -> None:
        self.nodes = nodes
        self.inputs, self.outputs = region_inputs(nodes), region_outputs(nodes)
        self.readers: list[fx.Node | None] = [None] * len(self.inputs)  # of each input; None: all others
        for node in (n for n in nodes if n.name in again):
            own = [a for a in node.all_input_nodes if a in self.inputs]
            self.inputs += own
            self.readers += [node] * len(own)
        self.constants = constant_nodes(nodes)
        self.draft = Draft(chunks=chunks)
        self.env: dict[fx.Node, Result] = {}
        self.own: dict[tuple[fx.Node | None, fx.Node], Value] = {}  # (reader, input)
        self.spans: dict[fx.Node, Span] = {}

    def run(self, max_ops: int | None) -> ImportedRegion:
        if not self.outputs:
            raise ImportRefused(self._last(), "nothing of the region is used outside")
        self._check_devices()
        tensors = [self._input(node, at) for at, node in enumerate(self.inputs)]
        for node in self.nodes:
            if node not in self.constants and node.users:
                self.env[node] = self._lower_or_refuse(node)
        emitted = self._emit(tensors)
        if max_ops is not None and len(emitted.program.ops) > max_ops:
            over = emitted.program.ops[max_ops]
            raise ImportRefused(emitted.origins[over.name], f"more than {max_ops} operations")
        symbols = tuple(sympy.sympify(s) for s in emitted.symbols)
        program = with_demands(emitted.program)
        return ImportedRegion(program, tuple(self.inputs), tuple(self.outputs), symbols, emitted.origins)

    def _last(self) -> str:
        return next(n.name for n in reversed(self.nodes) if n not in self.constants or n is self.nodes[0])

    def _reader(self, node: fx.Node) -> str:
        """A node of the region that reads an input."""
        return next(n.name for n in self.nodes if node in n.all_input_nodes)

    def _check_devices(self) -> None:
        seen: dict[torch.device, str] = {}
        for node in self.inputs:
            seen.setdefault(node.meta["val"].device, self._reader(node))
        for node in self.outputs:
            seen.setdefault(node.meta["val"].device, node.name)
        if len(seen) > 1:
            raise ImportRefused(list(seen.values())[1], f"tensors on {', '.join(map(str, seen))}, not one device")

    def _input(self, node: fx.Node, at: int) -> Tensor:
        meta = node.meta["val"]
        try:
            check_tensor(meta)
            dims, dtype = input_dims(meta), dtype_name(meta.dtype)
        except AxisConflict as conflict:
            raise ImportRefused(self._reader(node), f"input {node}: {conflict}") from None
        name = f"in{at}"
        keep_apart(a for d in dims for a in d)
        in_memory = [d for d, stride in zip(dims, meta.stride(), strict=True) if not _is_expanded(stride)]
        self.draft.add_input(name, [a for d in in_memory for a in d])
        self.own[self.readers[at], node] = Value(name, dims, dtype)
        return Tensor(name, meta, dims, dtype, domain_of(node, self.spans))

    def read(self, reader: fx.Node, node: fx.Node) -> Result:
        """What a node stands for; a constant is made anew."""
        if node in self.constants:
            return self._lower(node)
        found = self.own.get((reader, node)) or self.own.get((None, node)) or self.env.get(node)
        if found is None:
            raise AxisConflict(f"argument {node} is no tensor of the region")
        return found

    def _lower_or_refuse(self, node: fx.Node) -> Result:
        self.draft.origin = node.name
        try:
            result = self._lower(node)
            values = result if isinstance(result, tuple) else (result,)
            made = node.meta["val"] if isinstance(result, tuple) else (node.meta["val"],)
            for value, val in zip(values, made, strict=True):
                if value is not None:
                    keep_apart(a for d in value.dims for a in d)
                    check_sizes(value, val)
        except (AxisConflict, ProgramError) as conflict:
            raise ImportRefused(node.name, str(conflict)) from None
        return result

    def _lower(self, node: fx.Node) -> Result:
        found = lowering_of(node)
        if found is None:
            raise AxisConflict(f"{node.target} has no lowering")
        if len(self.draft.ops) > MAX_DRAFT:
            raise AxisConflict(f"more than {MAX_DRAFT} operations")
        if not is_bundle(node):  # results of several are checked where they are taken
            check_tensor(node.meta["val"])
        if node.target is operator.getitem:
            source, at = node.args
            assert isinstance(source, fx.Node) and isinstance(at, int)
            return lower_views.get_item(self.read(node, source), at)
        return found.run(Call(node, self.draft, partial(self.read, node)))

    def _emit(self, inputs: list[Tensor]) -> Emitted:
        outputs = [self._output(node, at) for at, node in enumerate(self.outputs)]
        try:
            return emit(self.draft, inputs, outputs)
        except TooManyDims as wide:
            raise RegionTooWide(self.outputs[-1].name, str(wide)) from None
        except LayoutConflict as conflict:
            raise NodeRefused(self._blame(str(conflict)), str(conflict)) from None
        except (AxisConflict, ProgramError) as conflict:
            raise ImportRefused(self._blame(str(conflict)), str(conflict)) from None

    def _output(self, node: fx.Node, at: int) -> tuple[Tensor, Value]:
        value, meta = self.env[node], node.meta["val"]
        assert isinstance(value, Value)
        if value.dtype != dtype_name(meta.dtype):
            raise AssertionError(f"{node}: lowered to {value.dtype}, torch says {meta.dtype}")
        self.draft.origin = node.name
        value = self.draft.settle(value)
        held = [a for d in value.dims for a in leaves(d)]
        if not isinstance(value.source, str) or set(held) != set(self.draft.varies_over(value)):
            raise NodeRefused(
                self._spreader(node), "copies an expanded value, which stays the same along a whole dim"
            )
        return Tensor(f"out{at}", meta, value.dims, value.dtype), value

    def _spreader(self, output: fx.Node) -> str:
        """The first node before an output that copies what a view had expanded."""
        before = {output}
        for node in reversed(self.nodes):
            if node in before:
                before |= set(node.all_input_nodes)
        for node in self.nodes:
            value = self.env.get(node)
            if node in before and isinstance(value, Value) and not is_view(node):
                held = [a for d in value.dims for a in leaves(d)]
                if set(held) != set(self.draft.varies_over(value)):
                    return node.name
        return output.name

    def _blame(self, message: str) -> str:
        """The node behind an input or output that a message begins with; else the last output."""
        name = message.partition(":")[0]
        for at, node in enumerate(self.inputs):
            if name == f"in{at}":
                return self._reader(node)
        for at, node in enumerate(self.outputs):
            if name == f"out{at}":
                return node.name
        return self.outputs[-1].name


def _is_expanded(stride: int | torch.SymInt) -> bool:
    return isinstance(stride, int) and stride == 0


def check_sizes(value: Value, meta: torch.Tensor) -> None:
    """Raises AxisConflict where a lowering gave another shape than torch's: nobody would write the rest."""
    for dim, size in zip(value.dims, meta.shape, strict=True):
        made = math.prod(a.extent for a in leaves(dim))
        if isinstance(made, int) and isinstance(size, int) and made != size:
            raise AxisConflict(f"a dim of {size} that the program has {made} of")


def check_tensor(meta: object) -> None:
    """Raises AxisConflict for tensors that a program cannot hold."""
    if not isinstance(meta, torch.Tensor):
        raise AxisConflict(f"a value of type {type(meta).__name__}")
    if meta.layout is not torch.strided or meta.is_complex() or meta.is_quantized:
        raise AxisConflict(f"a {meta.layout} tensor of {meta.dtype}")
    count = 1
    for size in meta.shape:
        count *= hint(size)
    if count == 0:
        raise AxisConflict("an empty tensor")
    if count > MAX_ELEMENTS:
        raise AxisConflict(f"a tensor of {count} elements, at most {MAX_ELEMENTS}")
