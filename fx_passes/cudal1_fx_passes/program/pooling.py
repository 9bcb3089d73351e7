"""Which window reductions are torch's own pooling.

t1 f32[d0,d4] = amax(t0[d1=2*d4+k0-1]) over k0    ->    max_pool1d(t0, 3, 2, 1)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from cudal1_fx_passes.program.ir import Index, Op, Program, Ref

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
