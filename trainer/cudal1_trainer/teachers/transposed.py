"""Writes pointwise stages whose inputs and outputs run along different innermost axes, through shared memory.

A block of 32 x 8 threads owns a tile of 32 x 32 elements: inputs that are contiguous along the other axis are read
along it into shared memory, and from there every access is along the output's innermost axis. Applies to dense
tensors without accesses.
"""

from __future__ import annotations

from dataclasses import dataclass

from cudal1_fx_passes.ops import OPS, Kind
from cudal1_trainer.teachers.element import Elements, in_order, late_loads
from cudal1_trainer.teachers.expression import COMPUTE_TYPE
from cudal1_trainer.teachers.grouped import combine_tile, write_guarded
from cudal1_trainer.teachers.pointwise import memory_order
from cudal1_trainer.teachers.reduction import Phase, declare, reduced_value
from cudal1_trainer.teachers.schedule import StageSchedule
from cudal1_trainer.teachers.source import Kernel, Lines, signature
from cudal1_trainer.teachers.space import Space, Var, axis_index, grouped, size_of
from cudal1_trainer.teachers.stage import Buffer, Stage

TILE = 32
MAX_TILES = 65535  # in the second and third grid dimension
SHARED_BYTES = 40_000


def other_axis(stage: Stage) -> str | None:
    """The axis along which the largest transposed input is contiguous; None where no input is transposed."""
    if stage.kind != "pointwise" or len(stage.kept) < 2:
        return None
    inner = memory_order(stage)[-1]
    found = [b for b in stage.loads if b.axes and b.axes[-1] != inner and inner in b.axes and _is_dense(b)]
    found = [b for b in found if b.axes[-1] in stage.kept]
    return max(found, key=lambda b: stage.program.size(b.axes)).axes[-1] if found else None


def schedules(stage: Stage) -> list[StageSchedule]:
    axis = other_axis(stage)
    if axis is None:
        return []
    sizes = [stage.program.axis[a].size for a in (memory_order(stage)[-1], axis)]
    shared = len(_turned(stage, axis)) * TILE * (TILE + 1) * 8
    if min(sizes) < 8 or max(sizes) > TILE * MAX_TILES or shared > SHARED_BYTES:
        return []
    return [StageSchedule("transpose", 1, block) for block in (256, 512, 128)]


def _is_dense(b: Buffer) -> bool:
    return b.strides is None and not b.access


def _turned(stage: Stage, axis: str) -> list[Buffer]:
    inner = memory_order(stage)[-1]
    return [b for b in stage.loads if b.axes and b.axes[-1] == axis and inner in b.axes and _is_dense(b)]


@dataclass(frozen=True, slots=True)
class Sums:
    """What a tile adds up beside its copy, for each lane along the innermost axis of the output."""

    phases: tuple[Phase, ...]
    buffers: tuple[Buffer, ...]  # of the tiles' sums: the axes over which there is one each
    over: tuple[str, ...]  # axes outside the tile that are summed as well


def write_transposed(stage: Stage, schedule: StageSchedule, name: str, sums: Sums | None = None) -> Kernel:
    lines, program = Lines(), stage.program
    inner, axis = memory_order(stage)[-1], other_axis(stage)
    assert axis is not None
    rest = tuple(a for a in memory_order(stage) if a not in (inner, axis))
    variables = (Var("g", rest),) if rest else ()
    x, y = axis_index(inner), axis_index(axis)
    late = late_loads(stage)
    spelled: dict[str, str] = {}
    space = Space(program, variables, {inner: x, axis: y}, registers=spelled)
    elements = Elements(program, space, None, spelled=spelled, late=late)
    turned = _turned(stage, axis)
    plain = in_order(b for b in stage.loads if b not in turned and b.key not in late)
    loop = f"for (int r = threadIdx.y; r < {TILE}; r += {schedule.block // TILE})"
    parts = sums.buffers if sums is not None else ()
    with lines.block(signature(name, schedule.block, stage.reads, [*stage.writes, *parts])):
        if rest:
            lines.add("const int g = blockIdx.x;")
        lines.add(f"const int x0 = blockIdx.z * {TILE}, y0 = blockIdx.y * {TILE};")
        iota = [o for o in stage.ops if OPS[o.fn].kind is Kind.IOTA]
        over = [Buffer("", "", "f32", sums.over)] if sums is not None else []
        lines.add(*elements.index_lines([*stage.loads, *stage.writes, *parts, *over], iota))
        for b in turned:
            lines.add(f"__shared__ {COMPUTE_TYPE[b.dtype]} z{b.register}[{TILE}][{TILE + 1}];")
        with lines.block(loop):
            lines.add(
                f"const int {x} = x0 + r, {y} = y0 + threadIdx.x;",
                f"if ({x} >= {inner} || {y} >= {axis}) continue;",
            )
            lines.add(*[f"z{b.register}[r][threadIdx.x] = ld({elements.address(b)});" for b in turned])
        lines.add("__syncthreads();")
        lines.add(*[declare(p) for p in (sums.phases if sums is not None else ())])
        with lines.block(loop):
            lines.add(
                f"const int {x} = x0 + threadIdx.x, {y} = y0 + r;",
                f"if ({x} >= {inner} || {y} >= {axis}) continue;",
            )
            for b in turned:
                lines.add(f"const {COMPUTE_TYPE[b.dtype]} {b.register} = z{b.register}[threadIdx.x][r];")
                elements.spelled[b.key] = b.register
            lines.add(*[elements.load(b)[0] or "" for b in plain])
            lines.add(*[line for o in stage.ops for line in elements.statements(o)])
            lines.add(*[elements.store(b)[2] or "" for b in stage.writes])
            if sums is not None:
                lines.add(*[p.update.format(v=spelled[reduced_value(p.op)], c="") for p in sums.phases])
        if sums is not None:
            lines.add(*combine_tile(list(sums.phases), schedule.block // TILE))
            lines.add(f"const int {x} = x0 + threadIdx.x;")
            tile = f"({grouped(space.offset(over[0]))} * cdiv({axis}, {TILE}) + blockIdx.y)"
            tile = tile if sums.over else "blockIdx.y"
            places = [f"{b.name} + {tile} * {grouped(size_of(b.axes))} + {space.offset(b)}" for b in parts]
            stores = [f"st({place}, {p.register});" for place, p in zip(places, sums.phases, strict=True)]
            write_guarded(lines, f"threadIdx.y == 0 && {x} < {inner}", stores)
    names = tuple(b.name for b in (*stage.reads, *stage.writes, *parts))
    grid = f"dim3({size_of(rest)}, cdiv({axis}, {TILE}), cdiv({inner}, {TILE}))"
    return Kernel(name, "\n".join(lines.text), grid, f"dim3({TILE}, {schedule.block // TILE})", names)
