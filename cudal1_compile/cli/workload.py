"""Reads `package.module:factory`: what `warm`, `plan` and `explain` work on.

    def factory() -> tuple[Callable, tuple[inputs, ...]]: ...      or (callable, inputs, keyword inputs)

The factory is called once. Modules are looked for in the current directory too. What the user's code raises
becomes a WorkloadFailed; `theirs` is its traceback without the frames of this package.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import cudal1_compile
from cudal1_compile.cli.errors import WorkloadFailed
from cudal1_compile.errors import OptionError
from cudal1_compile.pipeline.explanation import Explanation, explain

OURS = (str(Path(cudal1_compile.__file__).parent), str(Path(importlib.__file__).parent), "<frozen importlib")


@dataclass(frozen=True)
class Workload:
    """A model or function with the inputs that it is to be compiled for."""

    name: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def run(self, fn: Callable[..., Any]) -> None:
        """One call, and its backward where the outputs ask for one. Gradients are dropped again."""
        outputs = [t for t in pytree.tree_leaves(fn(*self.args, **self.kwargs)) if isinstance(t, Tensor)]
        wanted = [o for o in outputs if o.requires_grad]
        if wanted:
            torch.autograd.backward(wanted, [torch.ones_like(o) for o in wanted])
        if isinstance(self.fn, nn.Module):
            self.fn.zero_grad(set_to_none=True)

    def explain(self, mode: str | None, options: Mapping[str, Any]) -> Explanation:
        """Calls the workload once. Raises WorkloadFailed where that raises, OptionError for wrong options."""
        try:
            return explain(self.fn, *self.args, mode=mode, options=options, **self.kwargs)
        except OptionError:
            raise
        except Exception as error:
            raise WorkloadFailed(
                f"the callable of {self.name} raised {type(error).__name__} when it was called with the factory's "
                "inputs; call it without torch.compile first"
            ) from error

    def target(self, wanted: str) -> str:
        """auto: cuda where a tensor of the workload lies on one, otherwise host."""
        if wanted != "auto":
            return wanted
        held: list[Tensor] = list(self.fn.parameters()) if isinstance(self.fn, nn.Module) else []
        tensors = [
            t for t in [*pytree.tree_leaves((self.args, dict(self.kwargs))), *held] if isinstance(t, Tensor)
        ]
        return "cuda" if any(t.device.type == "cuda" for t in tensors) else "host"


def load_workload(name: str) -> Workload:
    """Raises OptionError for a name or a factory that is not as described, WorkloadFailed for what it raises."""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise OptionError(
            f"{name!r}: expected package.module:factory, such as models.bert:make for models/bert.py"
        )
    factory = getattr(_import(module), attribute, None)
    if not callable(factory):
        raise OptionError(f"{name}: the module {module} has no function {attribute!r}")
    try:
        made = factory()
    except (Exception, SystemExit) as error:
        raise WorkloadFailed(
            f"the factory {name} raised {type(error).__name__}; expected (callable, inputs)"
        ) from error
    if not isinstance(made, Sequence) or len(made) not in (2, 3) or not callable(made[0]):
        raise OptionError(f"{name} returned {type(made).__name__}: expected (callable, inputs) or (.., keywords)")
    if len(made) == 3 and not isinstance(made[2], Mapping):
        raise OptionError(f"{name} returned {type(made[2]).__name__} as keyword inputs: expected a dict")
    args = made[1] if isinstance(made[1], tuple | list) else (made[1],)
    return Workload(name, made[0], tuple(args), dict(made[2]) if len(made) == 3 else {})


def device_of(target: str) -> torch.device:
    """target: host or cuda; the current device then."""
    return torch.device("cpu") if target == "host" else torch.device("cuda", torch.cuda.current_device())


def _import(module: str) -> object:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise OptionError(f"no module {module!r}: looked in {os.getcwd()} and on Python's path") from None
        raise WorkloadFailed(f"the module {module} raised {type(error).__name__} when it was imported") from error


def theirs(error: BaseException) -> str:
    """The traceback of what the user's code raised, from the first frame that is not this package's."""
    frame: TracebackType | None = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename.startswith(OURS):
        frame = frame.tb_next
    return "".join(traceback.format_exception(type(error), error, frame)).rstrip()
