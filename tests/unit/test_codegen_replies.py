"""Templates' replies: valid for their program, distinct, deterministic, within the context, built for sm_90a."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from generate_models import ROWS

from cudal1_compile.codegen import strategies
from cudal1_compile.codegen.repair.plan import other_stage, repair_plan
from cudal1_compile.codegen.replies import complete, design_of, lower_nearest
from cudal1_compile.codegen.stages.schedule import parse_schedule
from cudal1_compile.codegen.templates import (
    TEMPLATES,
    draw_reply,
    fit_design,
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
from cudal1_trainer.tasks.products import draw_product
from cudal1_trainer.tasks.structures import read_structures

PRODUCTS = read_structures(Path(__file__).parents[2] / "trainer" / "data" / "products.jsonl.gz")
MAX_CHARS = 13_000  # of prompt and reply together: 4000 tokens

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


BACKWARD = """region v1
dims d0=4096 d1=512
in0 f32[d0,d1]
in1 f32[d0,d1]
in2 f32[d1]
t0 f32[d0,d1] = mul(in0, in2)
t1 f32[d0,d1] = mul(t0, in1)
t2 f32[d0] = mean(t1) over d1
t3 f32[d0,d1] = mul(in1, t2)
t4 f32[d0,d1] = sub(t0, t3)
t5 f32[d1] = sum(t4) over d0
out0 f32[d0,d1] = t4
out1 f32[d1] = t5
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
    head = design.partition("\nf0:")[0]
    assert fit_design(program, head) == reply.design.partition("\nf0:")[0]
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
            assert len(print_program(program)) + len(print_reply(reply)) < MAX_CHARS


FEW_CHANNEL_TILES = " + 13824>>>", ">>>"  # bytes of few_channel_halo's tiles of 32 columns, one number for all
NAMES = re.compile(r"(?<![<\w])[ati]\d+(?:x\d+)?(?:_\d+)?\b")


@pytest.mark.parametrize("family", FAMILIES)
def test_outlines_follow_what_is_stored_down_to_memory(family: str) -> None:
    for seed in range(3):
        program = draw(seed, family)
        for reply in [r for r in (write_reply(program, s) for s in variants(program)[::5]) if r is not None]:
            check_design(reply)
            assert not other_stage(reply.design, print_program(program))
            stored = set(re.findall(r"(?:^| )\*?(out\d+)=", reply.design, flags=re.M))
            assert stored == {o.name for o in program.outputs}, reply.design


@pytest.mark.parametrize("seed", range(12))
def test_replies_to_products_need_no_reckoning_and_outline_every_kernel(seed: int) -> None:
    program = draw_product(PRODUCTS, random.Random(seed), 0.6)
    schedules = {tuple((s.kind, s.splits > 1) for s in found.stages): found for found in variants(program)}
    for reply in [r for r in (write_reply(program, s) for s in schedules.values()) if r is not None]:
        comments = "".join(re.findall(r"^// .*$", reply.code, flags=re.M))
        assert not re.search(r"\d{5}", comments.replace(*FEW_CHANNEL_TILES)), reply.code
        for line in reply.code.splitlines():
            assert set(re.findall(r"(\w+) < 0\b", line)) <= set(re.findall(r"(\w+) >= \w", line)), line
        bodies = check_design(reply)
        assert not other_stage(reply.design, print_program(program))
        for line, kernels in re.findall(r"^stage (.*)\n((?:f\d.*\n?)+)", reply.design, flags=re.M):
            ours = " ".join(bodies[n] for n in re.findall(r"^(f\d): ", kernels, flags=re.M))
            assert len(re.findall(r"\bproduct_\w+<", ours)) == (" tile " in line), reply.design


def check_design(reply: Reply) -> dict[str, str]:
    """Every kernel has its two lines, in order; returns the kernels' bodies."""
    lines = dict(re.findall(r"^(f\d): (.*)$", reply.design, flags=re.M))
    bodies = dict(re.findall(r"^__global__[^\n]*? (f\d)\(.*?\{$(.*?)^\}$", reply.code, flags=re.M | re.S))
    assert list(lines) == list(bodies), reply.design
    assert repair_plan(reply.design) == reply.design
    for name, body in bodies.items():
        check_outline(lines[name], body)
        order = re.findall(rf"^{name}> (.*)$", reply.design, flags=re.M)
        check_order(order[0].split(), body)
    return bodies


def check_outline(line: str, body: str) -> None:
    """Values by falling number, each name with one word at most, and every name of the kernel."""
    words = [word.lstrip("*").split("=")[0] for word in line.split()]
    values = [int(re.findall(r"\d+", w)[0]) for w in words if w[0] == "t"]
    assert values == sorted(values, reverse=True) and len(set(words)) == len(words), line
    assert set(NAMES.findall(line)) == set(NAMES.findall(body)), f"{body}\n{line}"


def check_order(words: list[str], body: str) -> None:
    """Every value and every store of the kernel, where the code has it, in as many loops."""
    assert words.count("{") == words.count("}") == len(re.findall(r"\{$", body, flags=re.M))
    value, at = r"t\d+(?:x\d+)?", r"(?:\[\w\])*"
    statements = rf"\b({value}){at} [+*]?=[^=]|vload<\d+>\(.*, ({value}){at}\);|\bv?st(?:ore<\d+>)?\((\w+)"
    statements += rf"|_scan_\w+\(({value}),|float (?:\(&)?({value})(?:\)\[4\])?\) \{{$"
    statements += r"|nullptr : (s\d+)|return (s\d+) \+"  # sums of products, of what
    found = [w for w in words if re.fullmatch(r"t\d+(?:x\d+)?|out\d+|s\d+", w)]
    assert found == ["".join(names) for names in re.findall(statements, body, flags=re.M)], f"{body}\n{words}"


def test_an_outline_word_by_word() -> None:
    reply = write_reply(parse_program(BACKWARD), parse_schedule("split/block.4.128.r;split_tile.1.256.s16"))
    assert reply is not None
    assert reply.design.splitlines() == [
        "split.",
        "stage 0 over d1=512 along d1: block, vector 4, block 128, registers",
        "f0: *out0=t4 s0=t2 t4=t0 t3=*a1 t2 t1 t0=*a0,*a2",
        "f0> p2 { a0 a1 a2 { t0 t1 p2 } } t2 { { t3 t4 } out0 } s0",
        "stage 1 over d0=4096 along d1=512: split_tile, vector 1, block 256, splits 16",
        "f1: s1=v5,t4 t4=t0 t3=a1 t2=s0 t0=a0,a2",
        "f1> a2 p5 { a0 a1 t2 t0 t3 t4 p5 } bp5 p5 { p5 } v5 s1",
        "f2: out1=t5 t5=s1",
        "f2> p5 { p5 } bp5 p5 { p5 } t5 out1",
    ]
    assert re.findall(r"s\d+ f32.*", reply.code)[:2] == ["s0 f32[d0]", "s1 f32[16, d1]"]


GATED = """region v1
dims d0=20 d1=60 d2=8
in0 f32[d0,d1]
in1 f32[d2,d0]
in2 f32[d1]
t0 f32[d1,d2] = dot(in0, in1) over d0
t1 f32[d1,d2] = add(t0, in2)
t2 f32[d0,d2] = sigmoid(t1[d1=d0+20])
t3 f32[d0,d2] = tanh(t1[d1=d0])
t4 f32[d0,d2] = mul(t2, t3)
t5 f32[d0,d2] = add(t4, t1[d1=-d0+59])
out0 f32[d2,d0] = t5
"""


def test_each_of_several_readings_tells_its_position() -> None:
    """Nothing else in a plan says which of them a gate takes."""
    reply = write_reply(parse_program(GATED), parse_schedule("staged/direct.1.256;exact.1.256"))
    assert reply is not None
    line = reply.design.splitlines()[-2]
    assert "t1=t0_1+20,a2_1+20" in line and "t1x1=t0_2,a2_2" in line and "t1x2=t0_3+59,a2_3+59" in line, line


LAST = """region v1
dims d0=2 d1=12 d2=16 d3=32 d4=12 d5=16 d6=40 k0=3 k1=3
in0 f32[d0,d1,d2,d3]
in1 f32[d6,d3,k0,k1]
in2 f32[d3]
t0 f32[d0,d1,d2,d3] = mul(in0, in2)
t1 f32[d0,d1,d2,d3] = relu(t0)
t2 f32[d0,d4,d5,d6] = dot_tf32(t1[d1=d4+k0-1, d2=d5+k1-1], in1) over d3,k0,k1
out0 f32[d0,d4,d5,d6] = t2
"""


def test_what_a_lambda_fills_belongs_to_the_sum() -> None:
    reply = write_reply(parse_program(LAST), parse_schedule("product/tf32_fill.1.384.t64x64x32"))
    assert reply is not None
    check_design(reply)
    line = reply.design.splitlines()[-2]
    assert line == "f1: *out0=t2 t2=s0 t1 t0=*a0,i1,i2,*a2", line


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
    return "\n".join(line for line in reply.design.splitlines() if not line.startswith("f")), reply


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
