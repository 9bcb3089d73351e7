"""The collecting pass of plan-then-compile: which regions will Inductor's hook see, forward and backward?

    collect(gm, inputs, patches, user_pass) -> the partitions of every graph that AOTAutograd makes

compile_fx runs on a copy of the graph with every cache off and an inner compiler that goes only as far as the
hook, the same way as Inductor does (view to reshape, fake tensors, dead code, locality), so that what is seen is
what the later compile sees. Only where Inductor will change strides that the backward then reads (convolutions
in channels-last, kernels of products) is the forward also lowered, without generating code.

Nothing is compiled, cached or run. A region that this pass missed costs its kernel, never rightness.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
import torch._functorch.config as functorch_config
from torch import fx
from torch._guards import TracingContext
from torch._inductor import compile_fx as inductor
from torch._inductor import config as inductor_config
from torch._inductor.fx_passes.post_grad import view_to_reshape
from torch._inductor.graph import GraphLowering
from torch._inductor.ir import IRNode
from torch._inductor.utils import shape_env_from_inputs
from torch._inductor.virtualized import V

from cudal1_compile.inductor.capturable import changed_inputs, why_not_captured
from cudal1_compile.inductor.fused_convolutions import count_fusible
from cudal1_compile.inductor.graph_key import copy_graph
from cudal1_compile.inductor.graph_plan import GraphPhase
from cudal1_compile.inductor.layouts import LAYOUT_SETTINGS, has_convolutions, is_channels_last
from cudal1_compile.inductor.splice import HOOK, Observe, PassTimer, Splice, UserPass
from cudal1_fx_passes.algebra import META
from cudal1_fx_passes.fusion.partition import Partition

log = logging.getLogger(__name__)

_NEVER = 1 << 30  # collections of the middle generation before one of all


@dataclass(frozen=True, slots=True)
class SeenGraph:
    """One graph at the hook (a subgraph of a control-flow operator counts as its own)."""

    phase: GraphPhase
    partition: Partition
    code: str  # the graph as Python
    is_channels_last: bool  # Inductor chooses another layout for its convolutions, without being told to
    has_convolutions: bool
    why_not_captured: str  # capturable.py's
    changed: tuple[int, ...]
    algebra: tuple[str, ...] = ()  # rules that fired
    fusible: int = 0  # convolutions that cuDNN may run with their ReLU


def phase_of(settings: Mapping[str, Any]) -> GraphPhase:
    """Of a call of compile_fx_inner with these."""
    return (
        "inference" if settings.get("is_inference") else "backward" if settings.get("is_backward") else "forward"
    )


def seen_at_hook(phase: GraphPhase, graph: fx.Graph, found: Partition) -> SeenGraph:
    is_last = is_channels_last(graph) and not inductor_config.force_layout_optimization
    code = graph.python_code("self").src.strip()
    why_not, changed = why_not_captured(graph), changed_inputs(graph)
    if phase == "backward" and changed:
        why_not = why_not or "its backward changes an input"
    fired = tuple(n.meta[META] for n in graph.nodes if META in n.meta)
    fusible = count_fusible(graph) if is_last and phase == "inference" else 0
    return SeenGraph(phase, found, code, is_last, has_convolutions(graph), why_not, changed, fired, fusible)


class _Seen(Exception):
    """Ends the passes once the hook has looked at the last graph; never leaves this module."""


def collect(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    patches: Mapping[str, Any],
    previous: UserPass,
    products: bool = False,
    splice: Splice | None = None,
    passes: PassTimer | None = None,
    labels: Collection[str] = (),
) -> list[SeenGraph]:
    """Returns what the hook sees, in the order of Inductor's calls: inference, or forward and backward.

    patches: Inductor's config for this compile. `gm` is left as it is. products: they may begin regions.
    splice: what the compile will put into the forward, so that the backward is seen as it will be. passes: where
    those at the hook are noted. labels: of the algebra that is done there.
    """
    compiler = _InnerCompiler(previous, products, splice, passes, labels)
    off = {"enable_autograd_cache": False, "force_non_lazy_backward_lowering": True}
    with functorch_config.patch(off), without_full_collections():
        inner: Any = compiler  # gives no OutputCode, which only the caches that are off would need
        inductor.compile_fx(
            copy_graph(gm), list(example_inputs), inner_compile=inner, config_patches=dict(patches) or None
        )
    return compiler.seen


@contextmanager
def without_full_collections() -> Iterator[None]:
    """Python's collector walks over every object of the process, again and again while graphs are made.

    Of a BERT's step it takes a sixth of the time; what is made here is fake, and holds no memory of a device.
    """
    young, middle, old = gc.get_threshold()
    gc.set_threshold(young, middle, _NEVER)
    try:
        yield
    finally:
        gc.set_threshold(young, middle, old)


class _InnerCompiler:
    """Stands where compile_fx_inner stands, and only looks."""

    def __init__(
        self,
        previous: UserPass,
        products: bool,
        splice: Splice | None,
        passes: PassTimer | None,
        labels: Collection[str],
    ) -> None:
        self.previous, self.products, self.splice, self.passes = previous, products, splice, passes
        self.labels = labels
        self.seen: list[SeenGraph] = []

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any], **settings: Any) -> Callable[..., Any]:
        phase = phase_of(settings)
        is_moved = self.splice is not None or GraphLowering.decide_layout_opt(gm, is_inference=False)
        needs_strides = phase == "forward" and is_moved

        def see(graph: fx.Graph, found: Partition) -> None:
            self.seen.append(seen_at_hook(phase, graph, found))
            if graph is gm.graph and not needs_strides:
                raise _Seen
            if phase == "forward" and self.splice is not None:
                self.splice(graph)

        with torch.utils._python_dispatch._disable_current_modes(), torch.no_grad():
            view_to_reshape(gm)  # type: ignore[no-untyped-call]
            fake_mode = inductor.fake_tensor_prop(gm, example_inputs)
            inductor._recursive_record_original_output_strides(gm)
            with V.set_fake_mode(fake_mode), suppress(_Seen):
                settings_kept = {name: getattr(inductor_config, name) for name in LAYOUT_SETTINGS}
                observe = Observe(self.previous, see, self.products, self.passes, f"{phase}: ", self.labels)
                with inductor_config.patch(settings_kept | {HOOK: observe}):
                    inductor._recursive_post_grad_passes(gm, is_inference=phase == "inference")
                    _report_strides(gm, example_inputs, settings.get("graph_id"))
        return _not_to_be_called


def _report_strides(gm: fx.GraphModule, example_inputs: Sequence[Any], graph_id: int | None) -> None:
    """Lowers the forward without kernels and tells AOTAutograd the strides of what it returns.

    The backward is traced with these, as after a real compile.
    """
    context = TracingContext.try_get()
    if context is None or context.output_strides is None:
        return
    shape_env = shape_env_from_inputs(example_inputs)
    graph = GraphLowering(gm, example_inputs=example_inputs, shape_env=shape_env, graph_id=graph_id)
    with V.set_graph_handler(graph), V.set_extern_kernel_nodes([]):
        graph.run(*example_inputs)
        strides = [_static_strides(out) for out in graph.graph_outputs or ()]
    context.output_strides.extend(strides)


def _static_strides(output: Any) -> tuple[int, ...] | None:
    if not isinstance(output, IRNode) or not output.has_tensor_output():
        return None
    strides = tuple(output.get_layout().stride)
    return tuple(int(s) for s in strides) if all(getattr(s, "is_number", True) for s in strides) else None


def _not_to_be_called(args: list[Any]) -> Any:
    raise AssertionError("the collecting pass compiles nothing that could be called")


_not_to_be_called._boxed_call = True  # type: ignore[attr-defined]
