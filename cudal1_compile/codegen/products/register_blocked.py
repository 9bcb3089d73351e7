"""Writes register-blocked direct convolution over two window axes: a thread has a tile of outputs in registers.

A thread has `vector` outputs below one another. It walks over the rows that they read, loads a row's part of the
window once, and adds it to every output that it belongs to; the weights stay in registers. A 3x3 window over
tiles of 8 rows loads 3.75 values an output instead of 9.

Kinds `strip`, and `strip_all`: the thread has these outputs of every filter, of which there are few, and reads the
image once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from cudal1_compile.codegen.products.product import ProductWriter
from cudal1_compile.codegen.products.sides import Slide, slides_of
from cudal1_compile.codegen.stages.expression import COMPUTE_TYPE
from cudal1_compile.codegen.stages.pointwise import memory_order
from cudal1_compile.codegen.stages.source import Kernel, product, signature
from cudal1_compile.codegen.stages.space import Space, Var, axis_index, size_of
from cudal1_fx_passes.program.ir import Index, Ref

ALL = "strip_all"


class RegisterBlockedWriter(ProductWriter):
    """One product stage in register tiles."""

    filters: tuple[str, ...] = ()

    def write(self) -> Kernel:
        s, lines, dot = self.schedule, self.lines, self.sides.dot
        slides = slides_of(self.stage, self.sides)
        assert slides is not None
        row, last = slides
        self.filters = self.sides.n if s.kind == ALL else ()
        outer = tuple(a for a in memory_order(self.stage)[:-2] if a not in self.filters)
        total = f"{size_of(outer)} * cdiv({row.out}, {s.vector}) * {last.out}"
        space = Space(self.program, (Var("g", outer),))
        with lines.block(signature(self.name, s.block, self.stage.reads, self.stage.writes)):
            lines.add(f"const int i = blockIdx.x * {s.block} + threadIdx.x;", f"if (i >= {total}) return;")
            lines.add(f"const int g = i / (cdiv({row.out}, {s.vector}) * {last.out});")
            lines.add(f"const int first = i / {last.out} % cdiv({row.out}, {s.vector}) * {s.vector};")
            lines.add(f"const int {axis_index(last.out)} = i % {last.out};")
            used = {a for x in (self.sides.a, self.sides.b) for a in self._used_axes(x, space)}
            known = [line for a in outer if a in used and (line := space.index_line(a))]
            lines.add(*known, f"{COMPUTE_TYPE[dot.dtype]} {dot.name}{self._shape()}[{s.vector}] = {{}};")
            self._walk(row, last, space)
            lines.add("#pragma unroll")
            with lines.block(f"for (int j = 0; j < {s.vector}; j++)"):
                lines.add(f"const int {axis_index(row.out)} = first + j;")
                lines.add(f"if ({axis_index(row.out)} >= {row.out}) break;")
                with self._each_filter():
                    self._after(space, known, f"{dot.name}{self._filter()}[j]")
        names = tuple(b.name for b in (*self.stage.reads, *self.stage.writes))
        grid = f"cdiv({total}, {s.block})"
        return Kernel(self.name, "\n".join(lines.text), grid, str(s.block), names)

    def _walk(self, row: Slide, last: Slide, space: Space) -> None:
        """Loops over what is summed besides the two window axes."""
        lines, sides = self.lines, self.sides
        others = [a for a in sides.over if a not in (row.window, last.window)]
        depth = lines.depth
        for at, axis in enumerate(others):
            lines.add(f"for (int {axis_index(axis)} = 0; {axis_index(axis)} < {axis}; {axis_index(axis)}++) {{")
            lines.depth += 1
            waiting = {row.out, last.out, *others[at + 1 :]}
            self._enter(
                [i for i in sides.a.access if axis in index_axes(i[1]) and not waiting & index_axes(i[1])], space
            )
        self._weights(row, last, space)
        self._slide(row, last, space)
        while lines.depth > depth:
            lines.depth -= 1
            lines.add("}")

    def _slide(self, row: Slide, last: Slide, space: Space) -> None:
        """Loops over the rows that the register tile reads."""
        lines, sides = self.lines, self.sides
        y = f"{'' if row.stride == 1 else f'{row.stride} * '}first + y"
        lines.add("#pragma unroll")
        span = product(row.stride, f"({self.schedule.vector} - 1)")
        with lines.block(f"for (int y = 0; y < {span} + {row.window}; y++)"):
            self._enter([i for i in sides.a.access if not index_axes(i[1]) & {*sides.over}], space)
            position = axis_index(row.read)
            lines.add(f"const int {position} = {y}{f' - {-row.index.offset}' if row.index.offset else ''};")
            lines.add(f"if ({position} < 0 || {position} >= {row.read}) continue;", "#pragma unroll")
            w = axis_index(last.window)
            with lines.block(f"for (int {w} = 0; {w} < {last.window}; {w}++)"):
                self._enter([(last.read, last.index)], space)
                self._accumulate(row, last, space)

    def _enter(self, items: list[tuple[str, Index]], space: Space) -> None:
        """Indices of what is read at another position; the loop goes on where one lies outside."""
        for item in items:
            positions, outside = self._positions(Ref(self.sides.a.name, (item,)), space)
            self.lines.add(*positions, *([f"if ({' || '.join(outside)}) continue;"] if outside else []))

    def _weights(self, row: Slide, last: Slide, space: Space) -> None:
        lines = self.lines
        u, w = axis_index(row.window), axis_index(last.window)
        kind, weights = COMPUTE_TYPE[self.sides.dot.dtype], self._held()
        lines.add(f"{kind} {weights}{self._shape()}[{row.window}][{last.window}];")
        with self._each_filter():
            lines.add("#pragma unroll")
            with lines.block(f"for (int {u} = 0; {u} < {row.window}; {u}++)"):
                lines.add("#pragma unroll")
                with lines.block(f"for (int {w} = 0; {w} < {last.window}; {w}++)"):
                    lines.add(f"{weights}{self._filter()}[{u}][{w}] = {self._value(self.sides.b.name, space)};")

    def _held(self) -> str:
        """The registers that hold the weights of a window."""
        return f"r{self.sides.b.name.lstrip('int')}"

    def _accumulate(self, row: Slide, last: Slide, space: Space) -> None:
        lines, dot = self.lines, self.sides.dot.name
        moved = {a: axis_index(a) for a, _ in self.sides.a.access}
        value = self._value(self.sides.a.name, Space(self.program, space.variables, moved))
        u, w = axis_index(row.window), axis_index(last.window)
        lines.add("#pragma unroll")
        with lines.block(f"for (int j = 0; j < {self.schedule.vector}; j++)"):
            lines.add(f"const int {u} = y - {'j' if row.stride == 1 else f'{row.stride} * j'};")
            if not self.filters:
                lines.add(f"if ({u} >= 0 && {u} < {row.window}) {dot}[j] += {value} * {self._held()}[{u}][{w}];")
                return
            lines.add(f"if ({u} < 0 || {u} >= {row.window}) continue;")
            with self._each_filter():
                at = self._filter()
                lines.add(f"{dot}{at}[j] += {value} * {self._held()}{at}[{u}][{w}];")

    # the filters of a register tile

    @contextmanager
    def _each_filter(self) -> Iterator[None]:
        with ExitStack() as loops:
            for axis in self.filters:
                self.lines.add("#pragma unroll")
                at = axis_index(axis)
                loops.enter_context(self.lines.block(f"for (int {at} = 0; {at} < {axis}; {at}++)"))
            yield

    def _shape(self) -> str:
        return "".join(f"[{a}]" for a in self.filters)

    def _filter(self) -> str:
        return "".join(f"[{axis_index(a)}]" for a in self.filters)


def index_axes(index: Index) -> set[str]:
    return {a for _, a in index.terms}
