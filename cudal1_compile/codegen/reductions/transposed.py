"""Writes pointwise stages whose inputs and outputs run along different innermost axes, through shared memory.

A block of 32 x 8 threads owns a tile of 32 x 32 elements: inputs that are contiguous along the other axis are read
along it into shared memory, and from there every access is along the output's innermost axis. Applies to dense
tensors without accesses.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cudal1_compile.codegen.reductions.grouped import combine_tile, write_guarded
from cudal1_compile.codegen.reductions.reduction import Phase, declare, reduced_value
from cudal1_compile.codegen.stages.element import Elements, in_order, late_loads
from cudal1_compile.codegen.stages.expression import COMPUTE_TYPE
from cudal1_compile.codegen.stages.pointwise import memory_order
from cudal1_compile.codegen.stages.schedule import StageSchedule
from cudal1_compile.codegen.stages.source import Kernel, Lines, signature
from cudal1_compile.codegen.stages.space import Space, Var, axis_index, grouped, size_of
from cudal1_compile.codegen.stages.stage import Buffer, Stage
from cudal1_fx_passes.program.ops import OPS, Kind

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


class TransposedWriter:
    """One kernel. `sums`: with what a tile adds up on the way."""

    def __init__(self, stage: Stage, schedule: StageSchedule, name: str, sums: Sums | None = None) -> None:
        self.stage, self.name = stage, name
        self.phases, self.parts, self.over = (sums.phases, sums.buffers, sums.over) if sums else ((), (), ())
        self.rows, self.block = schedule.block // TILE, schedule.block
        axis = other_axis(stage)
        assert axis is not None
        self.inner, self.axis = memory_order(stage)[-1], axis
        self.rest = tuple(a for a in memory_order(stage) if a not in (self.inner, axis))
        self.x, self.y = axis_index(self.inner), axis_index(axis)
        variables = (Var("g", self.rest),) if self.rest else ()
        late = late_loads(stage)
        spelled: dict[str, str] = {}
        self.space = Space(stage.program, variables, {self.inner: self.x, axis: self.y}, registers=spelled)
        self.elements = Elements(stage.program, self.space, None, spelled=spelled, late=late)
        self.turned = _turned(stage, axis)
        self.plain = in_order(b for b in stage.loads if b not in self.turned and b.key not in late)
        self.lines = Lines()

    def write(self) -> Kernel:
        stage, lines = self.stage, self.lines
        with lines.block(signature(self.name, self.block, stage.reads, [*stage.writes, *self.parts])):
            self._open()
            self._fill()
            lines.add("__syncthreads();", *[declare(p) for p in self.phases])
            self._empty()
            if self.phases:
                self._store_sums()
        names = tuple(b.name for b in (*stage.reads, *stage.writes, *self.parts))
        grid = f"dim3({size_of(self.rest)}, cdiv({self.axis}, {TILE}), cdiv({self.inner}, {TILE}))"
        return Kernel(self.name, "\n".join(lines.text), grid, f"dim3({TILE}, {self.rows})", names)

    def _open(self) -> None:
        stage, lines = self.stage, self.lines
        if self.rest:
            lines.add("const int g = blockIdx.x;")
        lines.add(f"const int x0 = blockIdx.z * {TILE}, y0 = blockIdx.y * {TILE};")
        iota = [o for o in stage.ops if OPS[o.fn].kind is Kind.IOTA]
        over = [Buffer("", "", "f32", self.over)] if self.phases else []
        lines.add(*self.elements.index_lines([*stage.loads, *stage.writes, *self.parts, *over], iota))
        for b in self.turned:
            lines.add(f"__shared__ {COMPUTE_TYPE[b.dtype]} z{b.register}[{TILE}][{TILE + 1}];")

    @contextmanager
    def _tile(self, x: str, y: str) -> Iterator[None]:
        """The rows of a tile; those beyond the tensor's end are left out."""
        with self.lines.block(f"for (int r = threadIdx.y; r < {TILE}; r += {self.rows})"):
            self.lines.add(f"const int {self.x} = x0 + {x}, {self.y} = y0 + {y};")
            self.lines.add(f"if ({self.x} >= {self.inner} || {self.y} >= {self.axis}) continue;")
            yield

    def _fill(self) -> None:
        with self._tile("r", "threadIdx.x"):
            for b in self.turned:
                self.lines.add(f"z{b.register}[r][threadIdx.x] = ld({self.elements.address(b)});")

    def _empty(self) -> None:
        stage, lines, elements = self.stage, self.lines, self.elements
        with self._tile("threadIdx.x", "r"):
            for b in self.turned:
                lines.add(f"const {COMPUTE_TYPE[b.dtype]} {b.register} = z{b.register}[threadIdx.x][r];")
                elements.spelled[b.key] = b.register
            lines.add(*[elements.load(b)[0] or "" for b in self.plain])
            lines.add(*[line for o in stage.ops for line in elements.statements(o)])
            lines.add(*[elements.store(b)[2] or "" for b in stage.writes])
            lines.add(*[p.update.format(v=elements.spelled[reduced_value(p.op)], c="") for p in self.phases])

    def _store_sums(self) -> None:
        lines, space = self.lines, self.space
        lines.add(*combine_tile(list(self.phases), self.rows))
        lines.add(f"const int {self.x} = x0 + threadIdx.x;")
        tile = "blockIdx.y"
        if self.over:
            over = grouped(space.offset(Buffer("", "", "f32", self.over)))
            tile = f"({over} * cdiv({self.axis}, {TILE}) + blockIdx.y)"
        positions = [f"{b.name} + {tile} * {grouped(size_of(b.axes))} + {space.offset(b)}" for b in self.parts]
        stores = [f"st({position}, {p.register});" for position, p in zip(positions, self.phases, strict=True)]
        write_guarded(lines, f"threadIdx.y == 0 && {self.x} < {self.inner}", stores)
