"""Writes register-blocked direct convolution in NHWC: a thread has a register tile of some channels.

Channels lie innermost, where nothing slides, so neighbouring threads have neighbouring vectors of them and their
accesses coalesce. A thread holds the weights of its channels and the sums of some rows times columns of results
(`strip2x4`). It walks over the positions that they read, loads each once and adds it to every sum that it belongs
to. What a window reads outside the image becomes 0 by a predicate, not by a branch: a row's loads are in flight
together.

A thread's weights lie a window apart from its neighbour's, so that reading them costs more than the image where
windows are large. `strip4x4_shared`: a block has 32 vectors of channels, their weights lie in shared memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

from cudal1_compile.codegen.products.register_blocked import RegisterBlockedWriter, index_axes
from cudal1_compile.codegen.products.sides import MAX_WEIGHTS, Sides, Slide, before, position_of, windows_of
from cudal1_compile.codegen.stages.element import Elements, in_order, write_visit
from cudal1_compile.codegen.stages.expression import COMPUTE_TYPE
from cudal1_compile.codegen.stages.pointwise import allows_vector, memory_order
from cudal1_compile.codegen.stages.schedule import StageSchedule
from cudal1_compile.codegen.stages.source import Kernel, product, signature
from cudal1_compile.codegen.stages.space import Space, Var, axis_index, grouped, size_of
from cudal1_compile.codegen.stages.stage import Buffer, Stage
from cudal1_fx_passes.program.ir import Op, Ref

NAME = re.compile(r"strip(\d+)x(\d+)(_shared)?")
LANES = 32  # threads with channels side by side, where a block shares the weights of theirs
MAX_HELD = 96  # registers of a thread for weights and sums
MAX_STEP, MAX_DILATION = 4, 2  # of windows: farther positions are no neighbours' positions
BUSY = 132 * 1024  # threads from which on a GPU hides what its loads wait for


def slides_nhwc(stage: Stage, sides: Sides) -> tuple[Slide, Slide] | None:
    """The two innermost axes along which a window slides, with channels inside of them and only windows summed."""
    order, found = memory_order(stage), [s for s in windows_of(stage, sides) if s.stride > 0]
    if len(found) < 2 or sides.b.access or sides.channels:
        return None
    row, last = sorted(found, key=lambda s: order.index(s.out))[-2:]
    at = order.index(last.out)
    inner = order[at + 1 :]
    images = [b for b in before(stage, sides.a.name)[0] if last.read in b.axes]
    if order[at - 1] != row.out or not inner or any(b.axes[-1] not in inner for b in images):
        return None
    if any(s.stride > MAX_STEP or abs(s.dilation) > MAX_DILATION for s in (row, last)):
        return None
    return (row, last) if stage.program.size((row.window, last.window)) <= MAX_WEIGHTS else None


def register_tile_of(schedule: StageSchedule) -> tuple[int, int] | None:
    """Rows and columns of a register tile; None of other schedules."""
    found = NAME.fullmatch(schedule.kind)
    return (int(found[1]), int(found[2])) if found else None


def shares_weights(schedule: StageSchedule) -> bool:
    return schedule.kind.endswith("_shared")


def _can_share(stage: Stage, sides: Sides, row: Slide, last: Slide) -> bool:
    """Whether the weights of neighbouring channels lie side by side in memory, as they are used."""
    (loads, ops), order = before(stage, sides.b.name), memory_order(stage)
    inner = order[order.index(last.out) + 1 :]
    whole = len(loads) == 1 and loads[0].axes == (*inner, row.window, last.window) and not loads[0].access
    return whole and loads[0].strides is None and len(sides.over) == 2 and not computes(ops)


def computes(ops: Sequence[Op]) -> bool:
    """Whether operations are more than casts, which registers do not show."""
    return any(o.fn != "cast" for o in ops)


def nhwc_schedules(stage: Stage, sides: Sides) -> list[StageSchedule]:
    slides = slides_nhwc(stage, sides)
    if slides is None:
        return []
    taps, across = (stage.program.size(a) for a in ((slides[0].window, slides[1].window), (slides[1].out,)))
    wide = 7 if across % 7 == 0 and across % 8 else 8
    order = memory_order(stage)
    channels = stage.program.size(order[order.index(slides[1].out) + 1 :])
    shared = _can_share(stage, sides, *slides)
    held = slides[1] if computes(before(stage, sides.a.name)[1]) else None  # a row of what is read
    found = []
    for rows, columns in ((1, wide), (2, 4), (4, 4), (1, 4)):
        positions = rows * columns + taps + (_positions(stage, held, columns) if held is not None else 0)
        fit = [v for v in (4, 2, 1) if v * positions <= MAX_HELD and allows_vector(stage, v)]
        found += [StageSchedule(f"strip{rows}x{columns}", v, b) for v in fit[:2] for b in (256, 128)]
        lanes = [v for v in fit if channels % (LANES * v) == 0 or channels >= 4 * LANES * v]
        if shared and (rows, columns) in ((1, wide), (4, 4)):
            found += [StageSchedule(f"strip{rows}x{columns}_shared", v, 256) for v in lanes[-2:]]
    return found


def read_count(stage: Stage, sides: Sides, schedule: StageSchedule) -> float:
    """What all threads read, in values that neighbours read side by side; weights lie a window apart."""
    slides, size, vector, strip = (
        slides_nhwc(stage, sides),
        stage.program.size,
        schedule.vector,
        register_tile_of(schedule),
    )
    assert slides is not None and strip is not None
    threads, positions, taps = size(memory_order(stage)), 1, size((slides[0].window, slides[1].window))
    for slide, count in zip(slides, strip, strict=True):
        out = size((slide.out,))
        threads = threads // out * -(-out // count)
        positions *= _positions(stage, slide, count)
    weights = taps * (vector if shares_weights(schedule) else min(taps, 32 // vector))
    return threads * (positions + weights) * max(1.0, BUSY * vector / threads)


class RegisterBlockedNhwcWriter(RegisterBlockedWriter):
    """One product stage in register tiles, channels innermost."""

    def write(self) -> Kernel:
        s, lines, order = self.schedule, self.lines, memory_order(self.stage)
        slides, strip = slides_nhwc(self.stage, self.sides), register_tile_of(s)
        assert slides is not None and strip is not None
        (row, last), (self.rows, self.columns) = slides, strip
        outer, inner = order[: order.index(row.out)], order[order.index(last.out) + 1 :]
        space = Space(self.program, tuple(v for v in (Var("g", outer), Var("c", inner)) if v.axes))
        counts = _cut(row.out, self.rows), _cut(last.out, self.columns)
        with lines.block(signature(self.name, s.block, self.stage.reads, self._stored())):
            grid, past = self._own_channels(row, last, inner)
            with self._where_is(past):
                self._own_position(row, counts, bool(outer))
                known = self._own_indices(space)
                dot, shape = self.sides.dot, "".join(f"[{n}]" for n in (*strip, s.vector) if n > 1)
                lines.add(*known, f"{COMPUTE_TYPE[dot.dtype]} {dot.name}{shape} = {{}};")
                self._walk(row, last, space)
                self._finish(row, last, space, known)
        names = tuple(b.name for b in (*self.stage.reads, *self._stored()))
        return Kernel(self.name, "\n".join(lines.text), grid, str(s.block), names)

    @contextmanager
    def _where_is(self, past: str) -> Iterator[None]:
        """Around what a thread does where it has a register tile."""
        self.lines.add(*([f"if ({past}) return;"] if past else []))
        yield

    def _register_tiles(self, row: Slide, last: Slide) -> str:
        """How many there are of a channel."""
        order, strip = memory_order(self.stage), register_tile_of(self.schedule)
        assert strip is not None
        return " * ".join([*order[: order.index(row.out)], _cut(row.out, strip[0]), _cut(last.out, strip[1])])

    def _own_channels(self, row: Slide, last: Slide, inner: tuple[str, ...]) -> tuple[str, str]:
        """A thread's channels, and i, its register tile's number; returns the grid, and when there is none."""
        lines, (vector, block) = self.lines, (self.schedule.vector, self.schedule.block)
        total, vectors = self._register_tiles(row, last), _cut(size_of(inner), vector)
        if not shares_weights(self.schedule):
            lines.add(f"const int n = blockIdx.x * {block} + threadIdx.x;")
            lines.add(f"if (n >= {total} * {vectors}) return;")
            lines.add(f"const int c = {product(f'n % {vectors}', vector)};", f"const int i = n / {vectors};")
            return f"cdiv({total} * {vectors}, {block})", ""
        (load,), _ = self._before(self.sides.b.name)
        width, taps, held = LANES * vector, f"{row.window} * {last.window}", self._held()
        lines.add(f"const int c0 = blockIdx.y * {width};", f"__shared__ {load.dtype} {held}[{width} * {taps}];")
        with lines.block(f"for (int n = threadIdx.x; n < {width} * {taps}; n += {block})"):
            lines.add(f"if (c0 * {taps} + n >= {size_of((*inner, row.window, last.window))}) break;")
            lines.add(f"{held}[n] = {load.name}[c0 * {taps} + n];")
        lines.add("__syncthreads();")
        lines.add(f"const int c = c0 + {product(f'threadIdx.x % {LANES}', vector)};")
        lines.add(f"const int i = blockIdx.x * {block // LANES} + threadIdx.x / {LANES};")
        grid = f"dim3(cdiv({total}, {block // LANES}), cdiv({size_of(inner)}, {width}))"
        return grid, f"i >= {total} || c >= {size_of(inner)}"

    def _own_position(self, row: Slide, counts: tuple[str, str], batched: bool) -> None:
        rows, columns = counts
        top = axis_index(row.out) if self.rows == 1 else "top"
        self.lines.add(f"const int left = i % {columns} * {self.columns};")
        self.lines.add(f"const int {top} = {product(f'i / {columns} % {rows}', self.rows)};")
        if batched:
            self.lines.add(f"const int g = i / ({rows} * {columns});")

    def _own_indices(self, space: Space) -> list[str]:
        """Indices of the axes along which a thread does not move."""
        a, b = self.sides.a, self.sides.b
        at, own = self._elements(self._moved(space)), self._elements(space)
        lines = [*at.index_lines(*self._before(a.name)), *own.index_lines(*self._before(b.name))]
        lines += own.index_lines([*self._after_loads(), *self.stage.writes], self._after_ops())
        lines += [line for _, i in a.access for _, x in i.terms if (line := space.index_line(x))]
        return list(dict.fromkeys(lines))

    def _moved(self, space: Space) -> Space:
        return replace(space, renamed={a: axis_index(a) for a, _ in self.sides.a.access})

    def _elements(self, space: Space, spelled: dict[str, str] | None = None) -> Elements:
        return Elements(self.program, space, self._axis(), self.schedule.vector, spelled=dict(spelled or {}))

    def _axis(self) -> str:
        return memory_order(self.stage)[-1]

    # weights

    def _weights(self, row: Slide, last: Slide, space: Space) -> None:
        """All that the thread's channels need of them, into registers."""
        if shares_weights(self.schedule):
            return
        lines, (loads, ops), vector = self.lines, self._before(self.sides.b.name), self.schedule.vector
        taps, held, weight = f"{row.window} * {last.window}", self._held(), self._weight(row, last)
        lines.add(f"{COMPUTE_TYPE[self.sides.dot.dtype]} {held}[{product(vector, taps)}];")
        elements, spread = self._elements(space), self._spread(loads, row, last)
        if spread:
            start = space.offset(replace(loads[0], axes=loads[0].axes[:-2]))
            with self._loop("k", taps):
                at = f"{loads[0].name} + {grouped(start)} * {taps} + {vector} * k"
                lines.add(f"vload<{vector}>({at}, {held} + {vector} * k);")
            elements.spelled[loads[0].key] = weight
        if not ops and spread:
            return
        u, w = (axis_index(a.window) for a in (row, last))
        with self._each(), self._loop(u, row.window), self._loop(w, last.window):
            lines.add(*[line for b in loads if not spread for line in elements.load(b) if line])
            lines.add(*[line for o in ops for line in elements.statements(o)])
            lines.add(f"{weight} = {elements.spelled[self.sides.b.name]};")

    def _spread(self, loads: list[Buffer], row: Slide, last: Slide) -> bool:
        """Whether the windows of a vector of channels lie side by side."""
        if len(loads) != 1 or self.schedule.vector == 1 or loads[0].strides is not None or loads[0].access:
            return False
        return loads[0].axes[-3:] == (self._axis(), row.window, last.window)

    def _weight(self, row: Slide, last: Slide) -> str:
        u, w = axis_index(row.window), axis_index(last.window)
        first = u if self.schedule.vector == 1 else f"(j * {row.window} + {u})"
        if shares_weights(self.schedule):
            channel = "c - c0" if self.schedule.vector == 1 else "c - c0 + j"
            return f"ld({self._held()} + (({channel}) * {row.window} + {u}) * {last.window} + {w})"
        return f"{self._held()}[{first} * {last.window} + {w}]"

    # sums

    def _slide(self, row: Slide, last: Slide, space: Space) -> None:
        """Over the positions that a register tile reads, row by row."""
        u, whole, loads = axis_index(row.window), self.rows == 1, self._before(self.sides.a.name)[0]
        elements = self._elements(self._moved(space))
        once = self._load_once(elements, loads, {a for a, _ in self.sides.a.access})
        moved = [b for b in loads if b not in once]
        with self._loop(u if whole else "y", row.window if whole else _span(row, self.rows)):
            self._enter_row(row, space)
            self._slide_along(last, elements, moved, partial(self._add, row, last))

    def _slide_along(
        self, last: Slide, elements: Elements, loads: list[Buffer], add: Callable[[str, bool], None]
    ) -> None:
        """Over the positions of a row, each of which `add` takes: its value, and whether it is 0 outside."""
        ops, span = self._before(self.sides.a.name)[1], _span(last, self.columns)
        if computes(ops):
            self._load_row(elements, loads, last, span)
            loads = []
        with self._loop("k", span):
            inside = self._enter_position(last)
            within = self._load_position(elements, loads, last, inside)
            with self._each():
                self.lines.add(*within, *[line for o in ops for line in elements.statements(o)])
                add(elements.spelled[self.sides.a.name], inside and computes(ops))

    def _enter_row(self, row: Slide, space: Space) -> None:
        self._enter([i for i in self.sides.a.access if not index_axes(i[1]) & {*self.sides.over}], space)
        if self.rows == 1:
            self._enter([(row.read, row.index)], space)
        else:
            position = axis_index(row.read)
            self.lines.add(f"const int {position} = {position_of(row, 'top', 'y')};")
            if self._may_leave(row, self.rows):
                self.lines.add(f"if ({position} < 0 || {position} >= {row.read}) continue;")

    def _enter_position(self, last: Slide) -> bool:
        """Returns whether the position may lie outside."""
        position = axis_index(last.read)
        self.lines.add(f"const int {position} = {position_of(last, 'left', 'k')};")
        if not self._may_leave(last, self.columns):
            return False
        self.lines.add(f"const bool inside = {position} >= 0 && {position} < {last.read};")
        return True

    def _load_row(self, elements: Elements, loads: list[Buffer], last: Slide, span: str) -> None:
        """All of a row before anything is computed of it: what computes may branch, and loads wait there."""
        held = replace(elements, cached=True, spelled={})
        for b in loads:
            shape = f"[{span}]" + (f"[{self.schedule.vector}]" if held.is_vectored(b) else "")
            self.lines.add(f"{COMPUTE_TYPE[b.dtype]} {b.register}{shape} = {{}};")
        with self._loop("k", span):
            guard = "if (inside) " if self._enter_position(last) else ""
            pairs = [held.load(b) for b in loads]
            self.lines.add(*[guard + before for before, _ in pairs if before])
            if within := [guard + inner for _, inner in pairs if inner]:
                with self._each():
                    self.lines.add(*within)
        elements.spelled.update(held.spelled)

    def _load_position(self, elements: Elements, loads: list[Buffer], last: Slide, inside: bool) -> list[str]:
        """Returns lines that stand where each channel is computed."""
        lines, within = self.lines, list[str]()
        for b in loads:
            before, inner = elements.load(b)
            here = inside and last.read in b.axes
            if before is not None and elements.is_wide(b):
                zero = " = {}" if here else ""
                lines.add(f"{COMPUTE_TYPE[b.dtype]} {b.register}[{self.schedule.vector}]{zero};")
                lines.add(f"if (inside) {before}" if here else before)
            elif before is not None:
                lines.add(_guarded(before) if here else before)
            elif inner is not None:
                within.append(_guarded(inner) if here else inner)
        return within

    def _may_leave(self, slide: Slide, count: int) -> bool:
        """Whether a register tile may read outside the image, be it for results that there are not."""
        outside = self._positions(Ref(self.sides.a.name, ((slide.read, slide.index),)), Space(self.program, ()))[1]
        axis = self.program.axis[slide.out]
        return bool(outside) or axis.symbolic or axis.size % count != 0

    def _add(self, row: Slide, last: Slide, value: str, selects: bool) -> None:
        """One value to the sums that it belongs to; `selects`: it counts as 0 outside."""
        if selects:
            kind = COMPUTE_TYPE[self.sides.dot.dtype]
            self.lines.add(f"const {kind} value = inside ? {value} : 0;")
            value = "value"
        with self._results(row, last):
            self.lines.add(f"{self._sum(self.sides.dot.name)} += {value} * {self._weight(row, last)};")

    @contextmanager
    def _results(self, row: Slide, last: Slide) -> Iterator[None]:
        """Loops over the results whose window holds the current position."""
        with ExitStack() as loops:
            for slide, count, name, at in ((row, self.rows, "p", "y"), (last, self.columns, "q", "k")):
                if count > 1:
                    loops.enter_context(self._loop(name, str(count)))
                    self.lines.add(*met_by(slide, name, at))
            yield

    def _sum(self, name: str) -> str:
        return f"{name}{'[p]' if self.rows > 1 else ''}[q]{'[j]' if self.schedule.vector > 1 else ''}"

    # results

    def _load_once(self, elements: Elements, loads: list[Buffer], moved: set[str]) -> list[Buffer]:
        """Loads what is the same at all positions of a thread; returns which."""
        plain = [b for b in loads if elements.is_wide(b) or not elements.is_vectored(b)]
        once = [b for b in plain if not moved & {*b.span}]
        self.lines.add(*elements.declare_loads(once), *[line for b in once for line in elements.load(b) if line])
        return once

    def _finish(self, row: Slide, last: Slide, space: Space, known: list[str]) -> None:
        """What follows the sums. What only depends on the channels is loaded once."""
        lines, dot = self.lines, self.sides.dot.name
        elements = self._elements(space, {dot: self._sum(dot)})
        loads = self._after_loads()
        once = self._load_once(elements, loads, {row.out, last.out})
        with ExitStack() as loops:
            for slide, count, name, first in ((row, self.rows, "p", "top"), (last, self.columns, "q", "left")):
                if count > 1:
                    loops.enter_context(self._loop(name, str(count)))
                    lines.add(f"const int {axis_index(slide.out)} = {first} + {name};")
                    lines.add(f"if ({axis_index(slide.out)} >= {slide.out}) break;")
            rest = in_order(b for b in loads if b not in once)
            self._open_keeping()
            visit = elements.visit(
                rest, self._after_ops(), list(self._written()), lambda: self._keep(elements.spelled)
            )
            write_visit(lines, self.schedule.vector, (x for x in visit if isinstance(x, list) or x not in known))
            self._reduce_epilogue(elements.spelled)

    @contextmanager
    def _loop(self, name: str, count: str) -> Iterator[None]:
        self.lines.add("#pragma unroll")
        with self.lines.block(f"for (int {name} = 0; {name} < {count}; {name}++)"):
            yield

    @contextmanager
    def _each(self) -> Iterator[None]:
        """The channels of a thread."""
        if self.schedule.vector == 1:
            yield
        else:
            with self._loop("j", str(self.schedule.vector)):
                yield


def _cut(size: str, count: int) -> str:
    return grouped(size) if count == 1 else f"cdiv({size}, {count})"


def _span(slide: Slide, count: int) -> str:
    """Positions that `count` results read."""
    far, between = abs(slide.dilation), slide.stride * (count - 1)
    return f"{between} + {slide.window}" if far == 1 else f"{between + 1} + {far} * ({slide.window} - 1)"


def _positions(stage: Stage, slide: Slide, count: int) -> int:
    """Their number at the stage's sizes."""
    window = stage.program.size((slide.window,))
    return slide.stride * (count - 1) + abs(slide.dilation) * (window - 1) + 1


def met_by(slide: Slide, name: str, at: str) -> list[str]:
    """Which weight of the result `name` meets the position `at`; goes on where none does."""
    far, own, w = slide.dilation, product(slide.stride, name), axis_index(slide.window)
    text = f"{at} - {own}" if far > 0 else f"{own} + {product(-far, f'({slide.window} - 1)')} - {at}"
    outside = f"{w} < 0 || {w} >= {slide.window}"
    if abs(far) == 1:
        return [f"const int {w} = {text};", f"if ({outside}) continue;"]
    far = abs(far)
    return [f"const int {w} = ({text}) / {far};", f"if (({text}) % {far} != 0 || {outside}) continue;"]


def _guarded(load: str) -> str:
    """A load that gives 0 outside the image."""
    head, _, value = load.removesuffix(";").partition(" = ")
    return f"{head} = inside ? {value} : 0;"
