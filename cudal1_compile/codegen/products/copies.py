"""How a product's operands lie in memory, for those whose tiles are prefetched for the tensor cores.

The reduction axes besides a window's (or a gradient's images) must be one run of equal strides, or be asked for
each k. A weight whose strides suit no vector, because a window is its innermost axis, is packed first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from cudal1_compile.codegen.products.sides import Sides, phases_of
from cudal1_compile.codegen.stages.pointwise import memory_order
from cudal1_compile.codegen.stages.stage import Buffer, Stage
from cudal1_fx_passes.program.ir import ITEM_BYTES, Ref

COPY_BYTES = 16
ASKED = 0  # where an element lies depends on k in no simple way
ASKED_ROWS = -1  # so, but neighbouring rows lie side by side
ROWS = 32  # a tile wants at least so many without a gradient's windows
ITEMS = {"tf32": "f32", "tf32_long": "f32", "f32_split": "f32"}  # what memory holds; else the arithmetic itself


@dataclass(frozen=True, slots=True)
class Copied:
    """An operand as copies see it. step: elements from one k to the next, or one of ASKED; vector: of one copy."""

    buffer: Buffer
    step: int
    vector: int
    run: tuple[str, ...]  # the axes whose sizes make the step

    @property
    def is_asked(self) -> bool:
        return self.step in (ASKED, ASKED_ROWS)


def strides_of(stage: Stage, buffer: Buffer) -> dict[str, int]:
    """In elements, by axis."""
    if buffer.strides is not None:
        return dict(zip(buffer.axes, buffer.strides, strict=True))
    sizes = [stage.program.axis[a].size for a in buffer.axes]
    found, step = {}, 1
    for axis, size in zip(reversed(buffer.axes), reversed(sizes), strict=True):
        found[axis] = step
        step *= size
    return found


def load_of(stage: Stage, x: Ref) -> Buffer | None:
    return next((b for b in stage.loads if b.value == x.name and not b.access), None)


def copied(stage: Stage, sides: Sides, x: Ref, rows: tuple[str, ...]) -> Copied | None:
    """None where what is summed is no run of equal steps."""
    buffer, channels, axis = load_of(stage, x), sides.channels, stage.program.axis
    if buffer is None or not channels:
        return None
    moved = dict(x.access)
    asked = any(a in channels for i in moved.values() for _, a in i.terms)
    if not asked and (any(a in moved for a in channels) or not set(channels) <= set(buffer.axes)):
        return None
    strides = strides_of(stage, buffer)
    if not asked and any(strides[a] != strides[b] * axis[b].size for a, b in pairwise(channels)):
        return None
    step = ASKED if asked else strides[channels[-1]]
    phased = {a for p in phases_of(x) for a in (p.out, p.window)}
    inner = set(channels) if step == 1 else set()
    whole = stage.program.size(channels) if step == 1 else 1
    for a in reversed(rows) if step != 1 else ():
        if a in moved or a in phased or strides.get(a) != whole:
            break
        inner.add(a)
        whole *= axis[a].size
    rest = [s for a, s in strides.items() if a not in inner]
    vector = vector_of(ITEM_BYTES[buffer.dtype], [whole, *rest] if inner else [1])
    if asked:
        return Copied(buffer, ASKED_ROWS if inner else ASKED, vector, ())
    return Copied(buffer, step, vector, buffer.axes[buffer.axes.index(channels[-1]) + 1 :])


def vector_of(size: int, numbers: Sequence[int]) -> int:
    """Elements (of `size` bytes) of the widest copy that divides all numbers: 4 bytes at least, else one."""
    widest = COPY_BYTES // size
    while widest > 1 and any(number % widest for number in numbers):
        widest //= 2
    return widest if widest * size >= 4 else 1


def packed(stage: Stage, sides: Sides, name: str) -> Stage:
    """The stage with its weight read from a packed copy in the scratch `name`."""
    old = load_of(stage, sides.b)
    assert old is not None
    inner = (sides.n, sides.channels)
    if vector_of(ITEM_BYTES[old.dtype], [stage.program.size(sides.channels)]) == 1:
        inner = inner[::-1]
    axes = (*sides.taps, *sides.batch, *inner[0], *inner[1])
    new = replace(old, name=name, axes=axes, strides=None)
    swap = {old.name: new}
    loads = tuple(swap.get(b.name, b) for b in stage.loads)
    return replace(stage, loads=loads, reads=tuple(swap.get(b.name, b) for b in stage.reads))


def wants_packing(stage: Stage, sides: Sides) -> bool:
    b = copied(stage, sides, sides.b, sides.n)
    windows = [a for a in sides.taps if a.startswith("k")]
    return bool(windows) and (b is None or b.vector == 1)


def ordered(stage: Stage, raw: bool = False) -> Sides:
    """The sides with the summed axes in the order of the larger operand, neighbours of the result along m.

    raw: the larger operand's rows are m in any case.
    """
    sides = Sides(stage)
    if not raw and not sides.a.access and memory_order(stage)[-1:] == sides.n[-1:]:
        sides.a, sides.b, sides.m, sides.n = sides.b, sides.a, sides.n, sides.m
    if any(a in sides.channels for i in dict(sides.a.access).values() for _, a in i.terms):
        _order_gradient(stage, sides)
    held = load_of(stage, sides.a)
    if held is not None and set(sides.channels) <= set(held.axes):
        sides.channels = tuple(a for a in held.axes if a in sides.channels)
    moved = dict(sides.a.access)
    walked = [a for x in stage.program.value_axes[sides.a.name] if x in moved for _, a in moved[x].terms]
    sides.taps = tuple(sorted(sides.taps, key=lambda a: walked.index(a) if a in walked else -1))
    return sides


def _order_gradient(stage: Stage, sides: Sides) -> None:
    """A weight's gradient: inside, what lies in one run in the other operand; windows apart from the rows."""
    held, program = load_of(stage, sides.b), stage.program
    if held is None or not set(sides.over) <= set(held.axes):
        return
    strides = strides_of(stage, held)
    inner: list[str] = []
    whole = min(strides[a] for a in sides.over)
    for a in sorted(sides.over, key=lambda a: strides[a]):
        if strides[a] != whole:
            break
        inner, whole = [a, *inner], whole * program.axis[a].size
    sides.channels, sides.taps = tuple(inner), tuple(a for a in held.axes if a in sides.over and a not in inner)
    rows = tuple(a for a in sides.m if not a.startswith("k"))
    if program.size(rows) >= ROWS:
        sides.batch, sides.m = (*sides.batch, *(a for a in sides.m if a not in rows)), rows
