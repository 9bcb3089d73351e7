"""Writes product stages: a sum of products (convolutions of every kind, matrix products) with its prologue and its
elementwise epilogue.

    tile     implicit GEMM by product_tile of the device header: m runs over the axes of what is read alone, n over
             those of the weight alone, k over the reduction axes; axes of both operands are the grid's z
    phased   transposed convolutions: outputs a stride apart meet the same part of the window and make one product,
             so that no term is an empty one; phases of a position are neighbours in the grid
    spread   the same where the window fills its stride: a plain GEMM with the window among the weight's columns
    table    few channels: im2col's offsets are looked up in shared memory (offset_table.py)
    pipe     multistage: tiles are copied by cp.async some stages ahead of the tensor cores (multistage.py)
    wide     the same for warp groups and wgmma, operands in swizzled tiles (warp_groups.py)
    bulk     warp-specialised over operands packed into planes: one warp issues bulk copies (bulk_copy.py)
    fill     warp-specialised implicit GEMM: producer warps compute the halo tiles (implicit_gemm.py); field: of
             two-dimensional tiles of the result
    patch    a halo tile of the image in shared memory serves all taps (halo_tile.py)
    stem     few channels: the whole halo lies in shared memory (few_channel_halo.py)
    taps     any, with the window's taps as the outer loop and channels inside: bounds and positions once a tap
    split    split-K: a tile's reduction cut into parts over more blocks, which a second kernel adds up
    direct   one thread an output, loops over the reduction axes: few terms, or few weights a value (depthwise)

What is read outside its bounds counts as 0 and is never computed. The prologue is computed where an element is
read, the epilogue where its sum is ready.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from cudal1_compile.codegen.products.sides import (
    MULTISTAGE,
    PHASED,
    TAPS,
    THREADS,
    Sides,
    arithmetic_of,
    before,
    behind,
    phases_of,
)
from cudal1_compile.codegen.products.spread import derived_of
from cudal1_compile.codegen.stages.element import Elements, in_order, late_loads
from cudal1_compile.codegen.stages.expression import COMPUTE_TYPE
from cudal1_compile.codegen.stages.pointwise import memory_order
from cudal1_compile.codegen.stages.schedule import StageSchedule
from cudal1_compile.codegen.stages.source import Kernel, Lines, signature
from cudal1_compile.codegen.stages.space import Space, Var, axis_index, bounds, size_of
from cudal1_compile.codegen.stages.stage import Buffer, Stage, closure, read_names
from cudal1_fx_passes.program.ir import Index, Op, Ref
from cudal1_fx_passes.program.ops import OPS, Kind

MAX_PREDICATED = 2  # loads behind a sum


class ProductWriter:
    """One product stage under one schedule."""

    def __init__(self, stage: Stage, schedule: StageSchedule, name: str) -> None:
        self.stage, self.schedule, self.name = stage, schedule, name
        self.sides = Sides(stage)
        self.program = stage.program
        self.lines = Lines()
        self.phases = phases_of(self.sides.a) if PHASED in schedule.kind else []
        self.walks = schedule.kind.endswith(TAPS)
        self.derived = derived_of(stage)
        self.steps = {a: p for p in self.phases for a in (p.out, p.window)}
        self.threads = schedule.block if schedule.kind == "direct" else THREADS
        self.shared_bytes: int | str = 0  # of a block: what its launch asks for
        self.blocks = 1  # that share an SM, at least

    def write(self) -> Kernel:
        with self.lines.block(self._signature(self.stage.reads, self._stored())):
            grid = self._direct() if self.schedule.kind == "direct" else self._tile(self._written())
        return self._kernel(grid, self._block(), self.stage.reads, self._stored())

    def _stored(self) -> tuple[Buffer, ...]:
        """All that the kernel writes."""
        return self._written()

    def _written(self) -> tuple[Buffer, ...]:
        """The results that it stores."""
        return self.stage.writes

    # what the epilogue accumulates besides (epilogue_reduction.py)

    def _open_keeping(self) -> None:
        """Declares arrays of what is not stored."""

    def _keep(self, spelled: Mapping[str, str]) -> list[str]:
        """Fills them, where results are spelled so."""
        return []

    def _reduce_epilogue(self, spelled: Mapping[str, str]) -> None:
        """Adds up what was stored or kept."""

    def write_split(self, name: str, first_scratch: int) -> list[Kernel]:
        """Two kernels: parts of every sum, then the sums and what follows them (by the kernel `name`)."""
        stage, dot, splits = self.stage, self.sides.dot, self.schedule.splits
        order = memory_order(stage)
        parts = Buffer(f"s{first_scratch}", dot.name, "f32", order, None, (), order, dot.name)
        reads = self._feeding()
        with self.lines.block(self._signature(reads, (parts,))):
            grid = self._tile((parts,))
        made = self._kernel(grid, self._block(), reads, (parts,))
        made = replace(made, scratch=(f"{parts.name} f32[{splits}, {', '.join(order)}]",))
        self.name, self.lines, total = name, Lines(), size_of(order)
        needed = self._after_reads()
        reads = (parts, *(b for b in stage.reads if b.value in needed))
        with self.lines.block(signature(name, THREADS, reads, stage.writes)):
            self.lines.add(f"const int i = blockIdx.x * {THREADS} + threadIdx.x;", f"if (i >= {total}) return;")
            self.lines.add(f"float {dot.name} = 0.0f;", "#pragma unroll 8")
            self.lines.add(
                f"for (int z = 0; z < {splits}; z++) {dot.name} += ld({parts.name} + z * ({total}) + i);"
            )
            self._after(Space(self.program, (Var("i", order),), derived=self.derived))
        return [made, self._kernel(f"cdiv({total}, {THREADS})", str(THREADS), reads, stage.writes)]

    def _feeding(self) -> tuple[Buffer, ...]:
        """What the sum is made of."""
        feeding = {b.value for x in (self.sides.a, self.sides.b) for b in self._before(x.name)[0]}
        return tuple(b for b in self.stage.reads if b.value in feeding)

    def _signature(self, reads: Iterable[Buffer], writes: Iterable[Buffer]) -> str:
        bounds = f"{self.threads}, {self.blocks}" if self.blocks > 1 else self.threads
        return signature(self.name, bounds, reads, writes)

    def _kernel(self, grid: str, block: str, reads: Sequence[Buffer], writes: Sequence[Buffer]) -> Kernel:
        names = tuple(b.name for b in (*reads, *writes))
        return Kernel(self.name, "\n".join(self.lines.text), grid, block, names)

    def _block(self) -> str:
        return f"{self.threads}, {self.shared_bytes}" if self.shared_bytes else str(self.threads)

    # tiles

    def _tile(self, writes: Sequence[Buffer]) -> str:
        """Writes the body; returns the grid."""
        assert self.schedule.tile is not None
        sides, (bm, bn, bk), lines = self.sides, self.schedule.tile, self.lines
        steps = " * ".join(str(p.step) for p in self.phases)
        position = f"blockIdx.x / {_factor(steps)}" if steps else "blockIdx.x"
        lines.add(f"const int m0 = {position} * {bm}, n0 = blockIdx.y * {bn};")
        if sides.batch:
            within = f" / {self.schedule.splits}" if self.schedule.splits > 1 else ""
            lines.add(f"const int g = blockIdx.z{within};")
        self._choose_phases()
        self._settle(bn)
        depth = self._depth()
        if self.schedule.splits > 1:
            lines.add(f"const int z = blockIdx.z % {self.schedule.splits};")
            lines.add(f"const int step = cdiv({depth}, {self.schedule.splits} * {bk}) * {bk}, begin = z * step;")
            depth = f"max(min(step, {depth} - begin), 0)"
        lines.add(self._call(depth))
        lines.depth += 1
        self._operand(sides.a, "m", "i", sides.m)
        self._operand(sides.b, "n", "j", sides.n)
        self._epilogue(writes)
        lines.depth -= 1
        others = [*sides.batch, *([str(self.schedule.splits)] if self.schedule.splits > 1 else [])]
        third = f", {' * '.join(others)}" if others else ""
        tall = " * ".join([self._tall(), *([steps] if steps else [])])
        return f"dim3({tall}, cdiv({size_of(sides.n)}, {bn}){third})"

    def _tall(self) -> str:
        """Tiles of rows, one phase's."""
        assert self.schedule.tile is not None
        return f"cdiv({self._size(self.sides.m)}, {self.schedule.tile[0]})"

    def _depth(self) -> str:
        return self._size(self.sides.over)

    def _call(self, depth: str) -> str:
        """Opens the call of the device function."""
        assert self.schedule.tile is not None
        along = [8 if self._lies_along(x) else 1 for x in (self.sides.a, self.sides.b)]
        arithmetic = arithmetic_of(self.schedule)
        what = f"<{arithmetic}, {', '.join(map(str, (*self.schedule.tile, *along)))}>"
        if self.walks:
            return f"product_taps{what}({self._size(self.sides.taps)}, {size_of(self.sides.channels)},"
        return f"product_tile{what}({depth},"

    def _choose_phases(self) -> None:
        """Where in its step this block's outputs lie, and the first element of the window that they meet.

        Neighbours in memory are neighbours in the grid: what each stores in part is still in the cache.
        """
        text = "blockIdx.x"
        for p in reversed(self.phases):
            r, u = p.names
            first = f"({r} + {p.offset}) % {p.step}" if p.offset else r
            self.lines.add(f"const int {r} = {text} % {p.step}, {u} = {first};")
            text += f" / {p.step}"

    def _size(self, axes: Iterable[str]) -> str:
        """Elements of one phase over some axes."""
        return " * ".join(f"cdiv({a}, {self.steps[a].step})" if a in self.steps else a for a in axes) or "1"

    def _indices(self, variable: str, axes: tuple[str, ...], used: set[str], space: Space) -> list[str]:
        """Declarations of the used axes' indices within a variable that runs over `axes`."""
        if not set(axes) & set(self.steps):
            return [line for a in axes if a in used and (line := space.index_line(a))]
        lines = []
        for at, axis in enumerate(axes):
            inner = self._size(axes[at + 1 :])
            text = variable if inner == "1" else f"{variable} / {_factor(inner)}"
            text += f" % {self._size([axis])}" if at else ""
            if (p := self.steps.get(axis)) is not None:
                text = f"{text} * {p.step} + {p.names[axis == p.window]}"
            lines += [f"const int {axis_index(axis)} = {text};"] if axis in used | set(self.steps) else []
        return lines

    def _leaves(self, axes: Iterable[str]) -> list[str]:
        """Conditions under which a phase's last position lies outside an axis."""
        return [f"{axis_index(a)} >= {a}" for a in axes if a in self.steps]

    def _lies_along(self, x: Ref) -> bool:
        """Whether neighbours in the operand's memory are neighbours in k rather than along its rows."""
        load = next((b for b in self.stage.loads if b.value == x.name), None)
        if load is None or not load.axes:
            return False
        index = dict(x.access).get(load.axes[-1])
        inner = [load.axes[-1]] if index is None else [a for _, a in index.terms]
        return max(inner, key=lambda a: self.program.axis[a].size) in self.sides.over

    def _space(self, rows: Sequence[Var], moved: Ref | None = None) -> Space:
        """The variables of one side; `moved` is read at its own indices."""
        renamed = {a: axis_index(a) for a, _ in moved.access} if moved is not None else {}
        whole = [v for v in rows if not set(v.axes) & set(self.steps)]
        batch = Var("g", self.sides.batch)
        return Space(self.program, tuple(v for v in (*whole, batch) if v.axes), renamed, derived=self.derived)

    def _operand(self, x: Ref, parameter: str, variable: str, axes: tuple[str, ...]) -> None:
        """[&](int m) { const int i = m0 + m; ... return [=](int k) { ... return a0; }; },"""
        lines, sides = self.lines, self.sides
        summed = sides.channels if self.walks else sides.over
        walked = (Var("tap", sides.taps),) if self.walks else ()
        space = self._space((Var(variable, axes), Var("k", summed), *walked), x)
        used = self._used_axes(x, space)
        outside = [f"{variable} >= {self._size(axes)}", *self._leaves(axes)]
        with lines.block(f"[&](int {parameter})"):
            lines.add(f"const int {variable} = {parameter}0 + {parameter};")
            lines.add(*self._indices(variable, axes, used, space), *self._indices("g", sides.batch, used, space))
            if self.walks:
                with lines.block("return [=](int tap)"):
                    positions, further = self._positions(x, space)
                    lines.add(*self._indices("tap", sides.taps, used, space), *positions)
                    lines.add(
                        f"const bool outside = {' || '.join([*outside, *self._leaves(sides.taps), *further])};"
                    )
                    with lines.block("return [=](int k)"):
                        lines.add("if (outside) return 0.0f;")
                        self._element(x, space, summed, used)
                    lines.text[-1] += ";"
            else:
                with lines.block("return [=](int k)"):
                    lines.add(f"if ({' || '.join(outside)}) return 0.0f;")
                    self._element(x, space, summed, used, placed=False)
            lines.text[-1] += ";"
        lines.text[-1] += ","

    def _element(self, x: Ref, space: Space, summed: tuple[str, ...], used: set[str], placed: bool = True) -> None:
        """The element at the current position, computed and returned."""
        if self.schedule.splits > 1:
            self.lines.add("k += begin;")
        self.lines.add(*self._indices("k", summed, used, space))
        if not placed:
            positions, outside = self._positions(x, space)
            outside = [*self._leaves(summed), *outside]
            self.lines.add(*positions, *([f"if ({' || '.join(outside)}) return 0.0f;"] if outside else []))
        self.lines.add(f"return {self._value(x.name, space)};")

    def _used_axes(self, x: Ref, space: Space) -> set[str]:
        """Axes whose own index the access, a load or a position of this operand needs."""
        loads, ops = self._before(x.name)
        plain = [b for b in loads if not set(b.axes) <= set(space.renamed)]
        counted = {o.over[0] for o in ops if OPS[o.fn].kind is Kind.IOTA}
        needed = {*space.needed_axes(plain), *counted} - set(space.renamed)
        return needed | {a for _, i in x.access for _, a in i.terms}

    def _positions(self, x: Ref, space: Space) -> tuple[list[str], list[str]]:
        """Declarations of the indices that are read at another position; conditions under which they lie outside.

        Both, whatever the sizes make of them, unless a window has no padding: who writes need not compute.
        """
        own = Space(self.program, space.variables)
        positions, outside = [], []
        for axis, index in x.access:
            text = own.affine(Index(index.terms, index.offset))
            if index.divisor > 1:
                met = any(a in self.steps for _, a in index.terms)  # by the phase, which needs a window
                outside += [] if met else [f"({text}) % {index.divisor} != 0"]
                text = f"({text}) / {index.divisor}"
            name = axis_index(axis)
            positions.append(f"const int {name} = {text};")
            if not _rises(index) or bounds(self.program, index)[1] >= self.program.axis[axis].size:
                outside += [f"{name} < 0", f"{name} >= {axis}"]
        return positions, outside

    def _before(self, name: str) -> tuple[list[Buffer], list[Op]]:
        return before(self.stage, name)

    def _value(self, name: str, space: Space) -> str:
        """Writes what computes an operand at the current position; returns its register."""
        loads, ops = self._before(name)
        elements = self._gathering(space, {})
        self.lines.add(*[elements.load(b)[0] or "" for b in loads if b.key not in elements.late])
        self.lines.add(*[line for o in ops for line in elements.statements(o)])
        return elements.spelled[name]

    def _gathering(self, space: Space, spelled: dict[str, str]) -> Elements:
        """Whose statements write the late loads themselves, at a position that the kernel computes."""
        space = replace(space, registers=spelled)
        return Elements(self.program, space, None, spelled=spelled, late=late_loads(self.stage))

    def _epilogue(self, writes: Sequence[Buffer]) -> None:
        sides, lines = self.sides, self.lines
        space = self._space((Var("i", sides.m), Var("j", sides.n)))
        with lines.block(f"[&](int m, int n, float {sides.dot.name})"):
            lines.add("const int i = m0 + m, j = n0 + n;")
            known = self._indices("i", sides.m, set(sides.m), space) if set(sides.m) & set(self.steps) else []
            lines.add(*known, f"if ({self._past()}) return;")
            self._store(writes, space, known)
        lines.text[-1] += ");"

    def _epilogue_of_rows(self, writes: Sequence[Buffer], row: str) -> None:
        sides, lines, late = self.sides, self.lines, self._stores_late()
        space = self._space((Var("i", sides.m), Var("j", sides.n)))
        with self._each_result(writes, row, space, late, f"float {sides.dot.name}") as known:
            columns = size_of(sides.n)
            if late:
                lines.add(f"const int c = n0 + n, j = min(c, {columns} - 1);")
                self._after(space, known, past=f"r >= {self._size(sides.m)} || c >= {columns}")
            else:
                lines.add("const int j = n0 + n;", f"if ({self._past()}) return;")
                self._store(writes, space, known)

    @contextmanager
    def _each_result(
        self, writes: Sequence[Buffer], row: str, space: Space, clamped: bool, taken: str
    ) -> Iterator[list[str]]:
        """[&](int m) { const int i = m0 + m; ... return [=](int n, <taken>) { ... }; });

        Yields the index lines that stand before the inner lambda. clamped: also a row past the end is one that
        is there, and `r` is its own.
        """
        lines, last = self.lines, f"{self._size(self.sides.m)} - 1"
        with lines.block("[&](int m)"):
            lines.add(f"const int r = {row}, i = min(r, {last});" if clamped else f"const int i = {row};")
            known = self._row_lines(writes, space)
            lines.add(*known)
            with lines.block(f"return [{self._captured()}](int n, {taken})"):
                yield known
            lines.text[-1] += ";"
        lines.text[-1] += ");"

    def _captured(self) -> str:
        """What the lambda that stores takes along."""
        return "="

    def _row_lines(self, writes: Sequence[Buffer], space: Space) -> list[str]:
        """The indices that follow from a row."""
        sides = self.sides
        if self.phases:
            return self._indices("i", sides.m, set(sides.m), space)
        rows = [space.index_line(a) for a in (*sides.m, *sides.batch)]
        return [x for x in self._index_lines(writes, space) if x in rows]

    def _stores_late(self) -> bool:
        """Whether only stores ask for a row's end: what is read beside many results is then on its way at once.

        Of float32 and few loads the compiler has that by predicates, and takes it apart where stores alone ask.
        """
        sides, loads = self.sides, self._after_loads()
        # a thread of a pipe hands out too many for their indices to stay in registers
        if self.phases or self.schedule.splits > 1 or self.schedule.kind.endswith(MULTISTAGE):
            return False
        beside = any(set(b.axes) & set(sides.m) for b in loads)
        placed = any(b.index_values or b.access for b in loads)
        long = len(loads) > MAX_PREDICATED or sides.dot.dtype != "f32"
        return beside and long and not placed

    def _past(self) -> str:
        """Whether a tile's position lies past the end of the result."""
        outside = [f"i >= {self._size(self.sides.m)}", f"j >= {size_of(self.sides.n)}"]
        return " || ".join([*outside, *self._leaves(self.sides.m)])

    def _store(self, writes: Sequence[Buffer], space: Space, known: Sequence[str]) -> None:
        """A sum's part where sums are cut, else what follows the sum. `known`: index lines that stand already."""
        if self.schedule.splits == 1:
            self._after(space, known)
        else:
            part, dot = writes[0], self.sides.dot.name
            self.lines.add(*[x for x in self._index_lines(writes, space) if x not in known])
            self.lines.add(f"st({part.name} + z * ({size_of(part.axes)}) + {space.offset(part)}, {dot});")

    def _index_lines(self, writes: Sequence[Buffer], space: Space) -> list[str]:
        """The indices that what is read and written behind the sum needs."""
        elements = Elements(self.program, space, None)
        if self.schedule.splits > 1:
            return elements.index_lines(writes, [])
        return elements.index_lines([*self._after_loads(), *writes], self._after_ops())

    def _after(self, space: Space, known: Sequence[str] = (), total: str = "", past: str = "") -> None:
        """What follows the sum, and the stores. `known`: index lines that stand already. `total`: the sum.

        past: where nothing is stored.
        """
        dot, ops, loads = self.sides.dot, self._after_ops(), self._after_loads()
        spelled = self._spelled("j - n0" if past else "n") | {dot.name: total or dot.name}
        elements = self._gathering(space, spelled)
        self.lines.add(*[x for x in elements.index_lines([*loads, *self.stage.writes], ops) if x not in known])
        self.lines.add(*[elements.load(b)[0] or "" for b in loads if b.key not in elements.late])
        self.lines.add(*[line for o in ops for line in elements.statements(o)])
        self.lines.add(*([f"if ({past}) return;"] if past else []))
        self.lines.add(*[elements.store(b)[2] or "" for b in self.stage.writes])

    def _after_loads(self) -> list[Buffer]:
        wanted = self._after_reads() - {self.sides.dot.name}
        return in_order(b for b in self.stage.loads if b.value in wanted)

    def _after_ops(self) -> list[Op]:
        settled = self._settled()
        return [o for o in behind(self.stage, self.sides.dot) if o not in settled]

    def _after_reads(self) -> set[str]:
        """Values that are read behind the sum."""
        return {n for o in self._after_ops() for n in read_names(o)} | {w.value for w in self.stage.writes}

    # what follows from a tile's columns alone

    def _settled(self) -> list[Op]:
        """Operations behind the sum that its rows have no part in, as a norm's scale."""
        gathers = any(b.index_values for b in self.stage.loads)
        if self.schedule.splits > 1 or self.schedule.tile is None or gathers or not self.sides.m:
            return []
        columns = {*self.sides.n, *self.sides.batch}
        return [o for o in behind(self.stage, self.sides.dot) if o.axes and set(o.axes) <= columns]

    def _spelled(self, column: str) -> dict[str, str]:
        """What is settled, at a column of the tile."""
        return {o.name: f"{_settled_name(o)}[{column}]" for o in self._settled()}

    def _settle(self, columns: int) -> None:
        """Once a block, not once a result: for the tile's columns, in shared memory."""
        lines, settled = self.lines, self._settled()
        if not settled:
            return
        needed = closure(self.program, [o.name for o in settled], {b.value for b in self.stage.loads})
        ops = [o for o in behind(self.stage, self.sides.dot) if o.name in needed]  # with numbers of no axis
        elements = Elements(self.program, self._space((Var("j", self.sides.n),)), None)
        reads, later = {n for o in ops for n in read_names(o)}, self._after_reads()
        loads = in_order(b for b in self.stage.loads if b.value in reads)
        wanted = [o for o in settled if o.name in later]
        lines.add(*[f"__shared__ {COMPUTE_TYPE[o.dtype]} {_settled_name(o)}[{columns}];" for o in wanted])
        with lines.block(f"for (int n = threadIdx.x; n < {columns}; n += {self.threads})"):
            lines.add("const int j = n0 + n;", f"if (j >= {size_of(self.sides.n)}) break;")
            lines.add(*elements.index_lines(loads, ops), *[elements.load(b)[0] or "" for b in loads])
            lines.add(*[line for o in ops for line in elements.statements(o)])
            lines.add(*[f"{_settled_name(o)}[n] = {o.name};" for o in wanted])

    # one thread an output

    def _direct(self) -> str:
        sides, lines, block = self.sides, self.lines, self.schedule.block
        order = memory_order(self.stage)
        outer, inner = order[:-1], order[-1:]
        rows = len(order) > 1 and self.program.axis[inner[0]].size >= block // 2
        variables = (Var("r", outer), Var("c", inner)) if rows else (Var("i", order),)
        if rows:
            lines.add("const int r = blockIdx.x;", f"const int c = blockIdx.y * {block} + threadIdx.x;")
            lines.add(f"if (c >= {inner[0]}) return;")
        else:
            lines.add(f"const int i = blockIdx.x * {block} + threadIdx.x;", f"if (i >= {size_of(order)}) return;")
        space = Space(self.program, variables)
        used = {a for x in (sides.a, sides.b) for a in self._used_axes(x, space)}
        indices = [line for a in order if a in used and (line := space.index_line(a))]
        lines.add(*indices)
        kind = COMPUTE_TYPE[sides.dot.dtype]
        lines.add(f"{kind} {sides.dot.name} = 0;")
        self._loops(variables)
        self._after(space, indices)
        return f"dim3({size_of(outer)}, cdiv({inner[0]}, {block}))" if rows else f"cdiv({size_of(order)}, {block})"

    def _loops(self, variables: tuple[Var, ...]) -> None:
        """Nested loops over the summed axes; indices are computed as far outside as they can be."""
        sides, lines = self.sides, self.lines
        left = [(x, item) for x in (sides.a, sides.b) for item in x.access]
        for at, axis in enumerate(sides.over):
            w, waiting = axis_index(axis), set(sides.over[at + 1 :])
            if axis.startswith("k"):
                lines.add("#pragma unroll")
            lines.add(f"for (int {w} = 0; {w} < {axis}; {w}++) {{")
            lines.depth += 1
            for x, item in [p for p in left if not waiting & {a for _, a in p[1][1].terms}]:
                left.remove((x, item))
                positions, outside = self._positions(Ref(x.name, (item,)), Space(self.program, variables))
                lines.add(*positions, *([f"if ({' || '.join(outside)}) continue;"] if outside else []))
        values = []
        for x in (sides.a, sides.b):
            moved = {a: axis_index(a) for a, _ in x.access}
            values.append(self._value(x.name, Space(self.program, variables, moved)))
        lines.add(f"{sides.dot.name} += {values[0]} * {values[1]};")
        for _ in sides.over:
            lines.depth -= 1
            lines.add("}")


def _rises(index: Index) -> bool:
    """Whether it begins at 0 and grows by whole steps: a window without padding."""
    return index.offset == 0 and index.divisor == 1 and all(factor > 0 for factor, _ in index.terms)


def _settled_name(op: Op) -> str:
    return f"x{op.name[1:]}"


def _factor(text: str) -> str:
    return f"({text})" if " * " in text else text
