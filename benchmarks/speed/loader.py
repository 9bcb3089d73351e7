"""Task files: a class `Model`, `get_inputs()` and `get_init_inputs()`, in any folder.

    find_tasks(folder) -> {name: path}      load(path) -> its module      build(module, device) -> (model, inputs)

A file is executed as a fresh module of its own. `FREE`, where it has that, names the sizes among its constants
that a dry run may shrink. What does not hold to the convention is a TaskError; nothing is measured here.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

OWN = Path(__file__).parent / "tasks"
NAMES = ("Model", "get_inputs", "get_init_inputs")
TINY = 8  # a dry run's free sizes at most
SEED = 0


class TaskError(ValueError):
    """A file that is no task."""


def find_tasks(folder: Path) -> dict[str, Path]:
    """All files of the folder, and of those in it, but for private ones. Raises ValueError for none."""
    paths = (p for p in folder.rglob("*.py") if not any(part[0] in "_." for part in p.relative_to(folder).parts))
    found = {".".join(p.relative_to(folder).with_suffix("").parts): p for p in sorted(paths)}
    if not found:
        raise ValueError(f"{folder}: no task file there; expected NAME.py files with {', '.join(NAMES)}")
    return found


def load(path: Path, tiny: bool = False) -> ModuleType:
    """Raises TaskError."""
    name = f"cudal1_speed_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # Dynamo looks globals up there
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # noqa: BLE001  whatever a foreign file raises
        raise TaskError(f"{path.name}: {type(error).__name__} when it was executed: {error}") from error
    if missing := [n for n in NAMES if not callable(getattr(module, n, None))]:
        raise TaskError(f"{path.name}: no {', '.join(missing)}; a task file has {', '.join(NAMES)}")
    if not (isinstance(module.Model, type) and issubclass(module.Model, nn.Module)):
        raise TaskError(f"{path.name}: Model is {module.Model!r}; expected a subclass of torch.nn.Module")
    for size in getattr(module, "FREE", ()) if tiny else ():
        setattr(module, size, min(getattr(module, size), TINY))
    return module


def build(module: ModuleType, device: torch.device) -> tuple[nn.Module, tuple[Any, ...]]:
    """The model as constructed, in train mode therefore, and its inputs, both there; a seed before each.

    Made on the device; where the file does not allow that, made on the CPU and moved. Raises TaskError.
    """
    try:
        with device:
            return _build(module, device)
    except RuntimeError:  # a generator or a tensor of the CPU among them
        return _build(module, device)


def _build(module: ModuleType, device: torch.device) -> tuple[nn.Module, tuple[Any, ...]]:
    torch.manual_seed(SEED)
    model: nn.Module = module.Model(*_sequence(module, "get_init_inputs"))
    torch.manual_seed(SEED + 1)
    inputs = _sequence(module, "get_inputs")
    moved = pytree.tree_map_only(torch.Tensor, lambda x: x.to(device), tuple(inputs))
    return model.to(device), moved


def _sequence(module: ModuleType, name: str) -> Sequence[Any]:
    found = getattr(module, name)()
    if not isinstance(found, list | tuple):
        raise TaskError(f"{name}() gave {type(found).__name__}; expected a list or a tuple of arguments")
    return found
