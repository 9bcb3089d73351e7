"""Nothing that is held out is trained on, in any stage; what is held out is made of operators that are."""

from __future__ import annotations

import json
import random
from functools import lru_cache
from itertools import chain
from pathlib import Path

import pytest

from cudal1_fx_passes.program.canonical import shape_agnostic_fingerprint
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program, print_program
from cudal1_trainer.data.corpus import Source
from cudal1_trainer.data.practice import read_tasks
from cudal1_trainer.data.scored import _line
from cudal1_trainer.recipe import DataRecipe, load_recipe
from cudal1_trainer.scores.scorebook import TaskScore, VariantScore, read_scores, score_files
from cudal1_trainer.tasks import structure
from cudal1_trainer.tasks.heldout import hold_out, pattern, read_heldout
from cudal1_trainer.tasks.structures import STRUCTURES, read_structures
from cudal1_trainer.tasks.variants import canonical_key, make_task, write_variants

DATA = Path(__file__).parents[2] / "trainer" / "data"
HELD = read_heldout(DATA / "heldout.json")
TEXTS = [read_structures(DATA / name) for name in STRUCTURES]


def _is_new(program: Program) -> bool:
    return (
        canonical_key(program) not in HELD.fingerprints | HELD.shapes
        and shape_agnostic_fingerprint(program) not in HELD.relatives
        and structure(program) not in HELD.structures
        and pattern(program) not in HELD.patterns
    )


def test_what_stage_1_draws_is_held_out_in_no_way() -> None:
    source, rng = Source(load_recipe("further").data, HELD, None, None, *TEXTS), random.Random(7)
    drawn = [found for _ in range(45) for found in source.draw(rng)]
    assert len(drawn) > 25 and all(_is_new(program) for program, _ in drawn)
    assert all(print_program(program) in pair.prompt for program, pair in drawn)


def test_a_held_out_program_that_comes_up_is_dropped_at_every_door(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert len(HELD.programs) >= 400
    monkeypatch.setattr(Source, "program", lambda self, rng: rng.choice(HELD.programs).program)
    source, rng = Source(DataRecipe(), HELD), random.Random(1)
    assert [source.draw(rng) for _ in range(100)] == [[]] * 100
    assert all(HELD.holds(p.program) for p in HELD.programs)
    scored = [TaskScore(1, p.text, 9.0, _measured(p.program)) for p in HELD.programs[::60]]
    assert all(s.variants for s in scored) and [_line(s, HELD) for s in scored] == [None] * len(scored)
    assert all(_line(s, hold_out(())) is not None for s in scored)
    (tmp_path / "misses.jsonl").write_text(
        "".join(json.dumps({"text": p.text}) + "\n" for p in HELD.programs[:40])
    )
    with pytest.raises(ValueError, match="40 programs, none that is not held out"):
        read_tasks(tmp_path / "misses.jsonl", HELD)


def _measured(program: Program) -> tuple[VariantScore, ...]:
    return tuple(VariantScore(v.name, v.digest, 3.0) for v in write_variants(program, 1))


def test_measured_programs_of_a_held_out_pattern_are_left_out() -> None:
    book = read_scores(score_files(DATA))
    assert book is not None
    held = [t for t in book.tasks[:1500] if pattern(parse_program(t.text)) in HELD.patterns]
    assert len(held) > 5 and [_line(t, HELD) for t in held] == [None] * len(held)


def _chain(*names: str) -> Program:
    lines = [f"t{i} f32[d0] = {name}({f't{i - 1}' if i else 'in0'})" for i, name in enumerate(names)]
    head, end = ("region v1", "dims d0=64", "in0 f32[d0]"), f"out0 f32[d0] = t{len(names) - 1}"
    return parse_program("\n".join([*head, *lines, end]))


def test_patterns_ignore_what_joins_operators_and_small_ones_are_nobodys() -> None:
    one, other = _chain("exp", "neg", "abs", "tanh", "exp"), _chain("neg", "exp", "exp", "abs", "tanh")
    assert pattern(one) == pattern(other) == "abs exp exp neg tanh"
    assert pattern(_chain("exp", "neg", "abs", "tanh")) is None
    held = [p for p in HELD.programs if pattern(p.program) is not None]
    assert len(held) >= 400 and sum(p.seed is None for p in held) >= 150


def test_every_operator_of_a_held_out_pattern_is_trained_on() -> None:
    made = lru_cache(maxsize=None)(make_task)
    for name in {name for p in HELD.patterns for name in p.split()}:
        structures = (parse_program(text) for text in TEXTS[0] if f" {name}(" in text)
        tasks = (p for p in map(made, range(2000)) if any(op.fn == name for op in p.ops))
        assert any(map(_is_new, chain(structures, tasks))), name
