"""Writes warp-specialised implicit GEMM: producer warps compute halo tiles (product_fill of the device header).

    producer warps: global memory -> prologue -> halo tile in shared memory -> barrier -> consumer warps: wgmma

As product_bulk, but only the weight is packed: the image is neither written nor read again. A halo tile is
computed once and read by all taps of the window, so windows of few taps gain little. Where the window has a
stride, the halo tile holds every stride-th element apart (Planes.parts), and each tap reads one such part.
Where channels lie side by side in the image (NHWC), a thread computes 16 bytes of a position's at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import prod

from cudal1_compile.codegen.products.bulk_copy import BulkCopyWriter
from cudal1_compile.codegen.products.bulk_copy_plan import by_vectors
from cudal1_compile.codegen.products.planes import Axis, Planes2d
from cudal1_compile.codegen.stages.element import Elements, write_each
from cudal1_compile.codegen.stages.source import product
from cudal1_compile.codegen.stages.space import Space, Var, axis_index, grouped, signed, size_of
from cudal1_compile.codegen.stages.stage import Buffer


class ImplicitGemmWriter(BulkCopyWriter):
    NAME, COPIED = "product_fill", 1

    def _feeding(self) -> tuple[Buffer, ...]:
        return (*self._before(self.sides.a.name)[0], *self.packed)

    def _pack_all(self) -> None:
        self._constants([])
        self._pack_weight("blockIdx.x")

    def _names(self) -> None:
        found = [f"{x.name} = {x.size}" for x in self.planes.axes]
        if self.planes.parts(self.plan.inner) > 1:
            found.append(f"part = {self._part()}")
        self._constants(found)

    @cached_property
    def _by_vectors(self) -> bool:
        return by_vectors(self.whole, self.sides)

    def _further_words(self, along: bool) -> list[int]:
        return [int(along), 0, 1] if self._by_vectors else super()._further_words(along)

    def _part(self) -> str:
        """Positions of a halo tile that hold the same of a position's elements."""
        assert self.schedule.tile is not None
        return f"{self.schedule.tile[0]} + {self.planes.span(self.plan.inner, named=True)}"

    def _span(self) -> str:
        assert self.schedule.tile is not None
        parts = self.planes.parts(self.plan.inner)
        return f"{parts} * part - {self.schedule.tile[0]}" if parts > 1 else super()._span()

    def _image(self, outer: Sequence[Axis]) -> None:
        """[&](int o) { return [=](int m) { const int place = ...; return [=](int k) { return a0; }; }; },"""
        lines, sides, planes = self.lines, self.sides, self.planes
        batch = (Var("g", sides.batch),) if sides.batch else ()
        space = Space(self.program, (Var("row", planes.plain), Var("k", sides.channels), *batch))
        needed = self._used_axes(sides.a, space)
        with lines.block(f"[&](int{' o' if outer else ''})"):
            with lines.block("return [=](int m)"):
                inside = self._position(outer)
                lines.add(
                    *[t for a in (*planes.plain, *sides.batch) if a in needed and (t := space.index_line(a))]
                )
                lines.add(f"const bool inside = {' && '.join(inside)};")
                if self._by_vectors:
                    self._vector(space)
                else:
                    self._element_at(space, needed)
                lines.text[-1] += ";"
            lines.text[-1] += ";"
        lines.text[-1] += ","

    def _element_at(self, space: Space, needed: set[str]) -> None:
        lines, sides = self.lines, self.sides
        with lines.block("return [=](int k)"):
            lines.add("if (!inside) return 0.0f;")
            if self.schedule.splits > 1:
                lines.add("k += begin;")
            lines.add(*[t for a in sides.channels if a in needed and (t := space.index_line(a))])
            lines.add(f"return {self._value(sides.a.name, space)};")

    def _vector(self, space: Space) -> None:
        """return [=](int k, float (&a0)[4]) { if (inside) vload<4>(in0 + ..., a0); };

        Loads alone ask whether the position is inside: those of several positions are then on their way together.
        """
        lines, sides, name = self.lines, self.sides, self.sides.a.name
        loads, ops = self._before(name)
        elements = Elements(self.program, space, sides.channels[0], self.vector)
        direct = not ops and elements.is_wide(loads[0])
        result = loads[0].register if direct else f"r{name.lstrip('int')}"
        with lines.block(f"return [=](int k, float (&{result})[{self.vector}])"):
            if self.schedule.splits > 1:
                lines.add("k += begin;")
            each = []
            for b in loads:
                before, within = elements.load(b)
                if set(b.axes) <= set(sides.channels):  # the same for all positions
                    lines.add(*elements.declare_loads([b]), *([before] if before else []))
                    each += [within] if within else []
                elif before and elements.is_wide(b):
                    lines.add(*([] if direct else [f"float {b.register}[{self.vector}] = {{}};"]))
                    lines.add(f"if (inside) {before}")
                else:
                    lines.add(*([_guarded(before)] if before else []))
                    each += [_guarded(within)] if within else []
            each += [line for o in ops for line in elements.statements(o)]
            if not direct:
                write_each(lines, self.vector, [*each, f"{result}[j] = inside ? {elements.spelled[name]} : 0.0f;"])

    def _position(self, outer: Sequence[Axis]) -> list[str]:
        """Where in the image a halo tile's position lies; returns when that is inside."""
        lines, planes = self.lines, self.planes
        at, parts = "m", planes.parts(self.plan.inner)
        if parts > 1:
            at = "m % part"
        begin, before = self._begin(outer), planes.distance([str(x.before) for x in planes.axes], named=True)
        text = " + ".join(["m0", at, *([begin] if begin != "0" else [])])
        lines.add(f"const int place = {text}{f' - {grouped(before)}' if before != '0' else ''};")
        inside = ["place >= 0"] if before != "0" else []
        elements = [*self._elements("o", outer), *self._held(planes.axes[len(outer) :])]
        for n, (x, element) in enumerate(zip(planes.axes, elements, strict=True)):
            index = planes.index(n)
            if x.stride > 1:
                index = f"{grouped(index)} * {x.stride} + {element}"
            lines.add(f"const int {axis_index(x.read)} = {index};")
            inside += (
                [f"{axis_index(x.read)} < {x.read}"] if x.room or x.stride > 1 or not (n or planes.plain) else []
            )
        if planes.plain:
            around = size_of(x.name for x in planes.axes)
            lines.add(f"const int row = {f'place / {grouped(around)}' if around != '1' else 'place'};")
            inside.append(f"row < {size_of(planes.plain)}")
        return inside

    def _elements(self, variable: str, axes: Sequence[Axis]) -> list[str]:
        """Which element of a position a step of the window reads, along each axis."""
        steps = zip(axes, self._steps(variable, axes), strict=True)
        return [f"{grouped(_after(t, x))} % {x.stride}" for x, t in steps]

    def _held(self, axes: Sequence[Axis]) -> list[str]:
        """Which element of a position the part of the halo tile holds that `m` lies in, along each axis."""
        found = []
        for n, x in enumerate(axes):
            inner = prod(y.stride for y in axes[n + 1 :])
            found.append(("m / part" if inner == 1 else f"m / part / {inner}") + (f" % {x.stride}" if n else ""))
        return found

    def _digits(self, variable: str, axes: Sequence[Axis]) -> list[str]:
        plain = super()._digits(variable, axes)
        return [
            t if x.stride == 1 else f"{grouped(_after(t, x))} / {x.stride}"
            for t, x in zip(plain, axes, strict=True)
        ]

    def _shift(self, inner: Sequence[Axis]) -> None:
        text = self._part_of("tap", inner) + self.planes.distance(self._digits("tap", inner), named=True)
        self.lines.add(f"[&](int{' tap' if text != '0' else ''}) {{ return {text}; }},")

    def _part_of(self, variable: str, inner: Sequence[Axis]) -> str:
        """Where the part of the halo tile begins that a step of the window reads."""
        which = ""
        for x, element in zip(inner, self._elements(variable, inner), strict=True):
            if x.stride > 1:
                which = f"{product(x.stride, grouped(which))} + {element}" if which else element
        return f"{grouped(which)} * part + " if which else ""


class ImplicitGemm2dWriter(ImplicitGemmWriter):
    """In two-dimensional tiles of eight rows (Planes2d)."""

    def _further_words(self, along: bool) -> list[int]:
        return [int(along), self._sides()[1], *([1] if self._by_vectors else [])]

    def _origin(self) -> str:
        return ""

    def _sides(self) -> tuple[int, int]:
        assert self.schedule.tile is not None and isinstance(self.planes, Planes2d)
        return self.planes.sides(self.schedule.tile[0])

    def _names(self) -> None:
        assert self.schedule.tile is not None
        y, x = self.planes.axes[-2:]
        found = [f"down = cdiv({y.out}, 8)", f"across = cdiv({x.out}, {self.schedule.tile[0] // 8})"]
        found += [f"part = {prod(self._sides())}"] if self.planes.parts(2) > 1 else []
        self._constants(found)

    def _rows(self) -> None:
        lines, planes = self.lines, self.planes
        assert self.schedule.tile is not None
        *outer, y, x = planes.axes
        wide = self.schedule.tile[0] // 8
        lines.add(f"const int y0 = blockIdx.x / across % down * 8, x0 = blockIdx.x % across * {wide};")
        rest, positions = "blockIdx.x / (across * down)", [f"q{a.out[1:]}" for a in planes.axes]
        if planes.plain:
            inner = size_of(a.out for a in outer)
            lines.add(f"const int row = {rest}{f' / {grouped(inner)}' if outer else ''};")
        for n, a in enumerate(outer):
            inner = size_of(b.out for b in outer[n + 1 :])
            text = rest + (f" / {grouped(inner)}" if inner != "1" else "")
            lines.add(f"const int {positions[n]} = {text}{f' % {a.out}' if n or planes.plain else ''};")
        text = "row" if planes.plain else ""
        for name, a in zip(positions, planes.axes, strict=True):
            text = f"{grouped(text)} * {a.out} + {name}" if text else name
        with lines.block("const auto at = [&](int m)"):
            lines.add(f"const int {positions[-2]} = y0 + m / 8 % 8, {positions[-1]} = x0 + m / 64 * 8 + m % 8;")
            past = f"{positions[-2]} >= {y.out} || {positions[-1]} >= {x.out}"
            lines.add(f"return {past} ? {self._size(self.sides.m)} : {text};")
        lines.text[-1] += ";"

    def _span(self) -> str:
        assert self.schedule.tile is not None
        parts = self.planes.parts(2)
        positions = f"{parts} * part" if parts > 1 else str(prod(self._sides()))
        return f"{positions} - {self.schedule.tile[0]}"

    def _position(self, outer: Sequence[Axis]) -> list[str]:
        lines, (y, x) = self.lines, self.planes.axes[-2:]
        pitch, inside = self._sides()[1], []
        q = "m % part" if self.planes.parts(2) > 1 else "m"
        steps = self._held((y, x))
        for a, at, step in ((y, f"y0 + {grouped(q)} / {pitch}", steps[0]), (x, f"x0 + {q} % {pitch}", steps[1])):
            at += signed(a.first - a.before)
            at = f"({at}) * {a.stride} + {step}" if a.stride > 1 else at
            lines.add(f"const int {axis_index(a.read)} = {at};")
            inside += [f"{axis_index(a.read)} >= 0", f"{axis_index(a.read)} < {a.read}"]
        for a, step in zip(outer, self._steps("o", outer), strict=True):
            at = product(a.stride, f"q{a.out[1:]}") if a.stride > 1 else f"q{a.out[1:]}"
            at += f" + {product(a.far, grouped(step))}{signed(a.offset)}"
            lines.add(f"const int {axis_index(a.read)} = {at};")
            inside += [f"{axis_index(a.read)} >= 0", f"{axis_index(a.read)} < {a.read}"]
        return inside

    def _shift(self, inner: Sequence[Axis]) -> None:
        dy, dx = self._digits("tap", inner)
        text = f"{product(self._sides()[1], grouped(dy))} + {dx}"
        self.lines.add(f"[&](int tap) {{ return {self._part_of('tap', inner)}{text}; }},")


def _guarded(load: str) -> str:
    """Of an element that lies nowhere outside of the image."""
    name, value = load.removesuffix(";").split(" = ", 1)
    return f"{name} = inside ? {value} : 0;"


def _after(text: str, x: Axis) -> str:
    return f"{text} + {x.skipped}" if x.skipped else text
