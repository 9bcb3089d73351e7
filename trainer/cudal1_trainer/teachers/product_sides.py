"""Which axes of a sum of products run along which side of a tile, and which schedules that allows."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cudal1_fx_passes.ops import OPS, Kind
from cudal1_fx_passes.program import Index, Op, Ref, operand_axes
from cudal1_trainer.teachers.pointwise import memory_order
from cudal1_trainer.teachers.schedule import StageSchedule
from cudal1_trainer.teachers.stage import Stage

THREADS = 256
MAX_WEIGHTS = 64  # in registers
RESIDENT = 132  # multiprocessors of the largest GPU in use
DIRECT_TERMS = 512  # at most, of one thread's loop
# rows, columns, depth of a tile; the depth is doubled for half types
TILES = ((128, 64, 16), (128, 128, 16), (128, 32, 16), (64, 64, 16), (64, 32, 32), (32, 128, 16), (128, 8, 16))


PHASED, TAPS = "_phased", "_taps"  # behind the arithmetic, in this order
DEEP = 16  # channels from which on the window is worth a walk of its own


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


def phases_of(x: Ref) -> list[Phase]:
    found = []
    for _, index in x.access:
        terms = dict(index.terms)
        if index.divisor > 1 and len(index.terms) == 2 and set(terms) == {1, -1}:
            found.append(Phase(terms[1], terms[-1], index.divisor, index.offset))
    return found


def dot_of(stage: Stage) -> Op:
    return next(o for o in stage.ops if OPS[o.fn].kind is Kind.DOT)


def schedules(stage: Stage) -> list[StageSchedule]:
    """The likely best first."""
    if any(b.index_values for b in stage.loads):
        return []
    sides = Sides(stage)
    program = stage.program
    tall, columns, depth = (program.size(axes) for axes in (sides.m, sides.n, sides.over))
    found = []
    if sides.arithmetics and columns > 1:
        tiles = sorted(TILES, key=lambda t: _waste(tall, columns, t))
        forms = ["", TAPS] if sides.taps and program.size(sides.channels) >= DEEP else [""]
        if phases_of(sides.a):
            forms = [PHASED + f for f in forms]
        for arithmetic in sides.arithmetics:
            deeper = 2 if arithmetic in ("f16", "bf16") else 1
            found += [
                StageSchedule(arithmetic + form, 1, THREADS, tile=(m, n, k * deeper))
                for m, n, k in tiles[:4]
                for form in forms[::-1]
            ]
        blocks = -(-tall // tiles[0][0]) * -(-columns // tiles[0][1]) * program.size(sides.batch)
        parts = min(depth // 64, 2 * RESIDENT // blocks)
        if parts > 1 and not phases_of(sides.a):
            # few results of many terms: enough blocks only if the sums are cut
            splits = 2 ** (parts.bit_length() - 1)
            cut = [replace(s, splits=n) for s in found[:2] for n in (splits, splits // 2) if n > 1]
            found = [s for s in cut if not s.mapping.endswith(TAPS)] + found
    if depth <= DIRECT_TERMS:
        direct = [StageSchedule("direct", 1, block) for block in (256, 128)]
        if slides_of(stage, sides) is not None:
            direct = [StageSchedule("strip", rows, block) for rows in (8, 4) for block in (256, 128)] + direct
        found = direct + found if columns < 8 else found + direct
    return found


def _waste(rows: int, columns: int, tile: tuple[int, int, int]) -> tuple[float, int]:
    """Computed results over wanted ones, in steps that matter; then the larger tile."""
    m, n, _ = tile
    computed = -(-rows // m) * m * -(-columns // n) * n
    blocks = -(-rows // m) * -(-columns // n)
    share = computed / (rows * columns)
    return round(share * (1.0 if blocks >= 132 else 132 / blocks), 1), -m * n


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
            return ("tf32",)
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


def slides_of(stage: Stage, sides: Sides) -> tuple[Slide, Slide] | None:
    """The two innermost axes of the result, where a window slides over both."""
    order = memory_order(stage)
    found = {}
    for axis, index in sides.a.access:
        terms = {a: factor for factor, a in index.terms}
        outs, windows = [a for a in terms if a in order], [a for a in terms if a in sides.taps]
        if len(terms) == 2 and index.divisor == 1 and outs and windows and terms[windows[0]] == 1:
            found[outs[0]] = Slide(axis, outs[0], windows[0], terms[outs[0]], index)
    if len(order) < 3 or not set(order[-2:]) <= set(found) or sides.b.access:
        return None
    row, last = found[order[-2]], found[order[-1]]
    return (row, last) if stage.program.size((row.window, last.window)) <= MAX_WEIGHTS else None
