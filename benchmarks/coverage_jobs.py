"""The jobs of coverage: tasks of our own at large sizes, and models as packages define them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from benchmarks.coverage_models import MODELS, Model
from benchmarks.coverage_tasks import MAKERS, Maker

TINY = 16  # a dry run's sizes at most

Made = tuple[nn.Module, tuple[Tensor, ...]]


@dataclass(frozen=True, slots=True)
class Job:
    """make(device, tiny) -> a module and its inputs there."""

    name: str
    kind: Literal["task", "model"]
    train: bool
    make: Callable[[torch.device, bool], Made]


def _task(maker: Maker) -> Job:
    def make(device: torch.device, tiny: bool) -> Made:
        torch.manual_seed(0)
        with device:
            return maker(lambda size: min(size, TINY) if tiny else size)

    return Job(maker.__name__, "task", False, make)


def _model(model: Model) -> Job:
    def make(device: torch.device, tiny: bool) -> Made:
        torch.manual_seed(0)
        module, inputs = model.make(tiny)
        moved = tuple((x.to(model.dtype) if x.is_floating_point() else x).to(device) for x in inputs)
        return module.to(device=device, dtype=model.dtype), moved

    return Job(model.name, "model", model.train, make)


JOBS = (*(_task(maker) for maker in MAKERS), *(_model(model) for model in MODELS))


def job_named(name: str) -> Job:
    """Raises ValueError for a name that there is not."""
    for job in JOBS:
        if job.name == name:
            return job
    raise ValueError(f"job {name!r}: expected one of {', '.join(job.name for job in JOBS)}")
