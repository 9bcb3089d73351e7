"""Draws without replacement: what is drawn from, how often which comes first, and what the model takes it for."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from itertools import permutations
from typing import Any

import pytest
import torch
from generate_models import ROWS
from transformers import LlamaForCausalLM

from cudal1_compile.codegen.replies import as_design, design_of
from cudal1_compile.codegen.templates import try_reply, variants
from cudal1_compile.generate import draws
from cudal1_compile.generate.bundled import BundledConfig, BundledGenerator
from cudal1_compile.generate.draws import LEGAL, in_drawn_order, lower_first, open_designs
from cudal1_compile.generate.model_files import MODEL_DIR
from cudal1_compile.generate.prompt import build_prompt
from cudal1_compile.kernel.candidate import Exemplar, Reply, parse_reply, print_reply
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program, print_program

FACTS = "target sm_90a, 132 SMs, 227 KB shared a block, 60 MB L2"
PRODUCT = """region v1
dims d0=512 d1=256 d2=1024
in0 bf16[d0,d1]
in1 bf16[d2,d1]
t0 bf16[d0,d2] = dot(in0, in1) over d1
out0 bf16[d0,d2] = t0
"""


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_the_first_draws_are_the_softmax_without_replacement(temperature: float) -> None:
    scores, n, rng = [-1.0, -0.5, -3.0, -2.0], 20_000, random.Random(7)
    weights = [math.exp(s / temperature) for s in scores]
    got = Counter(tuple(in_drawn_order(scores, temperature, rng, False)[:2]) for _ in range(n))
    for a, b in permutations(range(4), 2):
        p = weights[a] / sum(weights) * weights[b] / (sum(weights) - weights[a])
        assert abs(got[a, b] - n * p) < 5 * (n * p * (1 - p)) ** 0.5 + 1, (a, b, got[a, b], n * p)
    firsts = Counter(tuple(in_drawn_order(scores, temperature, rng, True)[:2]) for _ in range(n))
    assert {a for a, _ in firsts} == {1}
    for b in (0, 2, 3):
        p = weights[b] / (sum(weights) - weights[1])
        assert abs(firsts[1, b] - n * p) < 5 * (n * p * (1 - p)) ** 0.5 + 1


def test_without_warmth_the_likeliest_come_in_order() -> None:
    for first in (False, True):
        assert in_drawn_order([-3.0, -1.0, -2.0], 0.0, random.Random(1), first) == [1, 2, 0]
        assert in_drawn_order([], 0.8, random.Random(1), first) == []


@pytest.mark.parametrize("text", [ROWS, PRODUCT])
def test_what_is_drawn_from_is_all_but_what_was_tried(text: str) -> None:
    program, rng = parse_program(text), random.Random(0)
    every = [r for s in variants(program, LEGAL) if (r := try_reply(program, s)) is not None]
    assert {r.code for r in every} >= {r.code for s in variants(program) if (r := try_reply(program, s))}
    found = open_designs(program, [], 8, rng)
    assert found is not None and [r.design for r in found] == [as_design(r).design for r in every]
    tried = [Exemplar(r.code, 2.0 - i / 100, design_of(r)) for i, r in enumerate(every[3:])]
    left = open_designs(program, tried, 3, rng)
    assert left is not None and [r.design for r in left] == [r.design for r in every[:3]]
    assert all(r.analysis.startswith("Fastest so far: 2.00x with ") for r in left)
    with_edits = open_designs(program, tried, 8, rng)
    assert with_edits is not None and with_edits[:3] == left and len(with_edits) > 8
    for reply in with_edits[3:]:
        assert reply.edits and not reply.code and reply.design == as_design(every[3]).design
    assert len(lower_first(program, with_edits, 100)) == len(with_edits)
    again = [*tried, *(Exemplar("", 1.0, design_of(r)) for r in with_edits)]
    more = open_designs(program, again, 8, random.Random(0))
    assert more is not None and not {design_of(r) for r in more} & {design_of(r) for r in with_edits}


def test_a_region_that_templates_misread_has_nothing_to_draw_from(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def stumble(program: Program, most: int) -> list[object]:
        raise KeyError("d7")

    program = parse_program(ROWS)
    monkeypatch.setattr(draws, "variants", stumble)
    assert open_designs(program, [], 8, random.Random(0)) is None and "KeyError('d7')" in caplog.text
    monkeypatch.setattr(draws, "variants", lambda program, most: [])
    assert open_designs(program, [], 8, random.Random(0)) is None


def test_what_cannot_be_lowered_is_left_out_and_equal_code_comes_once() -> None:
    program = parse_program(ROWS)
    good = [as_design(r) for s in variants(program)[:2] if (r := try_reply(program, s)) is not None]
    bad = Reply("", "grouped.\nstage 0: block, vector 3, block 257", "")
    same = Reply("other words", good[0].design, "")
    assert lower_first(program, [bad, good[0], same, good[1], good[1]], 3) == [print_reply(r) for r in good]
    assert lower_first(program, [good[0], good[1]], 1) == [print_reply(good[0])]


@pytest.mark.parametrize("text", [ROWS, PRODUCT])
def test_likelihoods_of_designs_are_those_of_the_bundled_model(text: str) -> None:
    """Of designs and edits, behind prompts with variants and without: transformers' log-softmax, summed."""
    generator = BundledGenerator(BundledConfig(dtype=torch.float32))
    model: Any = LlamaForCausalLM.from_pretrained(str(MODEL_DIR), dtype=torch.float32)
    program = parse_program(text)
    every = [r for s in variants(program) if (r := try_reply(program, s)) is not None]
    for shown in (every[:0], every[:3], every):
        tried = [Exemplar(r.code, 1.3 - i / 10, design_of(r)) for i, r in enumerate(shown)]
        prompt = build_prompt(FACTS, print_program(program), tried[:8], 2048, len, designs=True)
        replies = (open_designs(program, tried, len(every), random.Random(1)) or [])[-6:]
        ids = generator.codec.encode_prompt(prompt)
        rows = [generator.codec.encode_reply(print_reply(r)) for r in replies]
        assert generator.sampler.score(ids, rows) == pytest.approx(_expected(model, ids, rows), abs=2e-3)


def _expected(model: Any, prompt: list[int], rows: Sequence[list[int]]) -> list[float]:
    found = []
    for row in rows:
        with torch.no_grad():
            logits = model(torch.tensor([prompt + row])).logits[0, len(prompt) - 1 : -1]
        found.append(float(torch.log_softmax(logits, -1)[torch.arange(len(row)), torch.tensor(row)].sum()))
    return found


def test_the_model_draws_as_often_as_it_takes_designs_for_likely() -> None:
    """The whole way, behind a prompt with variants: first replies against softmax(likelihood / temperature)."""
    generator = BundledGenerator(BundledConfig(dtype=torch.float32, greedy_first=False))
    program = parse_program(ROWS)
    every = [r for s in variants(program, LEGAL) if (r := try_reply(program, s)) is not None]
    tried = [Exemplar(r.code, 1.3 - i / 10, design_of(r)) for i, r in enumerate(every[:4])]
    prompt = build_prompt(FACTS, print_program(program), tried, 2048, len, designs=True)
    replies = open_designs(program, tried, 1, random.Random(0))
    assert replies is not None
    rows = [generator.codec.encode_reply(print_reply(r)) for r in replies]
    scores = torch.tensor(generator.sampler.score(generator.codec.encode_prompt(prompt), rows))
    expected = torch.softmax(scores / generator.temperature, 0).tolist()
    n = 80
    got = Counter(parse_reply(text).design for [text] in generator.propose([prompt] * n, 1, seed=5))
    assert got.keys() <= {r.design for r in replies}
    for reply, p in zip(replies, expected, strict=True):
        assert abs(got[reply.design] - n * p) < 5 * (n * p * (1 - p)) ** 0.5 + 1, (reply.design, p)
