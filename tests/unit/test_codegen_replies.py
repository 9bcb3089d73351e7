"""Templates' replies: valid for their program, distinct, deterministic, built for sm_90a."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from generate_models import ROWS

from cudal1_compile.codegen import strategies
from cudal1_compile.codegen.replies import complete, design_of, lower_nearest
from cudal1_compile.codegen.templates import (
    TEMPLATES,
    draw_reply,
    variants,
    write_analysis,
    write_reply,
)
from cudal1_compile.codegen.words import read_design
from cudal1_compile.generate.prompt import build_prompt
from cudal1_compile.kernel.candidate import (
    CandidateError,
    Exemplar,
    Reply,
    parse_candidate,
    parse_reply,
    print_reply,
)
from cudal1_compile.runtime import nvrtc
from cudal1_compile.runtime.build import build
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program, print_program
from cudal1_trainer.data.pairs import H100
from cudal1_trainer.data.template_generator import TemplateGenerator
from cudal1_trainer.tasks import FAMILIES, generate_task

SYMBOLIC = """region v1
dims d0=?96 d1=512
in0 bf16[d0,d1]
in1 f32[d1]
t0 f32[d0,d1] = cast(in0)
t1 f32[d0] = mean(t0) over d1
t2 f32[d0,d1] = sub(t0, t1)
t3 f32[d0,d1] = mul(t2, in1)
out0 f32[d0,d1] = t3
"""


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_design_says_all_that_its_code_takes(family: str) -> None:
    for seed in range(3):
        program = draw(seed, family)
        for schedule in variants(program)[:6]:
            reply = write_reply(program, schedule)
            if reply is not None:
                assert read_design(reply.design) == schedule
                assert lower_nearest(program, reply.design) == reply


@pytest.mark.parametrize(
    "change",
    [
        lambda design: design.replace("vector 4", "vector 0"),
        lambda design: design.replace("vector 4", "vector " + "9" * 5000),
        lambda design: design.partition("\n")[0],
        lambda design: design.replace("grouped.", "grouped by rows."),
        lambda design: design + "\nstage 9: whatever",
        lambda design: "",
    ],
)
def test_what_is_no_whole_design_of_a_program_leads_to_no_code(change: Callable[[str], str]) -> None:
    program = parse_program(ROWS)
    reply = write_reply(program, variants(program)[0])
    assert reply is not None and lower_nearest(program, reply.design) == reply
    assert change(reply.design) != reply.design and lower_nearest(program, change(reply.design)) is None


def test_a_design_of_a_program_that_has_none_leads_to_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    program = parse_program(ROWS)
    reply = write_reply(program, variants(program)[0])
    monkeypatch.setattr(strategies, "cut_stages", lambda program, flat=False: None)
    assert reply is not None and lower_nearest(program, reply.design) is None


def test_numbers_that_cannot_be_written_become_the_nearest_ones() -> None:
    """A model counts badly what a table counts exactly: the parts of a row, the width of a vector."""
    program = parse_program(ROWS.replace("d1=1024", "d1=409600"))
    joined = next(s for s in variants(program) if s.stages[0].kind == "joined")
    reply = write_reply(program, joined)
    assert reply is not None
    (stage,) = joined.stages
    guessed = replace(stage, splits=stage.splits + 1, vector=8)
    design = reply.design.replace(stage.describe(), guessed.describe())
    assert design != reply.design and lower_nearest(program, design) == reply
    assert lower_nearest(program, design.replace(": joined", ": joined_wide")) == reply, "a kind that it has not"


def draw(seed: int, family: str) -> Program:
    return generate_task(random.Random(seed), family)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_task_has_variants_that_reply_v1_accepts(family: str) -> None:
    for seed in range(8):
        program = draw(seed, family)
        found = variants(program)
        assert found, print_program(program)
        replies = [r for r in (write_reply(program, s) for s in found[:4]) if r is not None]
        assert replies, print_program(program)
        for reply in replies:
            assert parse_reply(print_reply(reply)).code.strip() == reply.code.strip()
            parse_candidate(reply.code, program)


@pytest.mark.parametrize("family", FAMILIES)
def test_variants_differ(family: str) -> None:
    program = draw(3, family)
    codes = [r.code for r in (write_reply(program, s) for s in variants(program)) if r is not None]
    assert len(set(codes)) >= 0.9 * len(codes)


def test_templates_are_deterministic_and_cover_every_strategy() -> None:
    used = set()
    for seed in range(60):
        program = generate_task(random.Random(seed))
        for name, template in TEMPLATES.items():
            first = template(program, random.Random(5))
            assert first == template(program, random.Random(5))
            used |= {name} if first is not None else set()
    assert used == set(TEMPLATES) - {"product"}  # no task has a product yet


def test_no_plan_takes_more_scratch_than_a_reply_may() -> None:
    """Eighteen group values follow from two sums; each is computed again where it is read."""
    sums = "t0 f32[d0] = sum(in0) over d1\nt1 f32[d0,d1] = sub(in0, t0)\nt2 f32[d0] = amax(t1) over d1\n"
    made = "".join(f"t{i} f32[d0] = mul(t{i % 2 * 2}, {i}.0)\n" for i in range(3, 21))
    read = "".join(f"t{i + 18} f32[d0,d2] = mul(in1, t{i})\n" for i in range(3, 21))
    outs = "".join(f"out{i} f32[d0,d2] = t{i + 21}\n" for i in range(18))
    text = f"region v1\ndims d0=64 d1=256 d2=32\nin0 f32[d0,d1]\nin1 f32[d0,d2]\n{sums}{made}{read}{outs}"
    program = parse_program(text)
    reply = draw_reply(program, random.Random(0))
    assert reply is not None
    assert [s.name for s in parse_candidate(reply.code, program).scratch] == ["s0", "s1"]


def test_symbolic_sizes_are_never_constants() -> None:
    program = parse_program(SYMBOLIC)
    reply = draw_reply(program, random.Random(0))
    assert reply is not None
    assert "96" not in reply.code and "d0" in reply.code


def test_analysis_follows_the_measured_order() -> None:
    program = draw(1, "rows")
    codes = [r.code for r in (write_reply(program, s) for s in variants(program)[:2]) if r is not None]
    text = write_analysis(program, [Exemplar(codes[0], 0.91), Exemplar(codes[1], 1.37)])
    assert text.index("1.37x") < text.index("0.91x")


def test_generator_reads_the_prompt() -> None:
    program = draw(2, "mixed")
    prompt = build_prompt(H100.facts(), print_program(program), (), 10_000, len)
    generator = TemplateGenerator()
    replies = generator.propose([prompt, prompt], 6, 0)
    assert generator.name == "teacher:all" and [len(r) for r in replies] == [6, 6]
    assert len(set(replies[0])) == 6
    assert replies == generator.propose([prompt, prompt], 6, 0)
    for text in replies[0]:
        parse_candidate(parse_reply(text).code, program)
    only = TemplateGenerator(["fused"])
    assert only.name == "teacher:fused"


def _has_nvrtc() -> bool:
    try:
        nvrtc.library()
    except Exception:  # noqa: BLE001  any failure to load means that there is nothing to test with
        return False
    return True


@pytest.mark.skipif(not _has_nvrtc(), reason="no NVRTC")
@pytest.mark.parametrize("family", FAMILIES)
def test_replies_build_for_hopper(family: str, tmp_path: Path) -> None:
    for seed in range(2):
        program = draw(1000 + seed, family)
        reply = draw_reply(program, random.Random(seed))
        assert reply is not None
        binary = build(program, parse_candidate(reply.code, program), H100)
        spilled = {n: k.local_bytes for n, k in binary.kernels.items() if k.local_bytes > 64}
        assert not spilled, f"{spilled}\n{print_program(program)}\n{reply.design}"


ROW_SUM = parse_program(
    "region v1\ndims d0=4096 d1=1024\nin0 f32[d0,d1]\nt0 f32[d0] = sum(in0) over d1\nout0 f32[d0] = t0\n"
)


def _written(code: str, design: str = "") -> str:
    return f"## Performance Analysis\nx\n## Algorithm Design\n{design}\n## Code\n{code}"


def _first_design() -> tuple[str, Reply]:
    reply = write_reply(ROW_SUM, variants(ROW_SUM)[0])
    assert reply is not None
    return reply.design, reply


@pytest.mark.parametrize("ending", ["", "\n", "\n\n"])
def test_a_reply_without_a_kernel_is_its_design_as_lowered(ending: str) -> None:
    design, plain = _first_design()
    found = complete(ROW_SUM, parse_reply(_written(ending, design)))
    assert (found.code, found.edits) == (plain.code, "")
    assert parse_reply(print_reply(replace(found, code=""))) == replace(found, code="")


def test_edits_change_what_the_design_leads_to_and_are_kept_with_it() -> None:
    design, plain = _first_design()
    line = next(x for x in plain.code.splitlines() if " = 0.0f;" in x)
    edits = f"f0: min blocks 2\n- {line.strip()}\n+ {line.replace('0.0f', '-0.0f')}"
    reply = parse_reply(_written(f"```edits\n{edits}\n```", design))
    assert reply.edits == edits and parse_reply(print_reply(reply)) == reply
    found = complete(ROW_SUM, reply)
    changed = set(found.code.splitlines()) - set(plain.code.splitlines())
    assert line.replace("0.0f", "-0.0f") in changed and any("__launch_bounds__" in x for x in changed)
    again = lower_nearest(ROW_SUM, design_of(found))
    assert again is not None and again.code == found.code
    # at a size where the line is another the design alone is inherited
    other = lower_nearest(ROW_SUM, design_of(replace(found, edits="- no such line\n+ x")))
    assert other is not None and other.code == plain.code


@pytest.mark.parametrize(
    ("design", "edits", "why"),
    [
        ("one block a row, in registers", "", "no schedule that could be lowered"),
        ("grouped.\nstage 0: block, vector 3, block 100", "", "the nearest is 'block, vector "),
        ("grouped.\nstage 0: octopus, vector 4, block 128", "", "'octopus' is none of the kinds"),
        ("grouped.\nstage 0: block, vector 4, block 256\nstage 1: exact, vector 4, block 256", "", "has 2 stages"),
        ("magic.\nstage 0: block, vector 1, block 96", "", "'magic.' is none of pointwise, grouped"),
        (None, "f9: unroll 4", "no kernel f9"),
        (None, "- no such line\n+ x", "'- no such line' stands at none of the places"),
        (None, "- }\n+ }", "stands at "),
        (None, "+ x", "follows no line"),
        (None, "\n".join(f"- line {i}\n+ x" for i in range(40)), "more than 32 edits"),
    ],
)
def test_what_cannot_be_lowered_says_why(design: str | None, edits: str, why: str) -> None:
    text = _written(f"```edits\n{edits}\n```" if edits else "", _first_design()[0] if design is None else design)
    with pytest.raises(CandidateError, match=re.escape(why)):
        complete(ROW_SUM, parse_reply(text))


def test_a_kernel_that_was_begun_is_no_design() -> None:
    with pytest.raises(CandidateError, match="no closed ```cuda"):
        parse_reply(_written("```cuda\n// launch: k<<<1", _first_design()[0]))
