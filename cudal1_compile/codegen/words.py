"""The two prose sections of a template's reply, in few and regular words.

Analysis: what bounds the region. With measured exemplars it opens with a comparison that follows their order.
Design: the strategy, then stage by stage its schedule, from which the code follows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from cudal1_compile.codegen.products.sides import Sides
from cudal1_compile.codegen.reductions.grouped import group_order, reduced_order
from cudal1_compile.codegen.reductions.grouped_schedules import is_row_like
from cudal1_compile.codegen.stages.pointwise import is_flat, vector_axis
from cudal1_compile.codegen.stages.schedule import Schedule, read_stage
from cudal1_compile.codegen.stages.space import is_unit_stride
from cudal1_compile.codegen.stages.stage import Stage
from cudal1_compile.kernel.candidate import Exemplar
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.ops import OPS, Kind

COMPARED = 2  # exemplars, the fastest


def write_analysis(program: Program, exemplars: Sequence[Exemplar] = ()) -> str:
    """One line on what limits the region; before it, one on the exemplars where there are any."""
    overs = list(dict.fromkeys(",".join(o.over) for o in program.ops if o.over and o.fn != "iota"))
    limit = "Bound by memory: read every input once, write every output once."
    if any(OPS[o.fn].kind is Kind.DOT and any(a.startswith("d") for a in o.over) for o in program.ops):
        limit = "Bound by products: read what a tile shares once, keep its sums in registers."
    if overs:
        limit += f" Reduced: {'; '.join(overs)}."
    return "\n".join([*_compare(exemplars), limit])


def write_design(schedule: Schedule, stages: Sequence[Stage]) -> str:
    """`grouped.`, then a line a stage (`stage 0 over d1=768 along d1: block, vector 4, block 256`).

    Sizes come before the words that depend on them.
    """
    lines = [f"{schedule.strategy}{' flat' if schedule.flat else ''}."]
    for i, s in enumerate(schedule.stages):
        head = write_head(i, stages[i]) if i < len(stages) else f"stage {i}"
        lines.append(f"{head}: {s.describe()}")
    return "\n".join(lines)


def write_head(i: int, stage: Stage) -> str:
    """What is said of the i-th stage before its schedule."""
    over = f" over {_sized(stage, stage.reduced)}" if stage.reduced else ""
    return f"stage {i}{over}{_along(stage)}"


def read_design(text: str) -> Schedule | None:
    """The schedule that a design's lines name, as far as they go; None where one of them is none."""
    first, *lines = text.strip().splitlines() or [""]
    named = re.fullmatch(r"(\w+)( flat)?\.", first)
    stages = [read_stage(line.partition(": ")[2].strip()) for line in lines if line.startswith("stage ")]
    if named is None or not stages or None in stages:
        return None
    return Schedule(named[1], tuple(s for s in stages if s is not None), named[2] is not None)


def _along(stage: Stage) -> str:
    """The axes along which vectors or the smaller side of a tile lie: their sizes say how wide those may be.

    ` along d1=20 rows 21`: so does how far apart rows lie that are parts of longer ones.
    """
    axes: tuple[str, ...] = ()
    if stage.kind == "pointwise" and not is_flat(stage):
        axis = vector_axis(stage)
        axes = () if axis is None else (axis,)
    elif stage.kind == "reduce":
        axes = (reduced_order(stage) if is_row_like(stage) else group_order(stage))[-1:]
    elif stage.kind == "product":
        axes = Sides(stage).n
    if not axes:
        return ""
    names = ",".join(axes) if set(axes) <= set(stage.reduced) else _sized(stage, axes)
    rows = set() if stage.kind == "product" else _row_strides(stage, axes[-1])
    return f" along {names}" + (f" rows {','.join(map(str, sorted(rows)))}" if rows else "")


def _row_strides(stage: Stage, axis: str) -> set[int]:
    """Of the tensors that lie along `axis` with strides of their own."""
    strided = [
        dict(zip(b.axes, b.strides, strict=True)) for b in stage.tensors if b.strides and is_unit_stride(b, axis)
    ]
    return {step for strides in strided for a, step in strides.items() if a != axis}


def _sized(stage: Stage, axes: Sequence[str]) -> str:
    return ",".join(f"{a}={stage.program.axis[a].size}" for a in axes)


def describe_code(code: str) -> str:
    """What a variant's text shows of its schedule: kernels, blocks, vectors, registers."""
    blocks = re.findall(r"^// launch: \w+<<<.*, (?:dim3\()?(\d+)[^<]*>>>", code, flags=re.M)
    vectors = sorted({int(v) for v in re.findall(r"\bvload<(\d+)>", code)})
    words = [f"{len(blocks)} kernel{'s' if len(blocks) != 1 else ''}"]
    words.append(f"vector {vectors[-1]}" if vectors else "scalar")
    if "constexpr int C =" in code:
        words.append("registers")
    return ", ".join(words)


def _compare(exemplars: Sequence[Exemplar]) -> list[str]:
    """The fastest as measured, and what the next ones have instead."""
    ordered = sorted(exemplars, key=lambda e: e.speedup, reverse=True)[:COMPARED]
    if not ordered:
        return []
    told = [_tell(e) for e in ordered]
    words = [", ".join(w for w in t if i == 0 or w not in told[0]) or "the same" for i, t in enumerate(told)]
    texts = [f"{e.speedup:.2f}x with {w}" for e, w in zip(ordered, words, strict=True)]
    return [f"Fastest so far: {texts[0]}." + "".join(f" Slower: {t}." for t in texts[1:])]


def _tell(exemplar: Exemplar) -> list[str]:
    """The fields of its schedule, or what its code shows of one."""
    if read_design(exemplar.design) is None:
        return describe_code(exemplar.code).split(", ")
    lines = [line for line in exemplar.design.splitlines() if line.startswith("stage ")]
    return [word for line in lines for word in line.partition(": ")[2].split(", ")]
