"""The entry point: torch.compile(model, backend="cudal1").

    Dynamo's graph -> a stored plan, or: collect -> look up -> synthesize -> plan
                   -> compile_fx with the plan's kernels spliced in (on a GPU up to five variants, choice.py)

compile_fx runs on a fresh copy each time, because it owns and changes what it gets. Whatever goes wrong on the
way, the graph is compiled by plain Inductor, with a warning that says why; only a wrong option is the user's to
mend and is raised. This module holds no logic about regions or kernels.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import fx

from cudal1_compile.errors import describe
from cudal1_compile.inductor import hook, recurrent
from cudal1_compile.inductor.graph_key import copy_graph
from cudal1_compile.options import InvalidOption, Options, parse_options
from cudal1_compile.pipeline.place import find_device, no_device, place_of
from cudal1_compile.pipeline.trace import say

log = logging.getLogger(__name__)

# the user's to mend, or Dynamo's way of starting anew
NO_FAULTS = (InvalidOption, *hook.DYNAMOS)


def cudal1(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compiles one Dynamo graph. Raises InvalidOption (a ValueError) for a wrong mode or option."""
    settings = parse_options(mode, options)
    _keep_recurrent(gm)
    device = find_device(settings, example_inputs)
    if device is None:
        say(f"plain inductor: {no_device(settings)}")
        return compile_plain(gm, example_inputs, settings)
    why_not = hook.why_not(settings.inductor)
    if why_not is not None:
        say(f"plain inductor: {why_not}")
        return compile_plain(gm, example_inputs, settings)
    try:
        return _compile(gm, example_inputs, settings, device)
    except NO_FAULTS:
        raise
    except Exception as error:  # noqa: BLE001  a bug of this backend must not stop the user's job
        why = describe(error)
        log.debug("the error", exc_info=error)
    hook.forget_symbols()
    compiled = compile_plain(gm, example_inputs, settings)  # what this raises is the user's
    log.warning("plain inductor, because of %s", why)
    return compiled


def _keep_recurrent(gm: fx.GraphModule) -> None:
    try:
        recurrent.keep_calls(gm)
    except Exception as error:  # noqa: BLE001  Inductor then writes out the steps
        log.debug("recurrent layers are not kept whole", exc_info=error)


def compile_plain(gm: fx.GraphModule, example_inputs: Sequence[Any], settings: Options) -> Callable[..., Any]:
    """Inductor in the user's mode and with the user's options, as if there were no cudal1.

    Eager where Inductor has no compiler.
    """
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.exc import InductorError, InvalidCxxCompiler

    from cudal1_compile.inductor.aten import run_by_aten

    patches = dict(settings.inductor) or None
    try:
        compiled: Any = compile_fx(copy_graph(gm), list(example_inputs), config_patches=patches)
    except InductorError as error:
        if not isinstance(error.inner_exception, InvalidCxxCompiler):
            raise
        say("eager: inductor finds no C++ compiler here; install g++, or set CXX")
        return run_by_aten(gm)
    return cast(Callable[..., Any], compiled)


def _compile(
    gm: fx.GraphModule, example_inputs: Sequence[Any], settings: Options, device: torch.device
) -> Callable[..., Any]:
    _begin_ahead(settings, device)
    # imported here: these need Inductor's private classes, which hook.py has tested by now
    from cudal1_compile.inductor.aten import is_packaged
    from cudal1_compile.pipeline.background import Background
    from cudal1_compile.pipeline.compile import CompileJob, Pipeline
    from cudal1_compile.pipeline.process_state import SESSION

    job = CompileJob(gm, example_inputs, settings, place_of(device))
    pipeline = Pipeline(job, SESSION)
    plan = pipeline.decide()
    is_later = plan.is_open and settings.on_miss == "background" and not is_packaged()
    try:
        return Background(pipeline, plan) if is_later else pipeline.finish(plan)
    except NO_FAULTS:
        raise
    except Exception as error:
        pipeline.note_fault(plan, f"the graph, because of {describe(error)}")
        raise


def _begin_ahead(settings: Options, device: torch.device) -> None:
    """Lets the judge's processes import while this one imports Inductor: where no plan can be stored yet."""
    from cudal1_compile.dispatch.kernel_cache import has_store

    writes = settings.on_miss == "synthesize" and settings.budget_s > 0 and device.type == "cuda"
    if writes and not has_store(settings.cache_dir):
        from cudal1_compile.judge.sandbox import fork_server

        fork_server.prepare()


def _reset() -> None:
    """Called by torch.compiler.reset(), which goes through all backends: loading Inductor would add to them."""
    if state := sys.modules.get("cudal1_compile.pipeline.process_state"):
        state.SESSION.reset()
    if (trees := sys.modules.get("torch._inductor.cudagraph_trees")) and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        trees.reset_cudagraph_trees()


cudal1.reset = _reset  # type: ignore[attr-defined]
recurrent.trace_for(lambda backend: backend is cudal1)

if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # somebody is about to compile, Dynamo comes first
    _begin_ahead(parse_options(None, None), torch.device("cuda"))
