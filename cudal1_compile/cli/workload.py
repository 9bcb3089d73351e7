"""Reads `package.module:factory`: what `warm`, `plan` and `explain` work on.

    def factory() -> tuple[Callable, tuple[inputs, ...]]: ...      or (callable, inputs, keyword inputs)

The factory is called once. Modules are looked for in the current directory too.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from cudal1_compile.errors import OptionError


@dataclass(frozen=True)
class Workload:
    """A model or function with the inputs that it is to be compiled for."""

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

    @property
    def default_target(self) -> str:
        """cuda where a tensor of the workload lies on one, otherwise host."""
        held: list[Tensor] = list(self.fn.parameters()) if isinstance(self.fn, nn.Module) else []
        tensors = [
            t for t in [*pytree.tree_leaves((self.args, dict(self.kwargs))), *held] if isinstance(t, Tensor)
        ]
        return "cuda" if any(t.device.type == "cuda" for t in tensors) else "host"


def load_workload(name: str) -> Workload:
    """Raises OptionError for a name or a factory that is not as described."""
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise OptionError(f"{name!r}: expected package.module:factory")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        factory = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise OptionError(f"{name!r} cannot be loaded: {error}") from error
    made = factory()
    if not isinstance(made, Sequence) or len(made) not in (2, 3) or not callable(made[0]):
        raise OptionError(f"{name} returned {type(made).__name__}: expected (callable, inputs) or (.., keywords)")
    args = made[1] if isinstance(made[1], tuple | list) else (made[1],)
    return Workload(made[0], tuple(args), dict(made[2]) if len(made) == 3 else {})
