"""Writes scan stages (cumsum, cumprod): a warp or a block walks each row and carries the running value.

Per step a thread holds `vector` neighbours: it scans them, the threads' totals are scanned, and the total of all
before this thread is added. What precedes and follows the scan is computed in the same visit.
"""

from __future__ import annotations

from cudal1_trainer.teachers.element import (
    Elements,
    in_order,
    late_loads,
    operand_keys,
    write_each,
    write_visit,
)
from cudal1_trainer.teachers.expression import COMPUTE_TYPE
from cudal1_trainer.teachers.grouped import write_guarded
from cudal1_trainer.teachers.reduction import reduced_value
from cudal1_trainer.teachers.schedule import StageSchedule
from cudal1_trainer.teachers.source import Kernel, Lines, product, signature
from cudal1_trainer.teachers.space import Space, Var, size_of, vector_fits
from cudal1_trainer.teachers.stage import Stage, is_barrier, read_names


def is_supported(stage: Stage) -> bool:
    """One scan, no reduction beside it, and every value of a row's own axes or of the whole."""
    return sum(is_barrier(o) for o in stage.ops) == 1


def schedules(stage: Stage) -> list[StageSchedule]:
    if not is_supported(stage):
        return []
    axis = stage.reduced[0]
    count, rows = stage.program.axis[axis].size, stage.program.size(stage.kept)
    buffers = [b for b in stage.tensors if axis in b.span]
    wide = () if late_loads(stage) else (4, 8, 2)
    vectors = [v for v in wide if all(vector_fits(stage.program, b, axis, v) for b in buffers)] + [1]
    found = []
    for vector in vectors:
        found += [StageSchedule("warp", vector, b) for b in (128, 256)]
        found += [StageSchedule("block", vector, b) for b in (256, 128, 512, 1024) if b * vector <= 2 * count]
        found += [StageSchedule("thread", 1, b) for b in (128, 64) if vector == 1]
    inner = all(b.axes[-1] == axis for b in buffers if b.axes)

    def badness(s: StageSchedule) -> float:
        lanes = {"thread": 1, "warp": 32, "block": s.block}[s.mapping]
        idle = 1 / min(1.0, rows * lanes / (132 * 512))
        steps = -(-count // (lanes * s.vector))
        strided = 4.0 if s.mapping == "thread" and inner else 1.0
        return strided * (idle + (0.3 * steps if s.mapping == "block" else 0.05 * steps))

    return sorted(dict.fromkeys(found), key=badness)


class ScanWriter:
    """One scan stage under one schedule."""

    def __init__(self, stage: Stage, schedule: StageSchedule, name: str) -> None:
        self.stage, self.schedule, self.name = stage, schedule, name
        self.axis = stage.reduced[0]
        self.scan = next(o for o in stage.ops if is_barrier(o))
        self.spelled: dict[str, str] = {}
        order = max((b.axes for b in stage.loads), key=len, default=())
        self.kept = tuple(a for a in order if a in stage.kept) + tuple(a for a in stage.kept if a not in order)
        variables = tuple(v for v in (Var("g", self.kept), Var("c", (self.axis,))) if v.axes)
        vector = schedule.vector
        space = Space(stage.program, variables, registers=self.spelled)
        along, late = self.axis if vector > 1 else None, late_loads(stage)
        self.elements = Elements(stage.program, space, along, vector, spelled=self.spelled, late=late)
        outer = Space(stage.program, variables[:-1], registers=self.spelled)
        self.group = Elements(stage.program, outer, None, spelled=self.spelled, late=late)
        kept = set(stage.kept)
        self.pointwise = [o for o in stage.ops if o is not self.scan]
        self.group_ops = [o for o in self.pointwise if set(o.axes) <= kept]
        after = self._after()
        elements = [o for o in self.pointwise if not set(o.axes) <= kept]
        self.before_ops = [o for o in elements if o.name not in after]
        self.after_ops = [o for o in elements if o.name in after]
        self.loads = in_order(b for b in stage.loads if not set(b.span) <= kept)
        self.stores = [b for b in stage.writes if not set(b.span) <= kept]
        self.lines = Lines()

    def write(self) -> Kernel:
        s, lines, total = self.schedule, self.lines, size_of(self.kept)
        kept = set(self.stage.kept)
        with lines.block(signature(self.name, s.block, self.stage.reads, self.stage.writes)):
            self._open(total)
            group_loads = in_order(b for b in self.stage.loads if set(b.span) <= kept)
            group_writes = [b for b in self.stage.writes if set(b.span) <= kept]
            lines.add(*self.group.index_lines([*group_loads, *group_writes], self.group_ops))
            lines.add(*[self.group.load(b)[0] or "" for b in group_loads if b.key not in self.group.late])
            lines.add(*[line for o in self.group_ops for line in self.group.statements(o)])
            kind = COMPUTE_TYPE[self.scan.dtype]
            lines.add(f"{kind} carry = {self._identity()};")
            self._walk(kind)
            first = {"block": "threadIdx.x == 0", "warp": "lane == 0", "thread": ""}[s.mapping]
            if group_writes:
                write_guarded(lines, first, [self.group.store(b)[2] or "" for b in group_writes])
        per_block = {"block": 1, "warp": s.block // 32, "thread": s.block}[s.mapping]
        grid = total if per_block == 1 else f"cdiv({total}, {per_block})"
        names = tuple(b.name for b in (*self.stage.reads, *self.stage.writes))
        return Kernel(self.name, "\n".join(lines.text), grid, str(s.block), names)

    def _after(self) -> set[str]:
        """Operations that need the scan's result."""
        found = {self.scan.name}
        for op in self.stage.ops:
            if found & set(read_names(op)):
                found.add(op.name)
        return found

    def _identity(self) -> str:
        kind = COMPUTE_TYPE[self.scan.dtype]
        number = "0" if self.scan.fn == "cumsum" else "1"
        return f"{number}.0f" if kind == "float" else number

    def _open(self, total: str) -> None:
        s, lines = self.schedule, self.lines
        match s.mapping:
            case "block":
                lines.add("const int g = blockIdx.x;")
            case "warp":
                lines.add(f"const int g = blockIdx.x * {s.block // 32} + threadIdx.x / 32;")
                lines.add(f"if (g >= {total}) return;", "const int lane = threadIdx.x % 32;")
            case _:
                lines.add(f"const int g = blockIdx.x * {s.block} + threadIdx.x;", f"if (g >= {total}) return;")

    def _walk(self, kind: str) -> None:
        """The loop along the row."""
        s, lines = self.schedule, self.lines
        if s.mapping == "thread":
            with lines.block(f"for (int c = 0; c < {self.axis}; c++)"):
                self._visit_serial(kind)
            return
        lanes, lane = (s.block, "threadIdx.x") if s.mapping == "block" else (32, "lane")
        step = f" * {s.vector}" if s.vector > 1 else ""
        with lines.block(f"for (int b = 0; b < {self.axis}; b += {product(lanes, s.vector)})"):
            lines.add(f"const bool live = b + {lane}{step} < {self.axis};")
            lines.add(f"const int c = min(b + {lane}{step}, {self.axis} - {s.vector});")
            self._visit(kind)

    def _visit_serial(self, kind: str) -> None:
        """One thread a row: every element in turn."""

        def updates() -> list[str]:
            sign = "+" if self.scan.fn == "cumsum" else "*"
            self.spelled[self.scan.name] = self.scan.name
            value = self.spelled[reduced_value(self.scan)]
            lines = [f"carry {sign}= {value};", f"const {kind} {self.scan.name} = carry;"]
            return lines + [line for o in self.after_ops for line in self.elements.statements(o)]

        write_visit(self.lines, 1, self.elements.visit(self.loads, self.before_ops, self.stores, updates))

    def _visit(self, kind: str) -> None:
        """One step: values before the scan, the scan, values after it. Idle threads repeat the row's end."""
        v, lines, elements, scan = self.schedule.vector, self.lines, self.elements, self.scan
        q = f"q{scan.name[1:]}{'[j]' if v > 1 else ''}"
        lines.add(f"{kind} q{scan.name[1:]}{f'[{v}]' if v > 1 else ''};")

        def updates() -> list[str]:
            return [f"{q} = live ? {self.spelled[reduced_value(scan)]} : {self._identity()};"]

        write_visit(lines, v, elements.visit(self.loads, self.before_ops, [], updates))
        self._combine(kind)
        self.spelled[scan.name] = scan.name
        inner, stored = self._second_loop(f"const {kind} {scan.name} = {self._join('carry', 'e', q)};")
        write_each(lines, v, inner)
        lines.add(f"carry = {self._join('carry', 'total')};")
        write_guarded(lines, "live", stored)

    def _second_loop(self, first: str) -> tuple[list[str], list[str]]:
        """Statements per element after the scan, and the stores."""
        elements = self.elements
        inner = []
        if self.schedule.vector > 1:  # the first loop's values are out of scope: they are made again
            wanted = self._needed_after()
            for b in self.loads:
                _, within = elements.load(b)
                inner += [within] if within and b.key in wanted else []
            inner += [line for o in self.before_ops if o.name in wanted for line in elements.statements(o)]
        inner += [first, *(line for o in self.after_ops for line in elements.statements(o))]
        stored = []
        for b in self.stores:
            array, within, last = elements.store(b)
            if array:
                self.lines.add(array)
            if last is None and within is not None:  # element by element: only where the thread has elements
                within = f"if (live) {within}"
            inner += [within] if within else []
            stored += [last] if last else []
        return inner, stored

    def _needed_after(self) -> set[str]:
        """Values from before the scan that the operations after it read."""
        wanted = [k for o in self.after_ops for k in operand_keys(o)] + [b.value for b in self.stores]
        made = {o.name: o for o in self.before_ops}
        found: set[str] = set()
        while wanted:
            k = wanted.pop()
            if k not in found:
                found.add(k)
                wanted += operand_keys(made[k]) if k in made else []
        return found

    def _join(self, *values: str) -> str:
        return (" + " if self.scan.fn == "cumsum" else " * ").join(values)

    def _combine(self, kind: str) -> None:
        """Scans the threads' values: e is what stands before this thread, total what all threads have."""
        s, lines, n, v = self.schedule, self.lines, self.scan.name[1:], self.schedule.vector
        verb, sign = ("sum", "+") if self.scan.fn == "cumsum" else ("prod", "*")
        if v > 1:
            lines.add("#pragma unroll", f"for (int j = 1; j < {v}; j++) q{n}[j] {sign}= q{n}[j - 1];")
        last = f"q{n}[{v - 1}]" if v > 1 else f"q{n}"
        if s.mapping == "warp":
            lines.add(f"const {kind} s = warp_scan_{verb}({last});")
            lines.add(f"const {kind} up = __shfl_up_sync(0xffffffffu, s, 1);")
            lines.add(f"const {kind} e = lane == 0 ? {self._identity()} : up;")
            lines.add(f"const {kind} total = __shfl_sync(0xffffffffu, s, 31);")
            return
        lines.add(f"{kind} total;", f"const {kind} s = block_scan_{verb}({last}, total);")
        lines.add(f"__shared__ {kind} before[{s.block}];", "before[threadIdx.x] = s;", "__syncthreads();")
        lines.add(f"const {kind} e = threadIdx.x == 0 ? {self._identity()} : before[threadIdx.x - 1];")
        lines.add("__syncthreads();")
