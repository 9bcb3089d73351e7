"""Which library call a `dot` is: a convolution, a transposed one, or a plain contraction.

    t0 f32[d0,d4,d5] = dot(in0[d2=2*d5+k0-1], in1) over d1,k0    ->    conv1d(in0, in1, stride=2, padding=1)

Axes sort themselves: in both operands and kept is a group, in both and summed an input channel, only in the
weight an output channel, only in what is read a batch. `run_convolution` calls it, on tensors or on fx proxies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from cudal1_fx_passes.ops import OPS, Kind
from cudal1_fx_passes.precision import products_may_use_tf32
from cudal1_fx_passes.program import Index, Op, Program, Ref, operand_axes

MAX_SPATIAL = 3
_CONVOLUTION: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED: dict[int, Callable[..., Tensor]] = {
    1: F.conv_transpose1d,
    2: F.conv_transpose2d,
    3: F.conv_transpose3d,
}


@dataclass(frozen=True, slots=True)
class Spatial:
    """One convolved axis: read at (stride * out + dilation * window - padding), or divided where transposed.

    `window` is empty where it is one element wide.
    """

    read: str
    out: str
    window: str
    stride: int
    dilation: int
    padding: int
    output_padding: int = 0


@dataclass(frozen=True, slots=True)
class Convolution:
    """Operand 0 is what is read where `swapped` is False. All axis lists in the program's order."""

    swapped: bool
    transposed: bool
    batch: tuple[str, ...]
    groups: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    spatial: tuple[Spatial, ...]


def match_convolution(program: Program, op: Op) -> Convolution | None:
    """The convolution that a `dot` is, or None where torch's conv functions do not compute it."""
    if OPS[op.fn].kind is not Kind.DOT or not all(isinstance(x, Ref) for x in op.operands):
        return None
    a, b = (x for x in op.operands if isinstance(x, Ref))
    if bool(a.access) == bool(b.access):
        return None
    read, weight = (a, b) if a.access else (b, a)
    for match in (_forward, _transposed):
        spatial = [match(program, op, axis, index) for axis, index in read.access]
        found = [s for s in spatial if s is not None]
        if len(found) == len(spatial) <= MAX_SPATIAL:
            return _sort_axes(program, op, read, weight, tuple(found), a is not read, match is _transposed)
    return None


def contracts(program: Program, op: Op) -> bool:
    """Whether both operands of a `dot` are read in place and have all axes that are summed."""
    refs = [x for x in op.operands if isinstance(x, Ref) and not x.access]
    return len(refs) == 2 and all(set(op.over) <= set(program.value_axes[x.name]) for x in refs)


def library_convolution(program: Program, op: Op) -> Convolution | None:
    """The convolution that torch should run for a `dot`: also of size 1, where only convolutions may use TF32."""
    if not contracts(program, op):
        return match_convolution(program, op)
    if op.fn != "dot_tf32" or products_may_use_tf32():
        return None
    a, b = (x for x in op.operands if isinstance(x, Ref))
    held, other = program.value_axes[a.name], program.value_axes[b.name]
    swapped = len(other) > len(held)
    read, weight = ((b, other), (a, held)) if swapped else ((a, held), (b, other))
    channels = min(read[1].index(axis) for axis in op.over)
    spatial = tuple(Spatial(x, x, "", 1, 1, 0) for x in read[1][channels:] if x not in weight[1])
    if not 0 < len(spatial) <= MAX_SPATIAL:
        return None
    return _sort_axes(program, op, read[0], weight[0], spatial, swapped, False)


def run_convolution(program: Program, op: Op, c: Convolution, operands: tuple[Any, Any]) -> Any:
    """The convolution of two tensors (or proxies), dims of operands and result in the program's axis order."""
    refs = [x.name for x in op.operands if isinstance(x, Ref)]
    turn = -1 if c.swapped else 1
    (read, weight), (x, w) = refs[::turn], operands[::turn]

    def sizes(axes: tuple[str, ...]) -> list[int]:
        return [program.axis[a].size if a else 1 for a in axes]

    def grouped(value: Any, name: str, merged: tuple[tuple[str, ...], ...], rest: tuple[str, ...]) -> Any:
        """Some groups of axes merged into one dim each, then the rest one by one."""
        wanted = (*(a for axes in merged for a in axes), *(a for a in rest if a))
        turned = _permuted(value, program.value_axes[name], wanted)
        return torch.reshape(turned, [*(program.size(axes) for axes in merged), *sizes(rest)])

    x = grouped(x, read, (c.batch, (*c.groups, *c.inputs)), tuple(s.read for s in c.spatial))
    inner = ((*c.groups, *c.inputs), c.outputs) if c.transposed else ((*c.groups, *c.outputs), c.inputs)
    w = grouped(w, weight, inner, tuple(s.window for s in c.spatial))
    stride, padding = [s.stride for s in c.spatial], [s.padding for s in c.spatial]
    dilation, groups = [s.dilation for s in c.spatial], program.size(c.groups)
    if c.transposed:
        extra = [s.output_padding for s in c.spatial]
        made = _TRANSPOSED[len(c.spatial)](x, w, None, stride, padding, extra, groups, dilation)
    else:
        made = _CONVOLUTION[len(c.spatial)](x, w, None, stride, padding, dilation, groups)
    axes = (*c.batch, *c.groups, *c.outputs, *(s.out for s in c.spatial))
    return _permuted(torch.reshape(made, sizes(axes)), axes, op.axes)


def _permuted(x: Any, held: tuple[str, ...], wanted: tuple[str, ...]) -> Any:
    return x if held == wanted else torch.permute(x, [held.index(a) for a in wanted])


def _sort_axes(
    program: Program, op: Op, read: Ref, weight: Ref, spatial: tuple[Spatial, ...], swapped: bool, transposed: bool
) -> Convolution | None:
    windows, outs = {s.window for s in spatial if s.window}, {s.out for s in spatial}
    held, weights = operand_axes(program.value_axes, read), set(program.value_axes[weight.name])
    plain = [a.name for a in program.axes if a.name in (held | weights) - windows - outs]
    if outs & weights or not windows <= weights or not windows <= set(op.over):
        return None
    both = [a for a in plain if a in held and a in weights]
    summed = [a for a in plain if a in op.over]
    if any(a not in both for a in summed):
        return None
    return Convolution(
        swapped=swapped,
        transposed=transposed,
        batch=tuple(a for a in plain if a not in weights),
        groups=tuple(a for a in both if a not in op.over),
        inputs=tuple(summed),
        outputs=tuple(a for a in plain if a not in held),
        spatial=spatial,
    )


def _terms(index: Index, op: Op) -> tuple[int, str, int, str] | None:
    """(coefficient, out axis, coefficient, window axis or none) of an index over one of each."""
    if index.value is None and len(index.terms) == 1 and index.terms[0][1] not in op.over:
        return *index.terms[0], 1, ""
    if index.value is not None or len(index.terms) != 2:
        return None
    (c0, a0), (c1, a1) = sorted(index.terms, key=lambda term: term[1] in op.over)
    return None if a0 in op.over or a1 not in op.over else (c0, a0, c1, a1)


def _forward(program: Program, op: Op, axis: str, index: Index) -> Spatial | None:
    terms = _terms(index, op)
    if terms is None or index.divisor != 1 or index.offset > 0:
        return None
    stride, out, dilation, window = terms
    if stride < 1 or dilation < 1:
        return None
    reach = dilation * (program.axis[window].size - 1) if window else 0
    span = program.axis[axis].size - 2 * index.offset - reach - 1
    if span // stride + 1 != program.axis[out].size:
        return None
    return Spatial(axis, out, window, stride, dilation, -index.offset)


def _transposed(program: Program, op: Op, axis: str, index: Index) -> Spatial | None:
    terms = _terms(index, op)
    if terms is None or terms[0] != 1 or terms[2] > -1 or index.offset < 0 or not terms[3]:
        return None
    _, out, dilation, window = terms
    dilation, stride = -dilation, index.divisor
    made = (
        (program.axis[axis].size - 1) * stride - 2 * index.offset + dilation * (program.axis[window].size - 1) + 1
    )
    rest = program.axis[out].size - made
    if not 0 <= rest < max(stride, dilation):
        return None
    return Spatial(axis, out, window, stride, dilation, index.offset, rest)
