"""The families' benchmark: what it measures is held out and whole, and its figures follow from its rows."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest
import torch

from benchmarks.duel import Job, Row
from benchmarks.families import FAMILIES, FamilyProgram, Measured, read_families, read_row, summarise
from benchmarks.family_cut import all_cases, as_line
from benchmarks.floor import HOPPER, Floor
from benchmarks.regions import read_regions
from cudal1_compile.judge.oracle.memory import oracle_bytes
from cudal1_compile.judge.timing.floor import flops
from cudal1_fx_passes.program.canonical import canonicalise
from cudal1_fx_passes.program.evaluate import evaluate
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.ops import OPS, Kind
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.data.corpus import Source
from cudal1_trainer.recipe import load_recipe
from cudal1_trainer.scores.gpu_time import rounds_for
from cudal1_trainer.tasks.heldout import read_heldout
from cudal1_trainer.tasks.variants import write_variants

DATA = Path("trainer/data")
PROGRAMS = read_families(DATA / "families.jsonl")
PRODUCTS = {f for f in FAMILIES if f.startswith(("conv", "product"))}
TEXT = "region v1\ndims d0=64 d1=30\nin0 f32[d0,d1]\nt0 f32[d0] = sum(in0) over d1\nout0 f32[d0] = t0\n"


def test_every_family_has_a_dozen_distinct_programs_of_its_kind() -> None:
    assert set(Counter(p.family for p in PROGRAMS)) == set(FAMILIES)
    assert min(Counter(p.family for p in PROGRAMS).values()) >= 12
    assert len({p.text for p in PROGRAMS}) == len(PROGRAMS)
    for p in PROGRAMS:
        program = parse_program(p.text)
        kinds = {OPS[op.fn].kind for op in program.ops}
        is_vector = p.family == "product_half" and p.shape.startswith("1x")  # of one row: written as a sum
        assert (Kind.DOT in kinds) == (p.family in PRODUCTS and not is_vector), p
        assert (Kind.SCAN in kinds) == (p.family == "scan"), p
        windows = any(a.name.startswith("k") for a in program.axes)
        assert windows or p.family != "pool", p
        assert canonicalise(program) == program, p


def test_families_are_regions_too() -> None:
    rows = read_regions(DATA / "families.jsonl", 0, ["scan", "pool"])
    assert {r["model"] for r in rows} == {"scan", "pool"} and all(r["name"] and r["direction"] for r in rows)
    assert len(rows) == sum(p.family in ("scan", "pool") for p in PROGRAMS)
    assert read_regions(DATA / "regions.jsonl", 3)[2]["model"]


def test_f32_products_are_at_4096_and_above_without_tf32() -> None:
    for p in PROGRAMS:
        if p.family == "product_f32":
            (op,) = _products(parse_program(p.text))
            program = parse_program(p.text)
            assert op.fn == "dot" and min(program.axis[a].size for a in (*op.axes, *op.over) if a != "d0") >= 4096
        elif p.family.startswith("conv"):
            assert {op.fn for op in _products(parse_program(p.text))} == {"dot_tf32"}, p


def test_the_judge_has_room_for_the_oracle_of_each() -> None:
    for p in PROGRAMS:
        assert oracle_bytes(parse_program(p.text), {}) < 20 << 30, p


def _products(program: Program) -> list:
    return [op for op in program.ops if OPS[op.fn].kind is Kind.DOT]


CASES = list(all_cases())


@pytest.mark.parametrize("part", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in range(1, 16))])
def test_the_shipped_file_is_what_is_cut_today(part: int) -> None:
    assert len(CASES) == len(PROGRAMS)
    for case, program in list(zip(CASES, PROGRAMS, strict=True))[part::16]:
        assert FamilyProgram(**as_line(case)) == program


def test_training_never_draws_them(monkeypatch: pytest.MonkeyPatch) -> None:
    heldout = read_heldout(DATA / "heldout.json")
    assert {p.held_out.fingerprint for p in PROGRAMS} <= heldout.shapes
    source = Source(load_recipe("nano").data, heldout)
    for p in PROGRAMS:
        program = parse_program(p.text)
        assert heldout.holds(program)
        with monkeypatch.context() as patch:
            patch.setattr(Source, "program", lambda self, rng, program=program: program)
            assert source.draw(random.Random(0)) == []


def _floor() -> Floor:
    return Floor(1000.0, HOPPER)


def _measured(family: str, busy: dict[str, float], failures: dict[str, str] | None = None) -> Measured | None:
    row = Row("0", {name: (us, us, us) for name, us in busy.items()}, failures or {})
    item = FamilyProgram(family, "x", "inference", "64x30", TEXT)
    taught = write_variants(parse_program(TEXT), 1)[0].reply.code
    job = Job("0", TEXT, (("s0", taught.replace("const", "volatile")), ("s1", taught), ("teacher/a", taught)))
    return read_row(item, row, job, {"s0": "s0", "s1": "s1"}, _floor())


def test_rows_follow_from_times() -> None:
    fast = _measured("scan", {"s0": 4.0, "aten": 8.0, "inductor": 16.0, "teacher/a": 2.0, "teacher/b": 9.0})
    slow = _measured("scan", {"s1": 16.0, "aten": 8.0, "inductor": 4.0}, {"s0": "wrong: out0"})
    none = _measured("pool", {"aten": 8.0, "inductor": 4.0, "teacher/a": 1.0}, {"s0": "build: no"})
    copied = _measured("loss", {"s0": 9.0, "s1": 3.0, "aten": 8.0, "inductor": 4.0})
    dead = _measured("pool", {}, {"program": "lost at s1: CUDA error"})
    assert fast and slow and none and dead and copied
    assert (fast.novelty, slow.novelty, none.novelty, copied.novelty) == ("form", None, None, "")
    missing = {FamilyProgram("loss", "y", "backward", "1", TEXT): "the time ended before it"}
    summary, intervals, detail = summarise([fast, slow, none, dead], missing)
    assert tuple(detail) == FAMILIES
    scan, pool, loss = (detail[f] for f in ("scan", "pool", "loss"))
    assert (scan["n"], scan["over_best"], scan["over_best_raw"]) == (
        2,
        pytest.approx(2**0.5),
        pytest.approx(0.5**0.5),
    )
    assert (scan["right_1"], scan["right_8"], scan["wins"]) == (0.5, 1.0, 0.5)
    assert (scan["novel"], scan["novel_form"], pool["novel"]) == (1.0, 1.0, 0.0)
    assert scan["best_teacher_over_best"] == pytest.approx(2.0) and scan["teacher_right"] == 0.5
    assert scan["shapes"][0]["teacher"] == "teacher/a" and scan["shapes"][0]["shape"] == "64x30"
    floor_us = (64 * 30 + 64) * 4 / 1000
    assert scan["over_floor"] == pytest.approx(floor_us / 4.0)
    assert (pool["over_best"], pool["over_best_raw"], pool["right_8"]) == (1.0, 1.0, 0.0)
    assert pool["best_teacher_over_best"] == pytest.approx(2.0)
    assert loss["n"] == 0 and list(loss["not_measured"]) == ["y, backward"]
    assert summary["geomean_over_best"] == pytest.approx(2**0.25) and summary["wins"] == 0.25
    assert set(intervals) >= {"geomean_over_best", "wins", "scan.over_best"}


def test_a_program_that_cannot_be_timed_is_not_measured() -> None:
    assert _measured("pool", {}, {"program": "unusable: not finite"}) is None
    assert _measured("pool", {}, {"program": "lost at aten: CUDA error"}) is None
    no_room = {"aten": "capture: CUDA out of memory", "inductor": "capture: CUDA out of memory"}
    assert _measured("pool", {"s0": 4.0}, no_room) is None


PRODUCT = "region v1\ndims {dims}\nin0 f32[{a}]\nin1 f32[{b}]\nt0 f32[{o}] = {dot}\nout0 f32[{o}] = t0\n"


@pytest.mark.parametrize(
    "text",
    [
        PRODUCT.format(dims="d0=5 d1=7 d2=3", a="d0,d1", b="d2,d1", o="d0,d2", dot="dot(in0, in1) over d1"),
        PRODUCT.format(
            dims="d0=2 d1=3 d2=9 d3=4 d4=5 k0=3",
            a="d0,d1,d2",
            b="d3,d1,k0",
            o="d0,d3,d4",
            dot="dot(in0[d2=2*d4+k0-1], in1) over d1,k0",
        ),
        PRODUCT.format(
            dims="d0=2 d1=3 d2=4 d3=5 d4=8 k0=4",
            a="d0,d1,d2",
            b="d1,d3,k0",
            o="d0,d3,d4",
            dot="dot(in0[d2=(d4-k0+1)/2], in1) over d1,k0",
        ),
    ],
    ids=["matrices", "strided", "transposed"],
)
def test_multiplications_are_counted_as_ones_add_up(text: str) -> None:
    program = parse_program(text)
    ones = [torch.ones([program.axis[a].size for a in i.axes]) for i in program.inputs]
    (made,) = evaluate(program, ones)
    assert flops(program, program.ops[0]) == 2 * int(made.sum())


def test_the_floor_is_the_larger_of_bytes_and_multiplications() -> None:
    text = PRODUCT.format(
        dims="d0=512 d1=512 d2=512", a="d0,d1", b="d2,d1", o="d0,d2", dot="dot(in0, in1) over d1"
    )
    program = parse_program(text)
    assert Floor(1e3, HOPPER).us(program) == pytest.approx(3 * 512 * 512 * 4 / 1e3)
    assert Floor(1e9, HOPPER).us(program) == pytest.approx(2 * 512**3 / 165e6)
    half = parse_program(text.replace("f32", "bf16"))
    assert Floor(1e9, HOPPER).us(half) == pytest.approx(2 * 512**3 / 989.4e6)


def test_long_measurements_have_fewer_rounds() -> None:
    assert [rounds_for(s, 15) for s in (0.001, 0.2, 10.0)] == [15, 10, 5]
    assert rounds_for(10.0, 3) == 3


def test_lines_name_what_they_were_cut_from() -> None:
    line = json.loads((DATA / "families.jsonl").read_text().splitlines()[0])
    assert set(line) == {"family", "name", "direction", "shape", "text"} and "*" not in line["shape"]
