"""Writes the gradient of a depthwise convolution's weight: a window's sums over all positions of the images.

A thread has the sums of a whole window for some channels in registers. It walks over register tiles of positions
(`windows8x4`: 8 threads with channels side by side, tiles of 4): it holds the gradient's values of the tile, loads
each position of the image that the tile's windows reach once, and adds the products to the sums that they belong
to. A block reduces its threads' sums in shared memory; a second kernel adds up the blocks' parts, as in split-K.
"""

from __future__ import annotations

import re
from contextlib import ExitStack
from dataclasses import replace

from cudal1_compile.codegen.products.register_blocked_nhwc import (
    MAX_DILATION,
    MAX_HELD,
    MAX_STEP,
    RegisterBlockedNhwcWriter,
    met_by,
)
from cudal1_compile.codegen.products.sides import Sides, Slide, before
from cudal1_compile.codegen.stages.expression import COMPUTE_TYPE
from cudal1_compile.codegen.stages.schedule import StageSchedule
from cudal1_compile.codegen.stages.source import product
from cudal1_compile.codegen.stages.space import Space, Var, axis_index, is_unit_stride, size_of, vector_fits
from cudal1_compile.codegen.stages.stage import Buffer, Stage

NAME = re.compile(r"windows(\d+)x(\d+)")
COLUMNS = 4  # of a register tile
LANES = (16, 8, 4)  # threads with channels side by side, where these lie innermost
BLOCKS = 264  # two for each SM
SHARED_BYTES = 48 * 1024


def lanes_of(schedule: StageSchedule) -> tuple[int, int] | None:
    """Threads with channels side by side, and columns of a register tile; None of other schedules."""
    found = NAME.fullmatch(schedule.kind)
    return (int(found[1]), int(found[2])) if found else None


def window_slides(stage: Stage, sides: Sides) -> list[Slide]:
    """The axes along which the image is read at a reduced position and a tap of the window, the innermost last.

    Empty where the stage sums something else.
    """
    found, order = list[Slide](), _order(stage, sides)
    for axis, index in sides.a.access:
        terms = {a: factor for factor, a in index.terms}
        positions, windows = [a for a in terms if a in sides.over], [a for a in terms if a in sides.m]
        if len(terms) != 2 or index.divisor != 1 or not positions or not windows:
            return []
        found.append(Slide(axis, positions[0], windows[0], terms[positions[0]], index))
    if sides.n or sides.b.access or sides.dot.dtype == "f64" or {s.window for s in found} != set(sides.m):
        return []
    if any(not 0 < s.stride <= MAX_STEP or abs(s.dilation) > MAX_DILATION for s in found):
        return []
    known = {s.out for s in found} | set(sides.batch) <= set(order)
    return sorted(found, key=lambda s: order.index(s.out)) if known else []


def _order(stage: Stage, sides: Sides) -> tuple[str, ...]:
    """The axes of the gradient as its largest part lies in memory."""
    return max((b.axes for b in before(stage, sides.b.name)[0]), key=stage.program.size, default=())


def _allows(stage: Stage, sides: Sides, vector: int) -> bool:
    if vector == 1:
        return True
    axis = sides.batch[-1]
    loads = [b for x in (sides.a, sides.b) for b in before(stage, x.name)[0] if axis in b.axes]
    alike = all(is_unit_stride(replace(b, access=()), axis) for b in loads)
    return alike and all(vector_fits(stage.program, b, axis, vector) for b in loads)


def window_schedules(stage: Stage, sides: Sides) -> list[StageSchedule]:
    slides, size = window_slides(stage, sides), stage.program.size
    if not slides:
        return []
    taps, channels, count = size(sides.m), size(sides.batch), len(sides.batch)
    inside = count > 0 and _order(stage, sides)[-count:] == sides.batch
    found = []
    for vector in (4, 2, 1) if inside else (1,):
        if vector * (taps + COLUMNS) > MAX_HELD or not _allows(stage, sides, vector):
            continue
        lanes = min(LANES, key=lambda n: -(-channels // (n * vector)) * n) if inside else 1
        block = next((b for b in (256, 128) if taps * vector * (b + lanes) * 4 <= SHARED_BYTES), 64)
        tiles = _register_tiles(stage, sides, slides[-1])
        most = min(BLOCKS // -(-channels // (lanes * vector)), tiles * lanes // block)
        splits = max(2, most // 4 * 4)
        found += [
            StageSchedule(f"windows{lanes}x{COLUMNS}", vector, block, splits=n) for n in (splits, 2 * splits)
        ]
    return found


def _register_tiles(stage: Stage, sides: Sides, last: Slide) -> int:
    return stage.program.size(tuple(a for a in sides.over if a != last.out)) * -(
        -stage.program.size((last.out,)) // COLUMNS
    )


def window_reads(stage: Stage, sides: Sides, schedule: StageSchedule) -> float:
    """What all threads read, in values that neighbours read side by side."""
    slides, lanes, size = window_slides(stage, sides), lanes_of(schedule), stage.program.size
    assert slides and lanes is not None
    last, width = slides[-1], lanes[0] * schedule.vector
    reach = last.stride * (lanes[1] - 1) + abs(last.dilation) * (size((last.window,)) - 1) + 1
    rows = size(tuple(s.window for s in slides[:-1]))
    return (
        _register_tiles(stage, sides, last) * -(-size(sides.batch) // width) * lanes[0] * (rows * reach + lanes[1])
    )


class WindowSumWriter(RegisterBlockedNhwcWriter):
    """The parts of a stage's sums, over blocks; what follows them is the second kernel's."""

    def __init__(self, stage: Stage, schedule: StageSchedule, name: str) -> None:
        super().__init__(stage, schedule, name)
        self.threads, lanes = schedule.block, lanes_of(schedule)
        assert lanes is not None
        self.lanes, self.columns = lanes
        self.rows = 1
        self.outer_slides, self.last = (found := window_slides(stage, self.sides))[:-1], found[-1]
        self.sums = f"p{self.sides.dot.name[1:]}"
        self.kind = COMPUTE_TYPE[self.sides.dot.dtype]
        self.own = "[j]" if schedule.vector > 1 else ""

    def _tile(self, writes: tuple[Buffer, ...]) -> str:  # type: ignore[override]
        s, lines, sides, (part,) = self.schedule, self.lines, self.sides, writes
        channels, windows = size_of(sides.batch), [x.window for x in (*self.outer_slides, self.last)]
        outer = tuple(a for a in _order(self.stage, sides) if a in sides.over and a != self.last.out)
        space = Space(self.program, tuple(v for v in (Var("g", outer), Var("c", sides.batch)) if v.axes))
        width, cut = self.lanes * s.vector, f"cdiv({self.last.out}, {self.columns})"
        taps, rows = product(*windows, s.vector), s.block // self.lanes
        lines.add(f"__shared__ {self.kind} part[{taps}][{s.block + self.lanes}];")
        if sides.batch:
            lines.add(f"const int c = {self._channel(f'threadIdx.x % {self.lanes}')};")
        shape = "".join(f"[{n}]" for n in (*windows, s.vector) if n != 1)
        lines.add(f"{self.kind} {self.sums}{shape} = {{}};")
        first = "threadIdx.x" if self.lanes == 1 else f"threadIdx.x / {self.lanes}"
        strips = product(*outer, cut)
        with lines.block(f"for (int n = blockIdx.x * {rows} + {first}; n < {strips}; n += {s.splits} * {rows})"):
            if width > 1:
                lines.add(f"if (c >= {channels}) break;")
            if outer:
                lines.add(f"const int g = n / {cut};")
            lines.add(
                f"const int left = {product(f'n % {cut}', self.columns)};", *self._register_tile_indices(space)
            )
            self._hold_register_tile(space)
            self._slide_over_all(space)
        self._add_up(part, taps, rows)
        return f"dim3({s.splits}, {channels if width == 1 else f'cdiv({channels}, {width})'})"

    def _block(self) -> str:
        return str(self.schedule.block)

    def _axis(self) -> str:
        return self.sides.batch[-1] if self.sides.batch else self.last.window

    def _channel(self, lane: str, more: str = "") -> str:
        if self.lanes == 1:
            return "blockIdx.y"
        text = f"blockIdx.y * {self.lanes} + {lane}"
        return text if self.schedule.vector == 1 else f"({text}) * {self.schedule.vector}{more}"

    def _register_tile_indices(self, space: Space) -> list[str]:
        a, b = self.sides.a, self.sides.b
        at, own = self._elements(self._moved(space)), self._elements(space)
        found = [*at.index_lines(*self._before(a.name)), *own.index_lines(*self._before(b.name))]
        found += [line for _, i in a.access for _, x in i.terms if (line := space.index_line(x))]
        return list(dict.fromkeys(found))

    def _hold_register_tile(self, space: Space) -> None:
        """The gradient's values at the positions of a register tile; nothing is read past the end of the row."""
        lines, (loads, ops) = self.lines, self._before(self.sides.b.name)
        elements, position, held = self._elements(space), axis_index(self.last.out), self._held()
        vector = f"[{self.schedule.vector}]" if self.own else ""
        lines.add(f"{self.kind} {held}[{self.columns}]{vector};")
        once = self._load_once(elements, loads, {s.out for s in (*self.outer_slides, self.last)})
        leaves = self._overhangs()
        with self._loop("q", str(self.columns)):
            lines.add(f"const int {position} = left + q;")
            lines.add(*([f"const bool inside = {position} < {self.last.out};"] if leaves else []))
            moved = [x for x in loads if x not in once]
            within = self._load_position(elements, moved, replace(self.last, read=self.last.out), leaves)
            with self._each():
                lines.add(*within, *[line for o in ops for line in elements.statements(o)])
                lines.add(f"{held}[q]{self.own} = {elements.spelled[self.sides.b.name]};")

    def _overhangs(self) -> bool:
        """Whether a row's last register tile reaches past its end."""
        axis = self.program.axis[self.last.out]
        return axis.symbolic or axis.size % self.columns != 0

    def _slide_over_all(self, space: Space) -> None:
        """Over the positions of the image that a register tile's windows reach, row by row."""
        elements, loads = self._elements(self._moved(space)), self._before(self.sides.a.name)[0]
        once = self._load_once(elements, loads, {a for a, _ in self.sides.a.access})
        moved = [b for b in loads if b not in once]
        with ExitStack() as loops:
            for slide in self.outer_slides:
                loops.enter_context(self._loop(axis_index(slide.window), slide.window))
                self._enter([(slide.read, slide.index)], space)
            self._slide_along(self.last, elements, moved, self._add_products)

    def _add_products(self, value: str, selects: bool) -> None:
        """One position of the image with each value of the tile that meets it; `selects`: it is 0 outside.

        Past the end of the row there is no value: the image there may be infinite.
        """
        if selects:
            self.lines.add(f"const {self.kind} value = inside ? {value} : 0;")
            value = "value"
        with self._loop("q", str(self.columns)):
            self.lines.add(*([f"if (left + q >= {self.last.out}) continue;"] if self._overhangs() else []))
            self.lines.add(*met_by(self.last, "q", "k"))
            self.lines.add(f"{self.sums}{self._window()}{self.own} += {value} * {self._held()}[q]{self.own};")

    def _window(self) -> str:
        return "".join(f"[{axis_index(s.window)}]" for s in (*self.outer_slides, self.last))

    def _add_up(self, part: Buffer, taps: str, rows: int) -> None:
        """Over the threads of the block."""
        lines, s, dot, batch = self.lines, self.schedule, self.sides.dot.name, self.sides.batch
        windows = [x.window for x in (*self.outer_slides, self.last)]
        tap = axis_index(windows[0])
        for w in windows[1:]:
            tap = f"{f'({tap})' if ' ' in tap else tap} * {w} + {axis_index(w)}"
        if self.own:
            tap = f"{f'({tap})' if ' ' in tap else tap} * {s.vector} + j"
        with ExitStack() as loops:
            for w in windows:
                loops.enter_context(self._loop(axis_index(w), w))
            loops.enter_context(self._each())
            lines.add(f"part[{tap}][threadIdx.x] = {self.sums}{self._window()}{self.own};")
        lines.add("__syncthreads();")
        space = Space(self.program, tuple(v for v in (Var("e", batch), Var("w", tuple(windows))) if v.axes))
        with lines.block(f"for (int n = threadIdx.x; n < {product(taps, self.lanes)}; n += {s.block})"):
            at = "n" if self.lanes == 1 else f"n / {self.lanes}"
            if batch:
                lines.add(f"const int e = {self._channel(f'n % {self.lanes}', f' + {at} % {s.vector}')};")
            if self.lanes * s.vector > 1:
                lines.add(f"if (e >= {size_of(batch)}) continue;")
            lines.add(f"const int w = {at}{f' / {s.vector}' if self.own else ''};")
            lines.add(*[line for a in space.needed_axes([part]) if (line := space.index_line(a))])
            lines.add(f"{self.kind} {dot} = 0;", "#pragma unroll 8")
            position = "r" if self.lanes == 1 else f"r * {self.lanes} + n % {self.lanes}"
            lines.add(f"for (int r = 0; r < {rows}; r++) {dot} += part[{at}][{position}];")
            lines.add(f"st({part.name} + blockIdx.x * ({size_of(part.axes)}) + {space.offset(part)}, {dot});")
