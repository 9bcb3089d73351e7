"""Writes register-blocked transposed convolution of few outputs: a thread has some cells of the result.

A cell is `step` results along each axis, made of the same few positions of the image. A thread has `vector` cells
below one another and the sums of all their outputs. Of each channel it loads the positions that they read, once,
and a window's weights, which all threads share; each of them meets one position and one sum a cell:

    t0[(2 * j + p5) * 2 + p6] += image[u][y2 + j][y3] * weight

Weights lie in shared memory, those of a channel in whole vectors. `splits`: split-K within a block, whose threads
share a cell's channels, and then its results. Positions of some channels are loaded at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from math import prod

from cudal1_compile.codegen.products.product import ProductWriter
from cudal1_compile.codegen.products.sides import Sides, before
from cudal1_compile.codegen.stages.expression import COMPUTE_TYPE
from cudal1_compile.codegen.stages.pointwise import memory_order
from cudal1_compile.codegen.stages.schedule import StageSchedule
from cudal1_compile.codegen.stages.source import Kernel, product, signature
from cudal1_compile.codegen.stages.space import Space, Var, axis_index, grouped, signed, size_of
from cudal1_compile.codegen.stages.stage import Stage
from cudal1_fx_passes.program.ir import ITEM_BYTES

PHASES = "strip_phases"
MAX_COLUMNS = 8
MAX_SUMS, MAX_POSITIONS, MAX_WEIGHTS = 64, 64, 200  # of a thread
MAX_TERMS = 1024  # of a thread and channel: what is unrolled at least
SHARED_BYTES = 48 * 1024
BATCH, MAX_HELD = 400, 96  # of a thread: terms of a batch of channels, registers for sums and its positions


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The cells of a thread along one axis of the image, and the positions of it that they read.

    Those of a result are (out - window + offset) / step.
    """

    image: str
    out: str
    window: str
    taps: int  # of the window
    step: int
    offset: int
    count: int  # cells of a thread
    shift: int = 0  # how much before a multiple of the step they begin

    @property
    def near(self) -> int:
        """The offset of a cell's first result."""
        return self.offset - self.shift

    @property
    def results(self) -> int:
        return self.count * self.step

    @property
    def lowest(self) -> int:
        """The first position that the first cell reads."""
        return -((self.taps - 1 - self.near) // self.step)

    @property
    def positions(self) -> int:
        return (self.results - 1 + self.near) // self.step - self.lowest + 1

    @property
    def parts(self) -> str:
        """Threads along the axis."""
        reached = f"{self.out} + {self.shift}" if self.shift else self.out
        return f"cdiv({reached}, {self.results})" if self.results > 1 else self.out

    @property
    def names(self) -> tuple[str, str, str]:
        """Of the thread's first cell, a position behind its first one, and a phase."""
        return f"q{self.out[1:]}", f"y{self.image[1:]}", f"p{self.out[1:]}"


def shifted(cell: Cell) -> Cell:
    """A single cell where it meets the fewest positions; a register tile of several gains too little by moving."""
    moved = replace(cell, shift=cell.offset % cell.step)
    return moved if cell.count == 1 and moved.positions < cell.positions else cell


def cells_of(stage: Stage, sides: Sides, vector: int) -> list[Cell] | None:
    """The innermost axes of the result; None where it is no transposed convolution over all of them."""
    program, order, found = stage.program, memory_order(stage), list[Cell]()
    if sides.batch or sides.b.access or not sides.channels:
        return None
    if any(program.axis[a].symbolic for a in (*sides.n, *sides.over)):
        return None
    for axis, index in sides.a.access:
        terms = {a: f for f, a in index.terms}
        outs, windows = [a for a in terms if a in sides.m], [a for a in terms if a in sides.taps]
        if len(terms) != 2 or not outs or not windows or (terms[outs[0]], terms[windows[0]]) != (1, -1):
            return None
        taps = program.axis[windows[0]].size
        step, offset, window = index.divisor, index.offset, windows[0]
        found.append(Cell(taps=taps, step=step, offset=offset, count=1, image=axis, out=outs[0], window=window))
    found.sort(key=lambda c: order.index(c.out))
    if not any(c.step > 1 for c in found) or tuple(c.out for c in found) != order[-len(found) :]:
        return None
    if {c.window for c in found} != set(sides.taps):
        return None
    loads, last = before(stage, sides.a.name)[0], found[-1].image
    if any(last in b.axes and b.axes[-1] != last for b in loads):
        return None
    at = max(len(found) - 2, 0)
    found[at] = replace(found[at], count=vector)
    return [shifted(c) for c in found]


def phase_schedules(stage: Stage, sides: Sides) -> list[StageSchedule]:
    """Where registers hold sums and positions, and shared memory a block's weights and parts of sums."""
    size = stage.program.size
    columns, weights, found = size(sides.n), size((*sides.n, *sides.taps)), list[StageSchedule]()
    for vector in (4, 2, 1):
        cells = cells_of(stage, sides, vector)
        if cells is None or columns > MAX_COLUMNS or weights > MAX_WEIGHTS or weights * vector > MAX_TERMS:
            continue
        sums = columns * prod(c.results for c in cells)
        if sums > MAX_SUMS or prod(c.positions for c in cells) > MAX_POSITIONS:
            continue
        for block, splits in ((128, 1), (128, 2), (256, 4), (256, 8)):
            made = StageSchedule(PHASES, vector, block, splits=splits)
            enough = splits == 1 or size(sides.channels[:1]) >= 4 * splits
            if enough and phase_bytes(stage, sides, made, sums) <= SHARED_BYTES:
                found.append(made)
    return found


def batch_of(stage: Stage, sides: Sides, schedule: StageSchedule, cells: Sequence[Cell]) -> int:
    """Channels whose positions a thread loads at once."""
    size, last = stage.program.size, sides.channels[-1]
    share = size((last,)) / (schedule.splits if len(sides.channels) == 1 else 1)
    terms, positions = size((*sides.n, *sides.taps)) * schedule.vector, prod(c.positions for c in cells)
    sums = size(sides.n) * prod(c.results for c in cells)
    fit = [u for u in (8, 4, 2) if share % u == 0 and u * terms <= BATCH and sums + u * positions <= MAX_HELD]
    return max(fit, default=1)


def phase_bytes(stage: Stage, sides: Sides, schedule: StageSchedule, sums: int) -> int:
    """Of shared memory, a block."""
    size = stage.program.size
    weights = size(sides.channels) * -(-size((*sides.n, *sides.taps)) // 4) * 4
    item = max(ITEM_BYTES[sides.dot.dtype], 4)
    return item * (weights + (sums * schedule.block if schedule.splits > 1 else 0))


class RegisterBlockedPhaseWriter(ProductWriter):
    """One product stage in cells."""

    def write(self) -> Kernel:
        s, lines, sides = self.schedule, self.lines, self.sides
        cells = cells_of(self.stage, sides, s.vector)
        assert cells is not None
        self.cells, moved = cells, {*sides.n, *(c.out for c in cells)}
        outer = tuple(a for a in memory_order(self.stage) if a not in moved)
        space = Space(self.program, (Var("g", outer),) if outer else ())
        self.total = " * ".join([*outer, *(c.parts for c in cells)])
        self.sums = product(*sides.n, prod(c.results for c in cells))
        self.batch = batch_of(self.stage, sides, s, cells)
        self.member = "[u]" if self.batch > 1 else ""  # of a batch
        self.kind = COMPUTE_TYPE[sides.dot.dtype]
        with lines.block(signature(self.name, s.block, self.stage.reads, self.stage.writes)):
            self._share_weights()
            self._own_cells(outer)
            used = self._used_axes(sides.a, space)
            known = [line for a in outer if a in used and (line := space.index_line(a))]
            lines.add(*known, f"{self.kind} {sides.dot.name}[{self.sums}] = {{}};")
            self._walk(space)
            if s.splits > 1:
                self._share_sums()
            self._finish(space, known)
        names = tuple(b.name for b in (*self.stage.reads, *self.stage.writes))
        grid = f"cdiv({self.total}, {self.lanes})"
        return Kernel(self.name, "\n".join(lines.text), grid, str(s.block), names)

    @property
    def lanes(self) -> int:
        """Threads of a block with cells of their own."""
        return self.schedule.block // self.schedule.splits

    def _share_weights(self) -> None:
        """All of them into shared memory, channel by channel."""
        lines, sides = self.lines, self.sides
        window = (*sides.n, *sides.taps)
        order, each = (*sides.channels, *window), grouped(size_of(window))
        space = Space(self.program, (Var("n", order),))
        lines.add(f"constexpr int W = cdiv({size_of(window)}, 4) * 4;")
        lines.add(f"__shared__ __align__(16) {self.kind} weights[{size_of(sides.channels)} * W];")
        with lines.block(f"for (int n = threadIdx.x; n < {size_of(order)}; n += {self.schedule.block})"):
            used = self._used_axes(sides.b, space)
            lines.add(*[line for a in order if a in used and (line := space.index_line(a))])
            lines.add(f"weights[n / {each} * W + n % {each}] = {self._value(sides.b.name, space)};")
        lines.add("__syncthreads();")

    def _own_cells(self, outer: tuple[str, ...]) -> None:
        """Which cells a thread has, and which part of their channels."""
        lines, s, parts = self.lines, self.schedule, [c.parts for c in self.cells]
        if s.splits > 1:
            lines.add(f"const int lane = threadIdx.x % {self.lanes}, z = threadIdx.x / {self.lanes};")
            lines.add(f"const int h = blockIdx.x * {self.lanes} + lane, i = min(h, {self.total} - 1);")
        else:
            lines.add(f"const int i = blockIdx.x * {s.block} + threadIdx.x;", f"if (i >= {self.total}) return;")
        for at, c in enumerate(self.cells):
            inner = " * ".join(parts[at + 1 :])
            text = f"i / ({inner})" if inner else "i"
            text += f" % {parts[at]}" if at or outer else ""
            lines.add(f"const int {c.names[0]} = {product(text, c.count)};")
        if outer:
            lines.add(f"const int g = i / ({' * '.join(parts)});")

    def _walk(self, space: Space) -> None:
        """Over the channels: their positions into registers, then each weight to the results that it meets."""
        lines, channels = self.lines, self.sides.channels
        shape = [self.batch] * (self.batch > 1) + [c.positions for c in self.cells]
        lines.add(f"{self.kind} image{''.join(f'[{n}]' for n in shape)} = {{}};")
        with ExitStack() as loops:
            for axis in channels:
                i, own = axis_index(axis), self.batch if axis == channels[-1] else 1
                parts = self.schedule.splits if axis == channels[0] else 1
                first, step = product("z", own) if parts > 1 else "0", own * parts
                advance = f"{i} += {step}" if step > 1 else f"{i}++"
                loops.enter_context(lines.block(f"for (int {i} = {first}; {i} < {axis}; {advance})"))
            with self._each_channel():
                self._load(space)
            with self._each_channel():
                self._accumulate()

    @contextmanager
    def _each_channel(self) -> Iterator[None]:
        """Of a batch."""
        with ExitStack() as loops:
            if self.batch > 1:
                loops.enter_context(self._loop("u", str(self.batch)))
            yield

    def _load(self, space: Space) -> None:
        """The positions of one channel; those outside the image are never written and stay 0."""
        lines, last, positions = self.lines, self.sides.channels[-1], [axis_index(c.image) for c in self.cells]
        moved = {c.image: at for c, at in zip(self.cells, positions, strict=True)}
        if self.batch > 1:
            moved[last] = f"{axis_index(last)} + u"
        with ExitStack() as loops:
            for at, c in zip(positions, self.cells, strict=True):
                q, y, _ = c.names
                loops.enter_context(self._loop(y, str(c.positions)))
                lines.add(f"const int {at} = {q} + {y}{signed(c.lowest)};")
            outside = [f"{at} < 0 || {at} >= {c.image}" for at, c in zip(positions, self.cells, strict=True)]
            lines.add(f"if ({' || '.join(outside)}) continue;")
            value = self._value(self.sides.a.name, Space(self.program, space.variables, moved))
            held = "".join(f"[{c.names[1]}]" for c in self.cells)
            lines.add(f"image{self.member}{held} = {value};")

    def _accumulate(self) -> None:
        lines, sides = self.lines, self.sides
        window = (*sides.n, *sides.taps)
        index, positions = _flat(sides.n), ""
        with ExitStack() as loops:
            for axis in window:
                loops.enter_context(self._loop(axis_index(axis), axis))
            for c in self.cells:
                (_, y, p), w = c.names, axis_index(c.window)
                far, back = c.near - c.step * c.lowest, -c.near % c.step
                if c.step > 1:
                    lines.add(f"const int {p} = {f'({w} + {back})' if back else w} % {c.step};")
                    lines.add(f"const int {y} = ({p} + {far} - {w}) / {c.step};")
                else:
                    lines.add(f"const int {y} = {far} - {w};")
                own = [product(c.step, "j")] * (c.count > 1) + [p] * (c.step > 1)
                index = " + ".join([f"{grouped(index)} * {c.results}"] * bool(index and own) + own) or index
                positions += f"[{y} + j]" if c.count > 1 else f"[{y}]"
            channel = grouped(_flat(sides.channels) + (" + u" if self.batch > 1 else ""))
            lines.add(f"const {self.kind} weight = weights[{channel} * W + {_flat(window)}];")
            if self.schedule.vector > 1:
                loops.enter_context(self._loop("j", str(self.schedule.vector)))
            lines.add(f"{sides.dot.name}[{index}] += image{self.member}{positions} * weight;")

    def _share_sums(self) -> None:
        lines, block = self.lines, self.schedule.block
        lines.add(f"__shared__ {self.kind} parts[{self.sums}][{block}];")
        with self._loop("s", self.sums):
            lines.add(f"parts[s][threadIdx.x] = {self.sides.dot.name}[s];")
        lines.add("__syncthreads();", f"if (h >= {self.total}) return;")

    def _finish(self, space: Space, known: list[str]) -> None:
        """What follows each sum."""
        lines, sides, splits = self.lines, self.sides, self.schedule.splits
        value, head = f"{sides.dot.name}[s]", f"for (int s = 0; s < {self.sums}; s++)"
        if splits > 1:
            value, head = "total", f"for (int s = z; s < {self.sums}; s += {splits})"
        else:
            lines.add("#pragma unroll")
        with lines.block(head):
            self._own_result()
            if splits > 1:
                lines.add(f"{self.kind} total = 0;")
                with self._loop("k", str(splits)):
                    lines.add(f"total += parts[s][k * {self.lanes} + lane];")
            self._after(space, known, value)

    def _own_result(self) -> None:
        """Where the sum `s` of a thread lies in the result."""
        lines, outside = self.lines, list[str]()
        sizes = [*self.sides.n, *(str(c.results) for c in self.cells)]
        for at, axis in enumerate((*self.sides.n, *(c.out for c in self.cells))):
            inner = product(*sizes[at + 1 :])
            text = "s" if inner == "1" else f"s / {grouped(inner)}"
            text += f" % {sizes[at]}" if at else ""
            c = next((c for c in self.cells if c.out == axis), None)
            if c is not None:
                own = product(c.names[0], c.step)
                text = f"{own} + {text}{signed(-c.shift)}" if c.results > 1 else own
                outside += [f"{axis_index(axis)} < 0"] * (c.shift > 0) + [f"{axis_index(axis)} >= {axis}"]
            lines.add(f"const int {axis_index(axis)} = {text};")
        lines.add(f"if ({' || '.join(outside)}) continue;")

    @contextmanager
    def _loop(self, name: str, count: str) -> Iterator[None]:
        self.lines.add("#pragma unroll")
        with self.lines.block(f"for (int {name} = 0; {name} < {count}; {name}++)"):
            yield


def _flat(axes: Sequence[str]) -> str:
    """The position in a row-major array over the axes."""
    text = ""
    for axis in axes:
        text = f"{grouped(text)} * {axis} + {axis_index(axis)}" if text else axis_index(axis)
    return text
