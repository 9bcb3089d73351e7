"""Edits are printed and parsed exactly, find their places, and say why they cannot be made."""

from __future__ import annotations

import random

import pytest

from cudal1_compile.codegen.edits import (
    Edit,
    IllegalEdit,
    KernelEdit,
    StageEdit,
    apply,
    legal_edits,
    parse_edits,
    print_edits,
)
from cudal1_compile.codegen.edits.edit import KERNEL_VALUES, STAGE_VALUES
from cudal1_compile.codegen.stages.schedule import parse_schedule, print_schedule, read_stage
from cudal1_compile.codegen.templates import variants, write_reply
from cudal1_compile.judge.static.text_gate import CleanText, check_text
from cudal1_compile.kernel.candidate import Reply, parse_candidate
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.tasks import FAMILIES, generate_task

GELU = """region v1
dims d0=4096 d1=1000
in0 f32[d0,d1]
in1 f32[d1]
t0 f32[d0,d1] = add(in0, in1)
t1 f32[d0,d1] = tanh(t0)
out0 f32[d0,d1] = t1
"""
NORM = """region v1
dims d0=512 d1=4096
in0 f32[d0,d1]
t0 f32[d0] = mean(in0) over d1
t1 f32[d0,d1] = sub(in0, t0)
out0 f32[d0,d1] = t1
"""
MATMUL = """region v1
dims d0=2048 d1=512 d2=1024
in0 bf16[d0,d1]
in1 bf16[d2,d1]
t0 bf16[d0,d2] = dot(in0, in1) over d1
out0 bf16[d0,d2] = t0
"""
ALL = "\n".join(
    [
        *(f"stage {i}: {knob} {v}" for i, (knob, found) in enumerate(STAGE_VALUES.items()) for v in found),
        *(f"f0: {knob}{f' {v}' if v else ''}" for knob, found in KERNEL_VALUES.items() for v in found),
    ]
)


SPLIT = MATMUL.replace("bf16", "f32")


def code_of(text: str, name: str, *lines: str) -> str:
    """The code, or the sentence why not."""
    found = apply(parse_program(text), parse_schedule(name), parse_edits("\n".join(lines)))
    return found.code if isinstance(found, Reply) else found


def test_edits_are_printed_and_parsed_exactly() -> None:
    assert print_edits(parse_edits(ALL)) == ALL
    assert parse_edits("\n f0: unroll 4 \n\nstage 1: block 384") == (
        KernelEdit("f0", "unroll", 4),
        StageEdit(1, "block", 384),
    )


@pytest.mark.parametrize(
    "line",
    [
        "unroll 4",
        "f0: unroll",
        "f0: unroll 04",
        "f0: loads first 2",
        "stage 0: unroll 4",
        "f0: block 64",
        "f0:  swizzle 2",
    ],
)
def test_a_line_that_is_no_edit_says_so(line: str) -> None:
    with pytest.raises(IllegalEdit, match="is no edit; expected a line like"):
        parse_edits(line)


def test_a_schedule_off_the_lists_is_printed_and_read() -> None:
    name = "pointwise/exact.4.384.f2"
    stage = parse_schedule(name).stages[0]
    assert print_schedule(parse_schedule(name)) == name and stage.in_flight == 2
    assert read_stage(stage.describe()) == stage
    assert stage.describe() == "exact, vector 4, block 384, loads in flight 2"


@pytest.mark.parametrize(
    ("text", "schedule", "edits", "shown"),
    [
        (GELU, "pointwise/exact.4.256", ["stage 0: block 384"], ["cdiv(d0 * d1, 384 * 4), 384>>>"]),
        (GELU, "pointwise/exact.4.256", ["stage 0: vector 1"], ["cdiv(d0 * d1, 256), 256>>>"]),
        (
            GELU,
            "pointwise/exact.4.256",
            ["stage 0: loads in flight 2"],
            [
                "cdiv(d0 * d1, 256 * 4 * 2)",
                "((blockIdx.x * 2 + k) * 256 + threadIdx.x) * 4",
                "vload<4>(in0 + i, a0[k])",
            ],
        ),
        (GELU, "pointwise/stride.4.256", ["f0: unroll 4"], ["  #pragma unroll 4\n  for (int i = "]),
        (
            GELU,
            "pointwise/exact.4.256",
            ["f0: stream stores"],
            ["__stcs((float4*)(out0 + i), make_float4(r0[0], r0[1], r0[2], r0[3]));"],
        ),
        (NORM, "grouped/block.4.256", ["f0: unroll 8"], ["  #pragma unroll 8\n  for (int c = threadIdx.x * 4;"]),
        (
            NORM,
            "grouped/block.4.256",
            ["f0: chains 2"],
            ["    float p0_v[2] = {};\n    #pragma unroll\n", "p0_v[j % 2] += a0[j];", "p0 += p0_v[0] + p0_v[1];"],
        ),
        (NORM, "grouped/block.4.256.r", ["f0: min blocks 4"], ["__launch_bounds__(256, 4) f0("]),
        (
            NORM,
            "grouped/block.4.256.r",
            ["f0: loads first"],
            ["    vload<4>(in0 + g * d1 + c, a0[k]);\n  }\n  #pragma unroll\n  for (int k = 0; k < C; k++) {"],
        ),
        (
            MATMUL,
            "product/bf16_pipe.1.256.t128x128x64",
            ["stage 0: loads in flight 4", "f0: swizzle 4"],
            ["4 * (128 * (64 * 2 + 16)", "int m0 = bx * 128, n0 = by * 128", "turn / (4 * (int)gridDim.y) * 4"],
        ),
    ],
)
def test_edits_change_their_place(text: str, schedule: str, edits: list[str], shown: list[str]) -> None:
    found = code_of(text, schedule, *edits)
    assert all(words in found for words in shown), found
    assert isinstance(check_text(found), CleanText)


@pytest.mark.parametrize(
    ("text", "schedule", "edits", "why"),
    [
        (GELU, "pointwise/exact.4.256", ["f0: unroll 4"], "has no loop but those that are unrolled whole"),
        (GELU, "pointwise/stride.4.256", ["f0: unroll 64"], "1 to 32 turns of a loop"),
        (GELU, "pointwise/exact.4.256", ["f1: unroll 4"], "the code has no kernel f1"),
        (GELU, "pointwise/exact.4.256", ["stage 1: block 384"], "pointwise has no stage 1"),
        (GELU, "pointwise/exact.4.256", ["stage 0: block 300"], "a multiple of 32 in 128..1024"),
        (GELU, "pointwise/exact.4.256", ["stage 0: block 256"], "the stage has that already"),
        (GELU, "pointwise/exact.4.256", ["stage 0: vector 16"], "that divide what lies side by side"),
        (GELU, "pointwise/exact.8.256", ["stage 0: loads in flight 8"], "would hold 128 values, at most 64"),
        (GELU, "pointwise/stride.4.256", ["stage 0: loads in flight 2"], "only exact and rows"),
        (GELU, "pointwise/exact.4.256", ["f0: min blocks 16"], "room for 8 blocks of 256 threads"),
        (GELU, "pointwise/exact.4.256", ["f0: swizzle 2"], "the grid of f0 has one dimension"),
        (
            GELU,
            "pointwise/exact.4.256",
            ["f0: min blocks 2", "f0: min blocks 4"],
            "has another 'min blocks' before",
        ),
        (GELU, "pointwise/exact.4.256", ["f0: chains 2"], "adds up no vectors of 2 elements or more"),
        (GELU, "pointwise/exact.4.256", ["f0: loads first"], "no loop over vectors in registers"),
        (MATMUL, "product/bf16_pipe.1.256.t128x128x64", ["f0: swizzle 16"], "in that order anyway"),
        (MATMUL, "product/bf16_pipe.1.256.t128x128x64", ["f0: stream stores"], "no float32 result"),
        (MATMUL, "product/bf16_pipe.1.256.t128x128x64", ["stage 0: loads in flight 8"], "bytes of shared memory"),
        (MATMUL, "product/bf16_wide.1.256.t128x128x64", ["stage 0: loads in flight 2"], "has 3 tiles or more"),
        (SPLIT, "product/f32_split_pipe.1.256.t128x64x32", ["stage 0: loads in flight 8"], "as many as fit"),
        (SPLIT, "product/f32_split.1.256.t128x64x16", ["stage 0: loads in flight 4"], "copies no tiles ahead"),
        (MATMUL, "product/bf16_pipe.1.256.t128x128x64", ["stage 0: block 128"], "follows from its other fields"),
        (MATMUL, "product/bf16_pipe.1.256.t128x128x64", ["f0: min blocks 4"], "and their 64 sums each"),
    ],
)
def test_an_illegal_edit_says_why(text: str, schedule: str, edits: list[str], why: str) -> None:
    found = apply(parse_program(text), parse_schedule(schedule), parse_edits("\n".join(edits)))
    assert isinstance(found, str) and why in found


def test_the_order_of_edits_does_not_matter() -> None:
    program, schedule = parse_program(NORM), parse_schedule("grouped/block.4.256.r")
    edits = parse_edits(
        "f0: min blocks 2\nf0: loads first\nstage 0: block 320\nstage 0: vector 2\nf0: stream stores"
    )
    found = apply(program, schedule, edits)
    assert isinstance(found, Reply) and "__launch_bounds__(320, 2)" in found.code
    assert apply(program, schedule, edits[::-1]) == found


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_legal_edit_is_made_and_changes_the_code(family: str) -> None:
    rng = random.Random(1)
    program = generate_task(rng, family)
    schedule = rng.choice(variants(program)[:8])
    plain = write_reply(program, schedule)
    edits: list[Edit] = legal_edits(program, schedule)
    assert plain is not None and edits and len(set(edits)) == len(edits)
    for edit in edits:
        reply = apply(program, schedule, [edit])
        assert isinstance(reply, Reply), reply
        parse_candidate(reply.code, program)
        assert isinstance(check_text(reply.code), CleanText)
        assert reply.code != plain.code and reply.design == plain.design
