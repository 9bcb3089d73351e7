"""`cudal1 warm`: does the work of a miss ahead of time, with a workload's real inputs.

    collect every graph -> regions without a kernel, most valuable first -> synthesis, --budget-s in all
    -> compile and run until the choice is made

With --learn half of the budget first trains a model on the regions without a kernel (learn.py).

What is done stays in the kernel cache: a second call goes on where the first one ended. Exit status 1 where
nothing could be done (no generator, no compiler, no time, no cache that can be written, no graph for kernels).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
import typer

from cudal1_compile.cli.cache import must_keep
from cudal1_compile.cli.errors import CommandFailed
from cudal1_compile.cli.explain import Name, Products, TargetOption, distinct_regions
from cudal1_compile.cli.learn import LEARN_SHARE, base_model, learn_from
from cudal1_compile.cli.workload import Workload, device_of, load_workload
from cudal1_compile.generate.factory import BUNDLED
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
    learn: Annotated[
        bool, typer.Option("--learn", help="first train the model on these regions: half the budget")
    ] = False,
) -> None:
    """Writes kernels for a workload ahead of time, the most valuable region first; goes on when run again."""
    must_keep(SESSION.store(None))
    loaded = load_workload(workload)
    wanted = loaded.target(target)
    has_products = Options(products=products).has_products(wanted)
    asked = [generator]
    if learn:
        learned, budget_s = learn_first(loaded, wanted, generator, budget_s, mode, has_products)
        asked = [*learned, generator]  # which a later compile asks, unless it has lost here too
    open_before: set[str] = set()
    for name in asked:
        before, after = write_kernels(loaded, wanted, name, budget_s, mode, has_products, is_first=True)
        if any(r.seen.may_change for r in before):  # once the forward has kernels; what is left of the budget
            _, after = write_kernels(loaded, wanted, name, budget_s, mode, has_products)
        open_before |= {r.fingerprint for r in before if r.outcome == "untuned"}
    compile_and_run(loaded, wanted, mode, has_products)
    report(open_before, after)


def report(open_before: set[str], after: Sequence[PlannedRegion]) -> None:
    """Says what is open. Raises CommandFailed where that is all that was, and the generator said nothing.

    open_before: fingerprints.
    """
    still_open = [r for r in after if r.outcome == "untuned"]
    for region in still_open:
        print(f"{region.fingerprint[:12]} open: {region.reason}")
    print(total_line(SESSION.totals))
    if not still_open:
        return
    answered = open_before - {r.fingerprint for r in still_open}
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
    regions = find_regions(loaded, mode, options)
    if not regions:
        return [], []
    device = device_of(target)
    planner = Planner(SESSION, parse_options(None, options), place_of(device))
    lasting = [r for r in regions if not (is_first and r.seen.may_change)]
    share = FORWARD_SHARE if len(lasting) < len(regions) else 1.0
    after = planner.synthesize(lasting, share * budget_s)
    SESSION.end_if_interrupted()
    return regions, after


def find_regions(loaded: Workload, mode: str | None, options: Mapping[str, Any]) -> list[PlannedRegion]:
    """Of the workload's graphs, each once. Raises CommandFailed where no graph can use a kernel."""
    found = loaded.explain(mode, options)
    if found.graphs and all(g.why_plain for g in found.graphs):
        raise CommandFailed(f"no kernel can be used here: {found.graphs[0].why_plain}")
    return distinct_regions(found)


def learn_first(
    loaded: Workload, target: str, generator: str, budget_s: float, mode: str | None, products: bool
) -> tuple[list[str], float]:
    """The model that learned, where there is one, and the seconds left for kernels."""
    begin = time.monotonic()
    model = base_model(generator)
    regions = find_regions(loaded, mode, {"target": target, "generator": generator, "products": products})
    texts = [r.seen.text for r in regions if r.outcome == "untuned"]
    if not texts:
        print("nothing to learn from: every region is decided")
        return [], budget_s
    learned = learn_from(texts, target, model, LEARN_SHARE * budget_s, SESSION.store(None))
    left_s = max(budget_s - (time.monotonic() - begin), (1 - LEARN_SHARE) * budget_s)
    return ([] if learned is None else [f"{BUNDLED}{learned}"]), left_s


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
