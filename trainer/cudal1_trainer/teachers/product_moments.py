"""Statistics of what a product stores, gathered on its way: a variance behind it reads no tensor.

    column_moments<128, 64> q7;   of a tile along n: a thread has the same columns of every row
    strip_moments<256, 1> q7;     of strips in channels-last: 32 neighbouring threads have neighbouring channels
    ... st(out0 + .., t5); q7.add(t5); ...
    q7.join([&](int n, float w7, float m7, float v7) { ... });

A block's rows are a part of each column's: their number, mean, and squares about it. The next stage ("moments")
joins the parts and is otherwise the second kernel of a split reduction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from cudal1_trainer.teachers.grouped import group_order
from cudal1_trainer.teachers.pointwise import memory_order
from cudal1_trainer.teachers.product import ProductWriter
from cudal1_trainer.teachers.product_sides import WIDE, Sides
from cudal1_trainer.teachers.product_wide import WideWriter
from cudal1_trainer.teachers.reduction import reduced_value
from cudal1_trainer.teachers.schedule import StageSchedule
from cudal1_trainer.teachers.source import Kernel
from cudal1_trainer.teachers.space import grouped, size_of
from cudal1_trainer.teachers.split import Cut, write_join
from cudal1_trainer.teachers.split_parts import Part, cut_parts, element_writes, part_buffers
from cudal1_trainer.teachers.stage import Buffer, Stage, is_reduction
from cudal1_trainer.teachers.strips_last import LANES, LastStripWriter, shares, slides_last

MOMENTS = "moments"
MIN_COLUMNS = 64  # of a tile: of fewer a warp has several rows, and joining them takes longer than reading again
JOIN_ROWS = 32  # threads that share a column where parts are joined: there are hundreds


def moments_of(product: Stage, schedule: StageSchedule, stage: Stage) -> StageSchedule | None:
    """How `stage` joins what the product before it gathers; None where that has not all it needs."""
    value = _gathered(stage)
    if not any(b.value == value and b.dtype == "f32" for b in product.writes):
        return None
    gathers = _tile_gathers if schedule.mapping.endswith(WIDE) else _strip_gathers
    return StageSchedule(MOMENTS, 4, schedule.block) if gathers(product, schedule, group_order(stage)) else None


def _tile_gathers(product: Stage, schedule: StageSchedule, columns: tuple[str, ...]) -> bool:
    if schedule.tile is None or schedule.tile[1] < MIN_COLUMNS or schedule.splits > 1:
        return False
    writer = WideWriter(product, schedule, 0, 0)
    whole = writer.sides.n == columns and not writer.sides.batch and not writer.phases
    return whole and writer.in_vectors(product.writes)


def _strip_gathers(product: Stage, schedule: StageSchedule, columns: tuple[str, ...]) -> bool:
    slides, order = slides_last(product, Sides(product)) if shares(schedule) else None, memory_order(product)
    return slides is not None and order[order.index(slides[1].out) + 1 :] == columns


def _gathered(stage: Stage) -> str | None:
    """The value of which the stage takes one variance, and perhaps the mean; None where it takes anything else."""
    found = [o for o in stage.ops if is_reduction(o)]
    values, fns = {reduced_value(o) for o in found}, [o.fn for o in found]
    plain = fns.count("var") == 1 and set(fns) <= {"var", "mean"} and all(o.dtype == "f32" for o in found)
    if stage.kind != "reduce" or not plain or len(values) > 1 or element_writes(stage):
        return None
    return values.pop()


@dataclass(frozen=True, slots=True)
class Moments:
    """What the product before `stage` gathers. scratch: the number of the first of its three buffers."""

    stage: Stage
    scratch: int

    @property
    def parts(self) -> list[Part]:
        return cut_parts(self.stage, self.scratch + 1)

    @property
    def number(self) -> str:
        """Of the variance."""
        return self.parts[0].phase.op.name[1:]

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """Rows, mean and squares of each part."""
        counts = f"s{self.scratch}"
        return Buffer(counts, counts, "f32", ()), *part_buffers(self.parts)

    def write_behind(self, name: str, parts: str) -> Kernel:
        """The kernel of `stage`. parts: how many there are."""
        return write_join(self.stage, name, self.parts, Cut(parts, counts=self.buffers[0].name), JOIN_ROWS)


class _Gathering(ProductWriter):
    """A product that gathers the statistics of the stage behind it."""

    moments: Moments
    cut: str  # into how many parts

    def write(self) -> Kernel:
        shape = f"[{self.cut}, {size_of(group_order(self.moments.stage))}]"
        return replace(super().write(), scratch=tuple(f"{b.name} f32{shape}" for b in self.moments.buffers))

    def write_behind(self, name: str) -> Kernel:
        """The next stage's kernel."""
        return self.moments.write_behind(name, self.cut)

    def _stored(self) -> tuple[Buffer, ...]:
        return (*self.stage.writes, *self.moments.buffers)

    def _declare(self, what: str) -> None:
        self.lines.add(f"{what} q{self.moments.number};")

    def _gathered_value(self, spelled: Mapping[str, str], vector: int) -> str:
        """What was stored: a register, or an array of `vector`."""
        value = _gathered(self.moments.stage)
        stored = next(b for b in self.stage.writes if b.value == value)
        text = spelled[stored.value]
        if vector == 1 or text.endswith("[j]"):
            return text.removesuffix("[j]")
        return f"r{stored.name.removeprefix('out')}"

    def _join(self, first: str) -> None:
        """Stores the block's part. first: its first column."""
        lines, kept, n = self.lines, size_of(group_order(self.moments.stage)), self.moments.number
        values = [f"{x}{n}" for x in "wmv"]
        with lines.block(f"q{n}.join([&](int n, {', '.join(f'float {v}' for v in values)})"):
            lines.add(f"const int c = {first} + n;", f"if (c >= {kept}) return;")
            place = f"blockIdx.x * {grouped(kept)} + c"
            lines.add(
                *[f"st({b.name} + {place}, {v});" for b, v in zip(self.moments.buffers, values, strict=True)]
            )
        lines.text[-1] += ");"


class MomentsTileWriter(_Gathering, WideWriter):
    """In tiles."""

    def __init__(self, stage: Stage, schedule: StageSchedule, first: int, scratch: int, behind: Stage) -> None:
        super().__init__(stage, schedule, first, scratch)
        assert schedule.tile is not None
        self.moments = Moments(behind, scratch + len(self.packed))
        self.cut = f"cdiv({self._size(self.sides.m)}, {schedule.tile[0]})"

    def _tile(self, writes: Sequence[Buffer]) -> str:
        grid = super()._tile(writes)
        self._join("n0")
        return grid

    def _call(self, depth: str) -> str:
        assert self.schedule.tile is not None
        self._declare(f"column_moments<{self.schedule.tile[0]}, {self.schedule.tile[1]}>")
        return super()._call(depth)

    def _captured(self) -> str:
        return f"=, &q{self.moments.number}"

    def _gather(self, spelled: Mapping[str, str]) -> None:
        self.lines.add(f"if (inside) q{self.moments.number}.add(n, {self._gathered_value(spelled, 4)});")


class MomentsStripWriter(_Gathering, LastStripWriter):
    """In strips of channels-last."""

    def __init__(self, stage: Stage, schedule: StageSchedule, first: int, scratch: int, behind: Stage) -> None:
        super().__init__(stage, schedule, f"f{first}")
        self.moments, slides = Moments(behind, scratch), slides_last(stage, self.sides)
        assert slides is not None
        self.cut = f"cdiv({self._strips(*slides)}, {schedule.block // LANES})"

    def write_all(self) -> list[Kernel]:
        return [self.write()]

    @contextmanager
    def _where_is(self, past: str) -> Iterator[None]:
        self._declare(f"strip_moments<{self.schedule.block}, {self.schedule.vector}>")
        with self.lines.block(f"if ({past.replace('>=', '<').replace('||', '&&')})"):
            yield
        self._join("c0")

    def _gather(self, spelled: Mapping[str, str]) -> None:
        self.lines.add(f"q{self.moments.number}.add({self._gathered_value(spelled, self.schedule.vector)});")
