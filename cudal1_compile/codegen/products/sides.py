"""Which axes of a sum of products run along m, n and k of a tile, and which along the batch."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from cudal1_compile.codegen.stages.element import in_order
from cudal1_compile.codegen.stages.pointwise import memory_order
from cudal1_compile.codegen.stages.schedule import StageSchedule
from cudal1_compile.codegen.stages.source import product
from cudal1_compile.codegen.stages.space import signed
from cudal1_compile.codegen.stages.stage import Buffer, Stage, closure, read_names
from cudal1_fx_passes.program.ir import Index, Op, Ref, operand_axes
from cudal1_fx_passes.program.ops import OPS, Kind

THREADS = 256
MAX_WEIGHTS = 64  # in registers
LONG_SUM = 4096  # terms from which on what tensor cores cut off a sum matters
# suffixes of schedule kinds; raw: the larger side is rounded on its way
PHASED, SPREAD = "_phased", "_spread"  # at most one of these
OFFSET_TABLE, FEW_CHANNEL_HALO, TAPS, RAW = "_table", "_stem", "_taps", "_raw"
MULTISTAGE, HALO_TILE, WARP_GROUPS = "_pipe", "_patch", "_wide"
BULK_COPY, IMPLICIT_GEMM, IMPLICIT_GEMM_2D = "_bulk", "_fill", "_field"
FORMS = (  # in the order in which they follow the arithmetic
    *(PHASED, SPREAD, OFFSET_TABLE, FEW_CHANNEL_HALO, TAPS, RAW),
    *(MULTISTAGE, HALO_TILE, WARP_GROUPS, BULK_COPY, IMPLICIT_GEMM, IMPLICIT_GEMM_2D),
)


@dataclass(frozen=True, slots=True)
class Phase:
    """One axis of a transposed convolution, read at (out - window + offset) / step."""

    out: str
    window: str
    step: int
    offset: int

    @property
    def names(self) -> tuple[str, str]:
        """Of this block's phase of the output and of the window."""
        return f"r{self.out[1:]}", f"u{self.window[1:]}"


def arithmetic_of(schedule: StageSchedule) -> str:
    """The arithmetic that a tile's schedule kind begins with."""
    name = schedule.kind
    for form in FORMS:
        name = name.replace(form, "")
    return name


def phases_of(x: Ref) -> list[Phase]:
    found = []
    for _, index in x.access:
        terms = dict(index.terms)
        if index.divisor > 1 and len(index.terms) == 2 and set(terms) == {1, -1}:
            found.append(Phase(terms[1], terms[-1], index.divisor, index.offset))
    return found


def dot_of(stage: Stage) -> Op:
    return next(o for o in stage.ops if OPS[o.fn].kind is Kind.DOT)


def before(stage: Stage, name: str) -> tuple[list[Buffer], list[Op]]:
    """Loads and operations behind an operand."""
    inside = closure(stage.program, [name], {b.value for b in stage.loads})
    ops = [o for o in stage.ops if o.name in inside]
    wanted = {name} | {n for o in ops for n in read_names(o)}
    return in_order(b for b in stage.loads if b.value in wanted), ops


def behind(stage: Stage, dot: Op) -> list[Op]:
    """Operations that follow from the sum."""
    held = {b.value for b in stage.loads} | {dot.name}
    inside = closure(stage.program, [w.value for w in stage.writes], held)
    return [o for o in stage.ops if o.name in inside]


class Sides:
    """Which axes run along which side of the tile. The side that reads at an index is m, else the larger one."""

    def __init__(self, stage: Stage) -> None:
        program = stage.program
        self.dot = dot = dot_of(stage)
        a, b = (x for x in dot.operands if isinstance(x, Ref))
        only = [operand_axes(program.value_axes, x) - set(dot.over) for x in (a, b)]
        sizes = [program.size(tuple(axes - other)) for axes, other in (only, only[::-1])]
        if (bool(b.access), sizes[1]) > (bool(a.access), sizes[0]):
            a, b, only = b, a, only[::-1]
        self.a, self.b = a, b
        order = memory_order(stage)
        self.batch = tuple(x for x in order if x in only[0] and x in only[1])
        self.m = tuple(x for x in order if x in only[0] and x not in only[1])
        self.n = tuple(x for x in order if x in only[1] and x not in only[0])
        self.over = self._summed(stage)
        self.taps = tuple(x for x in self.over if x.startswith("k"))
        self.channels = tuple(x for x in self.over if x not in self.taps)
        self.arithmetics = self._arithmetics(stage)

    def _summed(self, stage: Stage) -> tuple[str, ...]:
        """In the order of the weight in memory, so that neighbours in k are neighbours there."""
        held = next((load.axes for load in stage.loads if load.value == self.b.name), ())
        return tuple(sorted(self.dot.over, key=lambda x: held.index(x) if x in held else -1))

    def _arithmetics(self, stage: Stage) -> tuple[str, ...]:
        dtypes = {stage.program.value_dtype[x.name] for x in (self.a, self.b)}
        if self.dot.fn == "dot_tf32":
            terms = stage.program.size(self.over) // prod(p.step for p in phases_of(self.a))
            return ("tf32_long" if terms > LONG_SUM else "tf32",)
        if dtypes == {"f32"}:
            return ("f32_split", "f32") if stage.program.size(self.over) >= 64 else ("f32",)
        return tuple(dtypes) if dtypes in ({"f16"}, {"bf16"}) else ()


@dataclass(frozen=True, slots=True)
class Slide:
    """One axis along which a window slides: read at stride * out + window - padding."""

    read: str
    out: str
    window: str
    stride: int
    index: Index

    @property
    def dilation(self) -> int:
        """Of the window; below zero where it slides the other way."""
        return next(factor for factor, axis in self.index.terms if axis == self.window)


def position_of(slide: Slide, first: str, at: str) -> str:
    """Of the image, the `at`-th position that the results from `first` on read."""
    far = slide.dilation
    back = f" - {product(-far, f'({slide.window} - 1)')}" if far < 0 else ""
    return f"{product(slide.stride, first)} + {at}{back}{signed(slide.index.offset)}"


def windows_of(stage: Stage, sides: Sides) -> list[Slide]:
    """All axes along which a window slides over the result."""
    order, found = memory_order(stage), list[Slide]()
    for axis, index in sides.a.access:
        terms = {a: factor for factor, a in index.terms}
        outs, windows = [a for a in terms if a in order], [a for a in terms if a in sides.taps]
        if len(terms) == 2 and index.divisor == 1 and outs and windows:
            found.append(Slide(axis, outs[0], windows[0], terms[outs[0]], index))
    return found


def slides_of(stage: Stage, sides: Sides) -> tuple[Slide, Slide] | None:
    """The two innermost axes of the result, where a window slides over both."""
    order = memory_order(stage)
    found = {s.out: s for s in windows_of(stage, sides) if s.dilation == 1}
    if len(order) < 3 or not set(order[-2:]) <= set(found) or sides.b.access:
        return None
    row, last = found[order[-2]], found[order[-1]]
    return (row, last) if stage.program.size((row.window, last.window)) <= MAX_WEIGHTS else None
