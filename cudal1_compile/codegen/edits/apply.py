"""From a design and edits to the code of a reply: stages first, then the text of their kernels.

    (program, schedule, edits) -> edited schedules -> lowered -> rules of text.py -> Reply, or why not

The reply's design is that of the schedule as it was: it and the edits' lines say the code again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from cudal1_compile.codegen.edits import layout, text
from cudal1_compile.codegen.edits.edit import (
    KERNEL_VALUES,
    STAGE_VALUES,
    Edit,
    IllegalEdit,
    KernelEdit,
    StageEdit,
    print_edits,
)
from cudal1_compile.codegen.products.bulk_copy_plan import MAX_SHARED
from cudal1_compile.codegen.stages.schedule import Schedule
from cudal1_compile.codegen.strategies import stages_of, write_code
from cudal1_compile.codegen.words import write_analysis, write_design
from cudal1_compile.kernel.candidate import CandidateError, Exemplar, Launch, Reply, parse_candidate
from cudal1_fx_passes.program.ir import Program

MOST_DRAWN = 3  # random edits of one kernel


def apply(
    program: Program, schedule: Schedule, edits: Sequence[Edit], exemplars: Sequence[Exemplar] = ()
) -> Reply | str:
    """The reply of a variant with edits; a sentence where one of them is not legal here."""
    try:
        code = _edited_code(program, schedule, edits, write_code(program, schedule))
    except IllegalEdit as error:
        return str(error)
    design = write_design(schedule, stages_of(program, schedule))
    return Reply(write_analysis(program, exemplars), design, code)


def legal_edits(program: Program, schedule: Schedule) -> list[Edit]:
    """Those that may be drawn for a variant, each by itself; all change its code."""
    code = write_code(program, schedule)
    try:
        launches = _launches(program, code)
    except IllegalEdit:
        return []
    found: list[Edit] = [e for e in _stage_edits(schedule) if _is_legal(program, schedule, e, code)]
    for edit in _kernel_edits(launches):
        try:
            _edited_kernel(program, code, launches, edit)
        except IllegalEdit:
            continue
        found.append(edit)
    return found


def draw_edits(program: Program, schedule: Schedule, rng: random.Random, most: int) -> tuple[Edit, ...]:
    """At most so many that can be had together; each place is as likely as any other, whatever its values."""
    return _combine(program, schedule, legal_edits(program, schedule), rng, most)


def draw_replies(
    program: Program, schedule: Schedule, rng: random.Random, count: int, draws: int, own: Sequence[Edit] = ()
) -> list[Reply]:
    """At most `count` of other code, each with its edits: one to MOST_DRAWN random ones, and of `own` those whose
    place none of them takes.

    draws: how often is looked for one.
    """
    plain, legal = write_code(program, schedule), legal_edits(program, schedule)
    found: dict[str, Reply] = {}
    for _ in range(draws if legal else 0):
        if len(found) == count:
            break
        drawn = _combine(program, schedule, legal, rng, rng.randint(1, MOST_DRAWN))
        edits = (*(e for e in own if e.place not in {d.place for d in drawn}), *drawn)
        reply = apply(program, schedule, edits)
        if isinstance(reply, Reply) and reply.code != plain:
            found.setdefault(reply.code, replace(reply, edits=print_edits(edits)))
    return list(found.values())


def _combine(
    program: Program, schedule: Schedule, legal: Sequence[Edit], rng: random.Random, most: int
) -> tuple[Edit, ...]:
    """legal: those of the schedule, which takes longer to find than to draw among."""
    by_place: dict[tuple[str, str], list[Edit]] = {}
    for edit in legal:
        by_place.setdefault(edit.place, []).append(edit)
    chosen: tuple[Edit, ...] = ()
    for place in rng.sample(list(by_place), len(by_place)):
        if len(chosen) == most:
            break
        tried = (*chosen, rng.choice(by_place[place]))
        if isinstance(apply(program, schedule, tried), Reply):
            chosen = tried
    return chosen


def _stage_edits(schedule: Schedule) -> Iterator[StageEdit]:
    for number in range(len(schedule.stages)):
        yield from (StageEdit(number, knob, v) for knob, values in STAGE_VALUES.items() for v in values)


def _kernel_edits(launches: Sequence[Launch]) -> Iterator[KernelEdit]:
    for name in dict.fromkeys(x.kernel for x in launches):
        yield from (KernelEdit(name, knob, v) for knob, values in KERNEL_VALUES.items() for v in values)


def _is_legal(program: Program, schedule: Schedule, edit: StageEdit, plain: str) -> bool:
    try:
        _edited_code(program, schedule, [edit], plain)
    except IllegalEdit:
        return False
    return True


def _edited_code(program: Program, schedule: Schedule, edits: Sequence[Edit], plain: str) -> str:
    """plain: the code without any."""
    places = [e.place for e in edits]
    if twice := next((e for i, e in enumerate(edits) if e.place in places[:i]), None):
        raise IllegalEdit(f"'{twice}': {twice.place[0]} has another '{twice.knob}' before")
    of_stages = [e for e in edits if isinstance(e, StageEdit)]
    for stage_edit in sorted(of_stages, key=lambda e: [*STAGE_VALUES].index(e.knob)):
        schedule = _edited_schedule(program, schedule, stage_edit)
    code = write_code(program, schedule)
    if of_stages and code == plain:
        raise IllegalEdit(f"'{print_edits(of_stages)}' changes nothing: the design leads to that already")
    launches = _launches(program, code)
    of_kernels = [e for e in edits if isinstance(e, KernelEdit)]
    for kernel_edit in sorted(of_kernels, key=lambda e: [*KERNEL_VALUES].index(e.knob)):
        code = _edited_kernel(program, code, launches, kernel_edit)
    return code


def _edited_schedule(program: Program, schedule: Schedule, edit: StageEdit) -> Schedule:
    stages = stages_of(program, schedule)
    if schedule.strategy == "fused" or not edit.stage < min(len(stages), len(schedule.stages)):
        raise IllegalEdit(f"'{edit}': {schedule.strategy} has no stage {edit.stage} of its own")
    own = list(schedule.stages)
    own[edit.stage] = layout.edited(stages[edit.stage], own[edit.stage], edit)
    return replace(schedule, stages=tuple(own))


def _edited_kernel(program: Program, code: str, launches: Sequence[Launch], edit: KernelEdit) -> str:
    changed = text.edited(code, edit)
    for launch in launches if edit.knob == "swizzle" else ():
        x, y = (e.evaluate(_sizes(program)) for e in launch.grid[:2])
        if launch.kernel == edit.kernel and (y == 1 or x <= edit.value):
            raise IllegalEdit(f"'{edit}': the GPU takes a grid of {x} x {y} blocks in that order anyway")
    return changed


def _launches(program: Program, code: str) -> tuple[Launch, ...]:
    """Those of a code that Reply V2 and a block's shared memory allow."""
    try:
        launches = parse_candidate(code, program).launches
    except CandidateError as error:
        raise IllegalEdit(str(error)) from None
    for launch in launches:
        if (shared := launch.shared.evaluate(_sizes(program))) > MAX_SHARED:
            raise IllegalEdit(f"{launch.kernel} would take {shared} bytes of shared memory, at most {MAX_SHARED}")
    return launches


def _sizes(program: Program) -> dict[str, int]:
    return {a.name: a.size for a in program.axes}
