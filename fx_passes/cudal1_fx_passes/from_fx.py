"""Imports a region of a post-grad aten graph as a Program.

Nodes are lowered in order (lower_*.py) into a draft over atoms (unify.py), which is emitted once all axes
are known (emit.py). Views inside the region disappear into axes and accesses; views at its border are
inputs with strides. Node names play no role.

Refused, naming the node (ImportRefused): operators without a lowering, an axis that would occur twice in
one value, sizes that do not divide, complex numbers, sizes known only at run time, empty tensors, tensors
of 2^31 elements or more, tensors on different devices.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import sympy  # type: ignore[import-untyped]
import torch
from torch import fx
from torch._ops import OpOverload

from cudal1_fx_passes import lower_pointwise, lower_reduce, lower_views, lower_windows
from cudal1_fx_passes.domain import domain_of
from cudal1_fx_passes.draft import Draft, Value, dtype_name
from cudal1_fx_passes.emit import Emitted, Tensor, emit
from cudal1_fx_passes.errors import ImportRefused, ProgramError
from cudal1_fx_passes.layout import input_dims
from cudal1_fx_passes.lowering import LOWERINGS, Call, Lowering, Result, hint
from cudal1_fx_passes.program import Program
from cudal1_fx_passes.unify import AxisConflict, keep_apart

MAX_ELEMENTS = 2**31 - 1
_LOWER_MODULES = (lower_pointwise, lower_reduce, lower_views, lower_windows)  # imported for their registrations


@dataclass(frozen=True, slots=True)
class ImportedRegion:
    """A program, and the FX nodes that its inputs and outputs are, in the program's order."""

    program: Program
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]
    symbols: tuple[sympy.Expr, ...]  # one a symbolic axis, in axis order
    origins: dict[str, str]  # operation of the program -> FX node


def lowering_of(node: fx.Node) -> Lowering | None:
    """The lowering of a node, or None where it has none; getitem counts as its producer's view."""
    if node.op != "call_function":
        return None
    if node.target is operator.getitem:
        source = node.args[0]
        found = lowering_of(source) if isinstance(source, fx.Node) else None
        return None if found is None else Lowering(found.run, "view", 0)
    return LOWERINGS.get(node.target) if isinstance(node.target, OpOverload) else None


def is_view(node: fx.Node) -> bool:
    found = lowering_of(node)
    return found is not None and found.role == "view" and not _picks_result(node)


def _picks_result(node: fx.Node) -> bool:
    """Whether a getitem names one result of an operation (not one piece of a split)."""
    if node.target is not operator.getitem:
        return False
    source = node.args[0]
    assert isinstance(source, fx.Node)
    found = lowering_of(source)
    return found is None or found.role != "view"


def region_inputs(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """Tensors from outside, in order of first use."""
    inside = set(nodes)
    found = dict.fromkeys(a for n in nodes for a in n.all_input_nodes if a not in inside)
    return [n for n in found if isinstance(n.meta.get("val"), torch.Tensor)]


def region_outputs(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """Results that are used outside; a view with users outside is read there, so what it views is one."""
    inside = set(nodes)
    lent: set[fx.Node] = set()
    for node in reversed(nodes):
        if is_view(node) and any(u not in inside or u in lent for u in node.users):
            lent.add(node)
    return [
        n
        for n in nodes
        if not is_view(n) and not _is_bundle(n) and any(u not in inside or u in lent for u in n.users)
    ]


def _is_bundle(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), (tuple, list))


def import_region(nodes: Sequence[fx.Node], max_ops: int | None = None) -> ImportedRegion:
    """Returns the region's program.

    nodes: in topological order, each with meta['val']. Raises ImportRefused.
    """
    inputs, outputs = region_inputs(nodes), region_outputs(nodes)
    if not outputs:
        raise ImportRefused(nodes[0].name, "nothing of the region is used outside")
    draft = Draft()
    env: dict[fx.Node, Result] = {}
    tensors = [_read_input(node, at, draft, env) for at, node in enumerate(inputs)]
    _check_devices([*inputs, *outputs])
    for node in nodes:
        _lower(node, draft, env)
        if max_ops is not None and len(draft.ops) > 2 * max_ops:
            raise ImportRefused(node.name, f"more than {max_ops} operations")
    emitted = _emit(draft, tensors, inputs, outputs, env)
    if max_ops is not None and len(emitted.program.ops) > max_ops:
        over = emitted.program.ops[max_ops]
        raise ImportRefused(emitted.origins[over.name], f"more than {max_ops} operations")
    symbols = tuple(sympy.sympify(s) for s in emitted.symbols)
    return ImportedRegion(emitted.program, tuple(inputs), tuple(outputs), symbols, emitted.origins)


def _read_input(node: fx.Node, at: int, draft: Draft, env: dict[fx.Node, Result]) -> Tensor:
    meta = node.meta["val"]
    try:
        check_tensor(meta)
        dims, dtype = input_dims(meta), dtype_name(meta.dtype)
    except AxisConflict as conflict:
        raise ImportRefused(next(iter(node.users)).name, f"input {node}: {conflict}") from None
    name = f"in{at}"
    keep_apart(a for d in dims for a in d)
    draft.add_input(name, [a for d, s in zip(dims, meta.stride(), strict=True) for a in d if _lies_in_memory(s)])
    env[node] = Value(name, dims, dtype)
    return Tensor(name, meta, dims, dtype, domain_of(node))


def _lies_in_memory(stride: int | torch.SymInt) -> bool:
    return not (isinstance(stride, int) and stride == 0)


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


def _check_devices(nodes: Iterable[fx.Node]) -> None:
    seen: dict[torch.device, fx.Node] = {}
    for node in nodes:
        seen.setdefault(node.meta["val"].device, node)
    if len(seen) > 1:
        node = list(seen.values())[1]
        raise ImportRefused(node.name, f"tensors on {', '.join(map(str, seen))}: one device is needed")


def _lower(node: fx.Node, draft: Draft, env: dict[fx.Node, Result]) -> None:
    found = lowering_of(node)
    if found is None:
        raise ImportRefused(node.name, f"{node.target} has no lowering")
    draft.origin = node.name
    try:
        for val in node.meta["val"] if _is_bundle(node) else [node.meta["val"]]:
            if val is not None:
                check_tensor(val)
        if node.target is operator.getitem:
            assert isinstance(node.args[0], fx.Node)
            env[node] = lower_views.get_item(env[node.args[0]], node.args[1])  # type: ignore[arg-type]
        else:
            env[node] = found.run(Call(node, draft, env))
    except AxisConflict as conflict:
        raise ImportRefused(node.name, str(conflict)) from None


def _emit(
    draft: Draft,
    inputs: list[Tensor],
    input_nodes: list[fx.Node],
    output_nodes: list[fx.Node],
    env: dict[fx.Node, Result],
) -> Emitted:
    outputs = []
    for at, node in enumerate(output_nodes):
        value, meta = env[node], node.meta["val"]
        assert isinstance(value, Value)
        draft.origin = node.name
        if value.dtype != dtype_name(meta.dtype):
            raise AssertionError(f"{node}: lowered to {value.dtype}, torch says {meta.dtype}")
        value = draft.settle(value)
        outputs.append((Tensor(f"out{at}", meta, value.dims, value.dtype), value))
    try:
        return emit(draft, inputs, outputs)
    except (AxisConflict, ProgramError) as conflict:
        raise ImportRefused(_blame(conflict, output_nodes), str(conflict)) from None


def _blame(conflict: Exception, outputs: list[fx.Node]) -> str:
    return outputs[-1].name
