"""Which window reductions are torch's own pooling, and which sums over windows the gradient of its maxima.

t1 f32[d0,d4] = amax(t0[d1=2*d4+k0-1]) over k0    ->    max_pool1d(t0, 3, 2, 1)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import permutations

import torch
from torch import Tensor
from torch.nn import functional as F

from cudal1_fx_passes.program.evaluate import run_op
from cudal1_fx_passes.program.ir import Index, Literal, Op, Operand, Program, Ref
from cudal1_fx_passes.program.ops import OPS, Kind

MAX_POOL: dict[int, Callable[..., Tensor]] = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
AVG_POOL: dict[int, Callable[..., Tensor]] = {2: F.avg_pool2d, 3: F.avg_pool3d}


@dataclass(frozen=True, slots=True)
class Window:
    """One pooled axis: output index * stride + window index * dilation - padding."""

    read: str  # axis of what is read
    out: str
    window: str  # empty where it is one element wide
    stride: int
    dilation: int
    padding: int


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
    if {w.window for w in windows if w.window} != set(op.over) or {w.out for w in windows} & set(
        program.value_axes[operand.name]
    ) - {w.read for w in windows}:
        return None
    known = MAX_POOL if op.fn == "amax" else AVG_POOL
    if len(windows) not in known or (op.fn != "amax" and any(w.dilation != 1 for w in windows)):
        return None
    order = {a.name: i for i, a in enumerate(program.axes)}
    return tuple(sorted(windows, key=lambda w: order[w.read]))


def _window(program: Program, axis: str, index: Index, op: Op) -> Window | None:
    if index.value is not None or index.divisor != 1 or len(index.terms) not in (1, 2) or index.offset > 0:
        return None
    (c0, a0), *rest = sorted(index.terms, key=lambda term: term[1] in op.over)
    c1, a1 = rest[0] if rest else (1, "")
    if a0 in op.over or (rest and a1 not in op.over) or c0 < 1 or c1 < 1:
        return None
    size, kernel, padding = program.axis[axis].size, program.axis[a1].size if rest else 1, -index.offset
    if padding * 2 > kernel:
        return None
    if (size + 2 * padding - c1 * (kernel - 1) - 1) // c0 + 1 != program.axis[a0].size:
        return None
    return Window(axis, a0, a1, c0, c1, padding)


@dataclass(frozen=True, slots=True)
class MaxPoolGradient:
    """At each position the sum of what the windows give whose maximum it was."""

    grad: str  # a value
    maxima: str  # an i64 value: where in its window each maximum was, counted in the windows' order
    windows: tuple[Window, ...]


def max_pool_gradient(program: Program, op: Op) -> MaxPoolGradient | None:
    """sum(where(maxima == place in the window, grad, 0)[d1=(d4-k0+1)/2]) over k0, of one or two dims."""
    operand = op.operands[0] if op.operands else None
    if op.fn != "sum" or not isinstance(operand, Ref) or len(operand.access) not in (1, 2):
        return None
    windows = [w for axis, index in operand.access if (w := _gradient_window(program, axis, index, op))]
    chosen = program.op.get(operand.name)
    if len(windows) < len(operand.access) or {w.window for w in windows} != set(op.over) or chosen is None:
        return None
    if chosen.fn != "where" or chosen.operands[2] != Literal(0.0):
        return None
    is_here, grad = (_whole(x) for x in chosen.operands[:2])
    compared = program.op.get(is_here)
    if not grad or compared is None or compared.fn != "eq":
        return None
    for maxima, place in permutations(map(_whole, compared.operands)):
        places = _constant(program, place)
        if places is None or not maxima or program.value_dtype[maxima] != "i64":
            continue
        if set(op.over) & {*program.value_axes[maxima], *program.value_axes[grad]}:
            continue
        for ordered in permutations(windows):
            if torch.equal(places, _counted(program, ordered, program.value_axes[place])):
                return MaxPoolGradient(grad, maxima, ordered)
    return None


def _whole(operand: Operand) -> str:
    """The value that is read as it is; empty for another operand."""
    return operand.name if isinstance(operand, Ref) and not operand.access else ""


def _gradient_window(program: Program, axis: str, index: Index, op: Op) -> Window | None:
    if index.value is not None or len(index.terms) != 2:
        return None
    (c0, a0), (c1, a1) = sorted(index.terms, key=lambda term: term[1] in op.over)
    if a0 in op.over or a1 not in op.over or c0 != 1 or c1 >= 0:
        return None
    size, kernel, padding = program.axis[a0].size, program.axis[a1].size, index.offset
    if not 0 <= padding * 2 <= kernel:
        return None
    if (size + 2 * padding + c1 * (kernel - 1) - 1) // index.divisor + 1 != program.axis[axis].size:
        return None  # windows that reach over the end
    return Window(a0, axis, a1, index.divisor, -c1, padding)


def _constant(program: Program, name: str) -> Tensor | None:
    """A value of at most two axes that no input changes, dims in the program's axis order; else None."""
    op = program.op.get(name)
    if op is None or len(op.axes) > 2 or OPS[op.fn].kind not in (Kind.IOTA, Kind.POINTWISE):
        return None
    values: dict[str, Tensor] = {}
    for x in op.operands:
        if isinstance(x, Ref):
            value = None if x.access else _constant(program, x.name)
            if value is None:
                return None
            values[x.name] = value
    return run_op(program, op, values, torch.device("cpu"))


def _counted(program: Program, windows: Sequence[Window], axes: Sequence[str]) -> Tensor:
    """The places of a window, row by row, with a dim for each of the axes."""
    sizes = [program.axis[w.window].size for w in windows]
    order = [w.window for w in windows]
    if sorted(order) != sorted(axes):
        return torch.empty(0)
    return torch.arange(math.prod(sizes)).reshape(sizes).permute([order.index(a) for a in axes])
