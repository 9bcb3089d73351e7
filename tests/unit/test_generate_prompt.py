"""The prompt template: its exact form, its budget, its instruction block."""

from __future__ import annotations

import pytest

from cudal1_compile.generate import instructions
from cudal1_compile.generate.errors import PromptTooLong
from cudal1_compile.generate.instructions import top_comment
from cudal1_compile.generate.prompt import INSTRUCTED_TOKENS, build_prompt, find_region, with_stages
from cudal1_compile.kernel.candidate import Exemplar
from cudal1_fx_passes.program.text import parse_program, print_program

FACTS = "gpu sms=132 shared=232448 sm_90a"
REGION = "region v1\ndims d0=32 d1=64\nin0 f32[d0,d1]\nt0 f32[d0,d1] = relu(in0)\nout0 f32[d0,d1] = t0\n"
FAST = Exemplar("// launch: a<<<1, 32>>>(in0, out0)\n__global__ void a() {}\n", 1.234)
SLOW = Exemplar("// launch: b<<<1, 32>>>(in0, out0)\n__global__ void b() {}", 0.94)


def words(text: str) -> int:
    return len(text.split())


def test_the_form_is_exact() -> None:
    assert build_prompt(FACTS, REGION, [FAST, SLOW], 4096, words) == (
        f"{FACTS}\n{REGION}stages\nstage 0: exact\n"
        "variant 0.94x\n```cuda\n// launch: b<<<1, 32>>>(in0, out0)\n__global__ void b() {}\n```\n"
        "variant 1.23x\n```cuda\n// launch: a<<<1, 32>>>(in0, out0)\n__global__ void a() {}\n```\n"
    )


@pytest.mark.parametrize("budget", range(19, 60))
def test_exemplars_are_whole_or_absent_and_the_slowest_goes_first(budget: int) -> None:
    text = build_prompt(FACTS, REGION, [SLOW, FAST], budget, words)
    assert words(text) <= budget
    assert text.count("```") == 2 * text.count("variant ")
    if "0.94x" in text:
        assert "1.23x" in text


def test_every_count_of_exemplars_occurs_as_the_budget_grows() -> None:
    counts = [build_prompt(FACTS, REGION, [SLOW, FAST], b, words).count("variant ") for b in range(19, 60)]
    assert counts == sorted(counts)
    assert set(counts) == {0, 1, 2}


def test_a_region_over_the_budget_is_refused_with_the_numbers() -> None:
    with pytest.raises(PromptTooLong, match=r"\d+ tokens long, the generator takes 5"):
        build_prompt(FACTS, REGION, [], 5, words)


def test_find_region_reads_the_program_back() -> None:
    assert find_region(build_prompt(FACTS, REGION, [FAST, SLOW], 4096, words)) == parse_program(REGION)
    assert print_program(find_region(f"{FACTS}\n{REGION}")) == REGION
    with pytest.raises(ValueError, match="region v1"):
        find_region("nothing here")


def test_stages_are_added_once_and_left_out_where_there_is_no_room_or_no_template() -> None:
    bare = build_prompt(FACTS, REGION, [FAST], 4096, words, stages=False)
    whole = with_stages(bare)
    assert whole == build_prompt(FACTS, REGION, [FAST], 4096, words) == with_stages(whole)
    assert find_region(whole) == parse_program(REGION)
    assert build_prompt(FACTS, REGION, [], 19, words) == f"{FACTS}\n{REGION}"
    assert with_stages("nothing here") == "nothing here"
    unknown = REGION.replace("relu(in0)", "relu(in0)[d0=d0+")
    assert with_stages(f"{FACTS}\n{unknown}") == f"{FACTS}\n{unknown}"


def test_a_large_budget_gets_instructions_and_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instructions, "header_functions", lambda: "block_sum(x): all threads get it\n")
    instructions.instruction_block.cache_clear()
    refusals = ["verify: out0 differs by 3.0 at d0=4", "build: expected ';'", "build: expected ';'"]
    text = build_prompt(FACTS, REGION, [FAST], INSTRUCTED_TOKENS, words, refusals)
    instructions.instruction_block.cache_clear()
    for part in ("## Performance Analysis", "## Algorithm Design", "## Code", "// launch:", "block_sum(x)", FACTS):
        assert part in text
    assert text.endswith("refused before:\n- verify: out0 differs by 3.0 at d0=4\n- build: expected ';'\n")
    assert find_region(text) == parse_program(REGION)
    small = build_prompt(FACTS, REGION, [FAST], INSTRUCTED_TOKENS - 1, words, refusals)
    assert small.startswith(FACTS)
    assert "refused" not in small


def test_top_comment_reads_both_comment_forms() -> None:
    assert top_comment("// one\n//   two\n#include <x>\n// three") == "one\n  two\n"
    assert top_comment("#pragma once\n/* one\n * two\n */\nint x;") == "one\ntwo\n"
    assert top_comment("int x;") == ""


def test_the_instructions_hold_the_real_headers_list() -> None:
    text = instructions.instruction_block()
    for name in ("block_sum", "vload<V>(p, v)", "warp_scan_sum", "cdiv(a, b)", "round_to<T>(x)"):
        assert name in text
    assert "#pragma" not in text
