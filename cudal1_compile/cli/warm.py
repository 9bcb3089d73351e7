"""`cudal1 warm`: does the work of a miss ahead of time, with a workload's real inputs.

    collect every graph -> regions without a kernel, most valuable first -> synthesis, --budget-s in all
    -> compile and run until the choice is made

What is done stays in the kernel cache: a second call goes on where the first one ended.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
import typer

from cudal1_compile.choice import MAX_CALLS
from cudal1_compile.cli.explain import Name, Products, Target, distinct_regions
from cudal1_compile.cli.workload import Workload, load_workload
from cudal1_compile.explanation import explain
from cudal1_compile.options import parse_options
from cudal1_compile.planner import Place, Planner
from cudal1_compile.runtime.target import detect_target
from cudal1_compile.session import SESSION
from cudal1_compile.summary import total_line


def warm(
    workload: Name,
    budget_s: Annotated[float, typer.Option(help="seconds of synthesis, over all regions")] = 600.0,
    generator: Annotated[str, typer.Option(help="bundled, a checkpoint, a server's URL, vllm:PATH")] = "bundled",
    target: Target = "auto",
    mode: Annotated[str | None, typer.Option(help="as torch.compile's")] = None,
    products: Products = False,
) -> None:
    """Writes kernels for a workload ahead of time, most valuable region first; resumable."""
    loaded = load_workload(workload)
    wanted = loaded.default_target if target == "auto" else target
    open_regions = write_kernels(loaded, wanted, generator, budget_s, mode, products)
    if products:  # with kernels in the forward the backward's regions may be others; what is left of the budget
        open_regions = write_kernels(loaded, wanted, generator, budget_s, mode, products)
    compile_and_run(loaded, wanted, mode, products)
    print(total_line(SESSION.totals))
    if open_regions:
        print(f"{open_regions} regions are still open; run the command again to go on")


def write_kernels(
    loaded: Workload, target: str, generator: str, budget_s: float, mode: str | None, products: bool
) -> int:
    """Returns how many regions have neither a kernel nor a verdict afterwards."""
    options = {"target": target, "generator": generator, "budget_s": budget_s, "process_budget_s": budget_s}
    options["products"] = products
    found = explain(loaded.fn, *loaded.args, mode=mode, options=options, **loaded.kwargs)
    regions = distinct_regions(found)
    device = torch.device("cpu") if target == "host" else torch.device("cuda", torch.cuda.current_device())
    planner = Planner(SESSION, parse_options(None, options), Place(device, detect_target(device)))
    done = planner.synthesize(regions)
    for region in done:
        if region.outcome == "missed":
            print(f"{region.fingerprint[:12]} open: {region.reason}")
    return sum(r.outcome == "missed" for r in done)


def compile_and_run(loaded: Workload, target: str, mode: str | None, products: bool) -> None:
    """Compiles with what is in the cache; on a GPU as many calls as the choice between variants takes."""
    # torch.compile takes a mode or options, so the mode is given as the options that it stands for
    options: dict[str, Any] = {"target": target, "on_miss": "fallback", "products": products}
    options |= dict(parse_options(mode, None).inductor)
    compiled = torch.compile(loaded.fn, backend="cudal1", options=options)
    for _ in range(MAX_CALLS + 2 if target == "cuda" else 1):
        loaded.run(compiled)
        if target == "cuda":
            torch.cuda.synchronize()
