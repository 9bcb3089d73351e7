"""Layout of the operands that product_bulk copies: planes of 16 bytes a position, zeros between an image's rows.

A position is an index into the rows' axes, those of the image that a window moves with some zeros behind their
ends: (n * p2 + y) * p3 + x. So a tap is one distance for all rows, whatever lies at their edges; the zeros behind
a row are those before the next one (its padding). A transposed convolution's phases read the same positions, each
from a distance of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from cudal1_compile.codegen.products.sides import Sides
from cudal1_compile.codegen.stages.source import product
from cudal1_compile.codegen.stages.space import grouped, size_of
from cudal1_compile.codegen.stages.stage import Stage
from cudal1_fx_passes.program.ir import Index


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of the image, read at stride * out + far * window + offset, or at (out - window + offset) / step.

    room: positions behind its last one; before: positions that the first row's reads lie ahead of it; first: how
    far behind that a row's first read lies, without a phase. With a stride a position holds that many elements,
    and the window's step w reads element (w + skipped) % stride of the position (w + skipped) / stride behind the
    first.
    """

    read: str
    out: str
    window: str
    step: int
    far: int
    offset: int
    taps: int  # of one phase
    room: int
    before: int
    first: int
    last: int  # the farthest read of any phase
    stride: int = 1
    skipped: int = 0

    @property
    def size(self) -> str:
        """Positions, as an expression of the axis."""
        whole = f"cdiv({self.read}, {self.stride})" if self.stride > 1 else self.read
        return f"{whole} + {self.room}" if self.room else whole

    @property
    def span(self) -> int:
        """Positions from a window's first to its last."""
        return (
            abs(self.far) * (self.taps - 1) if self.stride == 1 else (self.taps - 1 + self.skipped) // self.stride
        )

    @property
    def name(self) -> str:
        return f"p{self.read[1:]}"


@dataclass(frozen=True, slots=True)
class Planes:
    """plain: the rows' axes that no window moves, outermost; axes: the others."""

    plain: tuple[str, ...]
    axes: tuple[Axis, ...]

    def rows(self, named: bool) -> str:
        """Positions of all rows; `named`: by the names that a kernel gives to padded sizes."""
        return size_of([*self.plain, *(x.name if named else grouped(x.size) for x in self.axes)])

    def tall(self, rows: int) -> str:
        """Tiles of so many rows, one phase's."""
        return f"cdiv({self.rows(named=False)}, {rows})"

    @property
    def inner(self) -> Sequence[int]:
        """How many of the last axes a halo tile may span, the most first."""
        return range(len(self.axes), -1, -1)

    def halo(self, rows: int, inner: int) -> str:
        """Positions around a tile, over the last `inner` axes; as many for each of their elements (parts)."""
        span = self.span(inner, named=False)
        return f"{rows} + {span}" if span != "0" else str(rows)

    def index(self, at: int) -> str:
        """Of a position along the `at`-th axis, by the names of a kernel."""
        inner = size_of(x.name for x in self.axes[at + 1 :])
        text = "place" if inner == "1" else f"place / {grouped(inner)}"
        return text + (f" % {self.axes[at].name}" if at or self.plain else "")

    def distance(self, steps: Sequence[str], named: bool) -> str:
        """So many steps along the last axes, as a distance in positions."""
        text = ""
        for x, step in zip(self.axes[len(self.axes) - len(steps) :], steps, strict=True):
            size = x.name if named else grouped(x.size)
            if text:
                text = product(grouped(text), size) + (f" + {step}" if step != "0" else "")
            else:
                text = step if step != "0" else ""
        return text or "0"

    def span(self, inner: int, named: bool) -> str:
        """From a window's first position to its last, over the last `inner` axes."""
        return self.distance([str(x.span) for x in self.axes[len(self.axes) - inner :]], named)

    def parts(self, inner: int) -> int:
        """Elements of a position over the last `inner` axes, each of which has a halo tile of its own."""
        return prod(x.stride for x in self.axes[len(self.axes) - inner :])

    def positions(self, rows: int, named: bool) -> str:
        """Of a plane: whole tiles of rows, and what their last windows read."""
        behind = self.distance([str(x.last) for x in self.axes], named)
        return f"cdiv({self.rows(named)}, {rows}) * {rows}" + (f" + {behind}" if behind != "0" else "")


class Planes2d(Planes):
    """Tiles of eight rows of the two innermost axes, which have less around them."""

    @property
    def inner(self) -> Sequence[int]:
        return [2]

    def tall(self, rows: int) -> str:
        *outer, y, x = self.axes
        return size_of([*self.plain, *(a.out for a in outer), f"cdiv({y.out}, 8)", f"cdiv({x.out}, {rows // 8})"])

    def sides(self, rows: int) -> tuple[int, int]:
        """Rows of a halo tile, and positions of each."""
        y, x = self.axes[-2:]
        return 8 + y.span, rows // 8 + x.span

    def halo(self, rows: int, inner: int) -> str:
        return str(prod(self.sides(rows)))


def planes_of(stage: Stage, sides: Sides) -> Planes | None:
    """None where a window does not slide by whole positions, or rows come in another order."""
    axis, value_axes = stage.program.axis, stage.program.value_axes[sides.a.name]
    if any(a.symbolic for a in stage.program.axes) or sides.b.access or not sides.channels:
        return None
    moved = dict(sides.a.access)
    if any(b.index_values or b.access for b in stage.loads) or set(sides.channels) & set(moved):
        return None
    found = []
    for name in (a for a in value_axes if a in moved):
        x = _axis(stage, sides, name, moved[name], axis[name].size)
        if x is None:
            return None
        found.append(x)
    outs = tuple(x.out for x in found)
    plain = sides.m[: len(sides.m) - len(outs)]
    whole = sides.m[len(plain) :] == outs and tuple(x.window for x in found) == sides.taps
    return Planes(plain, tuple(found)) if whole and set(plain) <= set(value_axes) else None


def _axis(stage: Stage, sides: Sides, name: str, index: Index, size: int) -> Axis | None:
    terms, axis = {a: f for f, a in index.terms}, stage.program.axis
    outs, windows = [a for a in terms if a in sides.m], [a for a in terms if a in sides.taps]
    if len(terms) != 2 or len(outs) != 1 or len(windows) != 1 or index.value is not None:
        return None
    step, far, offset, stride = index.divisor, terms[windows[0]], index.offset, terms[outs[0]]
    if stride != 1:
        return _strided(
            name, outs[0], windows[0], stride, index, [axis[a].size for a in (name, outs[0], windows[0])]
        )
    taps, left = divmod(axis[windows[0]].size, step)
    # all phases have as many taps: one that is none would multiply what it reads by 0, infinite or not
    if step > 1 and (far != -1 or offset < 0 or left):
        return None
    begins = [(r + offset) // step for r in range(step)]
    back = min(0, far * (taps - 1))
    lowest = min(begins) + back
    highest = -(-axis[outs[0]].size // step) - 1 + max(begins) + max(0, far * (taps - 1))
    before = max(0, -lowest)
    room = max(before, highest - (size - 1), -(-axis[outs[0]].size // step) - size, 0)
    first = before + back + (offset if step == 1 else 0)
    last = before + max(begins) + max(0, far * (taps - 1))
    return Axis(name, outs[0], windows[0], step, far, offset, taps, room, before, first, last)


def _strided(read: str, out: str, window: str, stride: int, index: Index, sizes: Sequence[int]) -> Axis | None:
    """None where the window leaves out some elements of a position."""
    size, results, taps = sizes
    if index.divisor != 1 or dict(index.terms) != {stride: out, 1: window} or stride < 0 or taps < stride:
        return None
    begin, skipped = divmod(index.offset, stride)
    far, positions = (taps - 1 + skipped) // stride, -(-size // stride)
    before = max(0, -begin)
    room = max(before, results - 1 + begin + far - (positions - 1), results - positions, 0)
    return Axis(
        *(read, out, window, 1, 1, index.offset, taps, room, before, before + begin, before + begin + far),
        *(stride, skipped),
    )
