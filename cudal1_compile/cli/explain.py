"""`cudal1 explain` and `cudal1 plan`: what the backend makes of a workload, without compiling it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cudal1_compile.cli.workload import load_workload
from cudal1_compile.inductor.graph_plan import PlannedRegion
from cudal1_compile.pipeline.explanation import Explanation

Name = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:FACTORY",
        help="models.bert:make is make() in models/bert.py; it returns (callable, inputs)",
    ),
]
TargetOption = Annotated[str, typer.Option(help="auto, host or cuda; auto takes host for CPU tensors")]

Products = Annotated[
    bool | None, typer.Option(help="whether products may become kernels, as the option; on a GPU they may")
]


def explain(
    workload: Name,
    target: TargetOption = "auto",
    products: Products = None,
    dot: Annotated[Path | None, typer.Option(help="write the drawing for graphviz here")] = None,
) -> None:
    """Prints each region, its decision and why, and what stays outside; compiles nothing."""
    found = _explain(workload, target, products)
    print(found)
    if dot is not None:
        dot.write_text(found.dot() + "\n", encoding="utf-8")


def plan(
    workload: Name,
    target: TargetOption = "auto",
    products: Products = None,
    text: Annotated[bool, typer.Option("--text", help="print each region's text")] = False,
) -> None:
    """Prints each distinct region, the most valuable first; compiles nothing."""
    found = _explain(workload, target, products)
    for graph in found.graphs:
        if graph.why_plain:
            print(f"plain inductor: {graph.why_plain}")
    regions = distinct_regions(found)
    for region in regions:
        seen = region.seen
        print(f"{seen.fingerprint[:12]}  {region.outcome:<12} {seen.count:>4} uses  {seen.ops:>3} ops")
        if text:
            print(seen.text)
    untuned = sum(r.outcome == "untuned" for r in regions)
    print(f"{len(regions)} regions, {untuned} of them without a kernel or a verdict")


def distinct_regions(found: Explanation) -> list[PlannedRegion]:
    """Regions over all graphs, each once, the most valuable first."""
    regions = {r.fingerprint: r for g in found.graphs for r in g.plan.regions}
    return sorted(regions.values(), key=lambda r: -r.seen.value_us)


def _explain(name: str, target: str, products: bool | None) -> Explanation:
    loaded = load_workload(name)
    return loaded.explain(None, {"target": loaded.target(target), "products": products})
