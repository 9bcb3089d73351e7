"""Modules written for training: all have names of their own, and give structures that are held out or answered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cudal1_fx_passes.program.canonical import canonicalise, shape_agnostic_fingerprint
from cudal1_fx_passes.program.text import parse_program, print_program
from cudal1_trainer.tasks.products import has_templates
from cudal1_trainer.tasks.structures import read_structures
from cudal1_trainer.tasks.written import main, modules, written_regions

DATA = Path(__file__).parents[2] / "trainer" / "data"


def test_every_module_has_a_name_of_its_own() -> None:
    names = [name for name, *_ in modules(DATA / "modules")]
    assert len(names) > 2900
    assert len(set(names)) == len(names)


def test_a_trained_module_gives_all_directions_and_every_cut() -> None:
    (made,) = [m for m in modules(DATA / "modules") if m[0] == "vis_prelu_dw"]
    programs = list(written_regions(*made[1:]))
    assert sum(p.has_product for p in programs) >= 4
    assert any(" sum(" in print_program(p) for p in programs), "gradients of the bias"
    assert all(map(has_templates, programs))


def test_what_must_stay_unseen_is_left_out(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    known = modules(DATA / "modules")
    first = next(i for i, (name, *_) in enumerate(known) if name == "vis_1x1_relu6")
    common = ["--data", str(DATA), "--first", str(first), "--models", "2"]
    main([*common, "--out", str(tmp_path / "all.jsonl.gz")])
    texts = read_structures(tmp_path / "all.jsonl.gz")
    assert len(texts) > 2
    unseen = tmp_path / "unseen.jsonl"
    unseen.write_text(json.dumps({"text": texts[0]}) + "\n")
    main([*common, "--without", str(unseen), "--out", str(tmp_path / "some.jsonl.gz")])
    left = {
        shape_agnostic_fingerprint(canonicalise(parse_program(t)))
        for t in read_structures(tmp_path / "some.jsonl.gz")
    }
    assert left == {shape_agnostic_fingerprint(canonicalise(parse_program(t))) for t in texts[1:]}
    assert capfd.readouterr().out == ""
