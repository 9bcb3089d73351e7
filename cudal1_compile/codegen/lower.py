"""Turns a plan and a schedule into the code of a reply: plan lines first, then the kernels.

Kernels are named f0, f1, ... in launch order and scratch s0, s1, ... as they write it, so that no name depends on
a kernel that comes later. Nothing is chosen here.
"""

from __future__ import annotations

import re

from cudal1_compile.codegen.products.bulk_copy import BulkCopyWriter
from cudal1_compile.codegen.products.epilogue_reduction import (
    EPILOGUE_REDUCED,
    TILES,
    ReducingBulkCopyWriter,
    ReducingRegisterBlockedWriter,
    ReducingWarpGroupWriter,
    tile_form,
    unread,
)
from cudal1_compile.codegen.products.few_channel_halo import FewChannelHaloWriter
from cudal1_compile.codegen.products.halo_tile import HaloTileWriter
from cudal1_compile.codegen.products.implicit_gemm import ImplicitGemm2dWriter, ImplicitGemmWriter
from cudal1_compile.codegen.products.multistage import MultistageWriter
from cudal1_compile.codegen.products.offset_table import OffsetTableWriter
from cudal1_compile.codegen.products.product import ProductWriter
from cudal1_compile.codegen.products.register_blocked import ALL, RegisterBlockedWriter
from cudal1_compile.codegen.products.register_blocked_nhwc import RegisterBlockedNhwcWriter, register_tile_of
from cudal1_compile.codegen.products.register_blocked_phases import PHASES, RegisterBlockedPhaseWriter
from cudal1_compile.codegen.products.sides import (
    BULK_COPY,
    FEW_CHANNEL_HALO,
    HALO_TILE,
    IMPLICIT_GEMM,
    IMPLICIT_GEMM_2D,
    MULTISTAGE,
    OFFSET_TABLE,
    WARP_GROUPS,
)
from cudal1_compile.codegen.products.spread import stage_for
from cudal1_compile.codegen.products.warp_groups import WarpGroupWriter
from cudal1_compile.codegen.products.window_sums import WindowSumWriter, lanes_of
from cudal1_compile.codegen.reductions.fused import write_fused
from cudal1_compile.codegen.reductions.grouped import GroupedWriter
from cudal1_compile.codegen.reductions.online import OnlineWriter
from cudal1_compile.codegen.reductions.ragged import RaggedWriter
from cudal1_compile.codegen.reductions.scans import ScanWriter
from cudal1_compile.codegen.reductions.semaphore_reduction import SemaphoreReductionWriter
from cudal1_compile.codegen.reductions.split_reduction import write_split
from cudal1_compile.codegen.reductions.transposed import TransposedWriter
from cudal1_compile.codegen.reductions.windows import WindowWriter
from cudal1_compile.codegen.stages.pointwise import write_pointwise
from cudal1_compile.codegen.stages.schedule import StageSchedule
from cudal1_compile.codegen.stages.source import Kernel
from cudal1_compile.codegen.stages.stage import Buffer, StagePlan

Reducing = ReducingWarpGroupWriter | ReducingBulkCopyWriter | ReducingRegisterBlockedWriter
STAGED: dict[str, type[MultistageWriter] | type[FewChannelHaloWriter] | type[BulkCopyWriter]] = {
    MULTISTAGE: MultistageWriter,
    HALO_TILE: HaloTileWriter,
    WARP_GROUPS: WarpGroupWriter,
    FEW_CHANNEL_HALO: FewChannelHaloWriter,
    BULK_COPY: BulkCopyWriter,
    IMPLICIT_GEMM: ImplicitGemmWriter,
    IMPLICIT_GEMM_2D: ImplicitGemm2dWriter,
}
GROUPED = {"online": OnlineWriter, "ragged": RaggedWriter}


def lower(plan: StagePlan, schedules: tuple[StageSchedule, ...]) -> str:
    """Returns the code block of the reply."""
    kernels: list[Kernel] = []
    taken = len(plan.scratch)
    reducing: Reducing | None = None  # the product before
    for i, (planned, schedule) in enumerate(zip(plan.stages, schedules, strict=True)):
        stage = stage_for(planned, schedule)
        name = f"f{len(kernels)}"
        if schedule.kind == EPILOGUE_REDUCED:
            assert reducing is not None
            kernels.append(reducing.write_behind(name))
        elif [s.kind for s in schedules[i + 1 : i + 2]] == [EPILOGUE_REDUCED]:
            in_registers = register_tile_of(schedule) is not None
            writer_type = ReducingRegisterBlockedWriter if in_registers else TILES[tile_form(schedule)]
            reducing = writer_type(stage, schedule, len(kernels), taken)
            reducing.reduce_for(plan.stages[i + 1], unread(plan, i))
            made = reducing.write_all()
            taken += sum(len(k.scratch) for k in made)
            kernels += made
        elif stage.kind == "window":
            kernels.append(WindowWriter(stage, schedule, name).write())
        elif stage.kind == "product" and schedule.kind.endswith(tuple(STAGED)):
            copying = next(w for suffix, w in STAGED.items() if schedule.kind.endswith(suffix))
            made = copying(stage, schedule, len(kernels), taken).write_all()
            taken += sum(len(k.scratch) for k in made)
            kernels += made
        elif stage.kind == "product" and schedule.kind == PHASES:
            kernels.append(RegisterBlockedPhaseWriter(stage, schedule, name).write())
        elif stage.kind == "product" and schedule.splits > 1:
            splitting = WindowSumWriter if lanes_of(schedule) else ProductWriter
            made = splitting(stage, schedule, name).write_split(f"f{len(kernels) + 1}", taken)
            taken += 1
            kernels += made
        elif stage.kind == "product":
            product = RegisterBlockedWriter if schedule.kind in ("strip", ALL) else ProductWriter
            product = RegisterBlockedNhwcWriter if register_tile_of(schedule) else product
            product = OffsetTableWriter if schedule.kind.endswith(OFFSET_TABLE) else product
            kernels.append(product(stage, schedule, name).write())
        elif stage.kind == "scan":
            kernels.append(ScanWriter(stage, schedule, name, taken).write())
            taken += len(kernels[-1].scratch)
        elif schedule.kind == "transpose":
            kernels.append(TransposedWriter(stage, schedule, name).write())
        elif stage.kind == "pointwise":
            kernels += write_pointwise(stage, schedule, name)
        elif schedule.kind in ("joined", "joined_tile"):
            kernels.append(SemaphoreReductionWriter(stage, schedule, name, taken).write())
            taken += len(kernels[-1].scratch)
        elif schedule.splits > 1:
            made = write_split(stage, schedule, (name, f"f{len(kernels) + 1}"), taken)
            taken += len(made[0].scratch)
            kernels += made
        else:
            writer = GROUPED.get(schedule.kind, GroupedWriter)
            kernels.append(writer(stage, schedule, name).write())
    return assemble(kernels, [scratch_line(b) for b in plan.scratch])


def lower_fused(plan: StagePlan, schedule: StageSchedule) -> str:
    """The code of a plan whose two stages share one pass."""
    return assemble(write_fused(plan, schedule, ("f0", "f1"), 0), [])


def scratch_line(buffer: Buffer) -> str:
    return f"{buffer.name} {buffer.dtype}[{', '.join(buffer.axes) or '1'}]"


def assemble(kernels: list[Kernel], scratch: list[str]) -> str:
    launches = [k.launch for k in kernels]
    used = list(dict.fromkeys(_SCRATCH.findall("\n".join(launches))))
    declared = [*scratch, *(text for k in kernels for text in k.scratch)]
    declared = [text for text in declared if text.split()[0] in used]
    declared.sort(key=lambda text: used.index(text.split()[0]))
    lines = [*(f"// scratch: {text}" for text in declared), *launches, *(k.text for k in kernels)]
    return _SCRATCH.sub(lambda m: f"s{used.index(m[0])}", "\n".join(lines)) + "\n"


_SCRATCH = re.compile(r"\bs\d+\b")
