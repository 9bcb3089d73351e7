"""Fuses a reduction into the epilogue of the product before it: columns' sums and variances, no tensor read again.

    column_moments<128, 64> q7;   of a tile along n: a thread has the same columns of every row
    strip_sums<256, 1> q9;        of register tiles in NHWC: 32 neighbouring threads have neighbouring channels
    ... st(out0 + .., t5); q7.add(t5); q9.add(t6); ...
    q7.join([&](int n, float w7, float m7, float v7) { ... });

Where some warps only copy (product_bulk, product_fill) the consumers combine before these meet the others again.

A block's rows are a part of each column's. The next stage (kind `gathered`) combines the parts and is otherwise
the second kernel of a split reduction. What only it would have read is not even stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from cudal1_compile.codegen.products.bulk_copy import BulkCopyWriter
from cudal1_compile.codegen.products.columns import COLUMNS, ColumnWriter
from cudal1_compile.codegen.products.implicit_gemm import ImplicitGemm2dWriter, ImplicitGemmWriter
from cudal1_compile.codegen.products.product import ProductWriter
from cudal1_compile.codegen.products.register_blocked_nhwc import (
    LANES,
    RegisterBlockedNhwcWriter,
    shares_weights,
    slides_nhwc,
)
from cudal1_compile.codegen.products.sides import BULK_COPY, IMPLICIT_GEMM, IMPLICIT_GEMM_2D, WARP_GROUPS, Sides
from cudal1_compile.codegen.products.warp_groups import WarpGroupWriter
from cudal1_compile.codegen.reductions.grouped import group_order
from cudal1_compile.codegen.reductions.reduction import reduced_value
from cudal1_compile.codegen.reductions.split_parts import Part, cut_parts, element_writes
from cudal1_compile.codegen.reductions.split_reduction import Cut, write_final_kernel
from cudal1_compile.codegen.stages.pointwise import memory_order
from cudal1_compile.codegen.stages.schedule import StageSchedule
from cudal1_compile.codegen.stages.source import Kernel
from cudal1_compile.codegen.stages.space import grouped, size_of
from cudal1_compile.codegen.stages.stage import Buffer, Stage, StagePlan, is_reduction

EPILOGUE_REDUCED = "gathered"
MIN_COLUMNS = 64  # of a tile: of fewer a warp has several rows, and combining them takes longer than reading again
FINAL_ROWS = 32  # threads that share a column where parts are combined: there are hundreds


def epilogue_schedule(product: Stage, schedule: StageSchedule, stage: Stage) -> StageSchedule | None:
    """The schedule of a `stage` whose reduction is fused into the product before it; None where it cannot be."""
    computed = {b.value for b in product.writes if b.dtype == "f32"}
    wanted, columns = reducible_values(stage), group_order(stage)
    if not wanted or not wanted <= computed or not columns:
        return None
    if tile_form(schedule):
        assert schedule.tile is not None
        reduces, threads = _tile_reduces(product, schedule, columns), 2 * schedule.tile[0]
        return StageSchedule(EPILOGUE_REDUCED, 4, threads) if reduces else None
    reduces = _register_tile_reduces(product, schedule, columns)
    return StageSchedule(EPILOGUE_REDUCED, 4, schedule.block) if reduces else None


def tile_form(schedule: StageSchedule) -> str:
    """In which form its tiles hand out along their columns; none where they do not."""
    return next((form for form in TILES if schedule.kind.endswith(form)), "")


def _tile_reduces(product: Stage, schedule: StageSchedule, columns: tuple[str, ...]) -> bool:
    if schedule.tile is None or schedule.tile[1] < MIN_COLUMNS or schedule.splits > 1:
        return False
    writer = TILES[tile_form(schedule)](product, schedule, 0, 0)
    whole = writer.sides.n == columns and not writer.sides.batch and not writer.phases
    return whole and writer.in_vectors(product.writes)


def _register_tile_reduces(product: Stage, schedule: StageSchedule, columns: tuple[str, ...]) -> bool:
    slides, order = (
        slides_nhwc(product, Sides(product)) if shares_weights(schedule) else None,
        memory_order(product),
    )
    return slides is not None and order[order.index(slides[1].out) + 1 :] == columns


def reducible_values(stage: Stage) -> set[str]:
    """Values of which the stage takes sums, or a variance and the mean; none where it takes anything else."""
    found = [o for o in stage.ops if is_reduction(o)]
    values, fns = {reduced_value(o) for o in found}, [o.fn for o in found]
    variance = fns.count("var") == 1 and set(fns) <= {"var", "mean"} and len(values) == 1
    if stage.kind != "reduce" or not (variance or set(fns) <= {"sum", "mean"}) or element_writes(stage):
        return set()
    return values if all(o.dtype == "f32" for o in found) else set()


def unread(plan: StagePlan, product: int) -> set[str]:
    """Scratch that this stage writes for the one behind it alone: nobody reads it where the reduction is fused."""
    scratch = {b.name for b in plan.scratch}
    read = {b.name for stage in plan.stages[product + 2 :] for b in stage.reads}
    return {b.name for b in plan.stages[product].writes if b.name in scratch - read}


@dataclass(frozen=True, slots=True)
class _Accumulator:
    """Accumulates one value. results: the parameters of what takes a column's part, each with its scratch."""

    kind: str
    value: str
    number: str
    results: tuple[tuple[str, Buffer], ...]

    @property
    def register(self) -> str:
        return f"q{self.number}"


class _EpilogueReduction(ProductWriter):
    """A product with the reduction of the stage behind it in its epilogue."""

    behind: Stage
    scratch_behind: int
    unread: set[str]
    cut: str  # into how many parts
    at_once: int  # columns that a thread accumulates at once

    @cached_property
    def parts(self) -> list[Part]:
        return cut_parts(self.behind, self.scratch_behind)

    @cached_property
    def counts(self) -> Buffer | None:
        """How many rows each part of a variance has."""
        if not any(p.phase.op.fn == "var" for p in self.parts):
            return None
        name = f"s{self.scratch_behind + len(self.parts)}"
        return Buffer(name, name, "f32", ())

    @cached_property
    def accumulators(self) -> list[_Accumulator]:
        held = [(p, Buffer(p.buffer, p.buffer, p.dtype, ())) for p in self.parts]
        number, value = self.parts[0].phase.op.name[1:], reduced_value(self.parts[0].phase.op)
        if self.counts is not None:
            results = ((f"w{number}", self.counts), *((p.value, b) for p, b in held))
            return [_Accumulator("moments", value, number, results)]
        return [
            _Accumulator("sums", reduced_value(p.phase.op), p.phase.op.name[1:], ((p.phase.register, b),))
            for p, b in held
        ]

    def write(self) -> Kernel:
        shape = f"[{self.cut}, {size_of(group_order(self.behind))}]"
        made = super().write()
        return replace(made, scratch=tuple(f"{b.name} {b.dtype}{shape}" for b in self._parts_stored()))

    def write_behind(self, name: str) -> Kernel:
        """The next stage's kernel."""
        counts = self.counts.name if self.counts is not None else ""
        return write_final_kernel(self.behind, name, self.parts, Cut(self.cut, counts=counts), FINAL_ROWS)

    def _parts_stored(self) -> list[Buffer]:
        return [b for g in self.accumulators for _, b in g.results]

    def _written(self) -> tuple[Buffer, ...]:
        return tuple(b for b in self.stage.writes if b.name not in self.unread)

    def _stored(self) -> tuple[Buffer, ...]:
        return (*self._written(), *self._parts_stored())

    def _declare(self, shape: str) -> None:
        self.lines.add(*[f"{shape.format(g.kind)} {g.register};" for g in self.accumulators])

    def _kept_values(self) -> list[str]:
        """What no store has an array of."""
        stored = {self.sides.dot.name, *(b.value for b in self._written())}
        return list(dict.fromkeys(g.value for g in self.accumulators if g.value not in stored))

    def _keep(self, spelled: Mapping[str, str]) -> list[str]:
        return [f"u{v[1:]}[j] = {spelled[v]};" for v in self._kept_values()] if self.at_once > 1 else []

    def _open_keeping(self) -> None:
        if self.at_once > 1:
            self.lines.add(*[f"float u{v[1:]}[{self.at_once}];" for v in self._kept_values()])

    def _accumulated(self, value: str, spelled: Mapping[str, str]) -> str:
        """A register, or an array of `at_once`."""
        text = spelled[value]
        if self.at_once == 1 or text.endswith("[j]"):
            return text.removesuffix("[j]")
        stored = next((b.name for b in self._written() if b.value == value), None)
        return f"u{value[1:]}" if stored is None else f"r{stored.removeprefix('out')}"

    def _store_parts(self, first: str) -> None:
        """Stores the block's part. first: its first column."""
        lines, kept = self.lines, size_of(group_order(self.behind))
        for g in self.accumulators:
            with lines.block(f"{g.register}.join([&](int n, {', '.join(f'float {x}' for x, _ in g.results)})"):
                lines.add(f"const int c = {first} + n;", f"if (c >= {kept}) return;")
                lines.add(*[f"st({b.name} + blockIdx.x * {grouped(kept)} + c, {x});" for x, b in g.results])
            lines.text[-1] += ");"


class ReducingTileWriter(_EpilogueReduction, ColumnWriter):
    """In tiles; the form's writer comes with it."""

    at_once = COLUMNS
    scratch: int  # the first that is free
    packed: list[Any]  # what comes to lie in scratch

    def reduce_for(self, behind: Stage, unread: set[str]) -> None:
        self.behind, self.unread, self.scratch_behind = behind, unread, self.scratch + len(self.packed)
        self.cut = self._tall()

    def _call(self, depth: str) -> str:
        assert self.schedule.tile is not None
        self._declare(f"column_{{}}<{self.schedule.tile[0]}, {self.schedule.tile[1]}>")
        return super()._call(depth)

    def _captured(self) -> str:
        return ", ".join(["=", *(f"&{g.register}" for g in self.accumulators)])

    def _reduce_epilogue(self, spelled: Mapping[str, str]) -> None:
        each = [f"{g.register}.add(n, {self._accumulated(g.value, spelled)});" for g in self.accumulators]
        self.lines.add(*[f"if (inside) {x}" for x in each])


class ReducingWarpGroupWriter(ReducingTileWriter, WarpGroupWriter):
    """All threads of a block multiply."""

    def _tile(self, writes: Sequence[Buffer]) -> str:
        grid = super()._tile(writes)
        self._store_parts("n0")
        return grid


class ReducingBulkCopyWriter(ReducingTileWriter, BulkCopyWriter):
    """Some warps copy, or compute halo tiles."""

    def _epilogue_of_rows(self, writes: Sequence[Buffer], row: str) -> None:
        super()._epilogue_of_rows(writes, row)
        self.lines.text[-1] = self.lines.text[-1].removesuffix(");") + ","
        with self.lines.block("[&]"):
            self._store_parts("n0")
        self.lines.text[-1] += ");"


class ReducingImplicitGemmWriter(ReducingBulkCopyWriter, ImplicitGemmWriter):
    """Halo tiles of one run."""


class ReducingImplicitGemm2dWriter(ReducingBulkCopyWriter, ImplicitGemm2dWriter):
    """Halo tiles of several rows."""


TILES: dict[str, type[ReducingWarpGroupWriter] | type[ReducingBulkCopyWriter]] = {
    WARP_GROUPS: ReducingWarpGroupWriter,
    BULK_COPY: ReducingBulkCopyWriter,
    IMPLICIT_GEMM: ReducingImplicitGemmWriter,
    IMPLICIT_GEMM_2D: ReducingImplicitGemm2dWriter,
}


class ReducingRegisterBlockedWriter(_EpilogueReduction, RegisterBlockedNhwcWriter):
    """In register tiles of channels-last."""

    def __init__(self, stage: Stage, schedule: StageSchedule, first: int, scratch: int) -> None:
        super().__init__(stage, schedule, f"f{first}")
        self.scratch_behind, self.at_once = scratch, schedule.vector

    def reduce_for(self, behind: Stage, unread: set[str]) -> None:
        slides = slides_nhwc(self.stage, self.sides)
        assert slides is not None
        self.behind, self.unread = behind, unread
        self.cut = f"cdiv({self._register_tiles(*slides)}, {self.schedule.block // LANES})"

    def write_all(self) -> list[Kernel]:
        return [self.write()]

    @contextmanager
    def _where_is(self, past: str) -> Iterator[None]:
        self._declare(f"strip_{{}}<{self.schedule.block}, {self.schedule.vector}>")
        with self.lines.block(f"if ({past.replace('>=', '<').replace('||', '&&')})"):
            yield
        self._store_parts("c0")

    def _reduce_epilogue(self, spelled: Mapping[str, str]) -> None:
        self.lines.add(*[f"{g.register}.add({self._accumulated(g.value, spelled)});" for g in self.accumulators])
