"""rlval: its programs are as many and as large as they should be, the script's own, and in no other set."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import asdict
from pathlib import Path

import pytest
from slow_cases import slow_but

from benchmarks.families import read_families
from benchmarks.rlval_cut import (
    COUNTS,
    H100,
    LEAST_BYTES,
    LONGEST_US,
    MOST_BYTES,
    OTHERS,
    RLVAL,
    keys_elsewhere,
    kind_programs,
    sized,
)
from benchmarks.rlval_layers import LAYERS
from cudal1_compile.codegen.templates import variants
from cudal1_compile.judge.inputs.sizes import tensor_bytes
from cudal1_compile.judge.oracle.memory import oracle_bytes
from cudal1_fx_passes.program.canonical import canonicalise
from cudal1_fx_passes.program.ops import OPS, Kind
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.data.corpus import Source
from cudal1_trainer.recipe import load_recipe
from cudal1_trainer.tasks.heldout import read_heldout
from cudal1_trainer.tasks.variants import canonical_key

DATA = Path("trainer/data")
LINES = read_families(RLVAL, tuple(COUNTS))
PROGRAMS = [parse_program(line.text) for line in LINES]
KEYS = {canonical_key(program) for program in PROGRAMS}


def test_every_kind_has_its_number_of_distinct_programs_and_all_its_layers() -> None:
    assert Counter(line.family for line in LINES) == COUNTS and len(KEYS) == sum(COUNTS.values()) == 160
    assert {(line.family, line.name) for line in LINES} == {(k, row[0]) for k in COUNTS for row in LAYERS[k]}
    assert {line.direction for line in LINES if ", gradient" in line.name} == {"backward"}


def test_tensors_take_8_to_512_mib_and_no_program_outweighs_the_others() -> None:
    sizes = [tensor_bytes(p) for p in PROGRAMS]
    assert LEAST_BYTES == 8 << 20 and MOST_BYTES == 512 << 20
    assert min(sizes) >= LEAST_BYTES and max(sizes) <= MOST_BYTES
    assert sum(size > 64 << 20 for size in sizes) >= len(sizes) // 3  # the draw is by factors, not by small ones
    assert max(H100.us(p) for p in PROGRAMS) <= LONGEST_US
    assert max(oracle_bytes(p, {}) for p in PROGRAMS) < 20 << 30


def test_programs_are_of_their_kinds_canonical_and_have_variants() -> None:
    for line, program in zip(LINES, PROGRAMS, strict=True):
        products = {(op.fn, op.dtype) for op in program.ops if OPS[op.fn].kind is Kind.DOT}
        expected = {
            "product_f32": {("dot", "f32")},
            "product_tf32": {("dot_tf32", "f32")},
            "product_half": {("dot", "f16"), ("dot", "bf16")},
        }
        assert bool(products) == (line.family not in OTHERS), line
        assert products <= expected.get(line.family, products), line
        if line.family.startswith("conv"):
            assert ("dot", "f32") not in products, line
        assert canonicalise(program) == program and len(variants(program)) >= 2, line


def test_products_and_convolutions_have_most_of_the_time_and_no_kind_has_too_much() -> None:
    us: dict[str, float] = defaultdict(float)
    for line, program in zip(LINES, PROGRAMS, strict=True):
        us[line.family] += H100.us(program)
    shares = {kind: found / sum(us.values()) for kind, found in us.items()}
    assert 0.7 <= sum(shares[kind] for kind in shares if kind not in OTHERS) <= 0.95
    assert all(0.02 <= shares[kind] <= 0.2 for kind in shares if kind not in OTHERS), shares
    assert all(0.005 <= shares[kind] <= 0.05 for kind in OTHERS), shares


def test_none_is_held_out_elsewhere() -> None:
    others = read_families(DATA / "families.jsonl")
    assert len(keys_elsewhere()) > 800 and {p.held_out.fingerprint for p in others} <= keys_elsewhere()
    assert not KEYS & keys_elsewhere()


def test_training_never_draws_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set((DATA / "rlval.keys").read_text().split()) == KEYS
    heldout = read_heldout(DATA / "heldout.json")
    assert heldout.shapes >= KEYS
    source = Source(load_recipe("nano").data, heldout)
    for program in PROGRAMS:
        monkeypatch.setattr(Source, "program", lambda self, rng, program=program: program)
        assert heldout.holds(program) and source.draw(random.Random(0)) == []


@pytest.mark.parametrize("kind", slow_but(["pointwise"], COUNTS))
def test_the_shipped_file_is_what_is_cut_today(kind: str) -> None:
    assert list(kind_programs(kind, 0)) == [asdict(line) for line in LINES if line.family == kind]


def test_the_batch_multiplies_what_stands_before_it() -> None:
    assert sized("8x32Bx64:bf16 Bx3* 7x7", 3) == "8x96x64:bf16 3x3* 7x7"
