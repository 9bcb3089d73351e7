"""The pass at Inductor's post_grad_custom_pre_pass: cuts the graph into regions and puts kernels in.

    %a = exp(%x); %b = add(%a, 1)   ->   %f = cudal1::fused("<entry> <shapes>", [%x]); %b = %f[0]

Where products may begin regions a convolution's two gradients are nodes of their own meanwhile (gradients.py).
Regions that aten runs faster than Inductor get aten's operators instead (library.py). Where products may begin
regions, the decisions also say which of an anchor's two cuts is taken (anchors.py).

Two passes share the hook, so that both see one and the same graph: Observe only looks (the collecting pass of
plan-then-compile), Splice replaces. A user's own pass at the hook runs first, as part of either.

Before regions are cut, algebra leaves out what need not be computed (cudal1_fx_passes.algebra). Where convolutions
run in channels-last, those that no kernel has taken may become one call with their ReLU (fused_convolutions.py).

The uuid is the digest of this graph's own decisions (and of the passes' sources): Inductor's and AOTAutograd's
caches hit exactly when the same kernels would be put in, and a kernel added for one model never invalidates
another's artifacts.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import fx
from torch._inductor import config as inductor_config
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.pattern_matcher import stable_topological_sort

from cudal1_compile.inductor.fused_convolutions import fuse_convolutions
from cudal1_compile.inductor.fused_lowering import FUSED, META, FusedCall, remember_shapes
from cudal1_compile.inductor.graph_key import code_version
from cudal1_compile.inductor.graph_plan import ATEN, ChosenKernel
from cudal1_compile.inductor.index_bounds import assert_bounds, index_bounds
from cudal1_compile.inductor.layouts import assumed_layouts, is_channels_last, keep_decision
from cudal1_compile.inductor.library import run_by_library
from cudal1_compile.inductor.scratch_sizes import scratch_specs
from cudal1_fx_passes.algebra import rewrite
from cudal1_fx_passes.fusion.anchors import cut, partition_with_products
from cudal1_fx_passes.fusion.gradients import gradients_apart
from cudal1_fx_passes.fusion.partition import Partition, Region, partition

HOOK = "post_grad_custom_pre_pass"

_KEPT_META = ("tensor_meta", "stack_trace", "original_aten", "nn_module_stack")

UserPass = Callable[[fx.Graph], None] | None


class PassTimer(Protocol):
    """Where the passes of a hook are noted (pipeline/trace.py)."""

    def run(self, name: str, text: Callable[[], object] | None = None) -> AbstractContextManager[None]: ...


class Untimed:
    """Notes nothing."""

    def run(self, name: str, text: Callable[[], object] | None = None) -> AbstractContextManager[None]:
        return nullcontext()


@dataclass(frozen=True)
class _Passes:
    """The passes over one graph, each noted with its time and, at CUDAL1_DEBUG=3, the graph behind it."""

    graph: fx.Graph
    log: PassTimer
    prefix: str = ""

    def run(self, name: str) -> AbstractContextManager[None]:
        return self.log.run(f"{self.prefix}{name}", lambda: self.graph.python_code("self").src)

    @contextmanager
    def as_cut(self, products: bool) -> Iterator[None]:
        """The graph as regions are cut out of it; afterwards what was not replaced is as before."""
        with ExitStack() as stack:
            if products:
                with self.run("gradients apart"):
                    stack.enter_context(gradients_apart(self.graph))
            with self.run("assumed layouts"):
                stack.enter_context(assumed_layouts(self.graph))
            yield

    def partition(self, products: bool) -> Partition:
        with self.run("partition"):
            return partition_with_products(self.graph) if products else partition(self.graph)

    def algebra(self, labels: Collection[str]) -> None:
        with self.run("algebra"):
            rewrite(self.graph, labels)

    def users(self, previous: UserPass) -> None:
        if previous is not None:
            with self.run("the user's pass"):
                previous(self.graph)


class Observe(CustomGraphPass):
    """Hands every graph's partition to `see` and changes nothing."""

    def __init__(
        self,
        previous: UserPass,
        see: Callable[[fx.Graph, Partition], None],
        products: bool = False,
        passes: PassTimer | None = None,
        prefix: str = "",
        labels: Collection[str] = (),
    ) -> None:
        """passes: where those of this hook are noted, if anywhere, their names behind the prefix.

        labels: of the algebra that is done before.
        """
        self.previous, self.see, self.products, self.labels = previous, see, products, labels
        self.passes, self.prefix = passes or Untimed(), prefix

    def __call__(self, graph: fx.Graph) -> None:
        passes = _Passes(graph, self.passes, self.prefix)
        passes.users(self.previous)
        passes.algebra(self.labels)
        with passes.as_cut(self.products):
            self.see(graph, passes.partition(self.products))

    def uuid(self) -> None:
        """No caching: a cached graph would not be looked at."""
        return


class Splice(CustomGraphPass):
    """Puts the kernels of one plan into the graphs of one compile, and aten into the regions of `by_aten`."""

    def __init__(
        self,
        previous: UserPass,
        kernels: Mapping[str, ChosenKernel],
        by_aten: Collection[str] = frozenset(),
        products: bool = False,
        passes: PassTimer | None = None,
        see: Callable[[fx.Graph, Partition], None] | None = None,
        labels: Collection[str] = (),
        fuses: bool = False,
    ) -> None:
        """passes: where those of this hook are noted, if anywhere. see: Observe's, where nothing is replaced.

        labels: of the algebra that may be done before. fuses: convolutions with their ReLU.
        """
        self.previous, self.products, self.see, self.labels = previous, products, see, sorted(labels)
        self.passes = passes or Untimed()
        self.kernels = dict(kernels)  # by fingerprint
        self.by_aten = frozenset(by_aten)  # fingerprints
        self.fuses = fuses
        self.replaced: list[str] = []  # fingerprints, one a use
        self._digest = decisions_digest(kernels, by_aten)

    @property
    def has_work(self) -> bool:
        return bool(self.kernels or self.by_aten or self.fuses)

    def __call__(self, graph: fx.Graph) -> None:
        passes = _Passes(graph, self.passes)
        passes.users(self.previous)
        if inductor_config.cpp_wrapper:
            return
        passes.algebra(self.labels)
        if not self.has_work:
            if self.see is not None:
                with passes.as_cut(self.products):
                    self.see(graph, passes.partition(self.products))
            return
        was_channels_last = is_channels_last(graph)
        with passes.as_cut(self.products):
            found = passes.partition(self.products)
            with passes.run("splice"):
                self._splice(graph, found, passes)
        if self.fuses and was_channels_last:
            with passes.run("fused convolutions"):
                fuse_convolutions(graph)
        with passes.run("layout decision"):
            keep_decision(graph, was_channels_last)
        with passes.run("sort"):
            stable_topological_sort(graph)  # the matchers that run next need a sorted graph

    def _splice(self, graph: fx.Graph, found: Partition, passes: _Passes) -> None:
        moved: dict[fx.Node, fx.Node] = {}
        chosen = self.kernels.keys() | self.by_aten
        for region in cut(found, chosen) if self.products else found.regions:
            kernel = self.kernels.get(region.fingerprint)
            if region.fingerprint in self.by_aten:
                for node in region.nodes:
                    run_by_library(node)
                self.replaced.append(region.fingerprint)
            elif kernel is not None:
                # an input may be the output of a region that was replaced before
                inputs = tuple(moved.get(node, node) for node in region.inputs)
                if bounds := index_bounds(region):
                    with passes.run("index bounds"):
                        assert_bounds(graph, bounds)
                moved |= _replace(graph, replace(region, inputs=inputs), kernel)
                self.replaced.append(region.fingerprint)

    def uuid(self) -> tuple[Any, ...] | None:
        ours = ("cudal1", code_version(), self._digest, self.products, self.fuses, *self.labels)
        if self.previous is None:
            return ours
        theirs = self.previous.uuid() if isinstance(self.previous, CustomGraphPass) else None
        # a user's pass without a uuid cannot be cached, so neither can the two together
        return (*ours, theirs) if theirs else None


def decisions_digest(kernels: Mapping[str, ChosenKernel], by_aten: Iterable[str] = ()) -> str:
    """sha256 over fingerprint -> entry id, checked or not, or aten; the order of the regions does not matter."""
    lines = [f"{f} {k.entry_id}{' checked' * k.is_checked}" for f, k in kernels.items()]
    lines = sorted([*lines, *(f"{f} {ATEN}" for f in by_aten)])
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _replace(graph: fx.Graph, region: Region, kernel: ChosenKernel) -> dict[fx.Node, fx.Node]:
    """Returns what stands in place of each output."""
    moved: dict[fx.Node, fx.Node] = {}
    unread, sizes = _other_operands(region)
    call = FusedCall(
        entry_id=kernel.entry_id,
        text=kernel.text,
        scratch=scratch_specs(kernel.candidate, region.program, region.symbols),
        symbols=region.symbols,
        inputs=tuple(node.meta["val"] for node in region.inputs),
        outputs=tuple(node.meta["val"] for node in region.outputs),
        subgraph=extract(region, [*unread, *sizes]),
        is_checked=kernel.is_checked,
    )
    remember_shapes(call)
    with graph.inserting_after(region.nodes[-1]):
        fused = graph.call_function(FUSED, (call.name, [*region.inputs, *unread], sizes))
    fused.meta["val"] = list(call.outputs)
    fused.meta[META] = call
    after = fused
    for i, output in enumerate(region.outputs):
        with graph.inserting_after(after):
            item = graph.call_function(operator.getitem, (fused, i))
        item.meta |= {"val": output.meta["val"]} | {k: v for k, v in output.meta.items() if k in _KEPT_META}
        # rematerialised nodes of the region stay in the graph and then read the kernel's result too
        output.replace_all_uses_with(item)
        moved[output] = after = item
    for node in reversed(region.nodes):
        if not node.users:
            graph.erase_node(node)
    return moved


def extract(region: Region, others: list[fx.Node]) -> fx.GraphModule:
    """The region's own nodes as a module over its inputs, followed by `others`; returns a tuple of its outputs."""
    graph = fx.Graph()
    known: dict[fx.Node, fx.Node] = {}
    for i, node in enumerate([*region.inputs, *others]):  # an input may occur twice
        known[node] = graph.placeholder(f"x{i}")
        known[node].meta |= {k: v for k, v in node.meta.items() if k in ("val", "tensor_meta")}
    for node in region.nodes:
        known[node] = graph.node_copy(node, known.__getitem__)
    graph.output(tuple(known[node] for node in region.outputs))
    return fx.GraphModule(torch.nn.Module(), graph)


def _other_operands(region: Region) -> tuple[list[fx.Node], list[fx.Node]]:
    """Arguments of the region's nodes that are no inputs of its program.

    Tensors whose values are not read (the weight, where a convolution's backward gives the weight's gradient), and
    symbolic numbers (an expand's sizes, for instance).
    """
    inside = set(region.nodes) | set(region.inputs)
    found = dict.fromkeys(a for n in region.nodes for a in n.all_input_nodes if a not in inside)
    unread = [n for n in found if isinstance(n.meta["val"], torch.Tensor)]
    return unread, [n for n in found if n not in unread]
