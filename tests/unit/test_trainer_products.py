"""Structures with products: sized without breaking an index, none of them held out."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from slow_cases import slow_but

from cudal1_compile.codegen.prior.product_features import COUNT, describe_product
from cudal1_compile.codegen.prior.regression import load_prior
from cudal1_compile.codegen.prior.traffic import bytes_moved
from cudal1_compile.codegen.templates import variants, write_analysis
from cudal1_fx_passes.program.canonical import canonicalise, shape_agnostic_fingerprint
from cudal1_fx_passes.program.ir import Op, Program, Ref
from cudal1_fx_passes.program.ops import OPS, Kind
from cudal1_fx_passes.program.products import match_convolution
from cudal1_fx_passes.program.text import parse_program, print_program
from cudal1_trainer.data.corpus import Source
from cudal1_trainer.recipe import DataRecipe
from cudal1_trainer.scores.collect import PRODUCT_SEED, make_program
from cudal1_trainer.tasks.heldout import hold_out, read_heldout
from cudal1_trainer.tasks.product_sizes import MEASURED, TRAINED, Most, dots, multiplications, resize_product
from cudal1_trainer.tasks.products import draw_product
from cudal1_trainer.tasks.structures import read_structures
from cudal1_trainer.tasks.variants import make_task, uses, write_variants

DATA = Path(__file__).parents[2] / "trainer" / "data"
TEXTS = read_structures(DATA / "products.jsonl.gz")
GATHERED = read_structures(DATA / "gathered.jsonl.gz")
FAMILIES = [json.loads(line)["text"] for line in (DATA / "families.jsonl").read_text().splitlines()]
CONVOLUTION = """region v1
dims d0=2 d1=3 d2=9 d3=12 d4=4 d5=5 d6=6 k0=3 k1=3
in0 f32[d0,d1,d2,d3]
in1 f32[d4,d1,k0,k1]
in2 f32[d0,d4,d5,d6]
t0 f32[d0,d4,d5,d6] = dot_tf32(in0[d2=2*d5+k0-1, d3=2*d6+k1-1], in1) over d1,k0,k1
t1 f32[d0,d4,d5,d6] = add(t0, in2)
t2 f32[d0,d4] = mean(t1) over d5,d6
t3 f32[d0,d4] = mul(t2, 0.03333333333333333)
out0 f32[d0,d4] = t3
"""
TRANSPOSED = """region v1
dims d0=2 d1=3 d2=5 d3=4 d4=11 k0=4
in0 f32[d0,d1,d2]
in1 f32[d1,d3,k0]
t0 f32[d0,d3,d4] = dot_tf32(in0[d2=(d4-k0+1)/2], in1) over d1,k0
out0 f32[d0,d3,d4] = t0
"""
VOLUME = """region v1
dims d0=2 d1=6 d2=8 d3=8 d4=8 d5=4 d6=8 d7=8 d8=8 k0=3 k1=3 k2=3
in0 f32[d0,d1,d2,d3,d4]
in1 f32[d5,d1,k0,k1,k2]
t0 f32[d0,d5,d6,d7,d8] = dot_tf32(in0[d2=d6+k0-1, d3=d7+k1-1, d4=d8+k2-1], in1) over d1,k0,k1,k2
out0 f32[d0,d5,d6,d7,d8] = t0
"""
DEPTHWISE = """region v1
dims d0=2 d1=3 d2=9 d3=9 k0=3
in0 f32[d0,d1,d2]
in1 f32[d1,k0]
t0 f32[d0,d1,d3] = dot_tf32(in0[d2=d3+k0-1], in1) over k0
out0 f32[d0,d1,d3] = t0
"""
POOLED = """region v1
dims d0=2 d1=3 d2=9 d3=4 d4=8 d5=4 k0=2 k1=2
in0 f32[d0,d1,d2]
in1 f32[d3,d1,k0]
t0 f32[d0,d3,d4] = dot_tf32(in0[d2=d4+k0], in1) over d1,k0
t1 f32[d0,d3,d5] = amax(t0[d4=2*d5+k1]) over k1
out0 f32[d0,d3,d5] = t1
"""
CUT = """region v1
dims d0=24 d1=16 d2=3 d3=8
in0 f32[d0,d1]
in1 f32[d2,d3,d1]
t0 f32[d0,d2,d3] = dot(in0, in1) over d1
t1 f32[d0,d3] = exp(t0[d2=1])
out0 f32[d0,d3] = t1
"""


GRADIENT = """region v1
dims d0=4 d1=12 d2=12 d3=64 d4=12 d5=12 d6=64 k0=3 k1=3
in0 f32[d0,d1,d2,d3]
in1 f32[d0,d4,d5,d6]
t0 f32[d3,d6,k0,k1] = dot_tf32(in0[d1=d4+k0-1, d2=d5+k1-1], in1) over d0,d4,d5
out0 f32[d6,d3,k0,k1] = t0
"""
CHANNELS_LAST = """region v1
dims d0=4 d1=12 d2=12 d3=64 d4=12 d5=12 d6=64 k0=3 k1=3
in0 f32[d6,d3,k0,k1]
in1 f32[d0,d1,d2,d3]
t0 f32[d0,d4,d5,d6] = dot_tf32(in0, in1[d1=d4+k0-1, d2=d5+k1-1]) over d3,k0,k1
out0 f32[d0,d4,d5,d6] = t0
"""


def test_what_lies_in_channels_last_is_copied_as_it_is() -> None:
    first = next(v for v in write_variants(parse_program(CHANNELS_LAST), 12) if "_raw_wide" in v.name)
    assert "(in0, s0)" in first.candidate.code and "s1" not in first.candidate.code  # the weight alone is packed
    pipes = [v for v in write_variants(parse_program(GRADIENT), 8) if "_pipe" in v.name]
    assert pipes and all(", 4, -1, 4, d6>" in v.candidate.code for v in pipes)


def test_a_window_along_an_axis_of_its_result_has_no_template() -> None:
    """`const int i1 = i1 + ...` reads itself: the image's index and the result's have one name."""
    own = CHANNELS_LAST.replace("d4=12 d5=12 ", "").replace("d1=d4+k0-1, d2=d5+k1-1", "d1=d1+k0-1, d2=d2+k1-1")
    assert not variants(parse_program(own.replace("[d0,d4,d5,d6]", "[d0,d1,d2,d6]")))


def _sizes(text: str, count: int = 40) -> list[Program]:
    return [resize_product(parse_program(text), random.Random(i)) for i in range(count)]


@pytest.mark.parametrize("text", [CONVOLUTION, TRANSPOSED])
def test_a_resized_convolution_is_one_that_torch_knows(text: str) -> None:
    found = _sizes(text)
    matches = [match_convolution(p, dots(p)[0]) for p in found]
    assert all(m is not None for m in matches)
    spatial = [s for m in matches if m is not None for s in m.spatial]
    assert len({s.stride for s in spatial}) > 2 and len({s.padding for s in spatial}) > 2
    assert len({p.axis["k0"].size for p in found}) > 3 and len({p.axes for p in found}) > 35
    assert all(canonicalise(p) == p for p in found)


def test_counts_and_what_hangs_on_the_result_follow() -> None:
    for p in _sizes(CONVOLUTION):
        mean = next(o for o in p.ops if o.fn == "mean")
        assert f"mul({mean.name}, {1 / p.size(mean.over)})" in print_program(p) or p.size(mean.over) == 1
    for p in _sizes(POOLED):
        pool = next(o for o in p.ops if o.fn == "amax")
        ((read, index),) = pool.operands[0].access  # type: ignore[union-attr]
        out = next(a for _, a in index.terms if a.startswith("d"))
        assert p.axis[out].size == p.axis[read].size // 2


def test_an_axis_read_at_a_fixed_place_keeps_its_size() -> None:
    found = _sizes(CUT)
    assert all(3 in [a.size for a in p.axes] for p in found) and len({p.axes for p in found}) > 30


@pytest.mark.parametrize("most", [TRAINED, MEASURED])
def test_draws_fit_and_have_a_product(most: Most) -> None:
    rng = random.Random(3)
    found = [draw_product(TEXTS, rng, 0.6, most) for _ in range(40)]
    assert all(p.has_product and multiplications(p) <= most.multiplications for p in found)
    assert all(bytes_moved(p) <= most.moved for p in found)
    assert sum(bool(variants(p)) for p in found) >= 38


def test_first_layers_in_three_axes_are_drawn_often() -> None:
    recipe = DataRecipe(products=1.0, solid=3.0, varied=0.0)
    source, rng = Source(recipe, hold_out(()), products=(CONVOLUTION, VOLUME)), random.Random(3)
    drawn = [p for p in (source.program(rng) for _ in range(200)) if len(p.ops) == 1]
    assert 130 <= len(drawn) <= 170
    channels = [p.size([a for a in dots(p)[0].over if a.startswith("d")]) for p in drawn]
    assert sum(c <= 8 for c in channels) > len(drawn) / 2


LAST_IMAGE = """region v1
dims d0=2 d1=9 d2=9 d3=32 d4=8 d5=8 d6=16 k0=2 k1=2
in0 f32[d0,d1,d2,d3]
in1 f32[d6,d3,k0,k1]
t0 f32[d0,d4,d5,d6] = dot_tf32(in0[d1=d4+k0, d2=d5+k1], in1) over d3,k0,k1
out0 f32[d0,d4,d5,d6] = t0
"""
STRIDED_LAST = """region v1
dims d0=2 d1=9 d2=9 d3=32 d4=4 d5=4 k0=2 k1=2
in0 f32[d0,d1,d2,d3]
in1 f32[d3,k0,k1]
t0 f32[d0,d3,d4,d5] = dot_tf32(in0[d1=2*d4+k0, d2=2*d5+k1], in1) over k0,k1
out0 f32[d0,d4,d5,d3] = t0
"""


def test_windows_of_channels_last_images_are_drawn_often() -> None:
    """But not depthwise ones of stride 1, nor where channels are an outer axis."""
    depthwise = STRIDED_LAST.replace("2*d", "d").replace("d4=4 d5=4", "d4=8 d5=8")
    texts = (CONVOLUTION, VOLUME, depthwise, LAST_IMAGE, STRIDED_LAST)
    source = Source(DataRecipe(last=3.0), hold_out(()), products=texts)
    assert source._product_weights == [1.0, 2.0, 3.0, 6.0, 9.0]


def test_a_convolution_of_one_channel_is_a_first_layer() -> None:
    text = VOLUME.replace("d1=6 ", "").replace("d1,", "")
    for p in _sizes(text):
        columns = [a for a in next(i for i in p.inputs if "k0" in i.axes).axes if a.startswith("d")]
        assert p.size(columns) <= 96


def test_a_generator_ends_in_few_outputs() -> None:
    text = (
        "region v1\ndims d0=2 d1=32 d2=8 d3=8 d4=40 d5=16 d6=16 k0=4 k1=4\n"
        "in0 f32[d0,d1,d2,d3]\nin1 f32[d1,d4,k0,k1]\n"
        "t0 f32[d0,d4,d5,d6] = dot_tf32(in0[d2=(d5-k0+1)/2, d3=(d6-k1+1)/2], in1) over d1,k0,k1\n"
        "out0 f32[d0,d4,d5,d6] = t0\n"
    )
    drawn = [resize_product(parse_program(text), random.Random(i)) for i in range(100)]
    dot = [dots(p)[0] for p in drawn]
    columns = [p.size([a for a in o.axes if a in p.value_axes["in1"]]) for p, o in zip(drawn, dot, strict=True)]
    assert 20 <= sum(n <= 8 for n in columns) <= 60


def test_some_shipped_structures_have_pointwise_work_before_the_product() -> None:
    programs = [parse_program(t) for t in TEXTS[::10]]
    assert sum(any(_is_fed(p, o) for o in dots(p)) for p in programs) > 50


def _is_fed(p: Program, dot: Op) -> bool:
    read = [p.op[x.name] for x in dot.operands if isinstance(x, Ref) and x.name in p.op]
    return any(OPS[o.fn].kind is Kind.POINTWISE and o.fn != "cast" for o in read)


@pytest.mark.parametrize("part", slow_but([0], range(40)))
def test_no_shipped_structure_is_held_out(part: int) -> None:
    heldout = read_heldout(DATA / "heldout.json")
    assert len(TEXTS) > 2000 and len(GATHERED) > 400
    for text in (*TEXTS, *GATHERED)[part::40]:
        assert not heldout.holds(parse_program(text)), text


def test_a_family_of_the_benchmark_is_never_drawn_at_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    heldout = read_heldout(DATA / "heldout.json")
    source = Source(DataRecipe(products=1.0), heldout, products=TEXTS)
    rng = random.Random(1)
    programs = [p for p in map(parse_program, FAMILIES) if p.has_product]
    assert len(programs) >= 90
    for program in programs[::3]:
        resized = resize_product(program, rng)
        # another window, or an axis of size 1, is another structure; the very sizes prove nothing
        while (
            shape_agnostic_fingerprint(resized) != shape_agnostic_fingerprint(program)
            or print_program(resized) in FAMILIES
        ):
            resized = resize_product(program, rng)
        with monkeypatch.context() as patch:
            patch.setattr(Source, "program", lambda self, rng, resized=resized: resized)
            assert source.draw(rng) == []


def test_the_recipe_says_how_many_draws_have_a_product() -> None:
    heldout = hold_out(())
    source = Source(DataRecipe(products=0.5), heldout, products=TEXTS)
    drawn = [source.program(random.Random(i)) for i in range(60)]
    assert 15 <= sum(p.has_product for p in drawn) <= 45
    plain = Source(DataRecipe(), heldout)
    with_texts = Source(DataRecipe(), heldout, products=TEXTS, gathered=GATHERED)
    assert all(plain.program(random.Random(i)) == with_texts.program(random.Random(i)) for i in range(10))


def test_the_recipe_says_how_many_draws_may_gather() -> None:
    source = Source(DataRecipe(gathered=0.5), hold_out(()), gathered=GATHERED)
    assert 15 <= sum(source.program(random.Random(i)).has_product for i in range(60)) <= 45


def test_half_of_the_sizes_of_what_may_gather_have_a_kernel_that_does() -> None:
    rng, sample = random.Random(1), [parse_program(text) for text in GATHERED[::20]]
    drawn = [resize_product(program, rng) for program in sample for _ in range(2)]
    assert sum(any(uses(s, "gathered") for s in variants(p)) for p in drawn) >= len(drawn) / 2


def test_scores_measure_products_of_their_own_seeds() -> None:
    found = [make_program(PRODUCT_SEED + i, (), TEXTS) for i in range(8)]
    assert all(p.has_product for p in found) and len({print_program(p) for p in found}) == 8
    assert found[2] == make_program(PRODUCT_SEED + 2, (), TEXTS)


def test_the_shipped_prior_ranks_schedules_of_products() -> None:
    prior = load_prior()
    assert prior is not None
    program = parse_program(CONVOLUTION.replace("d1=3", "d1=64").replace("d4=4", "d4=96"))
    schedules = variants(program)
    described = [describe_product(program, s) for s in schedules]
    assert {len(x) for x in described} == {COUNT} and len({tuple(x) for x in described}) > 5
    assert np.isfinite(prior.rank(program, schedules)).all()
    assert describe_product(make_task(1), variants(make_task(1))[0]) == [0.0] * COUNT


def test_the_analysis_tells_products_from_memory() -> None:
    found = [write_analysis(parse_program(t)).split(":")[0] for t in (CONVOLUTION, DEPTHWISE)]
    assert found == ["Bound by products", "Bound by memory"]
