"""A program as good aten code: the baseline that a kernel must beat, and the fallback where none is loaded.

    t1 f32[d0,d4] = amax(t0[d1=2*d4+k0-1]) over k0    ->    max_pool on t0

The result is an fx.GraphModule with one aten call an operation, built once: no Python data structures are
walked at run time, so it also goes through torch.compile. Window reductions become torch's own pooling where
the pattern is theirs, products torch's convolutions (products.py) or einsum; every other access is an index
with precomputed positions. Static sizes only.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from cudal1_fx_passes.program.evaluate import TORCH_DTYPE
from cudal1_fx_passes.program.ir import Index, Literal, Op, Operand, Program, Ref
from cudal1_fx_passes.program.ops import OPS, Kind
from cudal1_fx_passes.program.pooling import (
    AVG_POOL,
    MAX_POOL,
    MaxPoolGradient,
    Window,
    max_pool_gradient,
    pooling_windows,
)
from cudal1_fx_passes.program.products import contracts, library_convolution, run_convolution
from cudal1_fx_passes.program.slices import slices_of

_TENSORS_ONLY = ("fma", "maximum", "minimum", "logical_and", "logical_or", "logical_xor")  # take no numbers


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
        self.graph.eliminate_dead_code()  # what a gradient of pooling stands for
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
            return self._iota(op)
        if (windows := pooling_windows(self.program, op)) is not None:
            return self._pool(op, windows)
        if (gradient := max_pool_gradient(self.program, op)) is not None:
            return self._max_pool_gradient(op, gradient)
        if spec.kind is Kind.DOT:
            return self._dot(op)
        span = self._span(op)
        read = [self._operand(op, i, x, span) for i, x in enumerate(op.operands)]
        if spec.kind is Kind.POINTWISE:
            return self._pointwise(op, [value for value, _ in read])
        return self._reduction(op, span, *read[0])

    def _iota(self, op: Op) -> fx.Node:
        """Made at run time: Inductor computes it in place, where a constant would be read from memory."""
        count, dtype = self.program.axis[op.over[0]].size, TORCH_DTYPE[op.dtype]
        return self._steps(count, dtype, f"{op.name}_steps")

    def _steps(self, count: int, dtype: torch.dtype, name: str) -> fx.Node:
        if not self.program.inputs:
            return self._constant(name, torch.arange(count, dtype=dtype))
        device = self._call(getattr, self.nodes[self.program.inputs[0].name], "device")
        return self._call(torch.arange, count, dtype=dtype, device=device)

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
        convolution = library_convolution(self.program, op)
        if convolution is not None:
            tracer = fx.proxy.GraphAppendingTracer(self.graph)
            proxies = [fx.Proxy(self.nodes[x.name], tracer) for x in op.operands if isinstance(x, Ref)]
            made: fx.Node = run_convolution(self.program, op, convolution, (proxies[0], proxies[1])).node
            return made
        if not contracts(self.program, op):
            span = self._span(op)
            read = [self._operand(op, i, x, span) for i, x in enumerate(op.operands)]
            spread = [self._spread(self._masked(*r, 0.0, op), span) for r in read]
            return self._call(torch.sum, self._call(torch.mul, *spread), [span.index(a) for a in op.over])
        return self._contract(op, *(x.name for x in op.operands if isinstance(x, Ref)))

    def _contract(self, op: Op, left: str, right: str) -> fx.Node:
        """One matrix product, batched over the axes that both operands keep."""
        a, b = (self.program.value_axes[name] for name in (left, right))
        batch = tuple(x for x in op.axes if x in a and x in b)
        rows, columns = (tuple(x for x in op.axes if x in held and x not in batch) for held in (a, b))

        def matrix(name: str, *parts: tuple[str, ...]) -> fx.Node:
            wanted = tuple(x for part in (batch, *parts) for x in part)
            turned = self._permuted(self.nodes[name], self.program.value_axes[name], wanted)
            sizes = [self.program.size(part) for part in ((batch, *parts) if batch else parts)]
            return self._call(torch.reshape, turned, sizes)

        call = torch.bmm if batch else torch.mm
        made = self._call(call, matrix(left, rows, op.over), matrix(right, op.over, columns))
        axes = (*batch, *rows, *columns)
        return self._permuted(self._call(torch.reshape, made, self._sizes(axes)), axes, op.axes)

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
        if (sliced := self._sliced(op, x, held, span)) is not None:
            return sliced, None
        access = dict(x.access)
        name = f"{op.name}_{position}"
        positions: list[fx.Node] = []
        inside: Tensor | None = None
        for axis in held:
            index = access.get(axis, Index(((1, axis),)))
            if index.value is not None:
                values = self._aligned(self.nodes[index.value], self.program.value_axes[index.value], span)
                positions.append(self._call(torch.Tensor.long, values))
                continue
            at, ok = self._positions(index, self.program.axis[axis].size, span)
            inside = ok if inside is None else inside & ok
            positions.append(self._constant(f"{name}_{axis}", at))
        got = self._call(operator.getitem, self.nodes[x.name], tuple(positions))
        if inside is None or bool(inside.all()):
            return got, None
        return got, self._constant(f"{name}_inside", inside)

    def _sliced(self, op: Op, x: Ref, held: tuple[str, ...], span: tuple[str, ...]) -> fx.Node | None:
        """The operand by slices, padded where a pointwise operation reads outside; else None."""
        found = slices_of(self.program, x, padded=OPS[op.fn].kind is Kind.POINTWISE)
        if found is None:
            return None
        made = self.nodes[x.name]
        for dim, (axis, s) in enumerate(zip(held, found, strict=True)):
            if (s.start, s.stop, s.step) != (0, self.program.axis[axis].size, 1):
                made = self._call(torch.ops.aten.slice.Tensor, made, dim, s.start, s.stop, s.step)
        if any(s.before or s.after for s in found):
            pads = [n for s in reversed(found) for n in (s.before, s.after)]
            made = self._call(torch.constant_pad_nd, made, pads)
        single = tuple(dim for dim, s in enumerate(found) if not s.out)
        made = self._call(torch.squeeze, made, single) if single else made
        axes = tuple(s.out for s in found if s.out)
        return self._turned(made, axes, span)

    def _turned(self, x: fx.Node, held: tuple[str, ...], span: tuple[str, ...]) -> fx.Node:
        """With a dim for each axis of the span, in its order."""
        return self._aligned(self._permuted(x, held, tuple(a for a in span if a in held)), held, span)

    def _aligned(self, x: fx.Node, held: tuple[str, ...], span: tuple[str, ...]) -> fx.Node:
        for i, axis in enumerate(span):
            if axis not in held:
                x = self._call(torch.unsqueeze, x, i)
        return x

    def _positions(self, index: Index, size: int, span: tuple[str, ...]) -> tuple[Tensor, Tensor]:
        position = torch.full([1] * len(span), index.offset, dtype=torch.int64)
        for coefficient, axis in index.terms:
            steps = torch.arange(self.program.axis[axis].size)
            position = position + coefficient * steps.reshape([-1 if a == axis else 1 for a in span])
        exact = position % index.divisor == 0
        position = torch.div(position, index.divisor, rounding_mode="floor")
        return position.clamp(0, size - 1), exact & (position >= 0) & (position < size)

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
            *(
                (self.program.size((w.window,) if w.window else ()), w.stride, w.padding, w.dilation)
                for w in windows
            ),
            strict=True,
        )
        if op.fn == "amax":
            x = self._call(MAX_POOL[len(windows)], x, kernel, stride, padding, dilation)
        else:
            divisor = {"divisor_override": 1} if op.fn == "sum" else {"count_include_pad": False}
            x = self._call(AVG_POOL[len(windows)], x, kernel, stride, padding, **divisor)
        out = (*batch, *(w.out for w in windows))
        return self._permuted(self._call(torch.reshape, x, self._sizes(out)), out, op.axes)

    def _max_pool_gradient(self, op: Op, gradient: MaxPoolGradient) -> fx.Node:
        """As torch's own, in two dims: before a single one comes one of one element."""
        windows = gradient.windows
        batch = tuple(a for a in op.axes if a not in {w.read for w in windows})
        held = (*batch, *(w.out for w in windows))
        ones = [1] * (2 - len(windows))
        first = self._sizes(batch) if len(batch) == 2 else [1, self.program.size(batch)]
        flat, inside = self._flat_positions(op, self._over(gradient.maxima, held), windows)
        grad = self._over(gradient.grad, held)
        if inside is not None:
            grad = self._call(torch.where, inside, grad, 0.0)
        outs = [*first, *ones, *self._sizes(held[len(batch) :])]
        grad, flat = (self._call(torch.reshape, x, outs) for x in (grad, flat))
        pooled = self._call(
            torch.Tensor.new_empty, grad, [*first, *ones, *self._sizes(tuple(w.read for w in windows))]
        )
        kernel = [*ones, *self._sizes(tuple(w.window for w in windows))]
        stride, dilation = ([*ones, *(getattr(w, part) for w in windows)] for part in ("stride", "dilation"))
        padding = [*(0 for _ in ones), *(w.padding for w in windows)]
        backward = torch.ops.aten.max_pool2d_with_indices_backward.default
        made = self._call(backward, grad, pooled, kernel, stride, padding, dilation, False, flat)
        axes = (*batch, *(w.read for w in windows))
        return self._permuted(self._call(torch.reshape, made, self._sizes(axes)), axes, op.axes)

    def _flat_positions(
        self, op: Op, places: fx.Node, windows: tuple[Window, ...]
    ) -> tuple[fx.Node, fx.Node | None]:
        """Places within windows as positions within what was pooled, and which of them are none of padding."""
        flat: fx.Node | None = None
        inside: fx.Node | None = None
        after = 1
        for i, w in reversed(list(enumerate(windows))):
            kernel, size = self.program.axis[w.window].size, self.program.axis[w.read].size
            step = self._call(torch.remainder, places, kernel)
            places = self._call(torch.div, places, kernel, rounding_mode="floor")
            corner = self._steps(self.program.axis[w.out].size, torch.int64, f"{op.name}_steps{i}")
            corner = self._call(torch.sub, self._call(torch.mul, corner, w.stride), w.padding)
            corner = self._call(torch.reshape, corner, [-1, *[1] * (len(windows) - 1 - i)])
            at = self._call(torch.add, corner, self._call(torch.mul, step, w.dilation))
            if w.padding:
                within = self._call(torch.clamp, at, 0, size - 1)
                ok = self._call(torch.eq, at, within)
                inside = ok if inside is None else self._call(torch.logical_and, inside, ok)
                at = within
            at = self._call(torch.mul, at, after)
            flat = at if flat is None else self._call(torch.add, flat, at)
            after *= size
        assert flat is not None
        return flat, inside

    def _over(self, name: str, axes: tuple[str, ...]) -> fx.Node:
        """A value with a dim of its whole size for each of the axes."""
        return self._spread(self._turned(self.nodes[name], self.program.value_axes[name], axes), axes)
