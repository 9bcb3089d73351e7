"""Writes window stages (pooling): one thread an output, loops over the window with constant extents.

What the window reads is computed in the loop, at the window's index, from memory. An index outside the tensor is
skipped, so it contributes nothing. With `rows`, the innermost output axis runs along threadIdx.x and the others
along the grid, so that no thread divides.
"""

from __future__ import annotations

from dataclasses import replace

from cudal1_compile.codegen.reductions.reduction import declare, phases
from cudal1_compile.codegen.stages.element import Elements, in_order, late_loads
from cudal1_compile.codegen.stages.pointwise import RESIDENT_BLOCKS, memory_order
from cudal1_compile.codegen.stages.schedule import StageSchedule
from cudal1_compile.codegen.stages.source import Kernel, Lines, signature
from cudal1_compile.codegen.stages.space import Space, Var, axis_index, bounds, grouped, size_of
from cudal1_compile.codegen.stages.stage import Stage, is_reduction, read_keys
from cudal1_fx_passes.program.ir import Index, Ref

MAX_AT_ONCE = 32  # loads of a window that are all on their way: rows are then not left out one by one
SIMPLE = ("sum", "mean", "amax", "amin", "prod", "argmax", "argmin", "any", "all")


def is_supported(stage: Stage) -> bool:
    """Reductions of one phase over one access, to more than one element."""
    return bool(stage.kept) and all(o.fn in SIMPLE for o in stage.ops if is_reduction(o))


def schedules(stage: Stage) -> list[StageSchedule]:
    if not is_supported(stage):
        return []
    total = stage.program.size(stage.kept)
    inner = stage.program.axis[memory_order(stage)[-1]].size
    found = []
    for block in (256, 128, 512, 64):
        found.append(StageSchedule("exact", 1, block))
        if total >= 2 * RESIDENT_BLOCKS * block:
            found.append(StageSchedule("stride", 1, block))
        if len(stage.kept) > 1 and inner >= block // 2:
            found.append(StageSchedule("rows", 1, block))
    return found


class WindowWriter:
    """One window stage under one schedule."""

    def __init__(self, stage: Stage, schedule: StageSchedule, name: str) -> None:
        self.stage, self.schedule, self.name = stage, schedule, name
        self.order = memory_order(stage)
        program = stage.program
        self.window = [o for o in stage.ops if is_reduction(o)]
        operand = self.window[0].operands[0]
        assert isinstance(operand, Ref)
        self.operand, self.access = operand.name, operand.access
        rows = schedule.kind == "rows"
        parts = (Var("g", self.order[:-1]), Var("c", self.order[-1:])) if rows else (Var("i", self.order),)
        self.space = Space(program, parts)
        self.steps = {a: step for a in self.window[0].over if (step := self._step(a)) is not None}
        # an axis that the output has too gets a name of its own within the window
        self.moved = {a: f"u{a[1:]}" if a in stage.kept else axis_index(a) for a, _ in self.access}
        inside, outside = {self.operand}, {b.value for b in stage.writes}
        for o in reversed(stage.ops):
            for keys in (inside, outside) if not is_reduction(o) else ():
                keys |= set(read_keys(o)) if o.name in keys else set()
        inner = [o for o in stage.ops if not is_reduction(o) and o.name in inside and self._is_inner(o.axes)]
        self.inner_ops = inner
        self.outer_ops = [o for o in stage.ops if not is_reduction(o) and (o not in inner or o.name in outside)]
        self.late = late_loads(stage)
        early = [b for b in stage.loads if b.key not in self.late]
        loads = [b for b in early if b.key in inside and self._is_inner(b.span)]
        self.inner_loads = in_order(loads)
        self.outer_loads = in_order(b for b in early if b not in loads or b.key in outside)
        self.lines = Lines()
        self.spelled: dict[str, str] = {}

    def write(self) -> Kernel:
        s, total = self.schedule, size_of(self.order)
        grid = f"cdiv({total}, {s.block})"
        with self.lines.block(signature(self.name, s.block, self.stage.reads, self.stage.writes)):
            start = f"blockIdx.x * {s.block} + threadIdx.x"
            if s.kind == "rows":
                outer, inner = self.order[:-1], self.order[-1]
                grid = f"dim3({size_of(outer)}, cdiv({inner}, {s.block}))"
                self.lines.add("const int g = blockIdx.x;", f"const int c = blockIdx.y * {s.block} + threadIdx.x;")
                self.lines.add(f"if (c >= {inner}) return;")
                self._body()
            elif s.kind == "stride":
                grid = f"min({grid}, {RESIDENT_BLOCKS * 256 // s.block})"
                with self.lines.block(f"for (int i = {start}; i < {total}; i += gridDim.x * {s.block})"):
                    self._body()
            else:
                self.lines.add(f"const int i = {start};", f"if (i >= {total}) return;")
                self._body()
        names = tuple(b.name for b in (*self.stage.reads, *self.stage.writes))
        return Kernel(self.name, "\n".join(self.lines.text), grid, str(s.block), names)

    def _is_inner(self, axes: tuple[str, ...]) -> bool:
        return bool(set(axes) & {*self.moved, *self.window[0].over})

    def _body(self) -> None:
        program, lines = self.stage.program, self.lines
        space = replace(self.space, registers=self.spelled)
        outer = Elements(program, space, None, spelled=self.spelled, late=self.late)
        lines.add(*self._index_lines(outer))
        for b in self.outer_loads:
            lines.add(outer.load(b)[0] or "")
        found, levels = phases(program, self.stage.ops)
        after = {o.name for o in self.outer_ops if levels[o.name] > 0}
        lines.add(*[line for o in self.outer_ops if o.name not in after for line in outer.statements(o)])
        lines.add(*[declare(p) for p in found])
        if self._counts():
            lines.add("int n = 0;")
        self._loops([p.update for p in found])
        count = "n" if self._counts() else grouped(size_of(self.window[0].over))
        for p in found:
            lines.add(*[f.format(p=p.register, n=count) for f in p.finish])
            self.spelled[p.op.name] = p.op.name
        lines.add(*[line for o in self.outer_ops if o.name in after for line in outer.statements(o)])
        lines.add(*[outer.store(b)[2] or "" for b in self.stage.writes])

    def _index_lines(self, outer: Elements) -> list[str]:
        """Indices that loads, stores and the window's own access need."""
        inside = Space(self.stage.program, self.space.variables, self.moved)
        loads = [*self.inner_loads, *self.late.values()]
        used = {a for _, i in self.access for _, a in i.terms} | set(inside.needed_axes(loads))
        lines = outer.index_lines([*self.outer_loads, *self.stage.writes], self.outer_ops)
        for axis in self.stage.program.axes:
            line = self.space.index_line(axis.name) if axis.name in used else None
            if line is not None and line not in lines:
                lines.append(line)
        return lines

    def _counts(self) -> bool:
        """Whether a mean must count what lies inside."""
        return any(o.fn == "mean" for o in self.window) and any(self._may_leave(a, i) for a, i in self.access)

    def _may_leave(self, axis: str, index: Index) -> bool:
        lowest, highest = bounds(self.stage.program, index)
        return lowest < 0 or highest >= self.stage.program.axis[axis].size or index.divisor > 1

    def _loops(self, updates: list[str]) -> None:
        """Nested loops over the window axes, then the operations at the window's index."""
        lines, opened = self.lines, 0
        program = self.stage.program
        spelled = dict(self.spelled)
        inner_space = Space(program, self.space.variables, self.moved, registers=spelled)
        left = list(self.access)
        window = list(self.window_order())
        at_once, tests = program.size(tuple(window)) <= MAX_AT_ONCE, list[str]()
        for axis in window:
            step = self.steps.get(axis)
            counter, count = (
                (axis_index(axis), axis) if step is None else (f"j{axis[1:]}", f"cdiv({axis}, {step[1]})")
            )
            lines.add("#pragma unroll", f"for (int {counter} = 0; {counter} < {count}; {counter}++) {{")
            lines.depth, opened = lines.depth + 1, opened + 1
            if step is not None:
                lines.add(f"const int {axis_index(axis)} = {step[0]} + {counter} * {step[1]};")
                tests += [f"{axis_index(axis)} >= {axis}"] if program.axis[axis].size % step[1] else []
            for item in [x for x in left if not any(a in window[opened:] for _, a in x[1].terms)]:
                left.remove(item)
                tests += self._declare_index(*item)
            if tests and (axis == window[-1] or not at_once):
                lines.add(f"if ({' || '.join(tests)}) continue;")
                tests = []
        inside = Elements(program, inner_space, None, spelled=spelled, late=self.late)
        inside_ops = self.inner_ops
        for b in self.inner_loads:
            lines.add(inside.load(b)[0] or "")
        lines.add(*[line for o in inside_ops for line in inside.statements(o)])
        value = inside.spelled[self.operand]
        lines.add(*[u.format(v=value, c=self._position(window)) for u in updates])
        if self._counts():
            lines.add("n++;")
        for _ in range(opened):
            lines.depth -= 1
            lines.add("}")

    def window_order(self) -> tuple[str, ...]:
        """The window axes, outermost first; in an argmax's own order, so that the first of equals is met first."""
        counted = [o for o in self.window if o.fn in ("argmax", "argmin")]
        return (counted or self.window)[0].over

    def _step(self, axis: str) -> tuple[str, int] | None:
        """Where a window axis starts and its step, if only so the division of an index is exact; else None.

        (i2-w0+1)/2 -> (i2+1)%2 and 2
        """
        for _, index in self.access:
            held = {a: coefficient for coefficient, a in index.terms}
            if index.divisor == 1 or held.get(axis) != -1 or index.offset < 0:
                continue
            rest = tuple(t for t in index.terms if t[1] != axis)
            if all(c > 0 for c, _ in rest) and not any(a in self.window[0].over for _, a in rest):
                return f"({self.space.affine(Index(rest, index.offset))}) % {index.divisor}", index.divisor
        return None

    def _declare_index(self, axis: str, index: Index) -> list[str]:
        """Declares the index of one axis of what the window reads; returns when that lies outside the tensor."""
        name = self.moved[axis]
        text = self.space.affine(Index(index.terms, index.offset))
        exact = index.divisor == 1 or any(a in self.steps for _, a in index.terms)
        tests = [] if exact else [f"({text}) % {index.divisor} != 0"]
        text = f"({text}) / {index.divisor}" if index.divisor > 1 else text
        self.lines.add(f"const int {name} = {text};")
        return [*tests, f"{name} < 0", f"{name} >= {axis}"] if self._may_leave(axis, index) else tests

    def _position(self, window: list[str]) -> str:
        """The row-major position within the window."""
        text = ""
        for axis in window:
            w = axis_index(axis)
            text = w if not text else f"{grouped(text)} * {axis} + {w}"
        return text
