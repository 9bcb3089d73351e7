"""Convolutions of volumes as sums of convolutions of images, a plane of the window at a time.

cuDNN is slow at float64 in three axes: 0.6 s of an exam of 1.0 s, where 7 GFLOP in two take 0.2 to 1.1 ms on an
H100; these sums are not timed there yet. They are the library's results up to the order of sums. Places outside
the volume count as zeros, which a weight is multiplied with.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F


def conv3d(
    x_NCDHW: Tensor,
    w_OCdhw: Tensor,
    bias: None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """As torch's, of the same arguments."""
    padded = F.pad(x_NCDHW, (0, 0, 0, 0, padding[0], padding[0])) if padding[0] else x_NCDHW
    depth = (padded.shape[2] - dilation[0] * (w_OCdhw.shape[2] - 1) - 1) // stride[0] + 1
    sums: Tensor | None = None
    for k in range(w_OCdhw.shape[2]):
        start = k * dilation[0]
        planes = padded[:, :, start : start + stride[0] * (depth - 1) + 1 : stride[0]]
        part = F.conv2d(_images(planes), w_OCdhw[:, :, k], None, stride[1:], padding[1:], dilation[1:], groups)
        sums = part if sums is None else sums.add_(part)
    assert sums is not None, "a window has planes"
    return _volumes(sums, len(x_NCDHW))


def conv_transpose3d(
    x_NCDHW: Tensor,
    w_COdhw: Tensor,
    bias: None,
    stride: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    groups: int,
    dilation: Sequence[int],
) -> Tensor:
    """As torch's, of the same arguments."""
    images, reach = _images(x_NCDHW), stride[0] * (x_NCDHW.shape[2] - 1)
    depth = reach + dilation[0] * (w_COdhw.shape[2] - 1) + 1 - 2 * padding[0] + output_padding[0]
    sums: Tensor | None = None
    for k in range(w_COdhw.shape[2]):
        other = stride[1:], padding[1:], output_padding[1:], groups, dilation[1:]
        part = _volumes(F.conv_transpose2d(images, w_COdhw[:, :, k], None, *other), len(x_NCDHW))
        if sums is None:
            whole = [*part.shape[:2], depth + 2 * padding[0], *part.shape[3:]]
            sums = part.new_zeros(whole)
        start = k * dilation[0]
        sums[:, :, start : start + reach + 1 : stride[0]] += part
    assert sums is not None, "a window has planes"
    return sums.narrow(2, padding[0], depth)


def _images(x_NCDHW: Tensor) -> Tensor:
    return x_NCDHW.transpose(1, 2).flatten(0, 1)


def _volumes(x_BCHW: Tensor, count: int) -> Tensor:
    return x_BCHW.reshape(count, -1, *x_BCHW.shape[1:]).transpose(1, 2)


def is_better(x: object) -> bool:
    """Whether these are to run in the library's place."""
    return isinstance(x, Tensor) and x.is_cuda and x.dtype == torch.float64
