"""A compile at a call, when Dynamo is done: as within Dynamo's tracing, so that Inductor's caches serve both.

    with as_traced(inputs): compile_fx(graph, inputs)

Without a context of tracing Inductor's caches are passed by; in an empty one AOTAutograd takes the sizes of the
call's tensors for symbols, whose guards nobody would check.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv


@contextmanager
def as_traced(inputs: Sequence[Any]) -> Iterator[None]:
    """A context that knows the inputs with the sizes that they have; within Dynamo's own nothing is changed."""
    if TracingContext.try_get() is not None:
        yield
        return
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    known = [mode.from_tensor(x, static_shapes=True) for x in inputs if isinstance(x, Tensor)]
    with tracing(TracingContext(mode)):
        yield
    del known  # the mode itself holds fake tensors only weakly
