"""Writes scan stages (cumsum, cumprod): values of a row in registers, one call that scans them, what follows.

    loads and values before the scan -> block_scan_sum(t3, carry) -> values after it and stores

What is needed on both sides of the call stands in arrays of C chunks, all else within a loop. Kinds, by who
holds a row:
    thread, warp, block    as in grouped.py
    tile                   32 rows side by side in threadIdx.x, parts of C elements each in threadIdx.y: columns
    joined, joined_tile    several blocks, which wait for each other's sums
Where registers hold no whole row, a loop takes it step by step and `carry` goes on from one to the next.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager

from cudal1_compile.codegen.reductions.grouped import TILE, write_guarded
from cudal1_compile.codegen.reductions.reduction import reduced_value
from cudal1_compile.codegen.reductions.scan_schedules import STEP, crossing_values, needing
from cudal1_compile.codegen.reductions.split_parts import SCRATCH_TYPE
from cudal1_compile.codegen.stages.element import Elements, in_order, late_loads, operand_keys, write_visit
from cudal1_compile.codegen.stages.expression import COMPUTE_TYPE
from cudal1_compile.codegen.stages.schedule import StageSchedule
from cudal1_compile.codegen.stages.source import Kernel, Lines, product, signature
from cudal1_compile.codegen.stages.space import Space, Var, grouped, size_of
from cudal1_compile.codegen.stages.stage import Buffer, Stage, is_barrier
from cudal1_fx_passes.program.ir import Op


class Crossing(Elements):
    """Values that are needed before and after the scan in arrays, others as they come."""

    keep: frozenset[str] = frozenset()

    def load(self, buffer: Buffer) -> tuple[str | None, str | None]:
        self.cached = buffer.key in self.keep
        line = super().load(buffer)
        self.cached = False
        return line

    def statements(self, op: Op) -> list[str]:
        late = self.late_lines(operand_keys(op))
        self.cached = op.name in self.keep
        lines = [*late, *super().statements(op)]
        self.cached = False
        return lines

    def declare_loads(self, buffers: Iterable[Buffer]) -> list[str]:
        return super().declare_loads([b for b in buffers if (b.key in self.keep) == self.cached])

    def declare_kept(self, buffers: Iterable[Buffer], ops: Iterable[Op]) -> list[str]:
        self.cached = True
        lines = [*self.declare_loads(buffers), *self.declare_cached([o for o in ops if o.name in self.keep])]
        self.cached = False
        return lines


class ScanWriter:
    """One scan stage under one schedule. first_scratch: the number of the first scratch that it may name."""

    def __init__(self, stage: Stage, schedule: StageSchedule, name: str, first_scratch: int = 0) -> None:
        self.stage, self.schedule, self.name = stage, schedule, name
        self.axis = stage.reduced[0]
        self.scan = next(o for o in stage.ops if is_barrier(o))
        self.kind = COMPUTE_TYPE[self.scan.dtype]
        self.scope = {"joined": "block", "joined_tile": "tile"}.get(schedule.kind, schedule.kind)
        self.spelled: dict[str, str] = {}
        order = max((b.axes for b in stage.loads), key=len, default=())
        self.kept = tuple(a for a in order if a in stage.kept) + tuple(a for a in stage.kept if a not in order)
        variables = tuple(v for v in (Var("g", self.kept), Var("c", (self.axis,))) if v.axes)
        space = Space(stage.program, variables, registers=self.spelled)
        along, late = self.axis if schedule.vector > 1 else None, late_loads(stage)
        self.elements = Crossing(stage.program, space, along, schedule.vector, False, self.spelled, late)
        self.elements.keep = frozenset(crossing_values(stage))
        outer = Space(stage.program, variables[:-1], registers=self.spelled)
        self.group = Elements(stage.program, outer, None, spelled=self.spelled, late=late)
        kept = set(stage.kept)
        self.group_ops = [o for o in stage.ops if set(o.axes) <= kept]
        after = needing(stage, self.scan)
        elements = [o for o in stage.ops if o is not self.scan and not set(o.axes) <= kept]
        self.before_ops = [o for o in elements if o.name not in after]
        self.after_ops = [o for o in elements if o.name in after]
        self.loads = in_order(b for b in stage.loads if not set(b.span) <= kept)
        self.stores = [b for b in stage.writes if not set(b.span) <= kept]
        inter_block = schedule.splits > 1
        parts = ((SCRATCH_TYPE[self.kind], first_scratch), ("i32", first_scratch + 1)) if inter_block else ()
        self.scratch = [Buffer(f"s{n}", f"s{n}", dtype, ()) for dtype, n in parts]
        self.lines = Lines()

    def write(self) -> Kernel:
        lines, stored = self.lines, [*self.stage.writes, *self.scratch]
        with lines.block(signature(self.name, self.schedule.block, self.stage.reads, stored)):
            self._open()
            self._group_values()
            lines.add(*self.elements.declare_kept(self.loads, self.stage.ops))
            lines.add(f"{self.kind} carry = {self._identity()};")
            if self._is_whole():
                self._step()
            else:
                with lines.block(f"for (int b = 0; b < {self.axis}; b += {self._at_once()})"):
                    self._step()
            self._close()
        names = tuple(b.name for b in (*self.stage.reads, *stored))
        return Kernel(self.name, "\n".join(lines.text), *self._launch(), names, self._scratch_lines())

    def _launch(self) -> tuple[str, str]:
        """Grid and block."""
        s, total = self.schedule, size_of(self.kept)
        rows = {"block": 1, "warp": s.block // 32, "thread": s.block, "tile": TILE}[self.scope]
        groups = grouped(total) if rows == 1 else f"cdiv({total}, {rows})"
        block = f"dim3({TILE}, {s.block // TILE})" if self.scope == "tile" else str(s.block)
        return product(groups, s.splits), block

    def _scratch_lines(self) -> tuple[str, ...]:
        if not self.scratch:
            return ()
        parts, count = self.scratch
        total, n = size_of(self.kept), str(self.schedule.splits)
        rows, per_row = (f"cdiv({total}, {TILE})", f"{n} * {TILE}") if self.scope == "tile" else (total, n)
        return f"{parts.name} {parts.dtype}[{rows}, {per_row}]", f"{count.name} i32[{rows}] = 0"

    def _identity(self) -> str:
        number = "0" if self.scan.fn == "cumsum" else "1"
        return f"{number}.0f" if self.kind == "float" else number

    def _is_whole(self) -> bool:
        """Whether registers hold the row (all of its blocks' registers)."""
        return self.schedule.cached

    def _lanes(self) -> int:
        """Threads that share a row within a block."""
        block = self.schedule.block
        return {"block": block, "warp": 32, "thread": 1, "tile": block // TILE}[self.scope]

    def _at_once(self) -> str:
        return product("C", self._lanes(), self.schedule.vector)

    def _open(self) -> None:
        """Which row a thread works on, and how many of its vectors at once."""
        s, lines, total = self.schedule, self.lines, size_of(self.kept)
        block, part = "blockIdx.x", ""
        if s.splits > 1:
            block, part = f"blockIdx.x / {s.splits}", f", q = blockIdx.x % {s.splits}"
        match self.scope:
            case "block":
                lines.add(f"const int g = {block}{part};")
            case "warp":
                lines.add(f"const int g = blockIdx.x * {s.block // 32} + threadIdx.x / 32;")
                lines.add(f"if (g >= {total}) return;", "const int lane = threadIdx.x % 32;")
            case "thread":
                lines.add(f"const int g = blockIdx.x * {s.block} + threadIdx.x;", f"if (g >= {total}) return;")
            case _:
                lines.add(f"const int h = {block} * {TILE} + threadIdx.x{part};")
                lines.add(f"const int g = min(h, {total} - 1);")
        held = f"cdiv({self.axis}, {product(s.splits, self._lanes(), s.vector)})"
        lines.add(f"constexpr int C = {held if self._is_whole() else max(1, STEP // s.vector)};")
        if s.splits > 1:
            lines.add(f"const int b = q * {self._at_once()};")

    def _group_values(self) -> None:
        """What is the same for the whole row."""
        kept = set(self.stage.kept)
        loads = in_order(b for b in self.stage.loads if set(b.span) <= kept)
        self.row_writes = [b for b in self.stage.writes if set(b.span) <= kept]
        self.lines.add(*self.group.index_lines([*loads, *self.row_writes], self.group_ops))
        self.lines.add(*[self.group.load(b)[0] or "" for b in loads if b.key not in self.group.late])
        self.lines.add(*[line for o in self.group_ops for line in self.group.statements(o)])

    def _position(self) -> str:
        """Of chunk k in the row."""
        first = {"block": "threadIdx.x", "warp": "lane", "thread": "", "tile": "threadIdx.y * C"}[self.scope]
        if self.scope == "tile":
            position = f"{first} + k"
        else:
            position = f"k * {self._lanes()} + {first}" if first else "k"
            position = product(grouped(position), self.schedule.vector) if self.schedule.vector > 1 else position
        started = self.schedule.splits > 1 or not self._is_whole()
        return f"b + {position}" if started else position

    def _step(self) -> None:
        """Idle threads repeat the row's end, behind everything that counts."""
        v, lines, elements, scan = self.schedule.vector, self.lines, self.elements, self.scan
        spelled = f"{scan.name}[k]{'[j]' if v > 1 else ''}"

        def scanned() -> list[str]:
            late = elements.late_lines([reduced_value(scan)])
            return [*late, f"{spelled} = {self.spelled[reduced_value(scan)]};"]

        with self._chunks():
            lines.add(f"const int c = min({self._position()}, {self.axis} - {v});")
            write_visit(lines, v, elements.visit(self.loads, self.before_ops, [], scanned))
        verb, sign = ("sum", "+") if scan.fn == "cumsum" else ("prod", "*")
        lines.add(f"{self.scope}_scan_{verb}({scan.name}, carry);")
        self.spelled[scan.name] = spelled
        behind = []
        if self.scratch:
            self._wait(verb)
            behind = [f"{spelled} {sign}= carry;"]
        with self._chunks():
            lines.add(f"const int c = {self._position()};")
            tile = f"h >= {size_of(self.kept)} || " if self.scope == "tile" else ""
            lines.add(f"if ({tile}c >= {self.axis}) break;")
            self._after(behind)

    def _chunks(self) -> AbstractContextManager[None]:
        self.lines.add("#pragma unroll")
        return self.lines.block("for (int k = 0; k < C; k++)")

    def _wait(self, verb: str) -> None:
        parts, count = (b.name for b in self.scratch)
        n = self.schedule.splits
        row = f"blockIdx.x / {n}" if self.scope == "tile" else "g"
        width = product(n, TILE) if self.scope == "tile" else n
        self.lines.add(
            f"carry = {self.scope}_before_{verb}({parts} + {row} * {width}, {count} + {row}, q, {n}, carry);"
        )

    def _after(self, behind: list[str]) -> None:
        """Statements per element behind the scan, and the stores."""
        late = [b for b in self.loads if b.key in self.elements.late and b.key not in self.spelled]
        visit = self.elements.visit(late, self.after_ops, self.stores)
        for line in visit:
            if isinstance(line, list):
                write_visit(self.lines, self.schedule.vector, [[*behind, *line]])
            else:
                write_visit(self.lines, self.schedule.vector, [line])

    def _close(self) -> None:
        """Writes what is one value a row."""
        live = f"threadIdx.y == 0 && h < {size_of(self.kept)}"
        guard = {"block": "threadIdx.x == 0", "warp": "lane == 0", "thread": "", "tile": live}[self.scope]
        guard += " && q == 0" if self.scratch else ""
        if self.row_writes:
            write_guarded(self.lines, guard, [self.group.store(b)[2] or "" for b in self.row_writes])
