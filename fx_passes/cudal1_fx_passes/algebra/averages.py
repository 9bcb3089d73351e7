"""Means and sums over all positions of a convolution, without the convolution."""

from __future__ import annotations

from math import prod
from typing import Any

from torch import fx

from cudal1_fx_passes.algebra.nodes import Maker, aten, is_only, number_of, reduction, sizes

MOST_TAPS = 64  # slices of the image that are summed
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
    if channels * prod(shape[2:]) * prod(taps[2:]) < LESS * taps[2] * prod(image[2:]):
        return None
    axes: list[Any] = list(zip(image[2:], shape[2:], stride, padding, dilation, strict=True))  # type: ignore[arg-type]
    ranges = [
        [_range(axis, tap, bool(transposed)) for tap in range(count)]
        for axis, count in zip(axes, taps[2:], strict=True)
    ]
    if any(start >= stop for some in ranges for start, stop, _ in some):
        return None
    make = Maker(node)
    sums = [make.wide(x)]  # type: ignore[arg-type]
    for some in ranges:
        sums = [make.sum(make(aten.slice.Tensor, s, 2, *r), 2, keepdim=False) for s in sums for r in some]
    stacked = make(aten.cat.default, [make(aten.unsqueeze.default, s, 2) for s in sums], 2)
    rows = make(aten.reshape.default, stacked, [image[0], -1])
    factors = make.wide(weight)  # type: ignore[arg-type]
    order = [0, *range(2, rank), 1] if transposed else [*range(1, rank), 0]
    columns = make(aten.reshape.default, make(aten.permute.default, factors, order), [-1, channels])
    part = make(aten.mm.default, rows, columns)
    if bias is not None:
        part = make(aten.add.Tensor, part, make.scaled(make.wide(bias), float(prod(shape[2:]))))  # type: ignore[arg-type]
    return make.like(make.scaled(part, number / (prod(shape[2:]) if found.is_mean else 1)), node)


def _range(axis: tuple[int, int, int, int, int], tap: int, transposed: bool) -> tuple[int, int, int]:
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
