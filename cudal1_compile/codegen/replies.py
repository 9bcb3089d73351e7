"""From a reply to its code: designs are lowered, edits are made in what they lead to.

    write_choices(program) -> what a design may say
    complete(program, reply) -> the reply with its code; CandidateError says why there is none
    design_of(reply) -> its design and edits as lines, to be kept; schedule_lines(kept) of them are shown
    lower_nearest(program, kept) -> the reply that they lead to at these sizes
    nearby(program, kept, rng, count) -> replies with other edits

A section `## Code` without a kernel leaves it to the design, which must be a schedule that can be lowered as it
stands. An ```edits block changes the lowered kernel: typed edits (codegen/edits), then lines of it that the model
writes anew: those to go, each after `- `, stand together at one place, and what follows after `+ ` takes it.

    f0: unroll 8
    - float m = -INFINITY;
    + float m = ld(in0);
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from cudal1_compile.codegen.edits import IllegalEdit, apply, draw_replies, parse_edits
from cudal1_compile.codegen.strategies import (
    fit,
    is_whole,
    plans,
    stage_schedules,
    variants,
    why_illegal,
    with_all_stages,
)
from cudal1_compile.codegen.templates import write_reply
from cudal1_compile.codegen.words import read_design, write_head
from cudal1_compile.kernel.candidate import CandidateError, Reply, parse_candidate
from cudal1_fx_passes.program.ir import Program

MAX_EDITS = 32  # lines of typed ones, and places of the others
EDIT = "edit "  # begins a line of a kept design that is an edit's


def complete(program: Program, reply: Reply) -> Reply:
    """As it is where it has its code. Raises CandidateError with the sentence why there is none."""
    if reply.code:
        return reply
    schedule = read_design(reply.design)
    if schedule is None:
        raise CandidateError(
            "section Code holds no kernel, and section Algorithm Design no schedule that could be lowered: a line "
            "like 'grouped.', then one like 'stage 0: block, vector 4, block 256' for each stage"
        )
    if (why := why_illegal(program, schedule)) is not None:
        raise CandidateError(why)
    typed, lines = _split(reply.edits)
    try:
        found = apply(program, schedule, parse_edits("\n".join(typed)))
        if isinstance(found, str):
            raise CandidateError(found)
        code = _with_lines(found.code, lines)
    except IllegalEdit as error:
        raise CandidateError(str(error)) from None
    parse_candidate(code, program)
    return replace(reply, code=code)


def write_choices(program: Program) -> str:
    """The stages that designs of a program lay out, a line each, with the kinds that each may have.

    Those of another plan (`flat`) and of all in one pass (`fused`) follow, where there are such. Empty where no
    schedule leads to a kernel.
    """
    lines: list[str] = []
    for plan, word in zip(plans(program), ("", "flat "), strict=False):
        kinds = [dict.fromkeys(s.kind for s in stage_schedules(stage)) for stage in plan.stages]
        if all(kinds):
            heads = [write_head(i, stage) for i, stage in enumerate(plan.stages)]
            lines += [f"{word}{head}: {' '.join(some)}" for head, some in zip(heads, kinds, strict=True)]
    if any(s.strategy == "fused" for s in variants(program)):
        lines.append("fused stage 0: fused")
    return "\n".join(lines)


def design_of(reply: Reply) -> str:
    """The design's lines, then the edits', each behind EDIT."""
    return "\n".join([reply.design, *(EDIT + line for line in reply.edits.splitlines())])


def as_design(reply: Reply) -> Reply:
    """Without its code, where that follows from its design and its edits: what a small model writes."""
    design = schedule_lines(reply.design)
    return replace(reply, design=design, code="") if design else reply


def schedule_lines(kept: str) -> str:
    """Of what design_of gave those that lead to the code: the schedule's and the edits'; empty for prose."""
    first, *lines = kept.splitlines() or [""]
    if read_design(kept) is None:
        return ""
    return "\n".join([first, *(line for line in lines if line.startswith(("stage ", EDIT)))])


def lower_nearest(program: Program, kept: str) -> Reply | None:
    """The reply that a design leads to, as near as it can be written; None where it is none, or cannot be.

    kept: as design_of gave it, perhaps at other sizes; its edits are made where they are legal here.
    """
    design, edits = _parts(kept)
    schedule = read_design(design)
    fitted = None if schedule is None else fit(program, with_all_stages(program, schedule))
    if fitted is None or not is_whole(program, fitted):
        return None
    plain = write_reply(program, fitted)
    if plain is None or not edits:
        return plain
    try:
        return complete(program, replace(plain, code="", edits=edits))
    except CandidateError:
        return plain


def nearby(program: Program, kept: str, rng: random.Random, count: int) -> list[Reply]:
    """At most `count` replies of other code, by random edits of a design.

    kept: as design_of gave it. Its typed edits stay where no drawn one takes their place, its lines of code go.
    None where it cannot be lowered here as it stands.
    """
    design, edits = _parts(kept)
    schedule = read_design(design)
    if schedule is None or why_illegal(program, schedule) is not None:
        return []
    typed, _ = _split(edits)
    return draw_replies(program, schedule, rng, count, 2 * count, parse_edits("\n".join(typed)))


def _parts(kept: str) -> tuple[str, str]:
    """The design's lines and the edits'."""
    lines = kept.splitlines()
    edits = [line.removeprefix(EDIT) for line in lines if line.startswith(EDIT)]
    return "\n".join(line for line in lines if not line.startswith(EDIT)), "\n".join(edits)


def _split(edits: str) -> tuple[list[str], list[str]]:
    """Typed edits and the lines of the others. Raises CandidateError where there are too many."""
    several = [line for line in edits.splitlines() if line.strip()]
    lines = [line for line in several if line.startswith(("- ", "+ "))]
    typed = [line for line in several if not line.startswith(("- ", "+ "))]
    if max(len(typed), sum(1 for _ in _places(lines))) > MAX_EDITS:
        raise CandidateError(f"more than {MAX_EDITS} edits: write the kernel in a ```cuda block")
    return typed, lines


def _places(lines: Sequence[str]) -> Iterator[tuple[list[str], list[str]]]:
    """The lines that go, and those that take their place."""
    old: list[str] = []
    new: list[str] = []
    for line in lines:
        if line.startswith("- ") and new:
            yield old, new
            old, new = [], []
        (old if line.startswith("- ") else new).append(line[2:])
    if old or new:
        yield old, new


def _with_lines(code: str, lines: Sequence[str]) -> str:
    """Raises IllegalEdit where lines do not stand in the code at one place."""
    for old, new in _places(lines):
        whole = code.split("\n")
        bare, wanted = [line.strip() for line in whole], [line.strip() for line in old]
        if not wanted:
            raise IllegalEdit(f"'+ {new[0][:80]}' follows no line after '- ' in whose place it could stand")
        starts = [i for i in range(len(bare) - len(wanted) + 1) if bare[i : i + len(wanted)] == wanted]
        if len(starts) != 1:
            where = "at none" if not starts else f"at {len(starts)}"
            raise IllegalEdit(
                f"'- {old[0].strip()[:80]}' stands {where} of the places of the lowered kernel, not at one"
            )
        code = "\n".join([*whole[: starts[0]], *new, *whole[starts[0] + len(wanted) :]])
    return code
