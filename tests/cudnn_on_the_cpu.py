"""cuDNN's fused convolutions as the CPU computes them, for as long as a test runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from cudal1_compile.inductor import fused_convolutions

Strides = tuple[int, ...]


@contextmanager
def cudnn_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Strides]]:
    """Strides of the operands of each call; fusible there is what lies on the CPU."""
    seen: list[Strides] = []

    def relu(x: Tensor, w: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
        seen.extend((x.stride(), w.stride()))
        return F.relu(F.conv2d(x, w, bias, *rest)).contiguous(memory_format=torch.channels_last)

    def add_relu(x: Tensor, w: Tensor, z: Tensor, alpha: float, bias: Tensor | None, *rest: Any) -> Tensor:
        seen.extend((x.stride(), w.stride(), z.stride()))
        return F.relu(F.conv2d(x, w, bias, *rest) + alpha * z).contiguous(memory_format=torch.channels_last)

    library = torch.library.Library("aten", "IMPL")
    library.impl("cudnn_convolution_relu", relu, "CPU")
    library.impl("cudnn_convolution_add_relu", add_relu, "CPU")
    monkeypatch.setattr(fused_convolutions, "DEVICE", "cpu")
    monkeypatch.setattr(fused_convolutions, "_pays", lambda node, scales: True)
    try:
        yield seen
    finally:
        library._destroy()
