"""Cost model: how long a product's schedules take on an H100, so that the likely fastest come first.

Fitted to 1,072 measured kernels of 57 programs, most of all to the faster ones of each. Only the
order of schedules depends on it, not what their kernels say.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from math import prod

from cudal1_compile.codegen.products.bulk_copy_plan import by_vectors, geometry_of
from cudal1_compile.codegen.products.bulk_copy_plan import plan_of as bulk_copy_plan_of
from cudal1_compile.codegen.products.bulk_copy_plan import waiting_for as bulk_copy_blocks
from cudal1_compile.codegen.products.copies import ordered, wants_packing
from cudal1_compile.codegen.products.few_channel_halo import FEW_CHANNEL_LAYOUTS, halo_box_of, halo_parts, tiles_of
from cudal1_compile.codegen.products.packing import pack_stage
from cudal1_compile.codegen.products.register_blocked_nhwc import read_count, register_tile_of
from cudal1_compile.codegen.products.register_blocked_phases import PHASES, batch_of, cells_of, phase_bytes
from cudal1_compile.codegen.products.sides import (
    BULK_COPY,
    FEW_CHANNEL_HALO,
    HALO_TILE,
    IMPLICIT_GEMM,
    IMPLICIT_GEMM_2D,
    MULTISTAGE,
    OFFSET_TABLE,
    PHASED,
    RAW,
    SPREAD,
    TAPS,
    WARP_GROUPS,
    Sides,
    arithmetic_of,
    phases_of,
)
from cudal1_compile.codegen.products.spread import spread_of
from cudal1_compile.codegen.products.warp_groups import item_bytes, occupancy, stage_bytes, steps_of, waiting_for
from cudal1_compile.codegen.products.warp_layouts import RESIDENT, estimate, evaluated, warp_of
from cudal1_compile.codegen.products.window_sums import lanes_of, window_reads
from cudal1_compile.codegen.stages.schedule import StageSchedule
from cudal1_compile.codegen.stages.stage import Stage
from cudal1_fx_passes.program.ir import ITEM_BYTES

CYCLES = 1700  # of a microsecond
CALL_US = 6.0
KERNEL_US = 1.5  # each further one
MEMORY, FAST_MEMORY = 1.7e6, 2.4e6  # bytes a microsecond
COPY_RATES = {MULTISTAGE: 1.1e-6, PHASED + HALO_TILE: 2.6e-6, HALO_TILE: 1.5e-6}  # us, by the way of copying
RATES = COPY_RATES | {TAPS: 2e-6, OFFSET_TABLE: 1.5e-6, "": 2.6e-6}
ARITHMETICS = {"tf32_long": 1.1, "tf32": 1.0, "f16": 0.63, "bf16": 0.63, "f32_split": 3.0, "f32": 6.0}
BY_GROUPS = {(128, 128, 32): 0.8}  # of f32_split in pipes by wgmma, over the time by mma
TERMS = {"direct": 2.4e6, "strip": 9e6, "strip_all": 14e6}  # a microsecond; the last one not fitted
IDLE_FEW, IDLE = 250, 80  # cycles of a step of product_bulk, by whether two warp groups multiply or more
LATENCY = 700  # cycles of a read
REGISTERS, SHARED_BYTES = 65536, 227 * 1024  # of an SM
COPIED = 48  # bytes a cycle
PRODUCED = (4, 2500)  # elements a cycle, cycles of a halo tile; fitted to 111 kernels of 7 programs
BY_VECTORS = (8, 1000)  # the same where channels lie side by side; this and the next fitted to 392 kernels of 14
RAW_STEPS = 1.15  # what product_wide takes longer over tiles that nobody packed
READS = 24e6  # a microsecond, of strips with channels inside; reckoned from `direct`, not fitted


class Times:
    """Of one stage's schedules, all of their kernels together."""

    def __init__(self, stage: Stage) -> None:
        program, self.sides, self.ordered = stage.program, Sides(stage), ordered(stage)
        self.raw = ordered(stage, raw=True)
        self.stage = stage
        self.results = program.size((*self.sides.batch, *self.sides.m, *self.sides.n))
        self.phases = prod(p.step for p in phases_of(self.sides.a))
        moved = sum(program.size(b.axes) * ITEM_BYTES[b.dtype] for b in (*stage.reads, *stage.writes))
        self.least = CALL_US + moved / MEMORY
        operands = {x.name for x in (self.sides.a, self.sides.b)}
        beside = [
            b.axes for b in stage.reads if b.value not in operands and program.size(b.axes) * 4 > self.results
        ]
        self.beside = sum(program.size(axes) for axes in beside) * 4
        self.packs = KERNEL_US * wants_packing(stage, self.ordered)
        self.packed: dict[tuple[str, bool], int] = {}
        spread = spread_of(stage)
        self.spread = Times(spread) if spread is not None else self

    @cached_property
    def by_vectors(self) -> bool:
        return by_vectors(self.stage, self.ordered)

    def us(self, schedule: StageSchedule) -> float:
        if SPREAD in schedule.kind:
            return self.spread.us(replace(schedule, kind=schedule.kind.replace(SPREAD, "")))
        if schedule.kind.endswith(WARP_GROUPS):
            return self._warp_groups(schedule)
        if schedule.kind.endswith(FEW_CHANNEL_HALO):
            return self._few_channel_halo(schedule)
        if schedule.kind.endswith((BULK_COPY, IMPLICIT_GEMM, IMPLICIT_GEMM_2D)):
            return self._bulk_copy(schedule)
        size, sides = self.stage.program.size, self.sides
        if schedule.tile is None:
            if register_tile_of(schedule) is not None:
                return self.least + read_count(self.stage, sides, schedule) / READS
            if lanes_of(schedule) is not None:
                read = window_reads(self.stage, sides, schedule) / READS
                return self.least + read + KERNEL_US + 8 * self.results * schedule.splits / FAST_MEMORY
            if schedule.kind == PHASES:
                return self._phases(schedule)
            rate = TERMS[schedule.kind] * (7 + schedule.vector) / 8
            return self.least + self.results * size(sides.over) / rate
        how = next(h for h in RATES if schedule.kind.endswith(h))
        copies = how.endswith((MULTISTAGE, HALO_TILE))
        sides = self.ordered if copies else sides
        arithmetic = next(a for a in ARITHMETICS if schedule.kind.startswith(a))
        walks = how not in (OFFSET_TABLE, "")
        depth, bk = size(sides.channels if walks else sides.over), schedule.tile[2]
        terms = -(-depth // bk) * bk * (size(sides.taps) if walks else 1) / self.phases
        work = estimate(self.stage, sides, schedule, RESIDENT) * terms
        rate = RATES[how] * ARITHMETICS[arithmetic]
        if arithmetic == "f32_split" and how == MULTISTAGE:
            rate *= BY_GROUPS.get(schedule.tile, 1.0)
        us = self.least + work * rate
        return us + self.packs * copies + KERNEL_US * (schedule.splits > 1)

    def _warp_groups(self, schedule: StageSchedule) -> float:
        """What limits a step, times the busiest SM's blocks, and what packs and adds up the parts."""
        assert schedule.tile is not None
        (bm, bn, bk), arithmetic = schedule.tile, arithmetic_of(schedule)
        sides = self.raw if RAW in schedule.kind else self.ordered
        blocks = waiting_for(self.stage, sides, schedule)
        room, stages = occupancy(schedule, blocks)
        steps = steps_of(self.stage, sides, bk, schedule.splits)
        products = bm * bn * bk * item_bytes(arithmetic) / 4096 * (1.4 if arithmetic.endswith("long") else 1.2)
        busiest, late = max(products, stage_bytes(schedule) / 40), 1000 / (stages - 2)
        rounds = [room] * (blocks // room) + [blocks % room] * (blocks % room > 0)
        cycles = sum(1300 + steps * max(n * busiest, late) + n * bm * bn / 6 for n in rounds)
        cycles *= RAW_STEPS if RAW in schedule.kind else 1.0
        us = CALL_US + 2 + cycles / CYCLES + 2 * self._packed(arithmetic, RAW in schedule.kind) / MEMORY
        us += self.beside / FAST_MEMORY
        return us + (KERNEL_US + self.results * (schedule.splits * 4 + 4) / 2e6 if schedule.splits > 1 else 0)

    def _few_channel_halo(self, schedule: StageSchedule) -> float:
        """What shared memory and the tensor cores do for all blocks, and what fills the halo tiles."""
        assert schedule.tile is not None
        (bm, bn, bk), size = schedule.tile, self.stage.program.size
        box = halo_box_of(self.stage, self.sides, bm)
        assert box is not None
        wm, wn = warp_of(schedule, FEW_CHANNEL_LAYOUTS)
        warps, steps = schedule.block // 32, -(-size(self.sides.over) // bk) * bk // 8
        sums = steps * warps * max(wm / 4 + wn / 4 + 2, wm * wn / 80)
        positions = tiles_of(self.stage, box) * size((*box.planes, *self.sides.batch))
        blocks = positions * -(-size(self.sides.n) // bn)
        cycles = 1.3 * sums + 8 * halo_parts(self.stage, box) + bm * bn / 16 + 500
        return self.least + KERNEL_US + max(blocks / RESIDENT, 1.0) * cycles / CYCLES

    def _bulk_copy(self, schedule: StageSchedule) -> float:
        """What limits a step: the tensor cores, which few warp groups leave idle in between, or what is copied."""
        assert schedule.tile is not None
        (bm, bn, bk), size, sides = schedule.tile, self.stage.program.size, self.ordered
        planes, item = geometry_of(self.stage, sides, schedule), item_bytes(arithmetic_of(schedule))
        plan = bulk_copy_plan_of(self.stage, sides, planes, schedule)
        assert plan is not None
        blocks = bulk_copy_blocks(self.stage, sides, planes, schedule)
        outer = prod(x.taps for x in planes.axes[: len(planes.axes) - plan.inner])
        inner = prod(x.taps for x in planes.axes[len(planes.axes) - plan.inner :])
        chunks = -(-size(sides.channels) // (bk * schedule.splits))
        halo = evaluated(self.stage, planes.halo(bm, plan.inner)) * planes.parts(plan.inner)
        computes_halo = schedule.kind.endswith((IMPLICIT_GEMM, IMPLICIT_GEMM_2D))
        copied = (bn + (0 if computes_halo else halo / inner)) * bk * item / COPIED
        products = bm * bn * bk * item / 4096 * max(1.0, (64 + bn) / (2 * bn))
        rounds = [plan.blocks] * (blocks // plan.blocks) + [blocks % plan.blocks] * (blocks % plan.blocks > 0)
        rate, wait = BY_VECTORS if self.by_vectors else PRODUCED
        cycles = 0.0
        for n in rounds:
            idle = IDLE_FEW if n * bm < 192 else IDLE
            produced = (halo * bk / rate + wait / n) / inner if computes_halo else 0.0
            cycles += (
                2500 + outer * inner * chunks * n * max(products + idle / n, copied, produced) + n * bm * bn / 6
            )
            cycles += produced * inner
        columns = -(-size(sides.n) // bn) * bn
        rows = 0 if computes_halo else evaluated(self.stage, planes.positions(bm, named=False))
        packed = (rows + columns * outer * inner * self.phases) * size((*sides.channels, *sides.batch)) * item
        us = CALL_US + KERNEL_US + cycles / CYCLES + 2 * packed / FAST_MEMORY
        us += self.beside / FAST_MEMORY
        return us + (KERNEL_US + self.results * (schedule.splits * 4 + 4) / 2e6 if schedule.splits > 1 else 0)

    def _phases(self, schedule: StageSchedule) -> float:
        """What warps issue for a channel, or wait for where they are few; computed, not fitted."""
        size, sides, warps = self.stage.program.size, self.sides, schedule.block // 32
        cells = cells_of(self.stage, sides, schedule.vector)
        assert cells is not None
        weights, channels, outs = size((*sides.n, *sides.taps)), size(sides.channels), {c.out for c in cells}
        sums, positions = size(sides.n) * prod(c.results for c in cells), prod(c.positions for c in cells)
        outer = size(tuple(a for a in sides.m if a not in outs))
        threads = outer * prod(-(-(size((c.out,)) + c.shift) // c.results) for c in cells) * schedule.splits
        blocks = -(-threads // (schedule.block * RESIDENT))  # of an SM, in all
        batch = batch_of(self.stage, sides, schedule, cells)
        held = schedule.block * (40 + sums + batch * positions), phase_bytes(self.stage, sides, schedule, sums)
        room = min(REGISTERS // held[0], SHARED_BYTES // held[1], blocks) or 1
        slots = weights * schedule.vector + weights / 4 + positions * 1.5 + 10 / batch
        each = slots + LATENCY / batch
        steps = -(-channels // schedule.splits)
        cycles = -(-blocks // room) * (steps * max(room * warps / 4 * slots, each) + room * warps * sums)
        cycles += 1500 + room * 16 * weights * channels / schedule.block
        return max(self.least, CALL_US + cycles / CYCLES) + 0.1 * cycles / CYCLES

    def _packed(self, arithmetic: str, raw: bool) -> int:
        """Bytes."""
        if (arithmetic, raw) not in self.packed:
            made = pack_stage(self.stage, arithmetic, 0, raw)
            assert made is not None
            elements = sum(self.stage.program.size(to.axes) for _, to in made[1])
            self.packed[arithmetic, raw] = elements * item_bytes(arithmetic)
        return self.packed[arithmetic, raw]
