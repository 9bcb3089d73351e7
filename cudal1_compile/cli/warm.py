"""`cudal1 warm`: does the work of a miss ahead of time, with a workload's real inputs.

    collect every graph -> regions without a kernel, most valuable first -> synthesis, --budget-s in all
    -> compile and run until the choice is made

What is done stays in the kernel cache: a second call goes on where the first one ended. Exit status 1 where
nothing could be done (no generator, no compiler, no time, no cache that can be written, no graph for kernels).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import torch
import typer

from cudal1_compile.cli.cache import must_keep
from cudal1_compile.cli.errors import CommandFailed
from cudal1_compile.cli.explain import Name, Products, TargetOption, distinct_regions
from cudal1_compile.cli.workload import Workload, device_of, load_workload
from cudal1_compile.inductor.graph_plan import PlannedRegion
from cudal1_compile.options import Options, parse_options
from cudal1_compile.pipeline.choice import SETTLED
from cudal1_compile.pipeline.place import place_of
from cudal1_compile.pipeline.planner import FORWARD_SHARE, Planner
from cudal1_compile.pipeline.process_state import SESSION
from cudal1_compile.pipeline.summary import total_line


def warm(
    workload: Name,
    budget_s: Annotated[float, typer.Option(help="seconds of synthesis, over all regions")] = 600.0,
    generator: Annotated[str, typer.Option(help="bundled, a checkpoint, a server's URL, vllm:PATH")] = "bundled",
    target: TargetOption = "auto",
    mode: Annotated[str | None, typer.Option(help="as torch.compile's")] = None,
    products: Products = None,
) -> None:
    """Writes kernels for a workload ahead of time, the most valuable region first; goes on when run again."""
    must_keep(SESSION.store(None))
    loaded = load_workload(workload)
    wanted = loaded.target(target)
    has_products = Options(products=products).has_products(wanted)
    before, after = write_kernels(loaded, wanted, generator, budget_s, mode, has_products, is_first=True)
    if any(r.seen.may_change for r in before):  # once the forward has kernels; what is left of the budget
        _, after = write_kernels(loaded, wanted, generator, budget_s, mode, has_products)
    compile_and_run(loaded, wanted, mode, has_products)
    report(before, after)


def report(before: Sequence[PlannedRegion], after: Sequence[PlannedRegion]) -> None:
    """Says what is open. Raises CommandFailed where that is all that was, and the generator said nothing."""
    still_open = [r for r in after if r.outcome == "untuned"]
    for region in still_open:
        print(f"{region.fingerprint[:12]} open: {region.reason}")
    print(total_line(SESSION.totals))
    if not still_open:
        return
    answered = {r.fingerprint for r in before if r.outcome == "untuned"} - {r.fingerprint for r in still_open}
    if SESSION.replies == 0 and not answered:
        raise CommandFailed(
            f"open regions: {len(still_open)}, nothing was done for them: {still_open[0].reason}. Expected a "
            "generator that answers and a judge that runs here: see --generator, --budget-s and `cudal1 doctor`"
        )
    print(f"open regions: {len(still_open)}; run the command again to go on")


def write_kernels(
    loaded: Workload,
    target: str,
    generator: str,
    budget_s: float,
    mode: str | None,
    products: bool,
    is_first: bool = False,
) -> tuple[Sequence[PlannedRegion], Sequence[PlannedRegion]]:
    """Returns the workload's regions as they were before, and as they are afterwards.

    is_first: nothing is written for those that may change once the forward has kernels.
    """
    options = {"target": target, "generator": generator, "budget_s": budget_s, "process_budget_s": budget_s}
    options["products"] = products
    found = loaded.explain(mode, options)
    if found.graphs and all(g.why_plain for g in found.graphs):
        raise CommandFailed(f"no kernel can be used here: {found.graphs[0].why_plain}")
    regions = distinct_regions(found)
    if not regions:
        return [], []
    device = device_of(target)
    planner = Planner(SESSION, parse_options(None, options), place_of(device))
    lasting = [r for r in regions if not (is_first and r.seen.may_change)]
    share = FORWARD_SHARE if len(lasting) < len(regions) else 1.0
    after = planner.synthesize(lasting, share * budget_s)
    SESSION.end_if_interrupted()
    return regions, after


def compile_and_run(loaded: Workload, target: str, mode: str | None, products: bool) -> None:
    """Compiles with what is in the cache; on a GPU as many calls as the choice between variants takes."""
    # torch.compile takes a mode or options, so the mode is given as the options that it stands for
    options: dict[str, Any] = {"target": target, "on_miss": "fallback", "products": products}
    options |= dict(parse_options(mode, None).inductor)
    compiled = torch.compile(loaded.fn, backend="cudal1", options=options)
    for _ in range(SETTLED if target == "cuda" else 1):
        loaded.run(compiled)
        SESSION.first_calls.end()
        if target == "cuda":
            torch.cuda.synchronize()
