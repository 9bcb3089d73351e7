"""Whose GPU time is it? Inductor's kernels of one call, laid against the regions of its graphs.

    with watched(chosen, products) as (backend, graphs):    compile with it, run forward and backward once
    shares(launches, graphs, train)                         microseconds by fingerprint, OUTSIDE for the rest

The backend is plain Inductor, which also notes each graph's regions at the backend's hook, and in which order
the generated code calls its kernels and libraries. Of a product that is cut in several ways the one counts whose
kernels were found, else product with epilogue.

What is approximate: a kernel of several regions counts for each by its share of the operations; a kernel that
serves several layers is described at its first use; a library's kernels belong to the library call that stands
between the same two kernels of Inductor's, and calls that stand there side by side share them in order, or
evenly. Where a profile does not have the order of the code, libraries' time is nobody's (`in_order` is False).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from unittest import mock

from torch import fx

from benchmarks.model_kernels import OUTSIDE, Launch, Operations, computes, kind_of, read_origins

if TYPE_CHECKING:
    from cudal1_fx_passes.fusion.partition import Partition

Backend = Callable[[fx.GraphModule, list[Any]], Callable[..., Any]]
NO_LAUNCH = ("MultiOutput", "AssertScalar", "DynamicScalar")  # Inductor's calls without work


@dataclass(frozen=True)
class Owners:
    """Which region has which node of a graph."""

    names: dict[str, str]  # node -> fingerprint, OUTSIDE for those of no region
    readers: tuple[tuple[frozenset[str], str], ...]  # what a node of a region reads -> fingerprint

    @classmethod
    def of(cls, found: Partition, chosen: Collection[str]) -> Owners:
        from cudal1_fx_passes.fusion.anchors import taken_cut

        at = [taken_cut(anchor.fingerprints, chosen) for anchor in found.anchors]
        taken = [r for a, i in zip(found.anchors, at, strict=True) if i is not None for r in a.cuts[i]]
        names = {node.name: OUTSIDE for node in found.graph.nodes}
        reads: dict[str, tuple[frozenset[str], str]] = {}
        for region in (*found.regions, *taken):
            for node in region.nodes:
                names[node.name] = region.fingerprint
                if computes(str(node.target)):
                    reads[node.name] = _inputs(node), region.fingerprint
        return cls(names, tuple(reads.values()))

    def operations(self, origins: Collection[fx.Node]) -> Operations:
        """Of a library call, which stands for the last of its origins: others are of what it reads.

        What passes behind the hook put in a node's place reads what that node had read.
        """
        computing = {n for n in origins if n.op == "call_function" and computes(str(n.target))}
        if not computing:
            return {}
        node = next(n for n in reversed(next(iter(computing)).graph.nodes) if n in computing)
        if node.name in self.names:
            return {self.names[node.name]: 1}
        reads = _inputs(node)
        return dict.fromkeys({f for read, f in self.readers if read and read <= reads} or {OUTSIDE}, 1)


@dataclass(frozen=True, slots=True)
class Call:
    """One call in the code of a graph: of Inductor's kernel of that name, or of a library, which has none."""

    kernel: str
    operations: Operations


@dataclass
class Graph:
    """One graph as Inductor compiled it."""

    owners: Owners
    calls: list[Call] = field(default_factory=list)
    origins: dict[str, Operations] = field(default_factory=dict)  # by kernel


@dataclass(frozen=True)
class Shares:
    us: dict[str, float]  # by fingerprint
    in_order: bool


@contextmanager
def watched(chosen: Collection[str], products: bool) -> Iterator[tuple[Backend, list[Graph]]]:
    """Holds for compiles within; a backward is compiled when it is first run, so run both within too."""
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.graph import GraphLowering
    from torch._inductor.scheduler import Scheduler

    from cudal1_compile.inductor.splice import HOOK, Observe

    graphs: list[Graph] = []
    observe = Observe(None, lambda _, found: graphs.append(Graph(Owners.of(found, chosen))), products)
    call_kernel, call_library = PythonWrapperCodegen.generate_kernel_call, Scheduler.codegen_extern_call

    def backend(gm: fx.GraphModule, example_inputs: list[Any]) -> Any:
        return compile_fx(gm, example_inputs, config_patches={HOOK: observe})

    def noted_kernel(self: Any, kernel_name: str, *args: Any, **kwargs: Any) -> Any:
        for graph in graphs[-1:]:
            graph.calls.append(Call(kernel_name, {}))
        return call_kernel(self, kernel_name, *args, **kwargs)

    def noted_library(self: Any, scheduler_node: Any) -> Any:
        node = scheduler_node.node
        origins = node.get_origins() if node is not None else ()
        for graph in graphs[-1:]:
            if type(node).__name__ not in NO_LAUNCH:
                graph.calls.append(Call("", graph.owners.operations(origins)))
        return call_library(self, scheduler_node)

    def noted_code(code: str) -> None:
        for graph in graphs[-1:]:
            graph.origins |= read_origins(code, graph.owners.names)

    with ExitStack() as stack:
        for owner, name, made in (
            (PythonWrapperCodegen, "generate_kernel_call", noted_kernel),
            (Scheduler, "codegen_extern_call", noted_library),
            (GraphLowering, "save_output_code", staticmethod(noted_code)),
        ):
            stack.enter_context(mock.patch.object(owner, name, made))
        yield backend, graphs


def shares(launches: Sequence[Launch], graphs: Sequence[Graph], train: bool) -> Shares:
    """Of one call, forward and backward."""
    origins = {name: operations for graph in graphs for name, operations in graph.origins.items()}
    ran = [launch.name for launch in launches if kind_of(launch.name) == "triton"]
    for order in _orders(graphs, train):
        calls = [call for graph in order for call in graph.calls]
        if [call.kernel for call in calls if call.kernel] == ran:
            return Shares(_in_order(launches, calls, origins), True)
    us: defaultdict[str, float] = defaultdict(float)
    for launch in launches:
        _share_out(us, launch.took_us, origins.get(launch.name, {}))
    return Shares(dict(us), False)


def count_operations(graphs: Sequence[Graph]) -> dict[str, float]:
    """Operations by region, which stand in for microseconds where there is no GPU."""
    counts = Counter(f for graph in graphs for f in graph.owners.names.values())
    return {fingerprint: float(count) for fingerprint, count in counts.items()}


def _orders(graphs: Sequence[Graph], train: bool) -> Iterator[list[Graph]]:
    """In which the graphs may have run: as they were compiled, or each backward compiled with its forward."""
    yield list(graphs)
    if train:
        yield [*graphs[::2], *reversed(graphs[1::2])]


def _in_order(
    launches: Sequence[Launch], calls: Sequence[Call], origins: dict[str, Operations]
) -> dict[str, float]:
    us: defaultdict[str, float] = defaultdict(float)
    gap: list[Launch] = []
    libraries: list[Call] = []
    left = iter([*calls, Call("the end", {})])
    for launch in [*launches, None]:
        if launch is not None and kind_of(launch.name) != "triton":
            gap.append(launch)
            continue
        while not (call := next(left)).kernel:
            libraries.append(call)
        _share_gap(us, gap, libraries)
        gap, libraries = [], []
        if launch is not None:
            _share_out(us, launch.took_us, origins.get(launch.name, {}))
    return dict(us)


def _share_gap(us: defaultdict[str, float], gap: Sequence[Launch], libraries: Sequence[Call]) -> None:
    """What libraries ran between two kernels of Inductor's, to the calls that stand between them."""
    each, left = divmod(len(gap), max(1, len(libraries)))
    for i, launch in enumerate(gap):
        if not libraries:
            us[OUTSIDE] += launch.took_us
        elif left:
            for call in libraries:
                _share_out(us, launch.took_us / len(libraries), call.operations)
        else:
            _share_out(us, launch.took_us, libraries[i // each].operations)


def _share_out(us: defaultdict[str, float], took_us: float, operations: Operations) -> None:
    total = sum(operations.values())
    for fingerprint, count in (operations if total else {OUTSIDE: 1}).items():
        us[fingerprint] += took_us * count / max(1, total)


def _inputs(node: fx.Node) -> frozenset[str]:
    return frozenset(n.name for n in node.all_input_nodes)
