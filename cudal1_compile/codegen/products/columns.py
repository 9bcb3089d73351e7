"""Writes the epilogue of sums handed out along columns (ALONG of product_wide, product_bulk, product_fill).

    [&](int m) { const int r = m0 + m, i = min(r, d0 - 1);     a row that is there
      return [=](int n, float (&t0)[4]) { ... }; });           the sums of four columns

Four columns at once where they divide all that is read and stored along them, one (product.py) elsewhere. Other
operands are read at clamped positions; stores alone are guarded, without a branch: the loads of several rows are
then in flight at once. Only phases, which end apart along each axis, branch before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cudal1_compile.codegen.products.product import ProductWriter
from cudal1_compile.codegen.stages.element import Elements, write_visit
from cudal1_compile.codegen.stages.pointwise import memory_order
from cudal1_compile.codegen.stages.space import Var, is_unit_stride, size_of, vector_fits
from cudal1_compile.codegen.stages.stage import Buffer

COLUMNS = 4


class ColumnWriter(ProductWriter):
    """A product whose device function hands out along rows or along columns, as the result lies."""

    def _is_along(self) -> bool:
        """Whether neighbouring threads hand out neighbouring columns."""
        return memory_order(self.stage)[-1:] == self.sides.n[-1:]

    def in_vectors(self, writes: Sequence[Buffer]) -> bool:
        """Whether vectors of columns divide all that is read and stored along them."""
        axis, beside = self.sides.n[-1], [*self._beside(), *writes]
        along = [b for b in beside if axis in b.span]
        fitting = all(is_unit_stride(b, axis) and vector_fits(self.program, b, axis, COLUMNS) for b in along)
        return self._is_along() and fitting and not any(b.index_values or b.access for b in beside)

    def _beside(self) -> list[Buffer]:
        """What is read beside the sums where they are handed out."""
        return self._after_loads() if self.schedule.splits == 1 else []

    def _reads(self) -> bool:
        """Whether anything is: memory, or what is settled for the tile's columns."""
        return bool(self._beside() or self._settled())

    def _epilogue_of_rows(self, writes: Sequence[Buffer], row: str) -> None:
        if not self.in_vectors(writes):
            super()._epilogue_of_rows(writes, row)
            return
        sides, dot = self.sides, self.sides.dot.name
        space = self._space((Var("i", sides.m), Var("c", sides.n)))
        clamped = self._reads() and not self.phases
        with self._each_result(writes, row, space, clamped, f"float (&{dot})[{COLUMNS}]") as known:
            only = self._place_columns(clamped)
            spelled = self._spelled("c - n0 + j" if clamped else "n + j") | {dot: f"{dot}[j]"}
            elements = Elements(self.program, space, sides.n[-1], COLUMNS, spelled=spelled, only=only)
            ops, stores = self._after_ops(), list(writes)
            if self.schedule.splits > 1:
                ops, stores = [], [replace(b, name=f"{b.name} + z * ({size_of(b.axes)})") for b in writes]
            self._open_keeping()
            visit = elements.visit(self._beside(), ops, stores, lambda: self._keep(elements.spelled))
            write_visit(self.lines, COLUMNS, (x for x in visit if x not in known))
            self._reduce_epilogue(elements.spelled)

    def _place_columns(self, clamped: bool) -> str:
        """Writes which columns these are; returns what stores ask for."""
        sides, lines, columns = self.sides, self.lines, size_of(self.sides.n)
        row, column = ("r", "n0 + n") if clamped else ("i", "c")
        outside = [f"{row} >= {self._size(sides.m)}", f"{column} >= {columns}", *self._leaves(sides.m)]
        lines.add(f"const int c = {f'min(n0 + n, {columns} - {COLUMNS})' if clamped else 'n0 + n'};")
        if self.phases and self._reads():
            lines.add(f"if ({' || '.join(outside)}) return;")
            return ""
        lines.add(f"const bool inside = {' && '.join(outside).replace('>=', '<')};")
        return ", inside"
