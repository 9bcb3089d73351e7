"""Hard forms: the shipped structures hold them, recipes draw them; axes of size 1 are none, as in use."""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path

import pytest
import torch
from slow_cases import slow_but

from benchmarks.fresh import read_regions
from cudal1_fx_passes.errors import ProgramError
from cudal1_fx_passes.fusion.partition import partition
from cudal1_fx_passes.importer.capture import capture_graphs
from cudal1_fx_passes.program.canonical import canonicalise, shape_agnostic_fingerprint, shape_agnostic_of
from cudal1_fx_passes.program.ir import Program, Ref
from cudal1_fx_passes.program.text import parse_program, print_program
from cudal1_trainer.data.corpus import Source
from cudal1_trainer.recipe import DataRecipe
from cudal1_trainer.tasks.heldout import hold_out, read_heldout
from cudal1_trainer.tasks.product_sizes import resize_product
from cudal1_trainer.tasks.single import without_single
from cudal1_trainer.tasks.structures import read_structures, resize

CONVOLUTION = (
    "region v1\ndims d0=1 d1=1 d2=8 d3=6 d4=4 k0=3\nin0 f32[d0,d1,d2]\nin1 f32[d4,d1,k0]\n"
    "in2 f32[d0,d4,d3] strides(24,6,1)\n"
    "t0 f32[d0,d3,d4] = dot(in0[d2=d3+k0], in1) over d1,k0\nt1 f32[d0,d3,d4] = add(t0, in2)\n"
    "out0 f32[d0,d4,d3] = t1\n"
)
SUM = "region v1\ndims d0=1 d1=4\nin0 f32[d0,d1]\nt0 f32[d1] = sum(in0) over d0\nout0 f32[d1] = t0\n"
SCAN = "region v1\ndims d0=4 d1=6\nin0 f32[d0,d1]\nt0 f32[d0,d1] = cumprod(in0) along d1\nout0 f32[d0,d1] = t0\n"
DATA = Path(__file__).parents[2] / "trainer" / "data"


def test_an_axis_of_size_1_is_none() -> None:
    found = print_program(without_single(parse_program(CONVOLUTION)))
    assert "dims d2=8 d3=6 d4=4 k0=3" in found and "in2 f32[d4,d3] strides(6,1)" in found and "over k0\n" in found


def test_no_operation_runs_along_axes_of_size_1_alone() -> None:
    with pytest.raises(ProgramError, match="of size 1 alone"):
        without_single(parse_program(SUM))
    summed = [resize(parse_program(SUM), random.Random(i)) for i in range(40)]
    assert all(a.size > 1 for p in summed for a in p.axes)


def test_drawn_sizes_have_the_form_that_is_imported() -> None:
    layer = torch.nn.Sequential(torch.nn.BatchNorm2d(6), torch.nn.GELU()).eval()
    (graph,) = capture_graphs(layer, (torch.randn(1, 6, 5, 7),))
    (region,) = partition(graph.gm.graph).regions
    assert all(a.size > 1 for a in canonicalise(region.imported.program).axes)
    batched = parse_program(CONVOLUTION.replace("d0=1 d1=1", "d0=2 d1=3"))
    drawn = [resize_product(batched, random.Random(i)) for i in range(40)]
    assert {len(p.inputs[0].axes) for p in drawn} >= {2, 3}
    assert all(a.size > 1 for p in drawn for a in p.axes if a.name not in _read_or_made(p))


def _read_or_made(p: Program) -> set[str]:
    pairs = [pair for o in p.ops for x in o.operands if isinstance(x, Ref) for pair in x.access]
    return {a for axis, index in pairs for a in (axis, *(name for _, name in index.terms))}


def test_rare_forms_are_drawn_more_often() -> None:
    pool = "t0 f32[d0,d3] = amax(in0[d1={}, d2=2*d3+k0]) over k0"
    source = Source(DataRecipe(rare=5.0, placed=1.5), hold_out(()))
    assert [source._weight(t) for t in (SUM, SCAN)] == [1.0, 5.0]
    assert [source._weight(pool.format(place)) for place in ("d4", "d4+k1")] == [7.5, 1.5]


def test_the_recipe_says_how_many_structures_are_hard() -> None:
    source = Source(
        DataRecipe(structures=1.0, hard=0.4, varied=0.0), hold_out(()), structures=(SUM,), hard=(SCAN,)
    )
    rng = random.Random(0)
    drawn = [source.program(rng) for _ in range(200)]
    assert 60 <= sum(p.ops[0].fn == "cumprod" for p in drawn) <= 100


def test_the_recipe_says_how_many_are_of_written_modules() -> None:
    product = "region v1\ndims d0=8 d1=8 d2=8\nin0 f32[d0,d2]\nin1 f32[d1,d2]\n"
    product += "t0 f32[d0,d1] = dot(in0, in1) over d2\nout0 f32[d0,d1] = t0\n"
    recipe = DataRecipe(structures=1.0, written=0.4, varied=0.0)
    source = Source(recipe, hold_out(()), structures=(SUM,), written=(SCAN, product))
    rng = random.Random(0)
    drawn = Counter(source.program(rng).ops[0].fn for _ in range(200))
    assert drawn.keys() == {"sum", "cumprod", "dot"}
    assert min(drawn["cumprod"], drawn["dot"]) > 20
    assert 60 <= drawn["cumprod"] + drawn["dot"] <= 100


SHIPPED = {
    "labels shifted by one": (r"= where\(t\d+, in\d+\[(?:d\d+=d\d+, )?d\d+=d\d+\+1\], -100\)", 700),
    "halves put back where they were cut": (r"= where\(t\d+, t\d+\[d\d+=d\d+\+\d+\], 0\.0\)", 500),
    "rows rolled and summed": (r"= fmod\((?s:.*) over ", 350),
    "rows of a table": (r"\[d\d+=in\d+\]", 400),
}


@pytest.mark.parametrize("form", SHIPPED)
def test_shipped_hard_structures_hold_the_forms_that_models_failed_on(form: str) -> None:
    pattern, least = SHIPPED[form]
    texts = read_structures(DATA / "hard.jsonl.gz")
    assert sum(re.search(pattern, text) is not None for text in texts) >= least


PARTS = pytest.mark.parametrize("part", slow_but([0], range(40)))


@PARTS
def test_no_shipped_hard_structure_is_held_out(part: int) -> None:
    heldout = read_heldout(DATA / "heldout.json")
    texts = read_structures(DATA / "hard.jsonl.gz")
    assert len(texts) > 4000
    assert not [text for text in texts[part::40] if heldout.holds(parse_program(text))]


@PARTS
def test_no_written_structure_is_held_out_or_one_of_the_fresh_modules(part: int) -> None:
    heldout = read_heldout(DATA / "heldout.json")
    fresh = {shape_agnostic_fingerprint(parse_program(r.text)) for r in read_regions(10**6, 0)}
    texts = read_structures(DATA / "written.jsonl.gz")
    assert len(texts) > 8000
    programs = [parse_program(text) for text in texts[part::40]]
    assert not [
        p for p in programs if heldout.holds(p) or shape_agnostic_of(p) in fresh
    ]  # both take canonical ones
