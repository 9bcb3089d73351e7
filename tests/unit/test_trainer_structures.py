"""Structures: the shipped ones are resized without a change of structure."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from cudal1_fx_passes.program.canonical import canonicalise, shape_agnostic_fingerprint
from cudal1_fx_passes.program.evaluate import evaluate
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program, print_program
from cudal1_trainer.data.corpus import Source
from cudal1_trainer.recipe import DataRecipe
from cudal1_trainer.tasks.heldout import hold_out
from cudal1_trainer.tasks.product_sizes import resize_windows
from cudal1_trainer.tasks.structures import (
    MAX_ELEMENTS,
    grow_tied,
    read_structures,
    resize,
    stretch_tied,
    tied_axes,
    with_sizes,
    write_structures,
)

DATA = Path(__file__).parents[2] / "trainer" / "data"
NORM = parse_program(
    "region v1\ndims d0=32 d1=48\nin0 f32[d0,d1]\nt0 f32[d0] = sum(in0) over d1\n"
    "t1 f32[d0] = mul(t0, 0.020833333333333332)\nt2 f32[d0] = div(t0, 48.0)\nt3 f32[d0] = mul(t2, 0.5)\n"
    "out0 f32[d0] = t1\nout1 f32[d0] = t3\n"
)
POOL = parse_program(
    "region v1\ndims d0=4 d1=8 d2=4 k0=3\nin0 f32[d0,d1]\nt0 f32[d0,d2] = amax(in0[d1=2*d2+k0-1]) over k0\n"
    "out0 f32[d0,d2] = t0\n"
)


# padded by half of an even window, which no factor of its sizes keeps right
HALF = parse_program(
    "region v1\ndims d0=4 d1=8 d2=5 k0=2\nin0 f32[d0,d1]\nt0 f32[d0,d2] = amax(in0[d1=2*d2+k0-1]) over k0\n"
    "out0 f32[d0,d2] = t0\n"
)
GRADIENT = parse_program(
    "region v1\ndims d0=4 d1=7 d2=8 d3=4 d4=4 k0=3 k1=3\nin0 f32[d0,d3,d4]\nt0 f32[d0,d3,d4] = div(in0, 9.0)\n"
    "t1 f32[d0,d1,d2] = sum(t0[d3=(d1-k0+1)/2, d4=(d2-k1+1)/2]) over k0,k1\nout0 f32[d0,d1,d2] = t1\n"
)


@pytest.fixture(scope="module")
def texts() -> tuple[str, ...]:
    return read_structures(DATA / "structures.jsonl.gz")[::300]


def test_resizing_keeps_the_structure_and_changes_the_sizes(texts: tuple[str, ...]) -> None:
    changed = 0
    for k, text in enumerate(texts):
        program = parse_program(text)
        found = resize(program, random.Random(k))
        assert canonicalise(found) == found == resize(program, random.Random(k))
        assert len(found.ops) <= len(program.ops)
        assert max(found.size(v) for v in found.value_axes.values()) <= MAX_ELEMENTS
        changed += print_program(found) != text
    assert changed >= 0.8 * len(texts)


def _resized(program: Program, count: int) -> list[Program]:
    """Those of the draws that kept every axis: one of a single element is none."""
    drawn = [resize_windows(program, random.Random(i)) for i in range(count)]
    assert None not in drawn
    return [
        p for p in drawn if p is not None and shape_agnostic_fingerprint(p) == shape_agnostic_fingerprint(program)
    ]


@pytest.mark.parametrize("program", [POOL, HALF], ids=["POOL", "HALF"])
def test_a_resized_pooling_reads_something_in_every_window(program: Program) -> None:
    drawn = _resized(program, 12)
    assert len({tuple(a.size for a in p.axes) for p in drawn}) > 6
    for p in drawn:
        (image,) = p.inputs
        (out,) = evaluate(p, [torch.randn([p.axis[a].size for a in image.axes])])
        assert out.isfinite().all()


def test_a_resized_gradient_of_pooling_is_torchs() -> None:
    odd = set()
    for p in _resized(GRADIENT, 20)[:8]:
        (share,) = p.inputs
        small = with_sizes(p, {share.axes[0]: 2})
        grad = torch.randn([small.axis[a].size for a in share.axes])
        (out,) = evaluate(small, [grad])
        image = torch.zeros(out.shape, requires_grad=True)
        (expected,) = torch.autograd.grad(F.avg_pool2d(image, 3, 2, 1), image, grad)
        torch.testing.assert_close(out, expected)
        odd |= {n % 2 for n in out.shape[1:]}
    assert odd == {0, 1}


def test_windows_are_resized_only_where_nothing_computes_with_positions() -> None:
    placed = "t1 i64[d2] = iota() along d2\nt2 i64[d2] = mul(t1, 8)\nout1 i64[d2] = t2\nout0"
    assert resize_windows(parse_program(print_program(POOL).replace("out0", placed)), random.Random(0)) is None
    assert resize_windows(NORM, random.Random(0)) is None


def test_counts_among_the_literals_follow_the_sizes() -> None:
    text = print_program(with_sizes(NORM, {"d1": 100}))
    assert "mul(t0, 0.01)" in text and "div(t0, 100.0)" in text and "mul(t2, 0.5)" in text


def test_sizes_that_an_index_ties_grow_together() -> None:
    assert tied_axes(POOL) == {"d1", "d2", "k0"}
    assert {resize(POOL, random.Random(k)).axis["k0"].size for k in range(8)} == {3}
    grown = grow_tied(POOL, tied_axes(POOL), 4)
    assert [a.size for a in grown.axes] == [4, 32, 16, 3] and "d1=2*d2+k0-1" in print_program(grown)
    text = "region v1\ndims d0=8 d1=4\nin0 f32[d0]\nt0 f32[d1] = {}(in0[d0={}])\nout0 f32[d1] = t0\n"
    for before, after in (("d1+4", "d1+12"), ("-d1+7", "-d1+23")):
        cut = parse_program(text.format("exp", before))
        assert f"d0={after}" in print_program(grow_tied(cut, tied_axes(cut), 3))


def _grown(text: str, factor: int = 4) -> str:
    program = parse_program(text)
    return print_program(grow_tied(program, tied_axes(program), factor))


def test_sizes_among_integer_literals_grow_with_their_axis() -> None:
    rolled = _grown(
        "region v1\ndims d0=6 d1=8 d2=6\nin0 f32[d0,d1]\nt0 i64[d2] = iota() along d2\nt1 i64[d2] = add(t0, 5)\n"
        "t2 i64[d2] = fmod(t1, 6)\nt3 f32[d1,d2] = exp(in0[d0=t2])\nout0 f32[d1,d2] = t3\n"
    )
    assert "dims d0=24 d1=8 d2=24" in rolled and "add(t0, 23)" in rolled and "fmod(t1, 24)" in rolled
    halves = _grown(
        "region v1\ndims d0=8\nin0 f32[d0]\nt0 i64[d0] = iota() along d0\nt1 bool[d0] = lt(t0, 4)\n"
        "t2 f32[d0] = where(t1, in0[d0=d0-4], 0.0)\nout0 f32[d0] = t2\n"
    )
    assert "dims d0=32" in halves and "lt(t0, 16)" in halves and "in0[d0=d0-16]" in halves


def test_pairs_read_at_constant_places_stay_pairs() -> None:
    text = (
        "region v1\ndims d0=8 d1=2 d2=8\nin0 f32[d0,d1]\nt0 f32[d2] = neg(in0[d0=d2, d1=1])\nout0 f32[d2] = t0\n"
    )
    assert "dims d0=32 d1=2 d2=32" in _grown(text) and "d1=1]" in _grown(text)


SHIFTED = (
    "region v1\ndims d0=4 d1=9 d2=10 d3=9\nin0 i64[d0,d3]\nt0 i64[d2] = iota() along d2\n"
    "t1 bool[d2] = lt(t0, 9)\nt2 i64[d0,d2] = where(t1, in0[d3=d2], -100)\nt3 i64[d1] = iota() along d1\n"
    "t4 i64[d1] = add(t3, 1)\nt5 bool[d1] = lt(t4, 9)\nt6 i64[d0,d1] = where(t5, in0[d3=d1+1], -100)\n"
    "out0 i64[d0,d2] = t2\nout1 i64[d0,d1] = t6\n"
)
JOINED = (
    "region v1\ndims d0=17 d1=10 d2=7\nin0 f32[d1]\nin1 f32[d2]\nt0 i64[d0] = iota() along d0\n"
    "t1 bool[d0] = lt(t0, 10)\nt2 f32[d0] = where(t1, in0[d1=d0], in1[d2=d0-10])\nout0 f32[d0] = t2\n"
)
HALVES = (
    "region v1\ndims d0=8 d1=4\nin0 f32[d0]\nt0 i64[d0] = iota() along d0\nt1 bool[d0] = ge(t0, 4)\n"
    "t2 f32[d1] = neg(in0[d0=d1])\nt3 f32[d0] = where(t1, t2[d1=d0-4], in0[d0=d0+4])\nout0 f32[d0] = t3\n"
)


def _stretched(text: str, length: int) -> str:
    program = parse_program(text)
    found = stretch_tied(program, tied_axes(program), lambda: length)
    assert found is not None
    return print_program(found)


def test_shifts_by_one_stay_so_at_any_length() -> None:
    found = _stretched(SHIFTED, 517)
    assert "dims d0=4 d1=517 d2=518 d3=517" in found and "in0[d3=d1+1]" in found and "add(t3, 1)" in found
    assert found.count(", 517)") == 2 and "-100" in found
    drawn = [print_program(resize(parse_program(SHIFTED), random.Random(i))) for i in range(60)]
    assert sum("+1], -100)" in text for text in drawn) >= 30


def test_parts_that_are_joined_grow_alike() -> None:
    assert "dims d0=728 d1=428 d2=300" in (found := _stretched(JOINED, 300))
    assert "lt(t0, 428)" in found and "in1[d2=d0-428]" in found
    halves = _stretched(HALVES, 33)
    assert "dims d0=66 d1=33" in halves and "ge(t0, 33)" in halves
    assert "t2[d1=d0-33], in0[d0=d0+33]" in halves


def test_an_index_never_leaves_its_bounds_where_it_did_not_before() -> None:
    uneven = "region v1\ndims d0=12 d1=7\nin0 f32[d0]\nt0 f32[d1] = exp(in0[d0=d1+4])\nout0 f32[d1] = t0\n"
    for length in range(2, 40):
        program = parse_program(uneven)
        found = stretch_tied(program, tied_axes(program), lambda length=length: length)  # type: ignore[misc]
        index = None if found is None else dict(found.ops[0].operands[0].access)["d0"]  # type: ignore[union-attr]
        assert found is None or index.offset + found.axis["d1"].size <= found.axis["d0"].size


def test_an_enlarged_map_is_read_within_its_bounds() -> None:
    text = (
        "region v1\ndims d0=5 d1=16 d2=8\nin0 f32[d0,d2]\nt0 i64[d1] = iota() along d1\nt1 f32[d1] = cast(t0)\n"
        "t2 f32[d1] = mul(t1, 0.5)\nt3 i64[d1] = cast(t2)\nt4 f32[d0,d1] = neg(in0[d2=t3])\nout0 f32[d0,d1] = t4\n"
    )
    drawn = [resize(parse_program(text), random.Random(i)) for i in range(40)]
    sizes = [sorted(a.size for a in p.axes) for p in drawn]
    assert len({tuple(s) for s in sizes}) > 10
    for p in drawn:
        (kept,) = (i.axes[-1] for i in p.inputs)
        (moved,) = (op.over[0] for op in p.ops if op.fn == "iota")
        assert p.axis[moved].size == 2 * p.axis[kept].size


def test_a_roll_reads_an_axis_as_long_as_its_own() -> None:
    text = (
        "region v1\ndims d0=5 d1=8 d2=8\nin0 f32[d0,d2]\nt0 i64[d1] = iota() along d1\nt1 i64[d1] = add(t0, 6)\n"
        "t2 i64[d1] = fmod(t1, 8)\nt3 f32[d0,d1] = neg(in0[d2=t2])\nout0 f32[d0,d1] = t3\n"
    )
    drawn = [resize(parse_program(text), random.Random(i)) for i in range(40)]
    lengths = [{p.axis[x.axes[1]].size for x in (*p.inputs, *p.outputs)} for p in drawn]
    assert len(set(map(frozenset, lengths))) > 10
    assert all(len(found) == 1 for found in lengths)


def test_no_axis_becomes_empty() -> None:
    text = "region v1\ndims d0=16 d1=9\nin0 f32[d1]\nt0 f32[d0] = neg(in0[d1=d0])\nout0 f32[d0] = t0\n"
    program = parse_program(text)
    assert stretch_tied(program, tied_axes(program), lambda: 1) is None
    assert "dims d0=4 d1=3" in _stretched(text, 3)


def test_windows_and_pairs_are_not_stretched() -> None:
    assert stretch_tied(POOL, tied_axes(POOL), lambda: 100) is None
    pair = parse_program("region v1\ndims d0=2\nin0 f32[d0]\nt0 f32[] = exp(in0[d0=1])\nout0 f32[] = t0\n")
    assert stretch_tied(pair, tied_axes(pair), lambda: 100) is None


def test_strides_follow_the_sizes() -> None:
    text = (
        "region v1\ndims d0=4 d1=6\nin0 f32[d0,d1] strides(7,1)\nin1 f32[d0,d1] strides(18,1)\n"
        "in2 f32[d0,d1] strides(0,1)\nt0 f32[d0,d1] = add(in0, in1)\nt1 f32[d0,d1] = add(t0, in2)\n"
        "out0 f32[d0,d1] = t1\n"
    )
    found = with_sizes(parse_program(text), {"d1": 100})
    assert [i.strides for i in found.inputs] == [(101, 1), (300, 1), (0, 1)]


def test_files_read_back(texts: tuple[str, ...], tmp_path: Path) -> None:
    write_structures(texts[:20], tmp_path / "a.gz")
    assert read_structures(tmp_path / "a.gz") == texts[:20]
    assert read_structures(tmp_path / "none.gz") == ()


def test_the_corpus_draws_them(texts: tuple[str, ...]) -> None:
    source = Source(DataRecipe(structures=1.0, varied=0.0), hold_out(()), structures=texts)
    rng = random.Random(3)
    drawn = [program for _ in range(25) for program, _ in source.draw(rng)]
    known = {shape_agnostic_fingerprint(parse_program(t)) for t in texts}
    assert sum(shape_agnostic_fingerprint(p) in known for p in drawn) >= 0.5 * len(drawn) > 12  # axes of size 1 go
