"""Models around places: what the partitioner cuts out of them computes with positions, and teachers answer it."""

from __future__ import annotations

import random

from cudal1_fx_passes.ops import OPS, Kind
from cudal1_fx_passes.program import Program, Ref
from cudal1_fx_passes.text import parse_program
from cudal1_trainer.heldout import hold_out
from cudal1_trainer.structures import PLACES, collect, resize
from cudal1_trainer.variants import write_variants


def _places(p: Program) -> bool:
    moved = any(isinstance(x, Ref) and x.access for op in p.ops for x in op.operands)
    return moved or any(OPS[op.fn].kind is Kind.IOTA for op in p.ops)


def test_regions_compute_with_positions_and_have_teachers() -> None:
    found = [parse_program(text) for text in collect(range(PLACES + 2, PLACES + 4), hold_out(()))]
    placed = [p for p in found if _places(p)]
    assert len(found) >= 25 and len(placed) >= 0.6 * len(found)
    assert any(op.fn == "fmod" for p in placed for op in p.ops)
    assert any(i.strides is not None for p in found for i in p.inputs)
    rng = random.Random(0)
    assert all(write_variants(resize(p, rng), 1) for p in placed[:20])
