"""Writes a row stage and the column sums of the same tensors as one pass: norm backward with weight gradients.

    f0   a persistent block takes rows g, g + gridDim.x, ...; each row is reduced and written as in a grouped
         kernel; the column sums accumulate in registers across rows and go to scratch once, one line a block
    f1   adds up the blocks' lines, then whatever follows the sums

Memory is read once where two stages would read it twice. Applies to two reducing stages whose kept and reduced
axes are each other's, when the second only sums.
"""

from __future__ import annotations

from dataclasses import replace

from cudal1_compile.codegen.reductions.grouped import TILE, GroupedWriter, combine_tile, write_guarded
from cudal1_compile.codegen.reductions.grouped_schedules import (
    REGISTER_BUDGET,
    SM_COUNT,
    crossing_values,
    is_row_like,
    row_vectors,
)
from cudal1_compile.codegen.reductions.reduction import phases, reduced_value
from cudal1_compile.codegen.stages.element import late_loads, write_each
from cudal1_compile.codegen.stages.schedule import StageSchedule
from cudal1_compile.codegen.stages.source import Kernel, Lines, signature
from cudal1_compile.codegen.stages.space import Var, grouped, size_of
from cudal1_compile.codegen.stages.stage import Buffer, Stage, StagePlan, closure, is_reduction, read_names
from cudal1_fx_passes.program.ir import Op, Ref


def fuse(plan: StagePlan) -> tuple[Stage, Stage] | None:
    """The row stage with the column stage's element operations, and the column stage; None if unfit."""
    if len(plan.stages) != 2 or any(s.kind != "reduce" for s in plan.stages):
        return None
    rows, columns = plan.stages
    if set(rows.kept) != set(columns.reduced) or set(rows.reduced) != set(columns.kept) or not rows.kept:
        return None
    sums = [o for o in columns.ops if is_reduction(o)]
    if any(o.fn not in ("sum", "mean") for o in sums) or not is_row_like(rows):
        return None
    if late_loads(rows) or late_loads(columns):
        return None
    if any(not set(b.span) <= set(columns.kept) for b in columns.writes):
        return None
    before = _elements(columns, sums)
    held = {b.value for b in rows.writes}
    loads = list(rows.loads)
    loads += [b for b in columns.loads if b.key not in {x.key for x in loads} and b.value not in held]
    read = {name for o in (*before, *sums) for name in read_names(o)}
    used = [b for b in loads if b in rows.loads or b.value in read]
    ops = tuple(o for o in rows.program.ops if o in rows.ops or o in before)
    writes = tuple(b for b in rows.writes if b.name.startswith("out"))
    reads = tuple({b.name: replace(b, access=(), span=()) for b in used}.values())
    return replace(rows, ops=ops, loads=tuple(used), reads=reads, writes=writes), columns


def _elements(columns: Stage, sums: list[Op]) -> list[Op]:
    """The operations below the sums."""
    made = {o.name: o for o in columns.ops}
    todo, found = [reduced_value(o) for o in sums], set()
    while todo:
        name = todo.pop()
        if name in made and name not in found:
            found.add(name)
            todo += [x.name for x in made[name].operands if isinstance(x, Ref)]
    return [o for o in columns.ops if o.name in found]


def schedules(plan: StagePlan) -> list[StageSchedule]:
    """Blocks so that a row's values and the sums fit in registers; `splits` is the number of blocks."""
    found = fuse(plan)
    if found is None or plan.stages[0].program.is_symbolic:
        return []
    rows, columns = found
    count, groups = rows.program.size(rows.reduced), rows.program.size(rows.kept)
    sums = sum(is_reduction(o) for o in columns.ops)
    live = crossing_values(rows) + sums
    made = []
    for vector in row_vectors(rows):
        for block in (32, 64, 128, 256, 512, 1024):
            held = -(-count // (block * vector)) * vector
            limit = min(REGISTER_BUDGET, 65536 // block - 24 if block > 256 else REGISTER_BUDGET)
            if held * live > limit or block * vector > 2 * max(count, 32):
                continue
            for per_sm in (1, 2, 4, 8, 16):
                if per_sm * block <= 2048 and SM_COUNT * per_sm * 2 <= groups:
                    made.append(StageSchedule("fused", vector, block, True, SM_COUNT * per_sm))
            if groups < SM_COUNT * 2:
                made.append(StageSchedule("fused", vector, block, True, max(1, groups // 4)))
    return sorted(made, key=lambda s: _badness(count, groups, sums, s))


def _badness(count: int, groups: int, sums: int, s: StageSchedule) -> float:
    """Idle lanes, too few threads to hide latency, and the traffic of the sums' parts."""
    held = -(-count // (s.block * s.vector)) * s.vector
    waste = held * s.block / count
    threads = s.block * s.splits / SM_COUNT
    return waste * max(1.0, 512 / threads) + 0.1 * (4 / s.vector) + 2.0 * sums * s.splits / groups


def _after_sums(columns: Stage) -> list[Op]:
    """The operations that the column stage's results need once its sums are known."""
    held = {b.value for b in columns.loads} | {o.name for o in columns.ops if is_reduction(o)}
    wanted = closure(columns.program, [b.value for b in columns.writes], held)
    return [o for o in columns.ops if o.name in wanted]


FINAL_ROWS = 32  # threads that share a column in the joining kernel


class FusedWriter(GroupedWriter):
    """The first kernel."""

    def __init__(self, stage: Stage, columns: Stage, schedule: StageSchedule, name: str, first: int) -> None:
        super().__init__(stage, replace(schedule, kind="block", splits=1), name)
        self.blocks = schedule.splits
        self.sums = [o for o in columns.ops if is_reduction(o)]
        self.parts = [Buffer(f"s{first + i}", o.name, "f32", self.order) for i, o in enumerate(self.sums)]

    def write(self) -> Kernel:
        s, lines, kept = self.schedule, self.lines, size_of(self.kept)
        with lines.block(signature(self.name, s.block, self.stage.reads, [*self.stage.writes, *self.parts])):
            shape = f"[C][{s.vector}]" if s.vector > 1 else "[C]"
            lines.add(f"constexpr int C = cdiv({size_of(self.order)}, {s.block * s.vector});")
            lines.add(f"float {', '.join(f'u{o.name[1:]}{shape} = {{}}' for o in self.sums)};")
            with lines.block(f"for (int g = blockIdx.x; g < {kept}; g += gridDim.x)"):
                self._open()
                for level in range(self.last_level + 1):
                    self._pass(level)
                    self._finish(level)
                self._add()
                self._close()
            self._store_sums()
        names = tuple(b.name for b in (*self.stage.reads, *self.stage.writes, *self.parts))
        scratch = tuple(f"{b.name} f32[{self.blocks}, {size_of(self.order)}]" for b in self.parts)
        grid = f"min({kept}, {self.blocks})"
        return Kernel(self.name, "\n".join(lines.text), grid, str(s.block), names, scratch)

    @property
    def last_level(self) -> int:
        return max(super().last_level, *(self.level[o.name] for o in self.element_ops), 0)

    def _open(self) -> None:
        """As in a grouped kernel, without the lines that stand before the row loop."""
        mark = len(self.lines.text)
        super()._open()
        kept = [t for t in self.lines.text[mark:] if "blockIdx.x;" not in t and "constexpr int C" not in t]
        self.lines.text[mark:] = kept

    def _add(self) -> None:
        s = self.schedule
        self._load_rest()
        at = "[k][j]" if s.vector > 1 else "[k]"
        inner = [f"u{o.name[1:]}{at} += {self.elements.spelled[reduced_value(o)]};" for o in self.sums]
        self._chunks(inner, [])

    def _load_rest(self) -> None:
        """Tensors that are only summed have not been read in any pass."""
        missing = [b for b in self.element_reads if b.key not in self.loaded]
        if not missing:
            return
        self.lines.add("#pragma unroll")
        with self.lines.block("for (int k = 0; k < C; k++)"):
            self.lines.add(f"const int c = {self._cached_position()};", f"if (c >= {size_of(self.order)}) break;")
            self._body(missing, [], [], [])
        self.loaded |= {b.key for b in missing}

    def _chunks(self, inner: list[str], after: list[str]) -> None:
        self.lines.add("#pragma unroll")
        with self.lines.block("for (int k = 0; k < C; k++)"):
            self.lines.add(f"const int c = {self._cached_position()};", f"if (c >= {size_of(self.order)}) break;")
            write_each(self.lines, self.schedule.vector, inner)
            self.lines.add(*after)

    def _store_sums(self) -> None:
        v, size = self.schedule.vector, grouped(size_of(self.order))
        stores = []
        for o, b in zip(self.sums, self.parts, strict=True):
            at = f"{b.name} + blockIdx.x * {size} + c"
            value = f"u{o.name[1:]}[k]"
            stores.append(f"vstore<{v}>({at}, {value});" if v > 1 else f"st({at}, {value});")
        self._chunks([], stores)


def write_fused(plan: StagePlan, schedule: StageSchedule, names: tuple[str, str], first: int) -> list[Kernel]:
    found = fuse(plan)
    assert found is not None
    rows, columns = found
    writer = FusedWriter(rows, columns, schedule, names[0], first)
    return [writer.write(), _write_final_kernel(columns, writer, names[1])]


def _write_final_kernel(columns: Stage, rows: FusedWriter, name: str) -> Kernel:
    """Adds the blocks' lines up; threads along the columns."""
    lines = Lines()
    ops = _after_sums(columns)
    helper = GroupedWriter(columns, StageSchedule("tile", 1, 0), name)
    helper.kept = rows.order
    group = replace(helper.group, space=replace(helper.group.space, variables=(Var("g", rows.order),)))
    used = {n for o in ops for n in (getattr(x, "name", "") for x in o.operands)} | {
        b.value for b in columns.writes
    }
    loads = [b for b in helper.group_reads if b.value in used]
    params = list({b.name: b for b in loads}.values())
    kept, lanes = size_of(rows.order), TILE * FINAL_ROWS
    found, _ = phases(columns.program, columns.ops)
    with lines.block(signature(name, lanes, [*rows.parts, *params], columns.writes)):
        lines.add(f"const int h = blockIdx.x * {TILE} + threadIdx.x;", f"const int g = min(h, {kept} - 1);")
        lines.add(*[f"float {p.register} = 0.0f;" for p in found])
        lines.add("#pragma unroll 4")
        with lines.block(
            f"for (int s = threadIdx.y; s < min({size_of(rows.kept)}, {rows.blocks}); s += {FINAL_ROWS})"
        ):
            for p in found:
                part = next(b for b in rows.parts if b.value == p.op.name)
                lines.add(f"{p.register} += ld({part.name} + s * {grouped(kept)} + g);")
        lines.add(*combine_tile(found, FINAL_ROWS))
        for p in found:
            lines.add(*[f.format(p=p.register, n=grouped(size_of(rows.kept))) for f in p.finish])
            group.spelled[p.op.name] = p.op.name
        lines.add(*group.index_lines([*loads, *columns.writes], ops))
        lines.add(*[group.load(b)[0] or "" for b in loads])
        lines.add(*[line for o in ops for line in group.statements(o)])
        stores = [group.store(b)[2] or "" for b in columns.writes]
        write_guarded(lines, f"threadIdx.y == 0 && h < {kept}", stores)
    names = tuple(b.name for b in (*rows.parts, *params, *columns.writes))
    return Kernel(name, "\n".join(lines.text), f"cdiv({kept}, {TILE})", f"dim3({TILE}, {FINAL_ROWS})", names)
