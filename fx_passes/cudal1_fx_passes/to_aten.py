"""A program as good aten code: the baseline that a kernel must beat, and the fallback where none is loaded.

    t1 f32[d0,d4] = amax(t0[d1=2*d4+k0-1]) over k0    ->    max_pool on t0

The result is an fx.GraphModule with one aten call an operation, built once: no Python data structures are
walked at run time, so it also goes through torch.compile. Window reductions become torch's own pooling where
the pattern is theirs, products torch's convolutions (products.py) or einsum; every other access is an index
with precomputed places. Static sizes only.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from cudal1_fx_passes.evaluate import TORCH_DTYPE
from cudal1_fx_passes.ops import OPS, Kind
from cudal1_fx_passes.products import match_convolution, run_convolution
from cudal1_fx_passes.program import Index, Literal, Op, Operand, Program, Ref

_MAX_POOL: dict[int, Callable[..., Tensor]] = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_AVG_POOL: dict[int, Callable[..., Tensor]] = {2: F.avg_pool2d, 3: F.avg_pool3d}

_TENSORS_ONLY = ("fma", "maximum", "minimum", "logical_and", "logical_or", "logical_xor")  # take no numbers


@dataclass(frozen=True, slots=True)
class Window:
    """One pooled axis: output index * stride + window index * dilation - padding."""

    read: str  # axis of what is read
    out: str
    window: str
    stride: int
    dilation: int
    padding: int


def to_aten(program: Program) -> fx.GraphModule:
    """Returns a module: one tensor an input (dims in memory order) -> a list, one tensor an output.

    Move it to the inputs' device before the first call. Raises ValueError for symbolic sizes.
    """
    if program.is_symbolic:
        raise ValueError("symbolic sizes: give the program its sizes first, aten code here is static")
    return _Builder(program).build()


class _Builder:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.graph = fx.Graph()
        self.root = torch.nn.Module()
        self.nodes: dict[str, fx.Node] = {}

    def build(self) -> fx.GraphModule:
        p = self.program
        for item in p.inputs:
            placeholder = self.graph.placeholder(item.name)
            order = p.value_axes[item.name]
            self.nodes[item.name] = self._permuted(placeholder, item.axes, order)
        for op in p.ops:
            self.nodes[op.name] = self._operation(op)
        results = [
            self._permuted(self._spread(self.nodes[o.value], p.value_axes[o.value]), p.value_axes[o.value], o.axes)
            for o in p.outputs
        ]
        self.graph.output(results)
        return fx.GraphModule(self.root, self.graph)

    def _call(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
        return self.graph.call_function(target, args, kwargs)

    def _sizes(self, axes: tuple[str, ...]) -> list[int]:
        return [self.program.axis[a].size for a in axes]

    def _permuted(self, x: fx.Node, held: tuple[str, ...], wanted: tuple[str, ...]) -> fx.Node:
        return x if held == wanted else self._call(torch.permute, x, [held.index(a) for a in wanted])

    def _spread(self, x: fx.Node, axes: tuple[str, ...]) -> fx.Node:
        return self._call(torch.Tensor.expand, x, self._sizes(axes)) if axes else x

    def _span(self, op: Op) -> tuple[str, ...]:
        return tuple(a.name for a in self.program.axes if a.name in op.axes or a.name in op.over)

    def _operation(self, op: Op) -> fx.Node:
        spec = OPS[op.fn]
        if spec.kind is Kind.IOTA:
            steps = torch.arange(self.program.axis[op.over[0]].size, dtype=TORCH_DTYPE[op.dtype])
            return self._constant(f"{op.name}_steps", steps)
        if (windows := pooling_windows(self.program, op)) is not None:
            return self._pool(op, windows)
        if spec.kind is Kind.DOT:
            return self._dot(op)
        span = self._span(op)
        read = [self._operand(op, i, x, span) for i, x in enumerate(op.operands)]
        if spec.kind is Kind.POINTWISE:
            return self._pointwise(op, [value for value, _ in read])
        return self._reduction(op, span, *read[0])

    def _pointwise(self, op: Op, operands: list[Any]) -> fx.Node:
        if op.fn == "cast":
            return self._call(torch.Tensor.to, operands[0], TORCH_DTYPE[op.dtype])
        values = operands[op.fn == "where" :]
        if op.fn in _TENSORS_ONLY or not any(isinstance(x, fx.Node) for x in values):
            operands = [self._tensor(op, i, x) for i, x in enumerate(operands)]
        if op.fn == "fma":
            product = self._call(torch.mul, operands[0], operands[1])
            return self._call(torch.add, product, operands[2])
        if op.fn != "pow":
            operands[0] = self._tensor(op, 0, operands[0])
        return self._call(OPS[op.fn].run, *operands)

    def _tensor(self, op: Op, position: int, value: Any) -> fx.Node:
        """A literal as a 0-dim tensor, where torch takes no number."""
        if isinstance(value, fx.Node):
            return value
        dtype = torch.bool if isinstance(value, bool) else self._dtype(op)
        return self._constant(f"{op.name}_literal{position}", torch.tensor(value, dtype=dtype))

    def _dtype(self, op: Op) -> torch.dtype:
        names = [x.name for x in op.operands[op.fn == "where" :] if isinstance(x, Ref)]
        return TORCH_DTYPE[self.program.value_dtype[names[0]] if names else op.dtype]

    def _reduction(self, op: Op, span: tuple[str, ...], x: fx.Node, inside: fx.Node | None) -> fx.Node:
        x = self._spread(x, span)
        dims = [span.index(a) for a in op.over]
        spec = OPS[op.fn]
        if spec.kind is Kind.SCAN:
            return self._call(torch.cumsum if op.fn == "cumsum" else torch.cumprod, x, dims[0])
        if inside is not None:
            if op.fn == "mean":
                total = self._call(torch.sum, self._masked(x, inside, 0.0, op), dims)
                count = self._call(torch.sum, self._spread(inside, span), dims)
                return self._call(torch.div, total, count)
            if spec.identity is None:
                raise ValueError(f"{op.name}: {op.fn} has no meaning for accesses outside the bounds")
            x = self._masked(x, inside, spec.identity, op)
        result = self._reduce(op, x, dims)
        return self._call(torch.Tensor.to, result, TORCH_DTYPE[op.dtype])

    def _reduce(self, op: Op, x: fx.Node, dims: list[int]) -> fx.Node:
        if op.fn in ("sum", "mean", "amax", "amin", "logsumexp"):
            return self._call(getattr(torch, op.fn), x, dims)
        if op.fn == "var":
            correction = op.operands[1]
            assert isinstance(correction, Literal)
            return self._call(torch.var, x, dims, correction=correction.value)
        if op.fn in ("argmax", "argmin"):
            rank = len(self._span(op))
            kept = [d for d in range(rank) if d not in dims]
            flat = self._call(torch.flatten, self._call(torch.permute, x, [*kept, *dims]), len(kept))
            return self._call(getattr(torch, op.fn), flat, -1)
        for d in sorted(dims, reverse=True):  # prod, any, all take one dim
            x = self._call(getattr(torch, op.fn), x, d)
        return x

    def _dot(self, op: Op) -> fx.Node:
        convolution = match_convolution(self.program, op)
        if convolution is not None:
            tracer = fx.proxy.GraphAppendingTracer(self.graph)
            proxies = [fx.Proxy(self.nodes[x.name], tracer) for x in op.operands if isinstance(x, Ref)]
            made: fx.Node = run_convolution(self.program, op, convolution, (proxies[0], proxies[1])).node
            return made
        if any(isinstance(x, Literal) or x.access for x in op.operands):
            span = self._span(op)
            read = [self._operand(op, i, x, span) for i, x in enumerate(op.operands)]
            spread = [self._spread(self._masked(*r, 0.0, op), span) for r in read]
            return self._call(torch.sum, self._call(torch.mul, *spread), [span.index(a) for a in op.over])
        names = [x.name for x in op.operands if isinstance(x, Ref)]
        letters = {axis: chr(ord("a") + i) for i, axis in enumerate(self._span(op))}
        held = [self.program.value_axes[n] for n in names]
        words = ["".join(letters[a] for a in axes) for axes in (*held, op.axes)]
        return self._call(torch.einsum, f"{words[0]},{words[1]}->{words[2]}", *(self.nodes[n] for n in names))

    def _masked(self, x: fx.Node, inside: fx.Node | None, fill: float, op: Op) -> fx.Node:
        if inside is None:
            return x
        dtype = self._dtype(op)
        if not dtype.is_floating_point and abs(fill) == float("inf"):
            limits = torch.iinfo(dtype)
            fill = limits.min if fill < 0 else limits.max
        return self._call(torch.where, inside, x, fill)

    def _operand(self, op: Op, position: int, x: Operand, span: tuple[str, ...]) -> tuple[Any, fx.Node | None]:
        """One operand aligned to `span`, and where its accesses are in bounds (None: everywhere)."""
        if isinstance(x, Literal):
            return x.value, None
        held = self.program.value_axes[x.name]
        if not x.access:
            return self._aligned(self.nodes[x.name], held, span), None
        access = dict(x.access)
        name = f"{op.name}_{position}"
        places: list[fx.Node] = []
        inside: Tensor | None = None
        for axis in held:
            index = access.get(axis, Index(((1, axis),)))
            if index.value is not None:
                place_node = self._aligned(self.nodes[index.value], self.program.value_axes[index.value], span)
                places.append(self._call(torch.Tensor.long, place_node))
                continue
            place, ok = self._places(index, self.program.axis[axis].size, span)
            inside = ok if inside is None else inside & ok
            places.append(self._constant(f"{name}_{axis}", place))
        got = self._call(operator.getitem, self.nodes[x.name], tuple(places))
        if inside is None or bool(inside.all()):
            return got, None
        return got, self._constant(f"{name}_inside", inside)

    def _aligned(self, x: fx.Node, held: tuple[str, ...], span: tuple[str, ...]) -> fx.Node:
        for i, axis in enumerate(span):
            if axis not in held:
                x = self._call(torch.unsqueeze, x, i)
        return x

    def _places(self, index: Index, size: int, span: tuple[str, ...]) -> tuple[Tensor, Tensor]:
        place = torch.full([1] * len(span), index.offset, dtype=torch.int64)
        for coefficient, axis in index.terms:
            steps = torch.arange(self.program.axis[axis].size)
            place = place + coefficient * steps.reshape([-1 if a == axis else 1 for a in span])
        exact = place % index.divisor == 0
        place = torch.div(place, index.divisor, rounding_mode="floor")
        return place.clamp(0, size - 1), exact & (place >= 0) & (place < size)

    def _constant(self, name: str, value: Tensor) -> fx.Node:
        self.root.register_buffer(name, value, persistent=False)
        return self.graph.get_attr(name)

    def _pool(self, op: Op, windows: tuple[Window, ...]) -> fx.Node:
        """amax, mean or sum over windows of the innermost axes, as torch's pooling."""
        operand = op.operands[0]
        assert isinstance(operand, Ref)
        held = self.program.value_axes[operand.name]
        read = [w.read for w in windows]
        batch = tuple(a for a in held if a not in read)
        x = self._permuted(self.nodes[operand.name], held, (*batch, *read))
        x = self._call(torch.reshape, x, [-1, 1, *self._sizes(tuple(read))])
        kernel, stride, padding, dilation = zip(
            *((self.program.axis[w.window].size, w.stride, w.padding, w.dilation) for w in windows), strict=True
        )
        if op.fn == "amax":
            x = self._call(_MAX_POOL[len(windows)], x, kernel, stride, padding, dilation)
        else:
            divisor = {"divisor_override": 1} if op.fn == "sum" else {"count_include_pad": False}
            x = self._call(_AVG_POOL[len(windows)], x, kernel, stride, padding, **divisor)
        out = (*batch, *(w.out for w in windows))
        return self._permuted(self._call(torch.reshape, x, self._sizes(out)), out, op.axes)


def pooling_windows(program: Program, op: Op) -> tuple[Window, ...] | None:
    """The windows of an operation that torch's pooling computes, in the order of the read axes; else None."""
    operand = op.operands[0] if op.operands else None
    if op.fn not in ("amax", "mean", "sum") or not isinstance(operand, Ref) or not operand.access:
        return None
    if not program.value_dtype[operand.name].endswith(("f32", "f16", "f64")):  # f32, bf16, f16, f64
        return None
    windows = []
    for axis, index in operand.access:
        window = _window(program, axis, index, op)
        if window is None:
            return None
        windows.append(window)
    if {w.window for w in windows} != set(op.over) or {w.out for w in windows} & set(
        program.value_axes[operand.name]
    ) - {w.read for w in windows}:
        return None
    known = _MAX_POOL if op.fn == "amax" else _AVG_POOL
    if len(windows) not in known or (op.fn != "amax" and any(w.dilation != 1 for w in windows)):
        return None
    order = {a.name: i for i, a in enumerate(program.axes)}
    return tuple(sorted(windows, key=lambda w: order[w.read]))


def _window(program: Program, axis: str, index: Index, op: Op) -> Window | None:
    if index.value is not None or index.divisor != 1 or len(index.terms) != 2 or index.offset > 0:
        return None
    (c0, a0), (c1, a1) = sorted(index.terms, key=lambda term: term[1] in op.over)
    if a0 in op.over or a1 not in op.over or c0 < 1 or c1 < 1:
        return None
    size, kernel, padding = program.axis[axis].size, program.axis[a1].size, -index.offset
    if padding * 2 > kernel:
        return None
    if (size + 2 * padding - c1 * (kernel - 1) - 1) // c0 + 1 != program.axis[a0].size:
        return None
    return Window(axis, a0, a1, c0, c1, padding)
