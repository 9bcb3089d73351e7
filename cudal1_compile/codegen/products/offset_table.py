"""Writes implicit GEMM of few channels with im2col's offsets in a table (product_tile of the device header).

A term k of the reduction is a channel and a tap of the window: to take it apart and to check bounds costs several
divisions and comparisons, for each element anew. A block does it once for all k and keeps two tables in shared
memory: `places[k]`, how far behind a row's first element the term lies, and `windows[k]`, one bit an axis of the
window. A row knows once which bits of those lie inside.
"""

from __future__ import annotations

from cudal1_compile.codegen.products.copies import load_of
from cudal1_compile.codegen.products.product import ProductWriter
from cudal1_compile.codegen.products.sides import Sides
from cudal1_compile.codegen.stages.schedule import StageSchedule
from cudal1_compile.codegen.stages.space import Space, Var, axis_index, grouped, size_of
from cudal1_compile.codegen.stages.stage import Stage
from cudal1_fx_passes.program.ir import ITEM_BYTES, Index, Ref

MAX_BITS = 30
ROOM = 46 * 1024  # of a block's static shared memory
MAX_CHANNELS = 15  # from 16 on a walk over the window is better


def fits_table(stage: Stage, sides: Sides, schedule: StageSchedule) -> bool:
    """Whether the image is a tensor over which a window slides forwards, and the tables have room."""
    load, size = load_of(stage, sides.a), stage.program.size
    if load is None or load.strides is not None or not sides.taps or size(sides.channels) > MAX_CHANNELS:
        return False
    bits = sum(size((a,)) for a in sides.taps)
    slides = all(_slides(sides, i) for _, i in sides.a.access)
    return slides and bits <= MAX_BITS and _bytes(stage, sides, schedule) <= ROOM


def _slides(sides: Sides, index: Index) -> bool:
    """Whether it is a step times a row's axis, and a window's."""
    factors = {a: f for f, a in index.terms}
    windows, rows = factors.keys() & {*sides.taps}, factors.keys() & {*sides.m}
    plain = (index.divisor, len(windows), len(rows), len(factors)) == (1, 1, 1, 2)
    return plain and all(factors[a] == 1 for a in windows)


def _bytes(stage: Stage, sides: Sides, schedule: StageSchedule) -> int:
    """Of the tables and of a tile's two stages."""
    assert schedule.tile is not None
    bm, bn, bk = schedule.tile
    size = ITEM_BYTES[stage.program.value_dtype[sides.a.name]]
    staged = (bm + bn) * (bk + 8) if size == 2 else (bm + bn + 16) * bk
    return 2 * staged * size + 8 * stage.program.size(sides.over)


class OffsetTableWriter(ProductWriter):
    """One convolution with tables."""

    def _settle(self, columns: int) -> None:
        super()._settle(columns)
        sides, lines, total = self.sides, self.lines, size_of(self.sides.over)
        lines.add(f"__shared__ int places[{total}], windows[{total}];")
        with lines.block(f"for (int k = threadIdx.x; k < {total}; k += {self.threads})"):
            space = Space(self.program, (Var("k", sides.over),))
            lines.add(*[x for a in sides.over if (x := space.index_line(a))])
            windows = {x: space.index(w) for x, w in self._windows()}
            lines.add(f"places[k] = {self._offset(windows, sides.over)};")
            bits = [f"1 << {_sum(axes, space.index(w))}" for w, axes in self._shifts()]
            lines.add(f"windows[k] = {' | '.join(bits)};")
        lines.add("__syncthreads();")

    def _windows(self) -> list[tuple[str, str]]:
        """Each axis of the image that a window moves, and the window's."""
        return [(x, next(a for _, a in i.terms if a in self.sides.taps)) for x, i in self.sides.a.access]

    def _shifts(self) -> list[tuple[str, tuple[str, ...]]]:
        """Each axis of the window, and those whose bits come before."""
        axes = tuple(w for _, w in self._windows())
        return [(w, axes[:at]) for at, w in enumerate(axes)]

    def _offset(self, moved: dict[str, str], counted: tuple[str, ...]) -> str:
        """In the image; of the axes that are not moved only those in `counted` count."""
        load = load_of(self.stage, self.sides.a)
        assert load is not None
        text = ""
        for axis in load.axes:
            here = moved.get(axis) or (axis_index(axis) if axis in counted else "")
            text = f"({text}) * {axis}" if " " in text else f"{text} * {axis}" if text else ""
            text = f"{text} + {here}" if text and here else text or here
        return text

    def _operand(self, x: Ref, parameter: str, variable: str, axes: tuple[str, ...]) -> None:
        """[&](int m) { ... const int first = ...; return [=](int k) { ... ld(in0 + first + places[k]) ... }; },"""
        if parameter == "n":
            super()._operand(x, parameter, variable, axes)
            return
        lines, load = self.lines, load_of(self.stage, x)
        assert load is not None
        space = self._space((Var(variable, axes),))
        firsts = {axis: space.affine(self._row(i)) for axis, i in x.access}
        with lines.block(f"[&](int {parameter})"):
            lines.add(f"const int {variable} = {parameter}0 + {parameter};")
            lines.add(*self._indices(variable, axes, set(self.program.value_axes[x.name]) | {*axes}, space))
            lines.add(*self._indices("g", self.sides.batch, set(load.axes), space))
            lines.add(*[f"const int {axis_index(a)} = {text};" for a, text in firsts.items()])
            rows = {a: axis_index(a) for a in firsts}
            single = {a: space.index(a) for a in load.axes if a in (*axes, *self.sides.batch)}
            lines.add(f"const int first = {self._offset(rows | single, ())};")
            bits = [
                f"window_bits({axis_index(x)}, {x}, {w})" + (f" << {_sum(axes)}" if axes else "")
                for (x, w), (_, axes) in zip(self._windows(), self._shifts(), strict=True)
            ]
            lines.add(f"const int inside = {variable} < {self._size(axes)} ? {' | '.join(bits)} : 0;")
            with lines.block("return [=](int k)"):
                lines.add("if (windows[k] & ~inside) return 0.0f;")
                lines.add(f"const float {load.register} = ld({load.name} + first + places[k]);")
                lines.add(f"return {load.register};")
            lines.text[-1] += ";"
        lines.text[-1] += ","

    def _row(self, index: Index) -> Index:
        """An index without its window."""
        return Index(tuple(t for t in index.terms if t[1] not in self.sides.taps), index.offset)


def _sum(axes: tuple[str, ...], last: str = "") -> str:
    """In parentheses where it has several terms."""
    return grouped(" + ".join([*axes, *([last] if last else [])]))
