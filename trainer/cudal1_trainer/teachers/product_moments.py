"""Statistics of what a product hands out, gathered on its way: a variance behind it reads no tensor.

    column_moments<128, 64> q7;
    product_wide<...>(..., [&](int m) { ... return [=, &q7](int n, float (&t0)[4]) { ... if (inside) q7.add(n, t5); }; });
    q7.join([&](int n, float m7, float v7) { ... });

Along n a thread has the same columns of every row, so that it keeps their sums in registers; a tile's rows are a part
of each column's. The next stage only joins the parts, as behind a split reduction.
"""

from __future__ import annotations

from dataclasses import replace

from cudal1_trainer.teachers.grouped import group_order
from cudal1_trainer.teachers.product_sides import WIDE
from cudal1_trainer.teachers.product_wide import WideWriter
from cudal1_trainer.teachers.reduction import reduced_value
from cudal1_trainer.teachers.schedule import StageSchedule
from cudal1_trainer.teachers.source import Kernel
from cudal1_trainer.teachers.space import grouped, size_of
from cudal1_trainer.teachers.split import Cut, write_join
from cudal1_trainer.teachers.split_parts import Part, cut_parts, element_writes, part_buffers
from cudal1_trainer.teachers.stage import Stage, is_reduction

MOMENTS = "moments"
MIN_COLUMNS = 64  # of a tile: of fewer a warp has several rows, and joining them takes longer than reading again
JOIN_ROWS = 32  # threads that share a column where parts are joined: there are hundreds


def moments_of(product: Stage, schedule: StageSchedule, stage: Stage) -> StageSchedule | None:
    """How `stage` joins what the product before it gathers; None where that has not all it needs."""
    if not schedule.mapping.endswith(WIDE) or schedule.tile is None or schedule.splits > 1:
        return None
    value = _gathered(stage)
    if schedule.tile[1] < MIN_COLUMNS or all(b.value != value or b.dtype != "f32" for b in product.writes):
        return None
    writer = WideWriter(product, schedule, 0, 0)
    sides = writer.sides
    if sides.batch or writer.phases or group_order(stage) != sides.n or not writer.in_vectors(product.writes):
        return None
    return StageSchedule(MOMENTS, 4, schedule.block)


def _gathered(stage: Stage) -> str | None:
    """The value of which the stage takes one variance, and perhaps the mean; None where it takes anything else."""
    found = [o for o in stage.ops if is_reduction(o)]
    values = {reduced_value(o) for o in found}
    fns = [o.fn for o in found]
    plain = fns.count("var") == 1 and set(fns) <= {"var", "mean"} and all(o.dtype == "f32" for o in found)
    if stage.kind != "reduce" or not plain or len(values) > 1 or element_writes(stage):
        return None
    return values.pop()


class MomentsWriter(WideWriter):
    """A product that gathers the statistics of the stage behind it."""

    def __init__(self, stage: Stage, schedule: StageSchedule, first: int, scratch: int, behind: Stage) -> None:
        super().__init__(stage, schedule, first, scratch)
        self.behind, self.parts = behind, cut_parts(behind, scratch + len(self.packed))
        self.value = _gathered(behind)
        self.register = f"q{self.parts[0].phase.op.name[1:]}"

    def write(self) -> Kernel:
        buffers = part_buffers(self.parts)
        writes = (*self.stage.writes, *buffers)
        with self.lines.block(self._signature(self.stage.reads, writes)):
            grid = self._tile(self.stage.writes)
            self._join()
        made = self._kernel(grid, self._block(), self.stage.reads, writes)
        shape = f"[{self.cut.parts}, {size_of(group_order(self.behind))}]"
        return replace(made, scratch=tuple(f"{b.name} {b.dtype}{shape}" for b in buffers))

    @property
    def cut(self) -> Cut:
        assert self.schedule.tile is not None
        rows = self.schedule.tile[0]
        return Cut(f"cdiv({self._size(self.sides.m)}, {rows})", str(rows))

    def write_behind(self, name: str) -> Kernel:
        """The next stage's kernel."""
        return write_join(self.behind, name, self.parts, self.cut, JOIN_ROWS)

    def _call(self, depth: str) -> str:
        assert self.schedule.tile is not None
        self.lines.add(f"column_moments<{self.schedule.tile[0]}, {self.schedule.tile[1]}> {self.register};")
        return super()._call(depth)

    def _captured(self) -> str:
        return f"=, &{self.register}"

    def _gather(self) -> None:
        stored = next(b for b in self.stage.writes if b.value == self.value)
        four = self.value if self.value == self.sides.dot.name else f"r{stored.name.removeprefix('out')}"
        self.lines.add(f"if (inside) {self.register}.add(n, {four});")

    def _join(self) -> None:
        lines, kept = self.lines, size_of(self.sides.n)
        values = ", ".join(f"float {p.value}" for p in self.parts)
        with lines.block(f"{self.register}.join([&](int n, {values})"):
            lines.add("const int c = n0 + n;", f"if (c >= {kept}) return;")
            place = f"blockIdx.x * {grouped(kept)} + c"
            lines.add(*[f"st({p.buffer} + {place}, {p.value});" for p in self.parts])
        lines.text[-1] += ");"
