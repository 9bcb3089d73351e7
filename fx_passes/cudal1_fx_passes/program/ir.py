"""The program: what a region computes, without views, strides inside, or names of the user's graph.

Every value is a function of NAMED AXES. A pointwise operation runs over the union of its operands' axes,
so broadcasting and transposition need no operation of their own; a reduction removes axes; a scan keeps
its axis. Only inputs and outputs have a memory layout: the order in which their axes are written
(outermost first), with explicit strides where the tensor is not dense in that order. An axis keeps one
name even where another axis happens to have the same size.

An operand may read another value at an index: `t3[d2=2*d4+k0-1]` (windows, strides, flips, transposed
convolutions by exact division, gathers by an index value). An access outside the bounds of what it reads
contributes nothing to the reduction that consumes it.

This module holds data and its checks only; text.py prints and parses, evaluate.py runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from cudal1_fx_passes.errors import ProgramError
from cudal1_fx_passes.program.ops import OPS, Kind

FLOAT_DTYPES = ("f32", "f16", "bf16", "f64")
INT_DTYPES = ("i64", "i32", "i16", "i8", "u8")
Number = bool | int | float
DTYPES = (*FLOAT_DTYPES, *INT_DTYPES, "bool")
MAX_ELEMENTS = 2**31 - 2**20  # of one tensor; the last block of any kernel counts past the end, in int
MAX_DIMS = 6  # of one tensor: N, groups, C and three spatial; windows of an image
ITEM_BYTES = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u8": 1, "bool": 1}


@dataclass(frozen=True, slots=True)
class Axis:
    """A named extent: `d*` for tensor axes, `k*` for window axes. `symbolic` sizes arrive at run time."""

    name: str
    size: int  # elements; of a symbolic axis the example's size
    symbolic: bool = False


@dataclass(frozen=True, slots=True)
class Domain:
    """Closed bounds within which an input's values lie; None is unbounded. `below` names an axis: [0, size)."""

    lo: float | None = None
    hi: float | None = None
    lo_open: bool = False  # the lower bound itself is excluded, as in >0
    below: str | None = None


ANY = Domain()


@dataclass(frozen=True, slots=True)
class Input:
    """One tensor argument. `axes` in memory order, outermost first."""

    name: str
    dtype: str
    axes: tuple[str, ...]
    strides: tuple[int, ...] | None = None  # elements, one an axis; None = dense in the order of `axes`
    domain: Domain = ANY


@dataclass(frozen=True, slots=True)
class Index:
    """(sum of coefficient * axis + offset) / divisor, or the value of an integer operand.

    With a divisor over 1 the access exists only where the division is exact.
    """

    terms: tuple[tuple[int, str], ...] = ()  # (coefficient, axis name)
    offset: int = 0
    divisor: int = 1
    value: str | None = None  # the name of an integer value; then the rest is unused


@dataclass(frozen=True, slots=True)
class Ref:
    """An operand that reads a value, each axis at the same-named index unless `access` says otherwise."""

    name: str
    access: tuple[tuple[str, Index], ...] = ()  # (axis of what is read, index), sorted by axis

    @property
    def index_values(self) -> list[str]:
        """Names of the values that it is read at."""
        if not self.access:
            return []
        return [index.value for _, index in self.access if index.value is not None]


@dataclass(frozen=True, slots=True)
class Literal:
    value: float | int | bool


Operand = Ref | Literal


@dataclass(frozen=True, slots=True)
class Op:
    """One operation. `over`: the axes that a reduction removes, or the axis that a scan runs along."""

    name: str
    dtype: str
    axes: tuple[str, ...]  # of the result, in the program's axis order
    fn: str
    operands: tuple[Operand, ...]
    over: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Output:
    """One result tensor: `value` written in the memory order `axes`, dense unless strides are given."""

    name: str
    value: str
    axes: tuple[str, ...]
    strides: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Program:
    """Inputs, operations in an executable order, outputs. Construction checks every rule (ProgramError)."""

    axes: tuple[Axis, ...]
    inputs: tuple[Input, ...]
    ops: tuple[Op, ...]
    outputs: tuple[Output, ...]

    def __post_init__(self) -> None:
        _check(self)

    @cached_property
    def axis(self) -> dict[str, Axis]:
        return {a.name: a for a in self.axes}

    @cached_property
    def value_axes(self) -> dict[str, tuple[str, ...]]:
        """Axes of every input and operation, in the program's axis order."""
        order = {a.name: i for i, a in enumerate(self.axes)}
        found = {i.name: tuple(sorted(i.axes, key=order.__getitem__)) for i in self.inputs}
        return found | {o.name: o.axes for o in self.ops}

    @cached_property
    def value_dtype(self) -> dict[str, str]:
        return {i.name: i.dtype for i in self.inputs} | {o.name: o.dtype for o in self.ops}

    @cached_property
    def op(self) -> dict[str, Op]:
        return {o.name: o for o in self.ops}

    def size(self, axes: tuple[str, ...]) -> int:
        """Number of elements spanned by `axes`."""
        return prod(self.axis[a].size for a in axes)

    def output_dtype(self, output: Output) -> str:
        return self.value_dtype[output.value]

    @cached_property
    def reduced_axes(self) -> frozenset[str]:
        """Those that some reduction removes or some scan runs along."""
        return frozenset(a for op in self.ops for a in op.over)

    @property
    def is_symbolic(self) -> bool:
        return any(a.symbolic for a in self.axes)

    @property
    def has_product(self) -> bool:
        return any(OPS[op.fn].kind is Kind.DOT for op in self.ops)


def operand_axes(program_axes: dict[str, tuple[str, ...]], operand: Operand) -> set[str]:
    """The axes over which an operand varies once its accesses are applied."""
    if isinstance(operand, Literal):
        return set()
    replaced = dict(operand.access)
    found = {a for a in program_axes[operand.name] if a not in replaced}
    for index in replaced.values():
        if index.value is not None:
            found |= set(program_axes[index.value])
        found |= {axis for _, axis in index.terms}
    return found


def _check(p: Program) -> None:
    sizes = {a.name: a for a in p.axes}
    if len(sizes) != len(p.axes):
        raise ProgramError(f"axes {[a.name for a in p.axes]}: each name must occur once")
    order = {a.name: i for i, a in enumerate(p.axes)}
    known: dict[str, tuple[str, ...]] = {}
    for i in p.inputs:
        _check_tensor(i.name, i.axes, i.strides, sizes)
        if i.dtype not in DTYPES:
            raise ProgramError(f"{i.name}: dtype {i.dtype!r} is none of {', '.join(DTYPES)}")
        if i.name in known:
            raise ProgramError(f"{i.name}: each name must occur once")
        known[i.name] = tuple(sorted(i.axes, key=order.__getitem__))
    for o in p.ops:
        _check_op(o, known, sizes, order)
        known[o.name] = o.axes
    if not p.outputs:
        raise ProgramError("a program needs at least one output")
    for out in p.outputs:
        if out.value not in known:
            raise ProgramError(f"{out.name}: value {out.value!r} is not defined")
        _check_tensor(out.name, out.axes, out.strides, sizes)
        if set(out.axes) != set(known[out.value]):
            raise ProgramError(f"{out.name}: axes {out.axes} are not those of {out.value}, {known[out.value]}")


def _check_tensor(
    name: str, axes: tuple[str, ...], strides: tuple[int, ...] | None, sizes: dict[str, Axis]
) -> None:
    if len(axes) > MAX_DIMS:
        raise ProgramError(f"{name}: {len(axes)} dims, at most {MAX_DIMS} are allowed")
    if len(set(axes)) != len(axes):
        raise ProgramError(f"{name}: axes {axes} repeat; a diagonal is not a dense access")
    for a in axes:
        if a not in sizes:
            raise ProgramError(f"{name}: axis {a!r} is not declared in dims")
    if strides is not None and len(strides) != len(axes):
        raise ProgramError(f"{name}: {len(strides)} strides for {len(axes)} axes")


def _check_op(o: Op, known: dict[str, tuple[str, ...]], sizes: dict[str, Axis], order: dict[str, int]) -> None:
    spec = OPS.get(o.fn)
    if spec is None:
        raise ProgramError(f"{o.name}: unknown operation {o.fn!r}")
    if o.name in known:
        raise ProgramError(f"{o.name}: each name must occur once")
    if o.dtype not in DTYPES:
        raise ProgramError(f"{o.name}: dtype {o.dtype!r} is none of {', '.join(DTYPES)}")
    if len(o.operands) != spec.arity:
        raise ProgramError(f"{o.name}: {o.fn} takes {spec.arity} operands, got {len(o.operands)}")
    span: set[str] = set()
    for x in o.operands:
        if isinstance(x, Ref):
            if x.name not in known:
                raise ProgramError(f"{o.name}: operand {x.name!r} is not defined before it")
            for axis, index in x.access:
                if axis not in known[x.name]:
                    raise ProgramError(f"{o.name}: {x.name} has no axis {axis!r}")
                if index.value is not None and index.value not in known:
                    raise ProgramError(f"{o.name}: index value {index.value!r} is not defined before it")
            span |= operand_axes(known, x)
    for a in (*span, *o.over, *o.axes):
        if a not in sizes:
            raise ProgramError(f"{o.name}: axis {a!r} is not declared in dims")
    if spec.kind in (Kind.REDUCE, Kind.DOT):
        if not o.over or not set(o.over) <= span:
            raise ProgramError(f"{o.name}: {o.fn} over {o.over}, its operands have {sorted(span)}")
        span -= set(o.over)
    elif spec.kind in (Kind.SCAN, Kind.IOTA):
        if len(o.over) != 1:
            raise ProgramError(f"{o.name}: {o.fn} runs along exactly one axis, got {o.over}")
        span |= set(o.over)
    elif o.over:
        raise ProgramError(f"{o.name}: {o.fn} is pointwise and takes no axes, got {o.over}")
    if o.axes != tuple(sorted(span, key=order.__getitem__)):
        raise ProgramError(f"{o.name}: axes {o.axes}, expected {tuple(sorted(span, key=order.__getitem__))}")
