"""Which library call a `dot` is: a convolution, a transposed one, a weight's gradient, or a plain contraction.

    t0 f32[d0,d4,d5] = dot(in0[d2=2*d5+k0-1], in1) over d1,k0    ->    conv1d(in0, in1, stride=2, padding=1)
    t0 f32[d4,d1,k0] = dot(in0[d2=2*d5+k0-1], in1) over d0,d5    ->    convolution_backward, of the weight

Axes sort themselves: in both operands and kept is a group, in both and summed an input channel, only in the
weight an output channel, only in what is read a batch; of a weight's gradient batch and input channels swap
roles. `run_convolution` calls it, on tensors or on fx proxies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from cudal1_fx_passes.program.ir import Index, Op, Program, Ref, operand_axes
from cudal1_fx_passes.program.ops import OPS, Kind
from cudal1_fx_passes.program.precision import products_may_use_tf32

MAX_SPATIAL = 3
LARGEST_SIDE = 64
MANY = 4  # times as many positions are summed as are kept: rather a weight's gradient than a convolution
Match = Callable[[Program, Op, str, Index], "Spatial | None"]
_CONVOLUTION: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED: dict[int, Callable[..., Tensor]] = {
    1: F.conv_transpose1d,
    2: F.conv_transpose2d,
    3: F.conv_transpose3d,
}


@dataclass(frozen=True, slots=True)
class Spatial:
    """One convolved axis: read at (stride * out + dilation * window - padding), or divided where transposed.

    `window` is empty where it is one element wide. Of a weight's gradient `out` is summed and `window` kept.
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
    """Operand 0 is what is read where `swapped` is False. All axis lists in the program's order.

    of_weight: the gradient of a convolution's weight, from what that reads and the gradient of its result.
    """

    swapped: bool
    transposed: bool
    of_weight: bool
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
    matches = (_forward, _transposed, _of_weight)
    for match in matches[::-1] if _sums_most_places(program, op, read) else matches:
        spatial = [match(program, op, axis, index) for axis, index in read.access]
        found = [s for s in spatial if s is not None]
        if len(found) == len(spatial) <= MAX_SPATIAL:
            made = _sort_axes(program, op, read, weight, tuple(found), a is not read, match)
            if made is not None:
                return made
    return None


def _sums_most_places(program: Program, op: Op, read: Ref) -> bool:
    """A stride of one makes a weight's gradient a convolution with a huge window, for which no library is made."""
    axes = {a for _, index in read.access for _, a in index.terms}
    summed = axes & set(op.over)
    return program.size(tuple(summed)) >= MANY * program.size(tuple(axes - summed))


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
    swapped = _extent(program, b) > _extent(program, a)  # the image is larger than its weight
    for turned in (swapped, not swapped):
        found = _of_size_1(program, op, *((b, a) if turned else (a, b)), turned)
        if found is not None:
            return found
    return None


def _extent(program: Program, x: Ref) -> tuple[int, int]:
    axes = program.value_axes[x.name]
    return len(axes), program.size(axes)


def _of_size_1(program: Program, op: Op, read: Ref, weight: Ref, swapped: bool) -> Convolution | None:
    """Over the innermost axis in memory that only what is read has, or for a weight's gradient that is summed."""
    held, others = _in_memory(program, read.name), _in_memory(program, weight.name)
    alone, outputs = [a for a in held if a not in others], [a for a in others if a not in held]
    kept = max(program.size(tuple(alone)), program.size(tuple(outputs)))
    # of two images in channels-last, as no convolution reads its operands without a copy
    of_images = len(alone) == len(outputs) == 1 and held[-1] in alone and others[-1] in outputs
    of_weight = of_images or len(op.over) > 1 or program.size(op.over) >= MANY * kept
    positions = [a for a in held if a in op.over] if of_weight else alone
    if not positions:
        return None
    spatial = Spatial(positions[-1], positions[-1], "", 1, 1, 0)
    return _sort_axes(program, op, read, weight, (spatial,), swapped, _of_weight if of_weight else _forward)


def _in_memory(program: Program, name: str) -> tuple[str, ...]:
    return next((i.axes for i in program.inputs if i.name == name), program.value_axes[name])


def run_convolution(program: Program, op: Op, c: Convolution, operands: tuple[Any, Any]) -> Any:
    """The convolution of two tensors (or proxies), dims of operands and result in the program's axis order."""
    refs = [x.name for x in op.operands if isinstance(x, Ref)]
    turn = -1 if c.swapped else 1
    (read, weight), (x, w) = refs[::turn], operands[::turn]
    if _is_flat(c) and _in_memory(program, read)[-1] != c.spatial[0].read:
        return _run_flat(program, op, c, (read, weight), (x, w))

    def sizes(axes: tuple[str, ...]) -> list[int]:
        return [program.axis[a].size for a in axes]

    stride, padding = [s.stride for s in c.spatial], [s.padding for s in c.spatial]
    dilation, groups = [s.dilation for s in c.spatial], program.size(c.groups)
    positions, outs, windows = (
        [(a,) if a else () for a in axes]
        for axes in ([s.read for s in c.spatial], [s.out for s in c.spatial], [s.window for s in c.spatial])
    )
    x = _in_parts(program, read, x, (c.batch, (*c.groups, *c.inputs), *positions))
    if c.of_weight:
        grad = _in_parts(program, weight, w, (c.batch, (*c.groups, *c.outputs), *outs))
        shape = [program.size(axes) for axes in ((*c.groups, *c.outputs), c.inputs, *windows)]
        made = _weight_gradient(x, grad, shape, stride, padding, dilation, groups)
        axes = (*c.groups, *c.outputs, *c.inputs, *(s.window for s in c.spatial if s.window))
        return _permuted(torch.reshape(made, sizes(axes)), axes, op.axes)
    inner = ((*c.groups, *c.inputs), c.outputs) if c.transposed else ((*c.groups, *c.outputs), c.inputs)
    w = _in_parts(program, weight, w, (*inner, *windows))
    if c.transposed:
        extra = [s.output_padding for s in c.spatial]
        made = _TRANSPOSED[len(c.spatial)](x, w, None, stride, padding, extra, groups, dilation)
    else:
        made = _CONVOLUTION[len(c.spatial)](x, w, None, stride, padding, dilation, groups)
    axes = (*c.batch, *c.groups, *c.outputs, *(s.out for s in c.spatial))
    return _permuted(torch.reshape(made, sizes(axes)), axes, op.axes)


def _is_flat(c: Convolution) -> bool:
    """Of size 1, its positions merged into one axis."""
    return len(c.spatial) == 1 and c.spatial[0] == Spatial(c.spatial[0].out, c.spatial[0].out, "", 1, 1, 0)


def _run_flat(program: Program, op: Op, c: Convolution, names: tuple[str, str], operands: tuple[Any, Any]) -> Any:
    """With channels innermost, which torch knows for images only: it copies all that a signal's convolution reads.

    So the positions become square images again; no library is made for a row of a hundred thousand either.
    """
    (read, weight), (x, w), position = names, operands, c.spatial[0].out
    inputs, outputs = (*c.groups, *c.inputs), (*c.groups, *c.outputs)
    side = max(n for n in range(1, LARGEST_SIDE + 1) if program.axis[position].size % (n * n) == 0)

    def image(value: Any, name: str, channels: tuple[str, ...]) -> Any:
        rows = _permuted(value, program.value_axes[name], (*c.batch, position, *channels))
        return torch.permute(torch.reshape(rows, [-1, side, side, program.size(channels)]), [0, 3, 1, 2])

    shape, groups = [program.size(outputs), program.size(c.inputs), 1, 1], program.size(c.groups)
    axes: tuple[str, ...] = (*outputs, *c.inputs)
    if c.of_weight:
        grad = image(w, weight, outputs)
        made = _weight_gradient(image(x, read, inputs), grad, shape, [1, 1], [0, 0], [1, 1], groups)
    else:
        w = torch.reshape(_permuted(w, program.value_axes[weight], axes), shape)
        made = F.conv2d(image(x, read, inputs), w, None, 1, 0, 1, groups)
        made, axes = torch.permute(made, [0, 2, 3, 1]), (*c.batch, position, *outputs)
    return _permuted(torch.reshape(made, [program.axis[a].size for a in axes]), axes, op.axes)


def _in_parts(program: Program, name: str, value: Any, parts: Sequence[tuple[str, ...]]) -> Any:
    """The axes of every part merged into one dim, of size 1 where there are none.

    Those of size 1 stand outermost in memory, as torch has them: elsewhere channels-last is not known as such, and
    a convolution copies what it reads.
    """
    held, memory = program.value_axes[name], _in_memory(program, name)
    filled = [part for part in parts if part]
    at = {part: memory.index(part[0]) for part in filled}
    if any(memory[i : i + len(part)] != part for part, i in at.items()):
        turned = _permuted(value, held, tuple(a for part in filled for a in part))
        return torch.reshape(turned, [program.size(part) for part in parts])
    blocks = sorted(filled, key=at.__getitem__)
    ones = len(parts) - len(filled)
    laid = torch.reshape(_permuted(value, held, memory), [*[1] * ones, *map(program.size, blocks)])
    empty = iter(range(ones))
    order = [ones + blocks.index(part) if part else next(empty) for part in parts]
    return laid if order == sorted(order) else torch.permute(laid, order)


def _weight_gradient(
    x: Any, grad: Any, shape: list[int], stride: list[int], padding: list[int], dilation: list[int], groups: int
) -> Any:
    weight = grad.new_empty(shape)  # of which only the shape is read
    back = torch.ops.aten.convolution_backward.default
    still = [0] * len(stride)
    return back(grad, x, weight, None, stride, padding, dilation, False, still, groups, [False, True, False])[1]


def _permuted(x: Any, held: tuple[str, ...], wanted: tuple[str, ...]) -> Any:
    return x if held == wanted else torch.permute(x, [held.index(a) for a in wanted])


def _sort_axes(
    program: Program, op: Op, read: Ref, weight: Ref, spatial: tuple[Spatial, ...], swapped: bool, match: Match
) -> Convolution | None:
    windows, outs = {s.window for s in spatial if s.window}, {s.out for s in spatial}
    of_weight = match is _of_weight
    held, weights = operand_axes(program.value_axes, read), set(program.value_axes[weight.name])
    plain = [a.name for a in program.axes if a.name in (held | weights) - windows - outs]
    beside, apart = (outs, windows) if of_weight else (windows, outs)
    if apart & weights or not beside <= weights or not beside <= set(op.over):
        return None
    both = [a for a in plain if a in held and a in weights]
    summed = tuple(a for a in plain if a in op.over)
    if any(a not in both for a in summed):
        return None
    alone = tuple(a for a in plain if a not in weights)
    return Convolution(
        swapped=swapped,
        transposed=match is _transposed,
        of_weight=of_weight,
        batch=summed if of_weight else alone,
        groups=tuple(a for a in both if a not in op.over),
        inputs=alone if of_weight else summed,
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
    return None if terms is None else _moved(program, axis, index, *terms)


def _moved(
    program: Program, axis: str, index: Index, stride: int, out: str, dilation: int, window: str
) -> Spatial | None:
    """stride * out + dilation * window - padding, for as many positions as a convolution gives."""
    if index.divisor != 1 or index.offset > 0 or stride < 1 or dilation < 1:
        return None
    reach = dilation * (program.axis[window].size - 1) if window else 0
    span = program.axis[axis].size - 2 * index.offset - reach - 1
    if span // stride + 1 != program.axis[out].size:
        return None
    return Spatial(axis, out, window, stride, dilation, -index.offset)


def _transposed(program: Program, op: Op, axis: str, index: Index) -> Spatial | None:
    terms = _terms(index, op)
    if terms is None or terms[0] != 1 or index.offset < 0 or (terms[2] > -1 if terms[3] else index.divisor == 1):
        return None
    _, out, dilation, window = terms
    dilation, stride = abs(dilation), index.divisor
    reach = dilation * (program.axis[window].size - 1) if window else 0
    made = (program.axis[axis].size - 1) * stride - 2 * index.offset + reach + 1
    rest = program.axis[out].size - made
    if not 0 <= rest < max(stride, dilation):
        return None
    return Spatial(axis, out, window, stride, dilation, index.offset, rest)


def _of_weight(program: Program, op: Op, axis: str, index: Index) -> Spatial | None:
    summed = [term for term in index.terms if term[1] in op.over]
    kept = [term for term in index.terms if term[1] not in op.over] or [(1, "")]
    if index.value is not None or len(summed) != 1 or len(kept) != 1:
        return None
    return _moved(program, axis, index, *summed[0], *kept[0])
