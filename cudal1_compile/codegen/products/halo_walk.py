"""Where a convolution's rows lie in the image: what halo_tile.py needs to know of positions in memory.

A position is an index into the image's windowed axes and, around them, the rows' other axes:
(n * d2 + y) * d3 + x. Neighbouring rows of a tile lie at rising positions, and a tap moves all of them by
the same distance.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from cudal1_compile.codegen.products.sides import Sides, before
from cudal1_compile.codegen.stages.source import product
from cudal1_compile.codegen.stages.space import grouped
from cudal1_compile.codegen.stages.stage import Buffer, Stage
from cudal1_fx_passes.program.ir import Index


def _factor(index: Index, axis: str) -> int:
    return next(f for f, a in index.terms if a == axis)


@dataclass(frozen=True, slots=True)
class Moved:
    """One axis of the image, read at out_factor * out + window_factor * window + offset.

    step: of a transposed convolution, read at (out - window + offset) / step; then both count within a phase.
    """

    image: str
    out: str
    window: str
    index: Index

    @property
    def step(self) -> int:
        return self.index.divisor

    @property
    def out_factor(self) -> int:
        return 1 if self.step > 1 else _factor(self.index, self.out)

    @property
    def window_factor(self) -> int:
        return -1 if self.step > 1 else _factor(self.index, self.window)


@dataclass(frozen=True, slots=True)
class Walk:
    """plain: the rows' axes that no window moves; moved: the others, outermost first."""

    plain: tuple[str, ...]
    moved: tuple[Moved, ...]

    @property
    def image(self) -> tuple[str, ...]:
        return tuple(x.image for x in self.moved)


def walk_of(stage: Stage, sides: Sides) -> Walk | None:
    """None where the image's windowed axes are not the innermost ones, in the order of the result's."""
    held, access = _image(stage, sides), dict(sides.a.access)
    if held is None or not access or sides.b.access or any(a.symbolic for a in stage.program.axes):
        return None
    found = [_moved(sides, axis, access[axis]) for axis in held.axes if axis in access]
    moved = tuple(x for x in found if x is not None)
    plain, outs = sides.m[: -len(found)], sides.m[-len(found) :]
    if len(moved) < len(found) or outs != tuple(x.out for x in moved):
        return None
    walk = Walk(plain, moved)
    whole = held.axes[-len(moved) :] == walk.image and {x.window for x in moved} == set(sides.taps)
    return walk if whole and set(plain) <= set(held.axes) and _ascends(stage, walk) else None


def _image(stage: Stage, sides: Sides) -> Buffer | None:
    """The tensor that decides the order in which the image is walked: one that has all of its axes."""
    loads, _ = before(stage, sides.a.name)
    if any(b.strides is not None or b.access for b in loads):
        return None
    return next((b for b in loads if {x for x, _ in sides.a.access} <= set(b.axes)), None)


def _moved(sides: Sides, axis: str, index: Index) -> Moved | None:
    terms = {a: f for f, a in index.terms}
    outs, windows = [a for a in terms if a in sides.m], [a for a in terms if a in sides.taps]
    if len(terms) != 2 or len(outs) != 1 or len(windows) != 1:
        return None
    factors = terms[outs[0]], terms[windows[0]]
    fits = factors == (1, -1) if index.divisor > 1 else min(factors) > 0
    return Moved(axis, outs[0], windows[0], index) if fits else None


def _steps(stage: Stage, walk: Walk) -> list[int]:
    """Positions from one index of each image axis to the next."""
    sizes = [stage.program.axis[x].size for x in walk.image]
    return [prod(sizes[i + 1 :]) for i in range(len(sizes))]


def _rows(stage: Stage, walk: Walk) -> list[int]:
    """Results of one phase along each axis."""
    return [-(-stage.program.axis[x.out].size // x.step) for x in walk.moved]


def _ascends(stage: Stage, walk: Walk) -> bool:
    """Whether a later row of the tile never reads before an earlier one."""
    reach = 0
    for x, step, rows in reversed(list(zip(walk.moved, _steps(stage, walk), _rows(stage, walk), strict=True))):
        if step * x.out_factor <= reach:
            return False
        reach += step * x.out_factor * (rows - 1)
    return not walk.plain or reach < stage.program.size(walk.image)


def windows_size(stage: Stage, walk: Walk, inner: int) -> int:
    """Steps of the last `inner` window axes, of one phase."""
    return prod(-(-stage.program.axis[x.window].size // x.step) for x in walk.moved[len(walk.moved) - inner :])


def halo_length(walk: Walk, rows: int, inner: int) -> str:
    """Most positions of a halo tile of `rows` neighbours and the last `inner` window axes: a launch expression.

    Where the rows come to an axis's end, cdiv(rows, its results) times at most, they jump over what is left of it.
    """
    text = ""
    for at, x in enumerate(walk.moved):
        around = walk.moved[at - 1].out_factor if at else 1  # images lie side by side
        gap = f"{product(around, x.image)} - {product(x.out_factor, phase_of(x, x.out))}"
        times = f"cdiv({rows}, {' * '.join(phase_of(y, y.out) for y in walk.moved[at:])})"
        terms = [f"{times} * max({gap}, 0)"] if at or walk.plain else []
        if at >= len(walk.moved) - inner:
            steps, factor = f"{phase_of(x, x.window)} - 1", abs(x.window_factor)
            terms.append(steps if factor == 1 else f"{factor} * ({steps})")
        text = " + ".join([*([f"{grouped(text)} * {x.image}"] if text else []), *terms])
    return f"{text} + {product(rows, walk.moved[-1].out_factor)}"


def phase_of(x: Moved, axis: str) -> str:
    """The size of an axis within one phase."""
    return f"cdiv({axis}, {x.step})" if x.step > 1 else axis
