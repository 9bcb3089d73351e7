"""The compiler behind torch.compile(model, backend="cudal1").

    print(cudal1_compile.explain(model, x, options={"target": "host"}))     # each region, its decision and why
    cudal1_compile.last_plans()                                             # those of the last compiles, as data

torch.compile finds the backend by its name, nothing has to be imported. Its options are in options.py.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cudal1_compile.pipeline.explanation import explain as explain
    from cudal1_compile.pipeline.process_state import last_plans as last_plans

_HOMES = {"explain": "cudal1_compile.pipeline.explanation", "last_plans": "cudal1_compile.pipeline.process_state"}

__all__ = ["explain", "last_plans"]


def __getattr__(name: str) -> object:
    """Loads what is asked for: it needs Inductor, which a lookup of the backend must not import."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return found
