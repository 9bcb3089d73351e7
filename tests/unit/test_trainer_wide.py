"""Products by warp groups: what a multiprocessor holds of them, and their place among a product's schedules."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cudal1_compile.codegen.products.copies import ordered
from cudal1_compile.codegen.products.sides import WARP_GROUPS
from cudal1_compile.codegen.products.times import Times
from cudal1_compile.codegen.products.warp_groups import occupancy, waiting_for
from cudal1_compile.codegen.stages.schedule import print_schedule
from cudal1_compile.codegen.stages.stage import cut_stages
from cudal1_compile.codegen.templates import variants
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.tasks.variants import write_variant

SHARED, OWN = 228 * 1024, 1024  # of an H100's multiprocessor, and of that for each block
FAMILIES = Path(__file__).parents[2] / "trainer" / "data" / "families.jsonl"
PROGRAMS = [
    parse_program(row["text"])
    for row in map(json.loads, FAMILIES.read_text().splitlines())
    if row["family"].startswith(("conv", "product"))
]


@pytest.mark.parametrize("at", range(2, len(PROGRAMS), 5))
def test_blocks_that_share_a_multiprocessor_fit(at: int) -> None:
    program = PROGRAMS[at]
    plan = cut_stages(program)
    assert plan is not None
    dims = {a.name: a.size for a in program.axes}
    for schedule in variants(program):
        (s, *others), stage = schedule.stages, plan.stages[0]
        if others or not s.kind.endswith(WARP_GROUPS):
            continue
        blocks, stages = occupancy(s, waiting_for(stage, ordered(stage), s))
        written = write_variant(program, schedule)
        assert written is not None and blocks >= 1 and stages >= 3
        asked = max(x.shared.evaluate(dims) for x in written.candidate.launches)
        assert blocks * (asked + OWN) <= SHARED, print_schedule(schedule)


def test_a_products_schedules_come_by_their_expected_times() -> None:
    for program in PROGRAMS[::9]:
        plan = cut_stages(program)
        assert plan is not None
        if len(plan.stages) == 1:
            times = [Times(plan.stages[0]).us(s.stages[0]) for s in variants(program)]
            assert times == sorted(times) and times[0] > 0
