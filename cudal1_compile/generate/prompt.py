"""The one prompt template, for every generator.

    <facts line>
    <region text V1>
    variant 0.94x
    ```cuda
    ...
    ```
    variant 1.20x
    ```cuda
    ...
    ```

Exemplars stand slowest first and are whole: where the budget does not hold all, the slowest go first. A generator
that writes designs alone is shown those, in the place of code.
A generator with room for it (INSTRUCTED_TOKENS and more) was not trained on this language, so the
template is then preceded by an instruction block, a variant's design stands before its code, which it can
change, and the reasons of refused candidates may follow.

This module chooses no exemplars (exemplars.py) and calls no model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from cudal1_compile.codegen.replies import schedule_lines
from cudal1_compile.generate.errors import PromptTooLong
from cudal1_compile.generate.instructions import instruction_block
from cudal1_compile.kernel.candidate import Exemplar
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import HEADER, parse_program

VARIANT = re.compile(r"^variant \d+\.\d\dx\n", re.M)  # its first line
INSTRUCTED_TOKENS = 16_384  # budget from which a generator gets instructions


def build_prompt(
    facts: str,
    region_text: str,
    exemplars: Sequence[Exemplar],
    budget_tokens: int,
    count_tokens: Callable[[str], int],
    refusals: Sequence[str] = (),
    designs: bool = False,
) -> str:
    """Raises PromptTooLong where facts and region alone exceed the budget. designs: in the place of code.

    `refusals`, sentences on candidates that failed, reach instructed generators only.
    """
    instructed = budget_tokens >= INSTRUCTED_TOKENS
    head = (instruction_block() if instructed else "") + f"{facts.strip()}\n{region_text.strip()}\n"
    used = count_tokens(head)
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


def shows_variants(prompt: str) -> bool:
    return VARIANT.search(prompt) is not None


def shown_designs(prompt: str) -> set[str]:
    """Of the variants that a prompt shows as designs alone: their lines, edits among them."""
    blocks = VARIANT.split(prompt)[1:]
    return {block.strip() for block in blocks if "```" not in block}


def find_region(prompt: str) -> Program:
    """The program that a prompt asks for; for templates and checks that stand behind the generator protocol."""
    lines = prompt.splitlines()
    starts = [i for i, line in enumerate(lines) if line == HEADER]
    if not starts:
        raise ValueError(f"prompt holds no line {HEADER!r}")
    # the instruction block quotes no header line of its own, so the last one is the region's
    body = [HEADER]
    for line in lines[starts[-1] + 1 :]:
        if not line.startswith(("dims", "in", "t", "out")):
            break
        body.append(line)
    return parse_program("\n".join(body))


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
