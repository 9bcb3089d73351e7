"""Right kernels in number: the judge's hand-written ones, and templates' variants of tasks and structures.

    subjects(seed, structures)   endless, reproducible: a program and kernels for it, families and dtypes in turns

Programs are small, so that they also run on the host target. A kernel is not right because a template wrote it:
witness.py has to find it right.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, zip_longest

from benchmarks.redteam.honest import HONEST
from benchmarks.redteam.regions import region
from benchmarks.redteam.second_oracle import LARGEST
from cudal1_compile.codegen.templates import try_reply, variants
from cudal1_fx_passes.errors import ProgramError
from cudal1_fx_passes.program.canonical import canonicalise
from cudal1_fx_passes.program.ir import FLOAT_DTYPES, Literal, Program
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.tasks import FAMILIES, generate_task
from cudal1_trainer.tasks.widen import widen

VARIANTS = 3  # kernels a program, of different strategies where there are
MAX_ELEMENTS = 1 << 15  # of any value
DTYPES = (None, None, "bf16", "f16", "f64")  # None: as drawn
STRUCTURES = "structures"
HAND_WRITTEN = "hand-written"


@dataclass(frozen=True, slots=True)
class Subject:
    family: str
    program: Program
    codes: tuple[str, ...]

    @property
    def dtype(self) -> str:
        """The narrowest float dtype among inputs and outputs, else the first one."""
        found = [i.dtype for i in self.program.inputs]
        found += [self.program.output_dtype(o) for o in self.program.outputs]
        return next((d for d in ("f16", "bf16", "f32", "f64") if d in found), found[0])


def subjects(seed: int, structures: Sequence[str] = ()) -> Iterator[Subject]:
    """structures: texts as in trainer/data; without them that family is left out."""
    names = sorted({h.region for h in HONEST})
    for name in names:
        yield Subject(HAND_WRITTEN, region(name), tuple(h.code for h in HONEST if h.region == name))
    families = [*FAMILIES, *([STRUCTURES] if structures else [])]
    for number in count():
        for family in families:
            rng = random.Random(f"{seed} {family} {number}")
            program = _draw(family, structures, rng)
            if program is not None and (codes := _kernels(program, rng)):
                yield Subject(family, program, codes)


def _draw(family: str, structures: Sequence[str], rng: random.Random) -> Program | None:
    try:
        if family == STRUCTURES:
            program = parse_program(rng.choice(structures))
        else:
            program = generate_task(rng, family, small=True)
            if rng.random() < 0.25:
                program = widen(program, rng, lambda: generate_task(rng, small=True))
        if (dtype := rng.choice(DTYPES)) is not None:
            program = retype(program, dtype)
        program = canonicalise(program)
    except (ProgramError, ValueError):
        return None
    largest = max(program.size(axes) for axes in program.value_axes.values())
    return program if largest <= MAX_ELEMENTS and all(a.size for a in program.axes) else None


def retype(program: Program, dtype: str) -> Program:
    """Another float dtype for f32; the program as it is where it has others already, or too large literals."""
    found = set(program.value_dtype.values())
    literals = (abs(x.value) for op in program.ops for x in op.operands if isinstance(x, Literal))
    if found & set(FLOAT_DTYPES) != {"f32"} or any(LARGEST[dtype] < v < float("inf") for v in literals):
        return program

    def other(old: str) -> str:
        return dtype if old == "f32" else old

    inputs = tuple(replace(i, dtype=other(i.dtype)) for i in program.inputs)
    return replace(program, inputs=inputs, ops=tuple(replace(o, dtype=other(o.dtype)) for o in program.ops))


def _kernels(program: Program, rng: random.Random) -> tuple[str, ...]:
    schedules = variants(program)
    rng.shuffle(schedules)
    groups = [[s for s in schedules if s.strategy == name] for name in sorted({s.strategy for s in schedules})]
    in_turns = [s for together in zip_longest(*groups) for s in together if s is not None]
    replies = (try_reply(program, s) for s in in_turns[: 2 * VARIANTS])
    return tuple(dict.fromkeys(r.code for r in replies if r is not None))[:VARIANTS]
