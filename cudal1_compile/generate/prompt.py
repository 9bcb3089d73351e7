"""The one prompt template, for every generator.

    <facts line>
    <region text V1>
    stages
    stage 0 over d0=4096 along d1=3072: tile split_tile
    variant 0.94x
    ```cuda
    ...
    ```
    variant 1.20x
    ```cuda
    ...
    ```

Behind the region stand the stages of its designs, with the kinds that each may have. Exemplars stand slowest first
and are whole: where the budget does not hold all, the slowest go first. A generator that writes designs alone is
shown those, in the place of code.
A generator with room for it (INSTRUCTED_TOKENS and more) was not trained on this language, so the
template is then preceded by an instruction block, a variant's design stands before its code, which it can
change, and the reasons of refused candidates may follow.

This module chooses no exemplars (exemplars.py) and calls no model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache

from cudal1_compile.codegen.replies import schedule_lines, write_choices
from cudal1_compile.codegen.templates import STUMBLES
from cudal1_compile.generate.errors import PromptTooLong
from cudal1_compile.generate.instructions import instruction_block
from cudal1_compile.kernel.candidate import Exemplar
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import HEADER, parse_program

VARIANT = re.compile(r"^variant (\d+\.\d\d)x\n", re.M)  # its first line
STAGES = "stages\n"
STAGES_CHARACTERS = 640  # a stage has some 60; some regions have a dozen stages
STAGES_TOKENS = 320  # that are kept free for them
INSTRUCTED_TOKENS = 16_384  # budget from which a generator gets instructions


def build_prompt(
    facts: str,
    region_text: str,
    exemplars: Sequence[Exemplar],
    budget_tokens: int,
    count_tokens: Callable[[str], int],
    refusals: Sequence[str] = (),
    designs: bool = False,
    stages: bool = True,
) -> str:
    """Raises PromptTooLong where facts and region alone exceed the budget. designs: in the place of code.

    stages: False for a generator that adds them where it needs them (`with_stages`): they take milliseconds.
    `refusals`, sentences on candidates that failed, reach instructed generators only.
    """
    instructed = budget_tokens >= INSTRUCTED_TOKENS
    plain = (instruction_block() if instructed else "") + f"{facts.strip()}\n{region_text.strip()}\n"
    head = plain + (_stages(region_text.strip()) if stages else "")
    if (used := count_tokens(head)) > budget_tokens:
        head, used = plain, count_tokens(plain)
    if used > budget_tokens:
        raise PromptTooLong(f"the region's text is {used} tokens long, the generator takes {budget_tokens}")
    blocks: list[str] = []
    for exemplar in sorted(exemplars, key=lambda e: e.speedup, reverse=True):
        block = print_exemplar(exemplar, designs or instructed, not designs)
        used += count_tokens(block)
        if used > budget_tokens:
            break
        blocks.insert(0, block)
    text = head + "".join(blocks)
    return _with_refusals(text, refusals, budget_tokens, count_tokens) if instructed else text


def print_exemplar(exemplar: Exemplar, with_design: bool = False, with_code: bool = True) -> str:
    """A kernel that is of no design has its code in any case."""
    lines = schedule_lines(exemplar.design) if with_design else ""
    design = f"{lines}\n" if lines else ""
    code = f"```cuda\n{exemplar.code.strip()}\n```\n" if with_code or not lines else ""
    return f"variant {exemplar.speedup:.2f}x\n{design}{code}"


def with_stages(prompt: str) -> str:
    """The same where it has them, or holds no region."""
    lines = prompt.splitlines(keepends=True)
    try:
        begin, end = _region_lines(prompt.splitlines())
    except ValueError:
        return prompt
    if lines[end : end + 1] == [STAGES]:
        return prompt
    return "".join([*lines[:end], _stages("".join(lines[begin:end]).strip()), *lines[end:]])


@lru_cache(maxsize=256)
def _stages(region_text: str) -> str:
    """Empty where the region has none that any template knows, or its text is of no region."""
    try:
        choices = write_choices(parse_program(region_text))
    except STUMBLES:
        return ""
    return f"{STAGES}{choices}\n"[:STAGES_CHARACTERS].rpartition("\n")[0] + "\n" if choices else ""


def shows_variants(prompt: str) -> bool:
    return VARIANT.search(prompt) is not None


def shown_variants(prompt: str) -> list[Exemplar]:
    """Those that a prompt shows, slowest first: each as its design, or as its code where it is of none."""
    found: list[Exemplar] = []
    _, *parts = VARIANT.split(prompt)
    for speedup, block in zip(parts[::2], parts[1::2], strict=True):
        design, _, code = block.partition("```cuda\n")
        found.append(Exemplar(code.partition("```")[0], float(speedup), design.strip()))
    return found


def find_region(prompt: str) -> Program:
    """The program that a prompt asks for; for templates and checks that stand behind the generator protocol."""
    lines = prompt.splitlines()
    begin, end = _region_lines(lines)
    return parse_program("\n".join(lines[begin:end]))


def _region_lines(lines: Sequence[str]) -> tuple[int, int]:
    """Where they begin and end. Raises ValueError."""
    starts = [i for i, line in enumerate(lines) if line == HEADER]
    if not starts:
        raise ValueError(f"prompt holds no line {HEADER!r}")
    # the instruction block quotes no header line of its own, so the last one is the region's
    end = starts[-1] + 1
    while end < len(lines) and lines[end].startswith(("dims", "in", "t", "out")):
        end += 1
    return starts[-1], end


def _with_refusals(
    text: str, refusals: Sequence[str], budget_tokens: int, count_tokens: Callable[[str], int]
) -> str:
    kept = list(dict.fromkeys(refusals))
    while kept:
        block = "refused before:\n" + "".join(f"- {' '.join(r.split())}\n" for r in kept)
        if count_tokens(text) + count_tokens(block) <= budget_tokens:
            return text + block
        kept.pop(0)
    return text
