"""What a lowering sees of one FX node, and the registry of lowerings.

A lowering is a function of a Call that writes operations into the draft and returns the node's Value (or
a tuple, for nodes with several results). It raises AxisConflict where the node cannot be said; from_fx.py
adds the node's name. `weight` is roughly how many operations a lowering writes (the partitioner's limit),
`role` is what the partitioner needs to know of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, overload

import sympy
import torch
import torch._inductor.inductor_prims  # registers prims that post-grad graphs hold
from torch import fx
from torch._ops import OpOverload
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes
from torch.utils._sympy.functions import FloorDiv, Max

from cudal1_fx_passes.importer.draft import Draft, Value, dtype_name
from cudal1_fx_passes.importer.unify import AxisConflict, Dim, Extent, divide, new_dim
from cudal1_fx_passes.program.ir import Number

Role = Literal["pointwise", "view", "reduce", "scan", "window", "gather", "product"]
Result = Value | tuple[Value | None, ...]
Lower = Callable[["Call"], Result]


@dataclass(frozen=True, slots=True)
class Lowering:
    run: Lower
    role: Role
    weight: int = 1


LOWERINGS: dict[OpOverload, Lowering] = {}


def lowers(names: str, role: Role = "pointwise", weight: int = 1) -> Callable[[Lower], Lower]:
    """Registers a lowering for operator names like `aten.add.Tensor prims.fma.default`.

    Names that this torch version lacks are skipped: versions spell decompositions differently.
    """

    def register(run: Lower) -> Lower:
        for name in names.split():
            target = find_overload(name)
            if target is not None:
                LOWERINGS[target] = Lowering(run, role, weight)
        return run

    return register


def find_overload(name: str) -> OpOverload | None:
    namespace, op, overload = name.split(".")
    packet = getattr(getattr(torch.ops, namespace), op, None)
    found = getattr(packet, overload, None) if packet is not None else None
    return found if isinstance(found, OpOverload) else None


class Call:
    """One FX node with its arguments bound to the operator's schema."""

    def __init__(self, node: fx.Node, draft: Draft, read: Callable[[fx.Node], Result]) -> None:
        assert isinstance(node.target, OpOverload)
        self.node = node
        self.draft = draft
        self.results = read
        self._target = node.target

    @cached_property
    def args(self) -> dict[str, Any]:
        """Arguments by the schema's names, defaults filled in."""
        found: dict[str, Any] = dict(self.node.kwargs)
        for spec, arg in zip(self._target._schema.arguments, self.node.args, strict=False):
            found[spec.name] = arg
        for spec in self._target._schema.arguments:
            if spec.name not in found and spec.has_default_value():
                found[spec.name] = spec.default_value
        return found

    def first(self) -> Value:
        """The first argument, whatever the schema calls it."""
        return self._read(self.node.args[0])

    def value(self, name: str) -> Value:
        return self._read(self.args[name])

    def optional(self, name: str) -> Value | None:
        return None if self.args.get(name) is None else self._read(self.args[name])

    def operand(self, name: str) -> Value | Number:
        """A tensor argument or a number; a SymInt is refused."""
        arg = self.args[name]
        return self._read(arg) if isinstance(arg, fx.Node) else self._number(arg)

    def number(self, name: str) -> Number:
        return self._number(self.args[name])

    def integers(self, name: str) -> list[int]:
        arg = self.args[name]
        items = list(arg) if isinstance(arg, (list, tuple)) else [arg]
        if not all(isinstance(x, int) for x in items):
            raise AxisConflict(f"{name} {items} holds a symbolic size")
        return items

    @property
    def meta(self) -> torch.Tensor:
        """The result as a fake tensor; of a node with several results the first."""
        val = self.node.meta["val"]
        found = val[0] if isinstance(val, (tuple, list)) else val
        assert isinstance(found, torch.Tensor)
        return found

    @property
    def dtype(self) -> str:
        return dtype_name(self.meta.dtype)

    @property
    def extents(self) -> list[Extent]:
        return [extent(s) for s in self.meta.shape]

    def promoted(self, *names: str) -> str:
        """The dtype in which torch computes an operation on these arguments (bool stays bool)."""
        found = []
        for name in names:
            arg = self.args[name]
            found.append(arg.meta["val"] if isinstance(arg, fx.Node) else arg)
        _, result = elementwise_dtypes(*found, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT)
        return dtype_name(result)

    def as_dtype(self, x: Value | Number, dtype: str) -> Value | Number:
        return self.draft.cast(x, dtype) if isinstance(x, Value) else x

    @overload
    def wide(self, x: Value) -> Value: ...
    @overload
    def wide(self, x: Value | Number) -> Value | Number: ...
    def wide(self, x: Value | Number) -> Value | Number:
        """x in the dtype in which torch computes within one operator: the result's, float32 for half types."""
        return self.as_dtype(x, "f32" if self.dtype in ("f16", "bf16") else self.dtype)

    def full(self, number: Number, dtype: str | None = None) -> Value:
        """A literal of the result's shape."""
        return self.draft.literal(number, dtype or self.dtype, result_dims(self.extents, self.meta))

    def _read(self, arg: Any) -> Value:
        if not isinstance(arg, fx.Node):
            raise AxisConflict(f"argument {arg!r} is not a tensor")
        if not holds_tensors(arg):
            raise AxisConflict(f"argument {arg} is a number known only at run time")
        found = self.results(arg)
        if not isinstance(found, Value):
            raise AxisConflict(f"argument {arg} is not one tensor")
        return found

    def _number(self, arg: Any) -> Number:
        if not isinstance(arg, (bool, int, float)):
            raise AxisConflict(f"argument {arg!r} is not a number known at compile time")
        return arg


def holds_tensors(node: fx.Node) -> bool:
    """Whether a node's result is a tensor or several (not a size)."""
    val = node.meta.get("val")
    return any(isinstance(x, torch.Tensor) for x in (val if isinstance(val, (tuple, list)) else [val]))


def extent(size: int | torch.SymInt) -> Extent:
    """A size as an int or a sympy expression, without guarding on it.

    Sizes are at least 1 here (empty tensors are refused), so Max(1, s) is s, and a floor division that comes
    out even is a quotient.
    """
    if isinstance(size, int):
        return size
    expr = size.node.expr
    if not expr.is_Integer:
        expr = expr.replace(lambda e: _is_max_of_one(e), lambda e: next(a for a in e.args if a != 1))
        expr = expr.replace(lambda e: isinstance(e, FloorDiv), _even_quotient)
    return int(expr) if expr.is_Integer else expr


def _is_max_of_one(expr: sympy.Expr) -> bool:
    return isinstance(expr, (Max, sympy.Max)) and len(expr.args) == 2 and 1 in expr.args


def _even_quotient(expr: sympy.Expr) -> sympy.Expr:
    found = divide(*expr.args)
    return expr if found is None else sympy.sympify(found)


def hint(size: int | torch.SymInt) -> int:
    """The example's size. Raises AxisConflict where there is none (unbacked)."""
    if isinstance(size, int):
        return size
    expr = size.node.expr
    if isinstance(expr, sympy.Integer):
        return int(expr)
    found = size.node.hint
    if found is None:
        raise AxisConflict(f"size {expr} is known only at run time")
    return int(found)


def result_dims(extents: Sequence[Extent], meta: torch.Tensor) -> tuple[Dim, ...]:
    """Fresh dims of a tensor's shape."""
    return tuple(new_dim(e, hint(s)) for e, s in zip(extents, meta.shape, strict=True))
