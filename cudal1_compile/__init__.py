"""The compiler behind torch.compile(model, backend="cudal1").

    print(cudal1_compile.explain(model, x, options={"target": "host"}))     # each region, its decision and why

torch.compile finds the backend by its name, nothing has to be imported. Its options are in options.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cudal1_compile.pipeline.explanation import explain as explain

__all__ = ["explain"]


def __getattr__(name: str) -> object:
    """Loads `explain` when it is asked for: it needs Inductor, which a lookup of the backend must not import."""
    if name != "explain":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from cudal1_compile.pipeline.explanation import explain

    globals()[name] = explain
    return explain
