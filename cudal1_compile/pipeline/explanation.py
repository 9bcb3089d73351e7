"""Says what the backend makes of a model: each region, its decision and why, and every node that stays outside.

    print(cudal1_compile.explain(model, x, options={"target": "host"}))

The model runs once, eagerly; its graphs are collected and looked up in the kernel cache, nothing is compiled,
written or measured. What an earlier compile of the same graph decided is shown where it is stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import networkx
import torch
from torch import fx

from cudal1_compile.errors import describe as describe_error
from cudal1_compile.inductor import hook
from cudal1_compile.inductor.graph_plan import AnchorSeen, GraphPhase, GraphPlanned
from cudal1_compile.options import Options, parse_options
from cudal1_compile.pipeline.place import find_device, no_device, place_of
from cudal1_compile.pipeline.summary import region_line, summary_line
from cudal1_compile.runtime.target import TargetKind
from cudal1_fx_passes.fusion.anchors import taken_cut


@dataclass(frozen=True)
class Drawing:
    """The regions of one graph and the library calls between them. An edge is a tensor that passes."""

    phase: GraphPhase
    graph: networkx.DiGraph[str]

    def text(self) -> str:
        """One line a node: what it is and what it feeds."""
        lines = [f"  {self.phase} graph:"]
        for node, facts in self.graph.nodes(data=True):
            feeds = ", ".join(self.graph.successors(node)) or "the outputs"
            lines.append(f"    {node} {_describe(facts)} -> {feeds}")
        return "\n".join(lines)

    def dot(self) -> str:
        """For graphviz."""
        lines = [f'digraph "{self.phase}" {{']
        for node, facts in self.graph.nodes(data=True):
            shape = "box" if facts["kind"] == "region" else "ellipse"
            lines.append(f'  "{node}" [shape={shape}, label="{node}\\n{_describe(facts)}"];')
        lines += [f'  "{a}" -> "{b}";' for a, b in self.graph.edges]
        return "\n".join([*lines, "}"])


@dataclass(frozen=True)
class GraphExplanation:
    """One Dynamo graph.

    why_plain: why the backend leaves all of it to Inductor; empty otherwise. aten: whether aten may run it in
    Inductor's place; empty where nothing is timed. algebra: rules that fired before regions were cut.
    """

    plan: GraphPlanned
    kind: TargetKind
    drawings: tuple[Drawing, ...] = ()
    why_plain: str = ""
    aten: str = ""
    algebra: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.why_plain:
            return f"plain inductor: {self.why_plain}"
        lines = [summary_line(self.plan, self.kind)]
        rules = [f"{rule} x{count}" for rule, count in Counter(self.algebra).items()]
        lines += [f"  algebra: {', '.join(rules)}"] if rules else []
        lines += [f"  without kernels in the last compile: {self.plan.fault}"] if self.plan.fault else []
        lines += [f"  {region_line(r, self.kind)}" for r in self.plan.regions]
        lines += [f"  {_cuts_line(a, self.plan)}" for a in self.plan.anchors if len(a.cuts) > 1]
        reasons = Counter((n.operation, n.reason) for n in self.plan.refused)
        lines += [f"  outside: {operation} x{count}: {why}" for (operation, why), count in reasons.items()]
        lines += [f"  aten in inductor's place: {self.aten}"] if self.aten else []
        if self.kind == "cuda":
            why = self.plan.why_not_captured
            lines.append(f"  as a CUDA graph: {why or 'where the first calls show it to be faster'}")
        if self.aten and self.plan.is_channels_last:
            lines.append(
                "  convolutions: channels-last, or as they are where the first calls show it to be faster"
            )
        if self.aten and self.plan.fuses:
            lines.append("  with their ReLU: by cuDNN where that and the first calls show it to be faster")
        return "\n".join([*lines, *(d.text() for d in self.drawings)])


@dataclass(frozen=True)
class Explanation:
    """All graphs of one call, in the order in which Dynamo met them."""

    graphs: tuple[GraphExplanation, ...]

    def __str__(self) -> str:
        return "\n".join(f"graph {i}: {graph}" for i, graph in enumerate(self.graphs)) or "no graph was compiled"

    def dot(self) -> str:
        return "\n".join(drawing.dot() for graph in self.graphs for drawing in graph.drawings)


def explain(
    fn: Callable[..., Any],
    *args: Any,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    dynamic: bool | None = None,
    **kwargs: Any,
) -> Explanation:
    """Explains fn(*args, **kwargs), which runs once. Takes what torch.compile takes for this backend.

    Backward graphs are seen where the inputs or parameters ask for gradients. Raises ValueError for wrong options.
    """
    settings = parse_options(mode, options)
    found: list[GraphExplanation] = []

    def look(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        try:
            found.append(explain_graph(gm, example_inputs, settings))
        except Exception as error:  # noqa: BLE001  the backend leaves such a graph to Inductor
            found.append(GraphExplanation(GraphPlanned(()), "host", why_plain=describe_error(error)))
        return gm.forward

    torch._dynamo.reset()
    torch.compile(fn, backend=look, dynamic=dynamic)(*args, **kwargs)
    torch._dynamo.reset()
    return Explanation(tuple(found))


def explain_graph(gm: fx.GraphModule, example_inputs: Sequence[Any], settings: Options) -> GraphExplanation:
    """One Dynamo graph, from inside a backend."""
    from cudal1_compile.pipeline.compile import CompileJob, Pipeline, is_timed
    from cudal1_compile.pipeline.process_state import SESSION
    from cudal1_fx_passes.fusion.partition import region_graph

    device = find_device(settings, example_inputs)
    why_plain = no_device(settings) if device is None else hook.why_not(settings.inductor)
    if device is None or why_plain is not None:
        return GraphExplanation(GraphPlanned(()), "host", why_plain=why_plain or "")
    place = place_of(device)
    pipeline = Pipeline(CompileJob(gm, example_inputs, settings, place), SESSION)
    graphs, plan = pipeline.survey()
    stored = pipeline.stored()
    if stored is not None and stored.chosen("all_kernels") == plan.chosen("all_kernels"):
        plan = replace(plan, choice=stored.choice, ratio=stored.ratio)
    if stored is not None:
        plan = replace(_with_reasons(plan, stored), fault=stored.fault)
    drawings = tuple(Drawing(g.phase, region_graph(g.partition)) for g in graphs)
    aten = _describe_aten(pipeline.why_not_aten(plan)) if is_timed(place.target) else ""
    algebra = tuple(rule for g in graphs for rule in g.algebra)
    return GraphExplanation(plan, place.target.kind, drawings, aten=aten, algebra=algebra)


def _with_reasons(plan: GraphPlanned, stored: GraphPlanned) -> GraphPlanned:
    """Open regions with why the last compile left them open."""
    from cudal1_compile.pipeline.planner import NO_KERNEL

    why = {r.fingerprint: r.reason for r in stored.regions if r.outcome == "untuned" and r.reason != NO_KERNEL}
    regions = (
        replace(r, reason=f"{NO_KERNEL}: {why[r.fingerprint]}")
        if r.reason == NO_KERNEL and r.fingerprint in why
        else r
        for r in plan.regions
    )
    return replace(plan, regions=tuple(regions))


def _cuts_line(anchor: AnchorSeen, plan: GraphPlanned) -> str:
    """The cuts around a product, and which of them the kernels' figures speak for."""
    taken = taken_cut(anchor.cuts, plan.chosen("all_kernels").keys())
    told = [
        " + ".join(f[:12] for f in cut) + " (saves most)" * (at == taken) for at, cut in enumerate(anchor.cuts)
    ]
    return f"either {' or '.join(told)}"


def _describe_aten(why_not: str | None) -> str:
    return "runs where the first calls show it to be faster" if why_not is None else f"never, {why_not}"


def _describe(facts: Mapping[str, Any]) -> str:
    if facts["kind"] == "region":
        return f"({facts['ops']} ops, {facts['bytes']} bytes)"
    return f"({facts['target']})"
