"""The canonical form: one text for one computation, another text for any other."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from program_strategies import programs, random_inputs, rename

from cudal1_fx_passes.program.canonical import (
    canonical_form,
    canonicalise,
    fingerprint,
    shape_agnostic_fingerprint,
)
from cudal1_fx_passes.program.evaluate import evaluate
from cudal1_fx_passes.program.ir import Axis, Literal, Program, Ref
from cudal1_fx_passes.program.text import parse_program, print_program

NORM = """region v1
dims d0=8 d1=16
in0 f32[d0,d1]
in1 f32[d1]
t0 f32[d0] = mean(in0) over d1
t1 f32[d0] = var(in0, 0.0) over d1
t2 f32[d0,d1] = sub(in0, t0)
t3 f32[d0] = add(t1, 1e-05)
t4 f32[d0] = rsqrt(t3)
t5 f32[d0,d1] = mul(t2, t4)
t6 f32[d0,d1] = mul(t5, in1)
out0 f32[d0,d1] = t6
out1 f32[d0] = t4
"""


@given(programs(), st.integers(0, 2**32))
def test_names_order_and_commuted_operands_do_not_matter(program: Program, seed: int) -> None:
    renamed, _, _ = rename(program, seed)
    assert print_program(canonicalise(renamed)) == print_program(canonicalise(program))


@pytest.mark.parametrize("seed", range(60))
def test_sixty_shuffles_of_a_norm_have_one_fingerprint(seed: int) -> None:
    program = parse_program(NORM)
    assert fingerprint(rename(program, seed)[0]) == fingerprint(program)


@given(programs())
def test_a_second_time_changes_nothing(program: Program) -> None:
    once = canonicalise(program)
    assert canonicalise(once) == once


@given(programs())
def test_the_meaning_stays(program: Program) -> None:
    inputs = random_inputs(program)
    form = canonical_form(program)
    old = evaluate(program, inputs)
    chosen = []
    for i in form.input_order:
        target = form.program.inputs[len(chosen)]
        sizes = [form.program.axis[a].size for a in target.axes]
        chosen.append(inputs[i].contiguous().reshape(sizes))
    for at, got in enumerate(evaluate(form.program, chosen)):
        wanted = old[form.output_order[at]].contiguous().reshape(got.shape)
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5, equal_nan=True)


@given(programs())
def test_text_of_the_canonical_form_parses_back(program: Program) -> None:
    form = canonicalise(program)
    assert parse_program(print_program(form)) == form


def _changed(program: Program, at: int, **fields: object) -> Program:
    ops = list(program.ops)
    ops[at] = replace(ops[at], **fields)  # type: ignore[arg-type]
    return replace(program, ops=tuple(ops))


def _with_axis(program: Program, axis: Axis) -> Program:
    return replace(program, axes=tuple(axis if a.name == axis.name else a for a in program.axes))


def _over_the_other_axis() -> Program:
    text = NORM.replace("over d1", "over d0")
    for name in ("t0", "t1", "t3", "t4", "out1"):
        text = text.replace(f"\n{name} f32[d0]", f"\n{name} f32[d1]")
    return parse_program(text)


CHANGES = {
    "size": lambda p: _with_axis(p, Axis("d1", 32)),
    "symbolic": lambda p: _with_axis(p, Axis("d0", 8, True)),
    "dtype": lambda p: parse_program(NORM.replace("f32", "f16")),
    "stride": lambda p: parse_program(NORM.replace("in1 f32[d1]", "in1 f32[d1] strides(2)")),
    "layout": lambda p: parse_program(NORM.replace("in0 f32[d0,d1]", "in0 f32[d1,d0]")),
    "domain": lambda p: parse_program(NORM.replace("in1 f32[d1]", "in1 f32[d1] >0")),
    "literal": lambda p: _changed(p, 3, operands=(Ref("t1"), Literal(1e-6))),
    "correction": lambda p: _changed(p, 1, operands=(Ref("in0"), Literal(1.0))),
    "swap": lambda p: _changed(p, 2, operands=(Ref("t0"), Ref("in0"))),
    "function": lambda p: _changed(p, 5, fn="add"),
    "edge": lambda p: _changed(p, 6, operands=(Ref("t2"), Ref("in1"))),
    "fewer outputs": lambda p: replace(p, outputs=p.outputs[:1]),
    "reduced axis": lambda p: _over_the_other_axis(),
}


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_any_change_changes_the_fingerprint(name: str) -> None:
    program = parse_program(NORM)
    assert fingerprint(CHANGES[name](program)) != fingerprint(program)


def test_all_changes_differ_from_one_another() -> None:
    program = parse_program(NORM)
    assert len({fingerprint(change(program)) for change in CHANGES.values()}) == len(CHANGES)


def test_a_minus_b_is_not_b_minus_a_but_a_plus_b_is_b_plus_a() -> None:
    text = "region v1\ndims d0=4\nin0 f32[d0]\nin1 f32[d0] >0\nt0 f32[d0] = {}\nout0 f32[d0] = t0\n"
    prints = {x: fingerprint(parse_program(text.format(x))) for x in ("sub(in0, in1)", "sub(in1, in0)")}
    assert len(set(prints.values())) == 2
    added = {fingerprint(parse_program(text.format(x))) for x in ("add(in0, in1)", "add(in1, in0)")}
    assert len(added) == 1


def test_two_equal_axes_are_not_confused() -> None:
    """softmax over rows and over columns of a square matrix."""
    rows = "region v1\ndims d0=8 d1=8\nin0 f32[d0,d1]\nt0 f32[d0] = sum(in0) over d1\nout0 f32[d0] = t0\n"
    columns = "region v1\ndims d0=8 d1=8\nin0 f32[d0,d1]\nt0 f32[d1] = sum(in0) over d0\nout0 f32[d1] = t0\n"
    assert fingerprint(parse_program(rows)) != fingerprint(parse_program(columns))


def test_axes_merge_where_nothing_tells_them_apart() -> None:
    text = "region v1\ndims d0=2 d1=3 d2=4\nin0 f32[d0,d1,d2]\nin1 f32[d2]\nt0 f32[d0,d1,d2] = mul(in0, in1)\n"
    form = canonicalise(parse_program(text + "out0 f32[d0,d1,d2] = t0\n"))
    assert print_program(form) == (
        "region v1\ndims d0=6 d1=4\nin0 f32[d0,d1]\nin1 f32[d1]\nt0 f32[d0,d1] = mul(in0, in1)\n"
        "out0 f32[d0,d1] = t0\n"
    )


@pytest.mark.parametrize(
    "line",
    [
        "t0 f32[d0,d1] = cumsum(in0) along d1",
        "t0 f32[d0] = sum(in0) over d1",
        "t0 f32[d0,d1] = add(in0, in0[d1=-d1+2])",
        "t0 i64[d0] = argmax(in0) over d1",
    ],
)
def test_axes_stay_where_an_operation_tells_them_apart(line: str) -> None:
    axes = line.split("[")[1].split("]")[0]
    dtype = line.split()[1].split("[")[0]
    text = f"region v1\ndims d0=2 d1=3\nin0 f32[d0,d1]\n{line}\nout0 {dtype}[{axes}] = t0\n"
    assert len(canonicalise(parse_program(text)).axes) == 2


def test_a_transposed_output_keeps_its_axes() -> None:
    text = "region v1\ndims d0=2 d1=3\nin0 f32[d0,d1]\nt0 f32[d0,d1] = exp(in0)\nout0 f32[d1,d0] = t0\n"
    assert len(canonicalise(parse_program(text)).axes) == 2


def test_dead_and_double_work_is_gone() -> None:
    text = """region v1
dims d0=4
in0 f32[d0]
in1 f32[d0]
t0 f32[d0] = exp(in0)
t1 f32[d0] = exp(in0)
t2 f32[d0] = neg(in1)
t3 f32[d0] = mul(t1, t0)
t4 f32[d0] = mul(t3, 1.0)
t5 f32[d0] = cast(t4)
out0 f32[d0] = t5
"""
    form = canonical_form(parse_program(text))
    assert [o.fn for o in form.program.ops] == ["exp", "mul"]
    assert form.input_order == (0,)


def test_integer_and_float_spellings_of_a_literal_are_one() -> None:
    text = "region v1\ndims d0=4\nin0 f32[d0]\nt0 f32[d0] = add(in0, {})\nout0 f32[d0] = t0\n"
    assert fingerprint(parse_program(text.format("1"))) == fingerprint(parse_program(text.format("1.0")))


def test_relatives_differ_in_sizes_only() -> None:
    program = parse_program(NORM)
    wider = parse_program(NORM.replace("d1=16", "d1=4096").replace("d0=8", "d0=32"))
    assert shape_agnostic_fingerprint(wider) == shape_agnostic_fingerprint(program) and fingerprint(
        wider
    ) != fingerprint(program)
    assert shape_agnostic_fingerprint(CHANGES["swap"](program)) != shape_agnostic_fingerprint(program)
    assert shape_agnostic_fingerprint(CHANGES["literal"](program)) != shape_agnostic_fingerprint(program)


def _order(sizes: list[int]) -> list[list[bool]]:
    return [[a < b for b in sizes] for a in sizes]


@given(programs())
def test_programs_that_differ_in_sizes_have_texts_that_do(program: Program) -> None:
    wider = replace(program, axes=tuple(replace(a, size=a.size * 8) for a in program.axes))
    tensors = (*program.inputs, *program.outputs)
    assume(not any(x.access for op in program.ops for x in op.operands if isinstance(x, Ref)))  # names a size
    assume(not any(t.strides for t in tensors))
    # axes are numbered by the largest tensors, which must stay the same ones
    sizes = [[p.size(t.axes) for t in tensors] for p in (program, wider)]
    assume(_order(sizes[0]) == _order(sizes[1]))
    one, other = (print_program(canonicalise(p)).split("\n", 2)[2] for p in (program, wider))
    assert one == other


def test_counts_in_literals_do_not_hide_relatives() -> None:
    """The backward of a mean divides by the number of elements."""
    text = (
        "region v1\ndims d0=4 d1={n}\nin0 f32[d0,d1]\nt0 f32[d0] = sum(in0) over d1\nt1 f32[d0] = div(t0, {n}.0)\n"
    )
    made = [parse_program(text.format(n=n) + "out0 f32[d0] = t1\n") for n in (64, 512)]
    assert shape_agnostic_fingerprint(made[0]) == shape_agnostic_fingerprint(made[1])


def test_origin_of_axes_is_told() -> None:
    text = "region v1\ndims d3=?5 d7=6\nin0 f32[d7,d3]\nt0 f32[d3] = sum(in0) over d7\nout0 f32[d3] = t0\n"
    form = canonical_form(parse_program(text))
    assert form.axis_order == ("d7", "d3")
    assert [a.symbolic for a in form.program.axes] == [False, True]


RESIDUAL = """region v1
dims d0=3 d1=6 d2=8 k0=3
in0 f32[d0,d1,d2]
in1 f32[d1,k0]
t0 f32[d0,d1,d2] = dot_tf32(in0[d2=d2+k0-1], in1) over k0
t1 f32[d0,d1,d2] = add(t0, in0)
out0 f32[d0,d1,d2] = t1
"""


def test_an_input_that_a_product_reads_along_what_it_writes_is_passed_twice() -> None:
    form = canonical_form(parse_program(RESIDUAL))
    text = print_program(form.program)
    assert "in0 f32[d0,d1,d3]\nin1 f32[d0,d1,d2]" in text and "add(in0, t0)" in text
    assert "t0 f32[d0,d1,d3] = dot_tf32(in1[d2=d3+k0-1], in2) over k0" in text
    assert form.input_order == (0, 0, 1)
    assert print_program(canonicalise(form.program)) == text
    given = [torch.randn(3, 6, 8), torch.randn(6, 3)]
    same = [given[i] for i in form.input_order]
    torch.testing.assert_close(evaluate(form.program, same), evaluate(parse_program(RESIDUAL), given))


def test_an_input_that_products_alone_read_so_stays_one() -> None:
    form = canonical_form(parse_program(RESIDUAL.replace("add(t0, in0)", "relu(t0)")))
    assert form.input_order == (0, 1)
    assert "t0 f32[d0,d1,d2] = dot_tf32(in0[d3=d2+k0-1], in1)" in print_program(form.program)


_FINGERPRINTS = """
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from cudal1_fx_passes.fusion.partition import partition

def run(x, w, m):
    y = torch.nn.functional.layer_norm(x + w, (64,)) * torch.sigmoid(x) * w
    return (y @ m).softmax(-1) * 2, y.sum(0) + w, torch.cat([-y[:, 32:], y[:, :32]], 1) * x

graph = make_fx(run, tracing_mode="fake")(torch.randn(32, 64), torch.randn(64), torch.randn(64, 64)).graph
found = [r.fingerprint for r in partition(graph).regions]
"""


def test_another_process_finds_the_same_fingerprints() -> None:
    """Nothing depends on the hash seed of the process."""
    here: dict[str, list[str]] = {}
    exec(_FINGERPRINTS, here)
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"  # another one than here
    there = subprocess.run(
        [sys.executable, "-c", f"{_FINGERPRINTS}print(*found)"],
        env=os.environ | {"PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert there.stdout.split() == here["found"] and len(here["found"]) >= 2
