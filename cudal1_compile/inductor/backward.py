"""A backward is compiled when it is first called, long after the backend has returned: its errors end here.

    compile_fx(inner_compile=Backward(...))    forward, inference   -> Inductor's own; backend.py meets errors
                                               backward with kernels -> error -> its copy, without kernels

An error of the second compile is one that plain Inductor has too: it is the user's, and all that is said then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx
from torch._inductor import config as inductor_config
from torch._inductor.compile_fx import compile_fx_inner

from cudal1_compile.inductor.collect import phase_of
from cudal1_compile.inductor.graph_key import copy_graph
from cudal1_compile.inductor.graph_plan import GraphPhase
from cudal1_compile.inductor.hook import forget_symbols
from cudal1_compile.inductor.splice import HOOK, Splice

log = logging.getLogger(__name__)

_CACHES = ("fx_graph_cache", "fx_graph_remote_cache")


@dataclass(frozen=True)
class Backward:
    """Stands where compile_fx_inner stands. `gave_way` is told why a backward runs without kernels.

    begins: told of each graph before it is compiled.
    """

    splice: Splice
    gave_way: Callable[[Exception], None]
    begins: Callable[[GraphPhase, fx.Graph], None] | None = None

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any], **settings: Any) -> Any:
        if self.begins is not None:
            self.begins(phase_of(settings), gm.graph)
        if not (settings.get("is_backward") and self.splice.has_work):
            return compile_fx_inner(gm, example_inputs, **settings)
        spare = copy_graph(gm)  # a compile changes what it gets
        try:
            return compile_fx_inner(gm, example_inputs, **settings)
        except Exception as error:  # noqa: BLE001  whatever it is, it must not end the user's training
            why = error
            log.debug("the backward's error", exc_info=error)
        forget_symbols()
        # not cached: forward and backward would be found again by a key that promises kernels in both
        with inductor_config.patch({HOOK: self.splice.previous} | dict.fromkeys(_CACHES, False)):
            compiled = compile_fx_inner(spare, example_inputs, **settings)
        self.gave_way(why)
        return compiled
