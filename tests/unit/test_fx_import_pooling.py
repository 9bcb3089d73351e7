"""Pooling of every kind and its gradients, as aten and prims have them, against torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fx_trace import canonical_text, check_import, tensor
from torch import Tensor
from torch.nn import functional as F

from cudal1_fx_passes.program.ir import Domain

aten, prims = torch.ops.aten, torch.ops.prims


IMAGE = tensor(2, 3, 8, 8)

FORWARD: dict[str, Callable[[Tensor], Any]] = {
    "max_pool": lambda x: F.max_pool2d(x, 3, 2, 1) + 1,
    "max_pool with dilation": lambda x: F.max_pool2d(x, 2, 1, 0, 2) + 1,
    "max_pool ceil": lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True) + 1,
    "max_pool offsets": lambda x: prims._low_memory_max_pool_with_offsets.default(
        x, [3, 3], [2, 2], [1, 1], [1, 1], False
    ),
    "avg_pool": lambda x: F.avg_pool2d(x, 2) * 2,
    "avg_pool padded": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "avg_pool inside": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "avg_pool divisor": lambda x: F.avg_pool2d(x, 2, divisor_override=3),
    "avg_pool by ceil_mode": lambda x: F.avg_pool2d(x, 3, 2, 0, ceil_mode=True),
    "avg_pool by ceil_mode, padded": lambda x: F.avg_pool2d(x, 4, 3, 1, ceil_mode=True),
    "max_pool and its indices": lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
    "max_pool of volumes and its indices": lambda x: F.max_pool3d(x, (1, 2, 3), (1, 1, 2), return_indices=True),
    "adaptive to 1": lambda x: F.adaptive_avg_pool2d(x, 1),
    "adaptive to 4": lambda x: F.adaptive_avg_pool2d(x, 4),
    "relu then pool": lambda x: F.max_pool2d(F.relu(x), 2),
    "pool of a channels_last image": lambda x: F.max_pool2d(
        x.contiguous(memory_format=torch.channels_last) * 2, 2
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORWARD)
def test_pooling(name: str) -> None:
    check_import(FORWARD[name], IMAGE)


def test_pooling_text() -> None:
    text = canonical_text(lambda x: F.max_pool2d(x, 3, 2, 1), IMAGE)
    assert "dims d0=6 d1=8 d2=8 d3=4 d4=4 k0=3 k1=3\n" in text
    assert "= amax(in0[d1=2*d3+k0-1, d2=2*d4+k1-1]) over k0,k1\n" in text


AVERAGES: dict[str, tuple[tuple[int, ...], tuple[Any, ...]]] = {  # what was pooled, arguments
    "tiles": ((2, 3, 4, 6), ([2, 2], [], [0, 0], False, True, None)),
    "tiles of volumes": ((2, 3, 5, 4, 6), ([1, 2, 3], [], [0], False, True, None)),
    "overlapping": ((2, 3, 8, 9), ([3, 3], [2, 2], [0], False, True, None)),
    "stride 1": ((2, 3, 4, 6), ([1, 3], [1], [0, 1], False, True, None)),
    "apart": ((2, 3, 7, 6), ([2, 2], [3, 3], [0, 0], False, True, None)),
    "padded": ((2, 3, 7, 6), ([3, 3], [2, 2], [1, 1], False, True, None)),
    "padding not counted": ((2, 3, 7, 6), ([3, 3], [2, 2], [1, 1], False, False, None)),
    "by ceil_mode": ((2, 3, 8, 6), ([3, 3], [2, 2], [0, 0], True, True, None)),
    "by ceil_mode, padded": ((1, 2, 4, 6, 5), ([3], [2], [1], True, True, None)),
    "divisor": ((2, 3, 7, 6), ([3, 3], [2, 2], [1, 1], False, True, 5)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", AVERAGES)
def test_the_gradient_of_average_pooling(name: str, dtype: torch.dtype) -> None:
    shape, settings = AVERAGES[name]
    x = tensor(*shape).to(dtype)
    forward, back = aten.avg_pool2d.default, aten.avg_pool2d_backward.default
    if len(shape) == 5:
        forward, back = aten.avg_pool3d.default, aten.avg_pool3d_backward.default
        if dtype is torch.bfloat16:
            pytest.skip("aten has none on a CPU")
    grad = tensor(*forward(x, *settings).shape, seed=1).to(dtype)
    tolerance = 0.05 if dtype is torch.bfloat16 else 1e-5  # aten's loops round each partial sum
    check_import(lambda grad, x: back(grad, x, *settings) * x, grad, x, tolerance=tolerance)


def test_the_gradient_of_adaptive_average_pooling() -> None:
    back = aten._adaptive_avg_pool2d_backward.default
    check_import(lambda grad, x: back(grad, x) * x, tensor(2, 3, 2, 3), tensor(2, 3, 4, 6))


def test_the_gradient_of_adaptive_max_pooling() -> None:
    def backward(grad: Tensor, x: Tensor) -> Tensor:
        positions = x.reshape(2, 3, 24).argmax(-1)[:, :, None, None]
        return aten.adaptive_max_pool2d_backward.default(grad, x, positions)

    check_import(backward, tensor(2, 3, 1, 1), tensor(2, 3, 4, 6))


@pytest.mark.parametrize(("stride", "padding"), [(2, 0), (1, 0), (2, 1), (3, 1)])
def test_the_gradient_of_max_pooling_of_volumes(stride: int, padding: int) -> None:
    settings = [3, 3, 3], [stride] * 3, [padding] * 3, [1, 1, 1], False
    x = tensor(2, 3, 6, 7, 5)
    best, positions = aten.max_pool3d_with_indices.default(x, *settings)
    back = aten.max_pool3d_with_indices_backward.default
    check_import(lambda g, x, i: back(g, x, *settings, i), tensor(*best.shape, seed=1), x, positions)


# what was pooled, window, stride, padding, dilation
POOLS: dict[str, tuple[tuple[int, ...], list[int], list[int], list[int], list[int]]] = {
    "tiles": ((2, 3, 8, 6), [2, 3], [2, 3], [0, 0], [1, 1]),
    "tiles of rows": ((4, 3, 1, 12), [1, 4], [1, 4], [0, 0], [1, 1]),
    "overlapping": ((2, 3, 8, 7), [3, 3], [2, 2], [1, 1], [1, 1]),
    "stride 1": ((2, 2, 6, 6), [3, 5], [1, 1], [1, 2], [1, 1]),
    "a rest": ((2, 3, 9, 7), [2, 2], [2, 2], [0, 0], [1, 1]),
    "rows": ((2, 3, 4, 11), [1, 3], [1, 2], [0, 1], [1, 1]),
    "dilated": ((2, 3, 11, 9), [3, 2], [2, 1], [1, 0], [2, 3]),
}


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("is_sum", [False, True], ids=["backward of pooling", "sum at flat indices"])
def test_the_gradient_of_max_pooling_goes_where_the_offset_says(name: str, is_sum: bool) -> None:
    shape, kernel, *moves = POOLS[name]
    image, positions = tensor(*shape), math.prod(shape[2:])
    best, offsets = prims._low_memory_max_pool_with_offsets.default(image, kernel, *moves, False)

    def backward(grad: Tensor, image: Tensor, offsets: Tensor) -> Tensor:
        to_indices = prims._low_memory_max_pool_offsets_to_indices.default
        index = to_indices(offsets, kernel, shape[2:], *moves)
        if not is_sum:
            back = aten.max_pool2d_with_indices_backward.default
            return back(grad, image, kernel, *moves, False, index) * 2
        flat = [t.reshape(shape[0] * shape[1], -1) for t in (index, grad)]
        made = aten.scatter_add.default(torch.zeros(shape[0] * shape[1], positions), 1, *flat)
        return made.reshape(shape) * 2

    imported = check_import(backward, tensor(*best.shape, seed=1), image, offsets)
    (read,) = [i for i in imported.program.inputs if i.dtype == "i8"]
    assert read.domain == Domain(0, math.prod(kernel) - 1)


@pytest.mark.parametrize(("stride", "padding"), [(2, 0), (1, 0), (2, 1)])
def test_the_indices_of_max_pooling(stride: int, padding: int) -> None:
    settings = [2, 2], [stride, stride], [padding, padding], [1, 1]

    def pool(x: Tensor) -> tuple[Tensor, Tensor]:
        best, offsets = prims._low_memory_max_pool_with_offsets.default(x, *settings, False)
        kernel, *rest = settings
        return best, prims._low_memory_max_pool_offsets_to_indices.default(offsets, kernel, [8, 8], *rest)

    check_import(pool, IMAGE)
