"""Writes product stages whose patches of the image are computed by warps of their own (product_fill of the header).

As product_bulk, but only the weight is packed: nothing of the image's size is written and read again. What a
window reads is computed once for a patch, so windows of few steps gain little. Where the window moves by more than
one place, the patch holds every stride-th element apart (Planes.parts), and each step reads one such part.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from cudal1_trainer.teachers.product_bulk import BulkWriter
from cudal1_trainer.teachers.product_planes import Axis
from cudal1_trainer.teachers.source import product
from cudal1_trainer.teachers.space import Space, Var, axis_index, grouped, size_of
from cudal1_trainer.teachers.stage import Buffer


class FillWriter(BulkWriter):
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

    def _part(self) -> str:
        """Places of a patch that hold the same of a place's elements."""
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
        needed = space.needed_axes(self._before(sides.a.name)[0])
        with lines.block(f"[&](int{' o' if outer else ''})"):
            with lines.block("return [=](int m)"):
                inside = self._place(outer)
                lines.add(*[t for a in (*planes.plain, *sides.batch) if a in needed and (t := space.index_line(a))])
                lines.add(f"const bool inside = {' && '.join(inside)};")
                with lines.block("return [=](int k)"):
                    lines.add("if (!inside) return 0.0f;")
                    if self.schedule.splits > 1:
                        lines.add("k += begin;")
                    lines.add(*[t for a in sides.channels if a in needed and (t := space.index_line(a))])
                    lines.add(f"return {self._value(sides.a.name, space)};")
                lines.text[-1] += ";"
            lines.text[-1] += ";"
        lines.text[-1] += ","

    def _place(self, outer: Sequence[Axis]) -> list[str]:
        """Where in the image a patch's place lies; returns when that is inside."""
        lines, planes = self.lines, self.planes
        at, parts = "m", planes.parts(self.plan.inner)
        if parts > 1:
            at = "m % part"
        begin, before = self._begin(outer), planes.distance([str(x.before) for x in planes.axes], named=True)
        text = " + ".join(["m0", at, *([begin] if begin != "0" else [])])
        lines.add(f"const int place = {text}{f' - {grouped(before)}' if before != '0' else ''};")
        inside = ["place >= 0"] if before != "0" else []
        elements = [*self._elements("o", outer), *self._elements("m / part", planes.axes[len(outer) :], part=True)]
        for n, (x, element) in enumerate(zip(planes.axes, elements, strict=True)):
            index = planes.index(n)
            if x.stride > 1:
                index = f"{grouped(index)} * {x.stride} + {element}"
            lines.add(f"const int {axis_index(x.read)} = {index};")
            inside += [f"{axis_index(x.read)} < {x.read}"] if x.room or x.stride > 1 or not (n or planes.plain) else []
        if planes.plain:
            around = size_of(x.name for x in planes.axes)
            lines.add(f"const int row = {f'place / {grouped(around)}' if around != '1' else 'place'};")
            inside.append(f"row < {size_of(planes.plain)}")
        return inside

    def _elements(self, variable: str, axes: Sequence[Axis], part: bool = False) -> list[str]:
        """Which element of a place a step of the window reads, along each axis; part: by the patch's part."""
        found = []
        for n, x in enumerate(axes):
            inner = str(prod(y.stride for y in axes[n + 1 :])) if part else self._taps(axes[n + 1 :])
            text = variable if inner == "1" else f"{variable} / {grouped(inner)}"
            if part:
                found.append(text + (f" % {x.stride}" if n else ""))
                continue
            text += f" % {self._size([x.window])}" if n else ""
            found.append(f"{grouped(_after(text, x))} % {x.stride}")
        return found

    def _digits(self, variable: str, axes: Sequence[Axis]) -> list[str]:
        plain = super()._digits(variable, axes)
        return [t if x.stride == 1 else f"{grouped(_after(t, x))} / {x.stride}" for t, x in zip(plain, axes, strict=True)]

    def _shift(self, inner: Sequence[Axis]) -> None:
        text = self.planes.distance(self._digits("tap", inner), named=True)
        if self.planes.parts(self.plan.inner) > 1:
            which = ""
            for x, element in zip(inner, self._elements("tap", inner), strict=True):
                if x.stride > 1:
                    which = f"{product(grouped(which), str(x.stride))} + {element}" if which else element
            text = f"{grouped(which)} * part + {text}"
        self.lines.add(f"[&](int{' tap' if text != '0' else ''}) {{ return {text}; }},")


def _after(text: str, x: Axis) -> str:
    return f"{text} + {x.skipped}" if x.skipped else text
