"""Writes reducing stages as ONE kernel: each group of kept axes belongs to a block, a warp, a thread or a tile.

    block    one block a group; threads stride over the group in vectors, block_* combine
    warp     one warp a group, several groups a block: short groups
    thread   one thread a group: very short groups, or groups that lie side by side in memory
    tile     32 groups side by side in threadIdx.x, their elements over threadIdx.y: reductions of outer axes

With `cached`, everything of a group that is loaded or computed stays in register arrays and each operation
stands once; otherwise every pass reads memory again and repeats the operations that are ready by then.
"""

from __future__ import annotations

from cudal1_compile.codegen.reductions.reduction import Phase, declare, phases, reduced_value
from cudal1_compile.codegen.stages.element import Elements, in_order, late_loads, operand_keys, write_each
from cudal1_compile.codegen.stages.schedule import StageSchedule
from cudal1_compile.codegen.stages.source import Kernel, Lines, product, signature
from cudal1_compile.codegen.stages.space import Space, Var, grouped, size_of
from cudal1_compile.codegen.stages.stage import Buffer, Stage, is_reduction
from cudal1_fx_passes.program.ir import Op

TILE = 32  # groups side by side in a tile


class GroupedWriter:
    """One reducing stage under one schedule."""

    def __init__(self, stage: Stage, schedule: StageSchedule, name: str) -> None:
        self.stage, self.schedule, self.name = stage, schedule, name
        self.kept, self.order = group_order(stage), reduced_order(stage)
        variables = tuple(v for v in (Var("g", self.kept), Var("c", self.order)) if v.axes)
        axis = self._vector_axis() if schedule.vector > 1 else None
        spelled: dict[str, str] = {}
        late = late_loads(stage)
        space = Space(stage.program, variables, registers=spelled)
        self.elements = Elements(stage.program, space, axis, schedule.vector, schedule.cached, spelled, late)
        outer = Space(stage.program, variables[:-1], registers=spelled)
        self.group = Elements(stage.program, outer, None, spelled=spelled, late=late)
        self.phases, self.level = phases(stage.program, stage.ops)
        kept = set(stage.kept)
        pointwise = [o for o in stage.ops if not is_reduction(o)]
        self.group_ops = [o for o in pointwise if set(o.axes) <= kept]
        self.element_ops = [o for o in pointwise if not set(o.axes) <= kept]
        self.group_reads = in_order(b for b in stage.loads if set(b.span) <= kept)
        self.element_reads = in_order(b for b in stage.loads if not set(b.span) <= kept)
        self.group_writes = [b for b in stage.writes if set(b.span) <= kept]
        self.element_writes = [b for b in stage.writes if not set(b.span) <= kept]
        self.lines = Lines()
        self.loaded: set[str] = set()

    def write(self) -> Kernel:
        s = self.schedule
        with self.lines.block(signature(self.name, s.block, self.stage.reads, self.stage.writes)):
            self._write_levels()
        names = tuple(b.name for b in (*self.stage.reads, *self.stage.writes))
        return Kernel(self.name, "\n".join(self.lines.text), self.grid, self.block, names)

    def _write_levels(self) -> None:
        self._open()
        for level in range(self.last_level + 1):
            self._pass(level)
            self._finish(level)
        self._close()

    def _vector_axis(self) -> str:
        return self.order[-1]

    def _declare(self, phase: Phase) -> str:
        return declare(phase)

    def _mask(self) -> list[str]:
        """Statements that leave out elements of a vector that are none of the group's."""
        return []

    def _start(self) -> str:
        """Where a thread's loop begins."""
        first, vector = self._first(), self.schedule.vector
        return first if first == "0" else product(first, vector)

    @property
    def last_level(self) -> int:
        stored = [self.level.get(b.value, 0) for b in self.element_writes]
        return max([p.level for p in self.phases] + stored)

    @property
    def grid(self) -> str:
        s, total = self.schedule, size_of(self.kept)
        per_block = {"block": 1, "warp": s.block // 32, "thread": s.block, "tile": TILE}[s.kind]
        return total if per_block == 1 else f"cdiv({total}, {per_block})"

    @property
    def block(self) -> str:
        s = self.schedule
        return f"dim3({TILE}, {s.block // TILE})" if s.kind == "tile" else str(s.block)

    def _open(self) -> None:
        """Which group this thread works on, and what is the same for the whole group."""
        s, lines, total = self.schedule, self.lines, size_of(self.kept)
        match s.kind:
            case "block":
                lines.add(*self._group_lines())
            case "warp":
                lines.add(f"const int g = blockIdx.x * {s.block // 32} + threadIdx.x / 32;")
                lines.add(f"if (g >= {total}) return;", "const int lane = threadIdx.x % 32;")
            case "thread":
                lines.add(f"const int g = blockIdx.x * {s.block} + threadIdx.x;", f"if (g >= {total}) return;")
            case "tile":
                lines.add(self._tile_line(), f"const int g = min(h, {total} - 1);")
        if s.cached:
            lines.add(self._chunks_line())
        lines.add(*self.group.index_lines([*self.group_reads, *self.group_writes], self.group_ops))
        for b in self.group_reads:
            if b.key not in self.group.late:
                before, _ = self.group.load(b)
                lines.add(before or "")
        self._group_statements(0)
        if s.cached:
            lines.add(*self.elements.declare_loads(self.element_reads))
            lines.add(*self.elements.declare_cached(self.element_ops))

    def _group_lines(self) -> list[str]:
        """Which group a block has."""
        return ["const int g = blockIdx.x;"] if self.kept else []

    def _tile_line(self) -> str:
        """Which groups a tile has."""
        return f"const int h = blockIdx.x * {TILE} + threadIdx.x;"

    def _chunks_line(self) -> str:
        """Declares how many vectors of its group a thread keeps."""
        return f"constexpr int C = cdiv({size_of(self.order)}, {product(self._threads(), self.schedule.vector)});"

    def _threads(self) -> int:
        s = self.schedule
        return {"block": s.block, "warp": 32, "thread": 1, "tile": s.block // TILE}[s.kind]

    def _pass(self, level: int) -> None:
        """One loop over the group's elements."""
        s, lines = self.schedule, self.lines
        here = [p for p in self.phases if p.level == level]
        stores = [b for b in self.element_writes if self.level.get(b.value, 0) == level]
        ops = [o for o in self.element_ops if self._in_pass(self.level[o.name], level)]
        if s.cached and not here and not stores and not ops:
            return
        loads = self._loads(ops, here, stores, level)
        lines.add(*[self._declare(p) for p in here])
        head = self._loop_head(bool(stores))
        with lines.block(head):
            self._open_visit()
            self._body(loads, ops, here, stores)

    def _open_visit(self) -> None:
        """Where the loop's turn is in its group."""
        if self.schedule.cached:
            self.lines.add(f"const int c = {self._cached_position()};", f"if (c >= {self._end()}) break;")

    def _in_pass(self, ready: int, level: int) -> bool:
        return ready == level if self.schedule.cached else ready <= level

    def _loads(self, ops: list[Op], here: list[Phase], stores: list[Buffer], level: int) -> list[Buffer]:
        keys = {key for o in ops for key in operand_keys(o)}
        keys |= {reduced_value(p.op) for p in here} | {b.value for b in stores}
        keys |= {v for b in self.element_reads if b.key in keys for v in b.index_values}
        found = [b for b in self.element_reads if b.key in keys]
        if self.schedule.cached:
            found = [b for b in found if b.key not in self.loaded]
            self.loaded |= {b.key for b in found}
        return found

    def _body(self, loads: list[Buffer], ops: list[Op], here: list[Phase], stores: list[Buffer]) -> None:
        position = "c + j" if self.schedule.vector > 1 else "c"

        def updates() -> list[str]:
            spelled = self.elements.spelled
            late = self.elements.late_lines(reduced_value(p.op) for p in here)
            mask = self._mask() if here else []
            return [*late, *mask, *(p.update.format(v=spelled[reduced_value(p.op)], c=position) for p in here)]

        for line in self.elements.visit(loads, ops, stores, updates):
            if isinstance(line, list):
                write_each(self.lines, self.schedule.vector, line)
            elif self.schedule.kind == "tile" and line.startswith(("st(", "vstore")):
                # lanes past the last group repeat it and must not store
                self.lines.add(f"if (h < {size_of(self.kept)}) {line}")
            else:
                self.lines.add(line)

    def _loop_head(self, stores: bool) -> str:
        s, total = self.schedule, size_of(self.order)
        if s.cached:
            self.lines.add("#pragma unroll")
            return "for (int k = 0; k < C; k++)"
        if not stores:
            self.lines.add("#pragma unroll 4")
        first, step = self._start(), product(self._threads(), s.vector)
        advance = "c++" if step == "1" else f"c += {step}"
        return f"for (int c = {first}; c < {total}; {advance})"

    def _first(self) -> str:
        return {"block": "threadIdx.x", "warp": "lane", "thread": "0", "tile": "threadIdx.y"}[self.schedule.kind]

    def _end(self) -> str:
        return size_of(self.order)

    def _cached_position(self) -> str:
        s, first, threads = self.schedule, self._first(), self._threads()
        base = "k" if threads == 1 else f"k * {threads} + {first}"
        return base if s.vector == 1 else f"{grouped(base)} * {s.vector}"

    def _finish(self, level: int) -> None:
        """Combines the pass's accumulators, then the group operations that are ready now."""
        here = [p for p in self.phases if p.level == level]
        if self.schedule.kind == "tile":
            self.lines.add(*combine_tile(here, self.schedule.block // TILE))
        self._finish_phases(here)
        self._group_statements(level + 1)

    def _finish_phases(self, here: list[Phase]) -> None:
        count = grouped(size_of(self.order))
        for p in here:
            value, before = self._combined(p)
            self.lines.add(*before, *[f.format(p=value, n=count) for f in p.finish])
            if p.defines:
                self.elements.spelled[p.defines] = p.defines

    def _group_statements(self, level: int) -> None:
        for op in self.group_ops:
            if self.level[op.name] == level:
                self.lines.add(*self.group.statements(op))
        # what only elements use is the same for the whole group, and loaded once
        known, used = self.group.spelled, {key for op in self.group_ops for key in operand_keys(op)}
        ready = [b.key for b in self.group_reads if b.key not in used and all(v in known for v in b.index_values)]
        self.lines.add(*self.group.late_lines(ready))

    def _combined(self, p: Phase) -> tuple[str, list[str]]:
        scope = self.schedule.kind
        if scope in ("thread", "tile"):
            return p.register, []
        if p.kind.startswith("arg"):
            return p.register, [f"{scope}_{p.kind}({p.register}, x{p.op.name[1:]});"]
        return f"{scope}_{p.kind}({p.register})", []

    def _close(self) -> None:
        """Writes what is one value a group."""
        stores = []
        for b in self.group_writes:
            _, _, line = self.group.store(b)
            stores.append(line or "")
        if not stores:
            return
        write_guarded(self.lines, self._one_thread(), stores)

    def _one_thread(self) -> str:
        """The condition that one thread of a group meets."""
        live = f"threadIdx.y == 0 && h < {size_of(self.kept)}"
        guard = {"block": "threadIdx.x == 0", "warp": "lane == 0", "thread": "", "tile": live}
        return guard[self.schedule.kind]


def write_guarded(lines: Lines, guard: str, stores: list[str]) -> None:
    if not guard:
        lines.add(*stores)
    elif len(stores) == 1:
        lines.add(f"if ({guard}) {stores[0]}")
    else:
        with lines.block(f"if ({guard})"):
            lines.add(*stores)


JOIN = {
    "sum": "{p} += {x};",
    "prod": "{p} *= {x};",
    "max": "{p} = maximum({p}, {x});",
    "min": "{p} = minimum({p}, {x});",
}


def join(phase: Phase, value: str, index: str = "") -> str:
    """The statement that takes another part's value (and index) into the phase's accumulator."""
    if phase.kind.startswith("arg"):
        return f"join_{phase.kind}({phase.register}, x{phase.op.name[1:]}, {value}, {index});"
    return JOIN[phase.kind].format(p=phase.register, x=value)


def combine_tile(here: list[Phase], rows: int) -> list[str]:
    """Adds up the accumulators of the threads with one threadIdx.x; all of them get the result."""
    if not here:
        return []
    lines = []
    for p in here:
        held = [(p.type, p.register)] + ([("int", f"x{p.op.name[1:]}")] if p.kind.startswith("arg") else [])
        for kind, name in held:
            lines.append(f"__shared__ {kind} b{name}[{rows}][{TILE}];")
            lines.append(f"b{name}[threadIdx.y][threadIdx.x] = {name};")
    lines.append("__syncthreads();")
    lines += [f"{p.register} = {p.start};" for p in here if not p.kind.startswith("arg")]
    lines += ["#pragma unroll", f"for (int y = 0; y < {rows}; y++) {{"]
    at = "[y][threadIdx.x]"
    lines += ["  " + join(p, f"b{p.register}{at}", f"bx{p.op.name[1:]}{at}") for p in here]
    return [*lines, "}"]


def group_order(stage: Stage) -> tuple[str, ...]:
    """The kept axes as the largest tensor holds them in memory."""
    return _ordered(stage, stage.kept)


def reduced_order(stage: Stage) -> tuple[str, ...]:
    """The reduced axes in memory order; in the argmax's own order where one counts positions."""
    counted = [o for o in stage.ops if o.fn in ("argmax", "argmin")]
    return counted[0].over if counted else _ordered(stage, stage.reduced)


def main_buffer(stage: Stage) -> Buffer:
    """The read buffer with most axes of the stage, the first among equals; a written one where nothing is read.

    A table whose rows are looked up is as large as what is read of it: not its indices say how memory lies.
    """
    whole = [b for b in stage.loads if not b.access or _reads_rows(b)] or list(stage.loads) or list(stage.writes)
    return max(whole, key=lambda b: (stage.program.size(b.span), not b.access, -whole.index(b)))


def _reads_rows(b: Buffer) -> bool:
    """Whether indices of values say which rows are read."""
    return all(i.value is not None for _, i in b.access) and b.axes[-1] not in dict(b.access)


def _ordered(stage: Stage, axes: tuple[str, ...]) -> tuple[str, ...]:
    held = main_buffer(stage).axes
    return tuple(a for a in held if a in axes) + tuple(a for a in axes if a not in held)
