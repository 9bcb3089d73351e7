"""Varied structures: valid, new, without dead values, and templates answer them."""

from __future__ import annotations

import math
import random
from pathlib import Path

from cudal1_compile.codegen.templates import draw_reply
from cudal1_fx_passes.program.canonical import canonicalise, shape_agnostic_fingerprint
from cudal1_fx_passes.program.ir import Literal, Program
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.tasks.structures import read_structures, resize
from cudal1_trainer.tasks.vary import (
    change_literals,
    cut_values,
    drop_outputs,
    mask_values,
    raise_values,
    swap_functions,
    vary,
)

DATA = Path(__file__).parents[2] / "trainer" / "data"
ROWS = """region v1
dims d0=64 d1=256
in0 f32[d0,d1]
in1 i64[d0]
t0 f32[d0,d1] = exp(in0)
t1 f32[d0] = sum(t0) over d1
t2 f32[d0] = cast(in1)
t3 f32[d0] = mul(t1, t2)
out0 f32[d0,d1] = t0
out1 f32[d0] = t3
"""
GATHER = """region v1
dims d0=64 d1=256
in0 i64[d0] in [0,d1)
in1 f32[d1]
t0 f32[d0] = neg(in1[d1=in0])
t1 i64[d0] = add(in0, 1)
out0 f32[d0] = t0
out1 i64[d0] = t1
"""


def test_swapped_functions_keep_operands_and_casts() -> None:
    program = parse_program(ROWS)
    found = [swap_functions(program, random.Random(i)) for i in range(30)]
    assert all([o.operands for o in p.ops] == [o.operands for o in program.ops] for p in found)
    assert all(p.ops[2].fn == "cast" for p in found) and {p.ops[1].fn for p in found} > {"sum"}


NUMBERS = """region v1
dims d0=64 d1=256
in0 f32[d0,d1]
in1 i64[d0]
t0 f32[d0,d1] = mul(in0, -0.0884)
t1 f32[d0,d1] = maximum(t0, 0.0)
t2 f32[d0] = var(t1, 1.0) over d1
t3 i64[d0] = add(in1, 7)
t4 bool[d0] = ge(t3, 0)
t5 f32[d0] = where(t4, t2, -3.4028234663852886e+38)
out0 f32[d0] = t5
"""


def test_other_literals_keep_their_sign_and_what_is_no_number_stays() -> None:
    program = parse_program(NUMBERS)
    found = [change_literals(program, random.Random(i)) for i in range(60)]
    assert all(p.ops[1:] == program.ops[1:] for p in found)
    values = {x.value for p in found for x in p.ops[0].operands if isinstance(x, Literal)}
    assert len(values) > 30 and all(-0.5 < v < -0.01 for v in values)
    assert min(len(repr(v)) for v in values) <= 5 and max(len(repr(v)) for v in values) >= 18


CHOICE = """region v1
dims d0=64 d1=256
in0 f32[d0,d1]
in1 bool[d0,d1]
in2 f32[d0,d1]
t0 f32[d0,d1] = rsqrt(in2)
t1 f32[d0,d1] = where(in1, in0, t0)
t2 f32[d0,d1] = where(in1, 0.0, t1)
out0 f32[d0,d1] = t2
"""


def test_masks_stand_on_either_side_and_leave_a_value() -> None:
    program = parse_program(CHOICE)
    found = [mask_values(program, random.Random(i)) for i in range(200)]
    masked = [p.ops[-1].operands for p in found] + [p.ops[-2].operands for p in found if len(p.ops) > 1]
    assert all(sum(isinstance(x, Literal) for x in operands) <= 1 for operands in masked)
    left = {x.value for _, x, _ in masked if isinstance(x, Literal)}
    right = {x.value for _, _, x in masked if isinstance(x, Literal)}
    assert {-math.inf, -1e9} <= left & right
    half = parse_program(CHOICE.replace("f32", "f16"))
    numbers = [
        x.value
        for i in range(200)
        for x in mask_values(half, random.Random(i)).ops[-1].operands[1:]
        if isinstance(x, Literal)
    ]
    assert all(math.isinf(n) or abs(n) <= 65504 for n in numbers)


def test_roots_become_powers() -> None:
    found = {raise_values(parse_program(CHOICE), random.Random(i)).ops[0] for i in range(60)}
    assert {o.fn for o in found} == {"rsqrt", "pow"}
    assert {-0.75, -0.5} <= {x.value for o in found for x in o.operands if isinstance(x, Literal)}


def test_a_cut_value_is_read_from_an_input_of_its_own_and_its_maker_goes() -> None:
    program = parse_program(ROWS)
    found = {shape_agnostic_fingerprint(canonicalise(cut_values(program, random.Random(i)))) for i in range(30)}
    cut = ROWS.replace("sum(t0)", "sum(in2)").replace("t0 f32", "in2 f32[d0,d1]\nt0 f32", 1)
    assert shape_agnostic_fingerprint(canonicalise(parse_program(cut))) in found
    assert len(found) > 4


def test_what_only_a_dropped_output_needs_goes_with_it() -> None:
    program = parse_program(ROWS)
    kept = [drop_outputs(program, random.Random(i)) for i in range(30)]
    alone = [p for p in kept if len(p.outputs) == 1 and p.outputs[0].value == "t0"]
    assert alone and all([i.name for i in p.inputs] == ["in0"] and len(p.ops) == 1 for p in alone)


def test_an_index_outlives_the_axis_that_bounds_it() -> None:
    program = parse_program(GATHER)
    alone = [p for p in (drop_outputs(program, random.Random(i)) for i in range(30)) if len(p.outputs) == 1]
    assert {len(canonicalise(p).axes) for p in alone} == {1, 2}


def test_most_varied_structures_are_new_and_taught() -> None:
    structures = read_structures(DATA / "structures.jsonl.gz")
    rng = random.Random(5)
    new = taught = 0
    for _ in range(40):
        program = parse_program(rng.choice(structures))
        varied: Program = resize(vary(program, rng), rng)
        new += shape_agnostic_fingerprint(varied) != shape_agnostic_fingerprint(program)
        taught += draw_reply(varied, rng) is not None
    assert new >= 28 and taught >= 36
