"""Where a graph's kernels are for: the device of its tensors, and the target that device is.

It needs nothing of Inductor, so the backend asks here first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cudal1_compile.options import Options
from cudal1_compile.runtime.target import Target, detect_target


@dataclass(frozen=True)
class TargetDevice:
    """Where kernels are for: the torch device and its target."""

    device: torch.device
    target: Target


def place_of(device: torch.device) -> TargetDevice:
    return TargetDevice(device, detect_target(device))


def find_device(settings: Options, example_inputs: Sequence[Any]) -> torch.device | None:
    """The device that kernels are made for; None where the graph's tensors lie elsewhere."""
    wanted = "cpu" if settings.target == "host" else "cuda"
    return next((x.device for x in example_inputs if isinstance(x, Tensor) and x.device.type == wanted), None)


def no_device(settings: Options) -> str:
    """The sentence for a graph without one."""
    if settings.target == "auto":
        return 'no CUDA tensors here; options={"target": "host"} makes kernels for CPU tensors'
    return f"target={settings.target!r}, but the graph has no such tensors"
