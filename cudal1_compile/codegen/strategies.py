"""The staged strategies: which plans and schedules a program may have, and the code of each.

    pointwise   one stage without reductions
    grouped     one reducing stage, one kernel
    split       reductions cut into parts over many blocks, combined by a second kernel, then applied
    fused       a row stage and column sums of the same tensors in one pass
    staged      several stages, each with its own schedule
    window      one pooling stage
    scan        one scan stage
    product     one product stage

Variants come likely best first; a template draws among them, tests enumerate them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import lru_cache
from itertools import islice, pairwise

from cudal1_compile.codegen.lower import lower, lower_fused
from cudal1_compile.codegen.products import schedules as product_schedules
from cudal1_compile.codegen.products.epilogue_reduction import epilogue_schedule, reducible_values
from cudal1_compile.codegen.products.sides import BULK_COPY, IMPLICIT_GEMM, IMPLICIT_GEMM_2D
from cudal1_compile.codegen.reductions import fused, grouped_schedules, scan_schedules, transposed, windows
from cudal1_compile.codegen.stages import pointwise
from cudal1_compile.codegen.stages.schedule import Schedule, StageSchedule
from cudal1_compile.codegen.stages.stage import Stage, StagePlan, cut_stages
from cudal1_fx_passes.program.ir import Program

MAX_VARIANTS = 32
MAX_FUSED = 12
MAX_OTHERS = 4  # products with a fused reduction, where none of the likely ones has one
STRATEGIES = ("pointwise", "grouped", "split", "staged", "fused", "window", "scan", "product")


@lru_cache(maxsize=32)  # plans of a program share stages
def stage_schedules(stage: Stage) -> tuple[StageSchedule, ...]:
    rules = {
        "pointwise": lambda s: transposed.schedules(s) + pointwise.schedules(s),
        "reduce": grouped_schedules.schedules,
        "window": windows.schedules,
        "scan": scan_schedules.schedules,
        "product": product_schedules.schedules,
    }
    return tuple(rules[stage.kind](stage))


def variants(program: Program, most: int = MAX_VARIANTS) -> list[Schedule]:
    """All schedules of all strategies that apply, of each plan the likeliest `most`."""
    whole = cut_stages(program)
    found: list[Schedule] = []
    if whole is not None:
        found += [Schedule("fused", (s,)) for s in fused.schedules(whole)[:MAX_FUSED]]
    for flat, plan in enumerate(plans(program)):
        chosen = _combine(plan)[:most]
        chosen += _with_fused_reductions(plan, chosen[:MAX_VARIANTS])
        found += [Schedule(_name(plan, c), c, bool(flat)) for c in chosen]
    return found


def is_whole(program: Program, schedule: Schedule) -> bool:
    """Whether it says how each stage of the program is laid out."""
    return len(schedule.stages) == len(_choices(program, schedule))


def fit(program: Program, schedule: Schedule) -> Schedule | None:
    """What can be written and differs least: of each stage that it lays out, the same kind with other numbers.

    Where a stage has no such kind, the one whose name is most like it. Also the beginning of one. None where the
    program has fewer stages.
    """
    count = len(schedule.stages)
    stages = [_nearest_kind(s, c) for s, c in zip(schedule.stages, _choices(program, schedule), strict=False)]
    found = tuple(s for s in stages if s is not None)
    if found != schedule.stages and any(
        replace(v, stages=v.stages[:count]) == schedule for v in variants(program)
    ):
        return schedule
    return replace(schedule, stages=found) if len(found) == count else None


def with_all_stages(program: Program, schedule: Schedule) -> Schedule:
    """As many as the program has: further ones are left out, for those that lack the templates' first stand in.

    As it is where the program has none.
    """
    choices = _choices(program, schedule)
    if not choices:
        return schedule
    kept, left = schedule.stages[: len(choices)], choices[len(schedule.stages) :]
    return replace(schedule, stages=(*kept, *(c[0] for c in left if c)))


def why_illegal(program: Program, schedule: Schedule) -> str | None:
    """The sentence why a schedule cannot be lowered for this program as it stands; None where it can."""
    if schedule.strategy not in STRATEGIES:
        return f"'{schedule.strategy}.' is none of {', '.join(STRATEGIES)}"
    choices = _choices(program, schedule)
    if not choices:
        return "no schedule leads to a kernel of this region: write it in a ```cuda block"
    if len(schedule.stages) != len(choices):
        return f"the design has {len(schedule.stages)} stages, this region has {len(choices)}"
    for i, (stage, legal) in enumerate(zip(schedule.stages, choices, strict=True)):
        if stage in legal:
            continue
        if schedule in variants(program):  # with a reduction that only stands behind its product
            return None
        near, kinds = _nearest(stage, legal), ", ".join(dict.fromkeys(s.kind for s in legal))
        if near is None:
            return f"stage {i}: '{stage.kind}' is none of the kinds that this stage may have: {kinds}"
        return f"stage {i}: '{stage.describe()}' cannot be lowered here; the nearest is '{near.describe()}'"
    return None


def _choices(program: Program, schedule: Schedule) -> Sequence[Sequence[StageSchedule]]:
    """Of each stage of its plan; none where it has no plan."""
    plan = cut_stages(program, flat=schedule.flat)
    if plan is None:
        return ()
    is_fused = schedule.strategy == "fused"
    return [fused.schedules(plan)] if is_fused else [stage_schedules(stage) for stage in plan.stages]


def _nearest(wanted: StageSchedule, legal: Sequence[StageSchedule]) -> StageSchedule | None:
    def difference(s: StageSchedule) -> float:
        mine, its = ((x.vector, x.block, x.splits, *(x.tile or ())) for x in (wanted, s))
        doublings = sum(abs(math.log2(a / b)) for a, b in zip(mine, its, strict=False))
        return doublings + (wanted.cached != s.cached) + abs(len(mine) - len(its))

    return min((s for s in legal if s.kind == wanted.kind), key=difference, default=None)


def _nearest_kind(wanted: StageSchedule, legal: Sequence[StageSchedule]) -> StageSchedule | None:
    kinds = get_close_matches(wanted.kind, {s.kind for s in legal}, 1, 0.0)
    return _nearest(replace(wanted, kind=kinds[0]), legal) if kinds else None


def write_code(program: Program, schedule: Schedule) -> str:
    """The code block of one variant."""
    plan = cut_stages(program, flat=schedule.flat)
    assert plan is not None
    if schedule.strategy == "fused":
        return lower_fused(plan, schedule.stages[0])
    return lower(plan, schedule.stages)


def stages_of(program: Program, schedule: Schedule) -> tuple[Stage, ...]:
    """The stages that the schedule's parts belong to."""
    plan = cut_stages(program, flat=schedule.flat)
    return plan.stages if plan is not None else ()


def plans(program: Program) -> list[StagePlan]:
    """How it may be cut into stages; the second one, where there is one, is what a design calls flat."""
    plan = cut_stages(program)
    if plan is None:
        return []
    flat = cut_stages(program, flat=True)
    assert flat is not None
    worth = any(s.splits > 1 for stage in flat.stages if stage.kind == "reduce" for s in stage_schedules(stage))
    return [plan, flat] if worth and flat != plan else [plan]


def _name(plan: StagePlan, chosen: tuple[StageSchedule, ...]) -> str:
    if any(s.splits > 1 for s in chosen):
        return "split"
    if len(plan.stages) > 1:
        return "staged"
    kind = plan.stages[0].kind
    return "grouped" if kind == "reduce" else kind


def _combine(plan: StagePlan) -> list[tuple[StageSchedule, ...]]:
    """The best schedule of every stage, then changes of one stage at a time, in order of rank."""
    options = [stage_schedules(stage) for stage in plan.stages]
    if not all(options):
        return []
    best = tuple(o[0] for o in options)
    found = [best]
    for rank in range(1, max(len(o) for o in options)):
        found += [(*best[:i], o[rank], *best[i + 1 :]) for i, o in enumerate(options) if rank < len(o)]
        together = tuple(o[min(rank, len(o) - 1)] for o in options)
        found.append(together)
    return list(dict.fromkeys(found))


def _with_fused_reductions(
    plan: StagePlan, chosen: list[tuple[StageSchedule, ...]]
) -> list[tuple[StageSchedule, ...]]:
    """The same with reductions fused into the epilogue of the product before them, where they can be.

    Where none of those products can, the first that do: what they save may be more than they take. Those of which
    some warps only copy are others than those that all threads fetch for: either kind has its own.
    """
    found = []
    for i, (stage, following) in enumerate(pairwise(plan.stages)):
        if stage.kind != "product" or not chosen or not reducible_values(following):
            continue
        own = dict.fromkeys(c[i] for c in chosen)
        behind = {s: b for s in own if (b := epilogue_schedule(stage, s, following))}
        found += [(*c[: i + 1], behind[c[i]], *c[i + 2 :]) for c in chosen if c[i] in behind]
        first, kinds = chosen[0], {_is_warp_specialised(s) for s in behind}
        for copying in (k for k in (False, True) if k not in kinds):
            others = (s for s in stage_schedules(stage) if _is_warp_specialised(s) == copying)
            fused_pairs = ((s, b) for s in others if (b := epilogue_schedule(stage, s, following)) is not None)
            found += [(*first[:i], s, b, *first[i + 2 :]) for s, b in islice(fused_pairs, MAX_OTHERS)]
    return list(dict.fromkeys(found))


def _is_warp_specialised(product: StageSchedule) -> bool:
    """Whether some warps of a block only copy."""
    return product.kind.endswith((BULK_COPY, IMPLICIT_GEMM, IMPLICIT_GEMM_2D))
