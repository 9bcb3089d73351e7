"""A halo tile's length in closed form: never less than what a tile's rows reach, and no more for padding."""

from __future__ import annotations

import random
from math import prod
from pathlib import Path

import pytest

from cudal1_compile.codegen.products.copies import ordered
from cudal1_compile.codegen.products.halo_walk import Walk, halo_length, walk_of
from cudal1_compile.codegen.stages.stage import cut_stages
from cudal1_compile.kernel.candidate import Expr
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.tasks.product_sizes import Most
from cudal1_trainer.tasks.products import draw_product
from cudal1_trainer.tasks.structures import read_structures

TEXTS = read_structures(Path(__file__).parents[2] / "trainer" / "data" / "products.jsonl.gz")
SMALL = Most(1 << 21, 1 << 15, 1 << 19)
SAME = """region v1
dims d0=3 d1=16 d2=14 d3=20 d4=16 d5=14 d6=20 k0=3 k1=5
in0 f32[d0,d1,d2,d3]
in1 f32[d4,d1,k0,k1]
t0 f32[d0,d4,d5,d6] = dot_tf32(in0[d2=d5+k0-1, d3=d6+k1-2], in1) over d1,k0,k1
out0 f32[d0,d4,d5,d6] = t0
"""


def walks(program: Program) -> list[Walk]:
    plan = cut_stages(program)
    assert plan is not None
    found = [walk_of(s, ordered(s)) for s in plan.stages if s.kind == "product"]
    return [w for w in found if w is not None]


def reached(program: Program, walk: Walk, rows: int, inner: int) -> int:
    """Places between the first and the last that any tile reads, row by row."""
    size = {a.name: a.size for a in program.axes}
    results = [-(-size[x.out] // x.step) for x in walk.moved]
    steps = [prod(size[x.image] for x in walk.moved[at + 1 :]) for at in range(len(walk.moved))]

    def position(row: int) -> int:
        found = 0
        for x, step, count in reversed(list(zip(walk.moved, steps, results, strict=True))):
            row, at = divmod(row, count)
            found += at * x.out_factor * step
        return found + row * prod(size[x.image] for x in walk.moved)

    total = prod(results) * prod(size[a] for a in walk.plain)
    longest = max(position(min(m + rows, total) - 1) - position(m) for m in range(0, total, rows))
    windows = list(zip(walk.moved, steps, strict=True))[len(steps) - inner :]
    return longest + 1 + sum(s * abs(x.window_factor) * (-(-size[x.window] // x.step) - 1) for x, s in windows)


def length(program: Program, walk: Walk, rows: int, inner: int) -> int:
    return Expr(halo_length(walk, rows, inner)).evaluate({a.name: a.size for a in program.axes})


@pytest.mark.parametrize("rows", [64, 128, 256])
def test_a_halo_tile_has_room_for_what_its_rows_reach(rows: int) -> None:
    rng, tried = random.Random(rows), 0
    while tried < 40:
        program = draw_product(TEXTS, rng, 0.6, SMALL)
        for walk in walks(program):
            for inner in range(1, len(walk.moved) + 1):
                assert length(program, walk, rows, inner) >= reached(program, walk, rows, inner), program
                tried += 1


def test_padding_that_keeps_the_size_costs_no_position() -> None:
    program = parse_program(SAME)
    (walk,) = walks(program)
    assert length(program, walk, 128, 2) == reached(program, walk, 128, 2) == 128 + 2 * 20 + 4
