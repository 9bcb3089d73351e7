"""Means and sums over all positions of a convolution, without the convolution."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from torch import fx

from cudal1_fx_passes.algebra.nodes import Maker, aten, is_only, number_of, reduction, sizes

Range = tuple[int, int, int]  # start, stop, step

MOST_TAPS = 64
LEAST = 1 << 32  # multiplications: some 50 us, below which as many small kernels win nothing
LESS = 16  # times as many multiplications as elements are read, at least


def average_of_convolution(node: fx.Node) -> fx.Node | None:
    """sum_y (sum_ct w_oct x_c(y,t) + b_o)  ->  sum_ct w_oct (sum_y x_c(y,t)) + |y| b_o; transposed ones likewise.

    x_c(y,t) is what tap t of channel c reads for position y: a rectangle of the image over all y, with the stride
    as its step; what padding adds is 0 and left out, as the convolution does. Proof: the common factor w_oct is
    taken out. A tap that reads padding alone would be 0 times w: then nothing is done.
    """
    found = reduction(node)
    if found is None:
        return None
    source, number = found.source, 1.0
    while is_only(source) and (scaled := number_of(source)) is not None:
        source, number = scaled[0], number * scaled[1]
    if source.target is not aten.convolution.default or source.kwargs or not is_only(source):
        return None
    x, weight, bias, stride, padding, dilation, transposed, _, groups = source.args
    shape, image, taps = sizes(source), sizes(x), sizes(weight)
    if shape is None or image is None or taps is None or groups != 1 or (bias is not None and sizes(bias) is None):
        return None
    rank = len(shape)
    if found.dims != tuple(range(2, rank)) or prod(taps[2:]) > MOST_TAPS:
        return None
    channels = taps[1] if transposed else taps[0]
    each = channels * prod((image if transposed else shape)[2:]) * prod(taps[2:])  # of an image's channel
    if image[0] * image[1] * each < LEAST or each < LESS * prod(image[2:]):
        return None
    axes: list[Any] = list(zip(image[2:], shape[2:], stride, padding, dilation, strict=True))  # type: ignore[arg-type]
    ranges = [
        [_range(axis, tap, bool(transposed)) for tap in range(count)]
        for axis, count in zip(axes, taps[2:], strict=True)
    ]
    if any(start >= stop for some in ranges for start, stop, _ in some):
        return None
    make = Maker(node)
    read = make(aten.reshape.default, make.wide(x), [*image[:2], 1, *image[2:]])  # type: ignore[arg-type]
    for some in ranges:  # instead of an axis of the image its taps, before those of earlier axes
        read = make(aten.cat.default, _sums(make, read, some), 2)
    rows = make(aten.reshape.default, read, [image[0], -1])
    factors = make.wide(weight)  # type: ignore[arg-type]
    last_first = reversed(range(2, rank))
    order = [0, *last_first, 1] if transposed else [1, *last_first, 0]
    columns = make(aten.reshape.default, make(aten.permute.default, factors, order), [-1, channels])
    part = make(aten.mm.default, rows, columns)
    if bias is not None:
        part = make(aten.add.Tensor, part, make.scaled(make.wide(bias), float(prod(shape[2:]))))  # type: ignore[arg-type]
    return make.like(make.scaled(part, number / (prod(shape[2:]) if found.is_mean else 1)), node)


def _sums(make: Maker, node: fx.Node, ranges: Sequence[Range]) -> list[fx.Node]:
    """Over the first axis of the image, for each tap; what all taps of a step's remainder read is summed once."""
    cores: dict[int, fx.Node] = {}
    found = []
    for start, stop, step in ranges:
        alike = [r for r in ranges if r[0] % step == start % step]
        first, end = max(r[0] for r in alike), min(_end(r) for r in alike)
        if first >= end:
            found.append(_sum(make, node, (start, stop, step)))
            continue
        if start % step not in cores:
            cores[start % step] = _sum(make, node, (first, end, step))
        whole = cores[start % step]
        for low, high in ((start, first), (end + step - 1, _end((start, stop, step)))):
            if low < high:
                whole = make(aten.add.Tensor, whole, _sum(make, node, (low, high, step)))
        found.append(whole)
    return found


def _sum(make: Maker, node: fx.Node, over: Range) -> fx.Node:
    return make.sum(make(aten.slice.Tensor, node, 3, *over), 3, keepdim=False)


def _end(over: Range) -> int:
    """One beyond the last place that is read."""
    start, stop, step = over
    return start + (stop - 1 - start) // step * step + 1


def _range(axis: tuple[int, int, int, int, int], tap: int, transposed: bool) -> Range:
    """Start, stop and step of what a tap reads of an axis.

    axis: the image's size, the positions of the result, stride, padding, dilation.
    """
    size, made, stride, padding, dilation = axis
    offset = tap * dilation - padding
    if transposed:  # position h of the image adds to h * stride + offset
        first, last = max(0, -(offset // stride)), min(size - 1, (made - 1 - offset) // stride)
        return first, last + 1, 1
    first, last = max(0, -(offset // stride)), min(made - 1, (size - 1 - offset) // stride)
    return first * stride + offset, last * stride + offset + 1, stride
