"""Draws a task: a family, a length, sizes; retries until the program is finite, canonical and of a fit size.

    generate_task(random.Random(7))                       any family, any length
    generate_task(rng, family="rows", n_ops=24)           about 24 operations
    generate_task(rng, small=True)                        small enough for the host target

Benchmarks' own tasks are nowhere in here.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from cudal1_compile.codegen.prior.traffic import bytes_moved
from cudal1_fx_passes.errors import ProgramError
from cudal1_fx_passes.program.canonical import canonicalise
from cudal1_fx_passes.program.ir import Literal, Program, Ref
from cudal1_trainer.tasks.builder import Unsuitable
from cudal1_trainer.tasks.columns import columns, row_then_total, totals
from cudal1_trainer.tasks.images import images
from cudal1_trainer.tasks.indexed import gather, joined, pooling, rotary, scan
from cudal1_trainer.tasks.mixed import mixed
from cudal1_trainer.tasks.pointwise import glu, pointwise
from cudal1_trainer.tasks.rows import rows
from cudal1_trainer.tasks.shapes import MAX_BYTES, MIN_BYTES, Sizes

MAX_OPS = 64
MAX_ATTEMPTS = 400
SYMBOLIC_SHARE = 0.06  # of tasks have an axis whose size arrives at run time

Family = Callable[[random.Random, Sizes, int], Program]
FAMILIES: dict[str, tuple[Family, float]] = {
    "pointwise": (pointwise, 6.0),
    "glu": (glu, 0.7),
    "rows": (rows, 6.0),
    "columns": (columns, 2.5),
    "totals": (totals, 1.0),
    "row_then_total": (row_then_total, 0.7),
    "images": (images, 4.0),
    "mixed": (mixed, 2.5),
    "pooling": (pooling, 2.0),
    "scan": (scan, 1.0),
    "rotary": (rotary, 0.8),
    "joined": (joined, 0.8),
    "gather": (gather, 0.8),
}


def generate_task(
    rng: random.Random, family: str | None = None, n_ops: int | None = None, small: bool = False
) -> Program:
    """Returns a canonical program of 1 to 64 operations.

    family: one of FAMILIES; n_ops: about how many operations; small: at most 32768 elements, mostly far less.
    Raises ValueError for an unknown family or where nothing fits after many attempts.
    """
    if family is not None and family not in FAMILIES:
        raise ValueError(f"family {family!r}: must be one of {', '.join(FAMILIES)}")
    for _ in range(MAX_ATTEMPTS):
        name = family or rng.choices(list(FAMILIES), [w for _, w in FAMILIES.values()])[0]
        try:
            program = canonicalise(FAMILIES[name][0](rng, Sizes(rng, small), n_ops or draw_length(rng)))
        except (Unsuitable, ProgramError, OverflowError, ZeroDivisionError):
            continue
        if 1 <= len(program.ops) <= MAX_OPS and program.inputs and _fits(program, small):
            return _with_symbol(rng, program) if rng.random() < SYMBOLIC_SHARE else program
    raise ValueError(f"no task of family {family!r} with {n_ops} operations in {MAX_ATTEMPTS} attempts")


def _with_symbol(rng: random.Random, program: Program) -> Program:
    """The program with one size symbolic: of an axis that nothing reduces, counts, or reads at another index."""
    taken = program.reduced_axes | {i.domain.below for i in program.inputs}
    for op in program.ops:
        for x in op.operands:
            if isinstance(x, Ref):
                taken |= {name for axis, index in x.access for name in (axis, *(a for _, a in index.terms))}
    taken |= {a for i in program.inputs if i.strides is not None for a in i.axes}
    taken |= {a for o in program.outputs if o.strides is not None for a in o.axes}
    free = [a.name for a in program.axes if a.name not in taken and a.size > 1]
    if not free:
        return program
    chosen = rng.choice(free[:2])
    axes = tuple(replace(a, symbolic=a.name == chosen) for a in program.axes)
    return canonicalise(replace(program, axes=axes))


def draw_length(rng: random.Random) -> int:
    """How many operations: short regions are common, every length up to the limit occurs."""
    return rng.randint(1, 20) if rng.random() < 0.55 else rng.randint(1, MAX_OPS)


def _fits(program: Program, small: bool) -> bool:
    largest = max(program.size(v) for v in program.value_axes.values())
    if largest >= 1 << 28:
        return False
    total = bytes_moved(program)
    return 64 <= total <= 1 << 20 if small else MIN_BYTES <= total <= MAX_BYTES


def structure(program: Program) -> str:
    """What a program is without its sizes, literals and float widths: the key by which tasks are held out."""
    parts = []
    for op in program.ops:
        operands = ("#" if isinstance(x, Literal) else x.name for x in op.operands)
        parts.append(f"{op.fn}({','.join(operands)})[{','.join(op.axes)}]{','.join(op.over)}")
    heads = [f"{i.name}[{','.join(i.axes)}]{'s' if i.strides else ''}" for i in program.inputs]
    ends = [f"{o.value}[{','.join(o.axes)}]" for o in program.outputs]
    return ";".join([*heads, *parts, *ends])
