"""Writes warp-specialised implicit GEMM whose operands one warp copies in bulk (product_bulk of the header).

    packing kernel: prologue, rounding, planes -> copying warp: cp.async.bulk -> shared memory -> consumer warps

Both operands are packed first, into planes of 16 bytes a position (planes.py): the prologue is computed there,
once an element, and rounded to TF32 where the arithmetic is. The image is read along its rows and stored so: no
tile has to be transposed. All taps of a window then read one halo tile in shared memory; where that is too long
(planes of a volume) the outermost taps have halo tiles of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cudal1_compile.codegen.products.bulk_copy_plan import geometry_of, plan_of
from cudal1_compile.codegen.products.columns import ColumnWriter
from cudal1_compile.codegen.products.copies import COPY_BYTES, ITEMS, copied, ordered
from cudal1_compile.codegen.products.planes import Axis
from cudal1_compile.codegen.products.sides import (
    arithmetic_of,
    behind,
)
from cudal1_compile.codegen.stages.schedule import StageSchedule
from cudal1_compile.codegen.stages.source import Kernel, Lines, product, signature
from cudal1_compile.codegen.stages.space import Space, Var, axis_index, grouped, size_of
from cudal1_compile.codegen.stages.stage import Buffer, Stage, read_names
from cudal1_fx_passes.program.ir import ITEM_BYTES, Ref

PACKERS = 256  # threads of a block that packs


class BulkCopyWriter(ColumnWriter):
    """One product stage: its kernels are numbered from `first`, its scratch from `scratch`."""

    NAME, COPIED = "product_bulk", 2  # of the device function; operands that are packed, the weight last

    def __init__(self, stage: Stage, schedule: StageSchedule, first: int, scratch: int) -> None:
        super().__init__(stage, schedule, f"f{first + 1}")
        assert schedule.tile is not None
        self.sides = ordered(stage)
        planes = geometry_of(stage, self.sides, schedule)
        plan = plan_of(stage, self.sides, planes, schedule)
        assert plan is not None
        self.planes, self.plan, self.first, self.scratch = planes, plan, first, scratch
        self.threads, self.blocks, self.whole = schedule.block, plan.blocks, stage
        self.arithmetic = arithmetic_of(schedule)
        self.item = ITEMS.get(self.arithmetic, self.arithmetic)
        self.vector = COPY_BYTES // ITEM_BYTES[self.item]
        _, bn, bk = schedule.tile
        self.depth = f"cdiv({size_of(self.sides.channels)}, {bk}) * {bk // self.vector}"
        self.columns = f"cdiv({size_of(self.sides.n)}, {bn}) * {bn}"
        later = {n for o in behind(stage, self.sides.dot) for n in read_names(o)} | {w.value for w in stage.writes}
        loads = tuple(b for b in stage.loads if b.value in later)
        self.packed = [Buffer(f"s{scratch + i}", "", self.item, ()) for i in range(self.COPIED)]
        reads = {b.name: b for b in (*self._feeding(), *loads)}
        self.stage = replace(stage, reads=tuple(reads.values()))

    def write_all(self) -> list[Kernel]:
        made = [self._pack()]
        if self.schedule.splits > 1:
            return made + self.write_split(f"f{self.first + 2}", self.scratch + self.COPIED)
        return [*made, self.write()]

    def _feeding(self) -> tuple[Buffer, ...]:
        return tuple(self.packed)

    # packing

    def _pack(self) -> Kernel:
        lines, kept, sides = Lines(), self.lines, self.sides
        self.lines = lines
        assert self.schedule.tile is not None
        rows = self.planes.positions(self.schedule.tile[0], named=False)
        image, weight = (size_of([*sides.batch, grouped(self.depth), grouped(x)]) for x in (rows, self.columns))
        windows = [x.window for x in self.planes.axes]
        sizes = [image, size_of([*windows, weight])][2 - self.COPIED :]
        shapes = [image, ", ".join([*windows, weight])][2 - self.COPIED :]
        reads = {b.name: b for x in (sides.a, sides.b)[2 - self.COPIED :] for b in self._before(x.name)[0]}
        with lines.block(signature(f"f{self.first}", PACKERS, reads.values(), self.packed)):
            self._pack_all()
        self.lines = kept
        declared = tuple(
            f"{b.name} {self.item}[{shape}, {self.vector}]" for b, shape in zip(self.packed, shapes, strict=True)
        )
        grid = " + ".join(f"cdiv({x}, {PACKERS})" for x in reversed(sizes))
        names = tuple(b.name for b in (*reads.values(), *self.packed))
        return Kernel(f"f{self.first}", "\n".join(lines.text), grid, str(PACKERS), names, declared)

    def _pack_all(self) -> None:
        lines = self.lines
        self._names()
        blocks = size_of([*(x.window for x in self.planes.axes), *self.sides.batch, "planes", "columns"])
        lines.add("int b = blockIdx.x;")
        with lines.block(f"if (b < cdiv({blocks}, {PACKERS}))"):
            self._pack_weight("b")
            lines.add("return;")
        lines.add(f"b -= cdiv({blocks}, {PACKERS});")
        self._pack_image()

    def _names(self) -> None:
        """Sizes that several lines need."""
        assert self.schedule.tile is not None
        padded = [f"{x.name} = {x.size}" for x in self.planes.axes]
        padded.append(f"places = {self.planes.positions(self.schedule.tile[0], named=True)}")
        self._constants(padded)

    def _constants(self, found: Sequence[str]) -> None:
        self.lines.add(
            f"constexpr int {', '.join([*found, f'columns = {self.columns}', f'planes = {self.depth}'])};"
        )

    def _pack_image(self) -> None:
        lines, sides, planes = self.lines, self.sides, self.planes
        before = planes.distance([str(x.before) for x in planes.axes], named=True)
        lines.add(f"const int i = b * {PACKERS} + threadIdx.x, p = i / places;")
        lines.add(f"const int place = i % places{f' - ({before})' if before != '0' else ''};")
        lines.add(f"if (p >= {size_of([*sides.batch, 'planes'])}) return;")
        batch = self._batch()
        inside = ["place >= 0"] if before != "0" else []
        for at, x in enumerate(planes.axes):
            lines.add(f"const int {axis_index(x.read)} = {planes.index(at)};")
            inside += [f"{axis_index(x.read)} < {x.read}"] if x.room or not (at or planes.plain) else []
        if planes.plain:
            around = size_of(x.name for x in planes.axes)
            row = f"place / {grouped(around)}" if around != "1" else "place"
            lines.add(f"const int row = {row};")
            inside.append(f"row < {size_of(planes.plain)}")
        space = Space(self.program, (Var("row", planes.plain), Var("c", sides.channels), *batch))
        self._vectors(sides.a, space, planes.plain, inside, f"{self.packed[0].name} + i * {self.vector}")

    def _pack_weight(self, block: str) -> None:
        """Neighbours along the window, which mostly lies side by side, then along the columns."""
        lines, sides, axes = self.lines, self.sides, self.planes.axes
        windows = [x.window for x in axes]
        taps, around = grouped(size_of(windows)), grouped(size_of([*sides.batch, "planes"]))
        lines.add(f"const int i = {block} * {PACKERS} + threadIdx.x;")
        if axes:
            lines.add(f"const int tap = i % {taps}, j = i / {taps} % columns, p = i / ({taps} * columns);")
        else:
            lines.add("const int j = i % columns, p = i / columns;")
        lines.add(f"if (p >= {around}) return;")
        batch = self._batch()
        for at, x in enumerate(axes):
            rest = size_of(windows[at + 1 :])
            text = "tap" if rest == "1" else f"tap / {grouped(rest)}"
            lines.add(f"const int {axis_index(x.window)} = {text}{f' % {windows[at]}' if at else ''};")
        space = Space(self.program, (Var("j", sides.n), Var("c", sides.channels), *batch), derived=self.derived)
        position = f"((tap * {around} + p) * columns + j)" if axes else "i"
        to = f"{self.packed[-1].name} + {position} * {self.vector}"
        self._vectors(sides.b, space, sides.n, [f"j < {size_of(sides.n)}"], to)

    def _batch(self) -> tuple[Var, ...]:
        if not self.sides.batch:
            return ()
        self.lines.add("const int g = p / planes;")
        return (Var("g", self.sides.batch),)

    def _vectors(self, x: Ref, space: Space, rows: tuple[str, ...], inside: list[str], to: str) -> None:
        """One vector along k, each element computed."""
        lines, sides = self.lines, self.sides
        needed = self._used_axes(x, space)
        lines.add(*[t for a in (*rows, *sides.batch) if a in needed and (t := space.index_line(a))])
        first = f"{'p % planes' if sides.batch else 'p'} * {self.vector}"
        partly = self.program.size(sides.channels) % self._deep() != 0
        rounds, direct = self.item == "f32", copied(self.whole, sides, x, rows)
        if direct is not None and direct.step == 1 and direct.vector == self.vector:
            inside = [*inside, *([f"c < {size_of(sides.channels)}"] if partly else [])]
            only = f"if ({' && '.join(inside)}) " if inside else ""
            held, at = direct.buffer.register, f"{direct.buffer.name} + {space.offset(direct.buffer)}"
            lines.add(f"const int c = {first};", *[t for a in sides.channels if (t := space.index_line(a))])
            lines.add(f"float {held}[{self.vector}] = {{}};", f"{only}vload<{self.vector}>({at}, {held});")
            if rounds:
                lines.add("#pragma unroll")
                lines.add(f"for (int e = 0; e < {self.vector}; e++) {held}[e] = round_to<tf32>({held}[e]);")
            lines.add(f"vstore<{self.vector}>({to}, {held});")
            return
        held = f"r{x.name.lstrip('int')}{'x1' if x is sides.b else ''}"  # both may have one number
        lines.add(f"float {held}[{self.vector}] = {{}};")
        if inside:
            lines.add(f"if ({' && '.join(inside)}) {{")
            lines.depth += 1
        lines.add("#pragma unroll")
        with lines.block(f"for (int e = 0; e < {self.vector}; e++)"):
            lines.add(f"const int c = {first} + e;")
            if partly:
                lines.add(f"if (c >= {size_of(sides.channels)}) break;")
            lines.add(*[t for a in sides.channels if a in needed and (t := space.index_line(a))])
            value = self._value(x.name, space)
            lines.add(f"{held}[e] = {f'round_to<tf32>({value})' if rounds else value};")
        if inside:
            lines.depth -= 1
            lines.add("}")
        lines.add(f"vstore<{self.vector}>({to}, {held});")

    def _deep(self) -> int:
        assert self.schedule.tile is not None
        return self.schedule.tile[2]

    # multiplying

    def _tile(self, writes: Sequence[Buffer]) -> str:
        assert self.schedule.tile is not None
        sides, (_, bn, bk), lines, planes = self.sides, self.schedule.tile, self.lines, self.planes
        splits, steps = self.schedule.splits, " * ".join(str(p.step) for p in self.phases)
        lines.add(f"const int {self._origin()}n0 = blockIdx.y * {bn};")
        if sides.batch:
            lines.add(f"const int g = blockIdx.z{f' / {splits}' if splits > 1 else ''};")
        self._choose_phases()
        self._names()
        self._rows()
        self._settle(bn)
        depth = size_of(sides.channels)
        if splits > 1:
            lines.add(f"const int step = cdiv({depth}, {splits * bk}) * {bk}, z = blockIdx.z % {splits};")
            lines.add("const int begin = z * step;")
            depth = f"max(min(step, {depth} - begin), 0)"
        outer = planes.axes[: len(planes.axes) - self.plan.inner]
        lines.add(self._call(depth))
        lines.depth += 1
        self._image(outer)
        self._shift(planes.axes[len(outer) :])
        self._weight()
        self._epilogue_of_rows(writes, "at(m)")
        lines.depth -= 1
        others = [*sides.batch, *([str(splits)] if splits > 1 else [])]
        third = f", {' * '.join(others)}" if others else ""
        tall = self._tall() + (f" * {steps}" if steps else "")
        return f"dim3({tall}, cdiv({size_of(sides.n)}, {bn}){third})"

    def _tall(self) -> str:
        assert self.schedule.tile is not None
        return self.planes.tall(self.schedule.tile[0])

    def _call(self, depth: str) -> str:
        assert self.schedule.tile is not None
        plan, axes = self.plan, self.planes.axes
        outer, inner = axes[: len(axes) - plan.inner], axes[len(axes) - plan.inner :]
        words: list[object] = [self.arithmetic, *self.schedule.tile, plan.stages]
        words += [self._taps(inner), self._span(), plan.halos, *self._further_words(self._is_along())]
        self.shared_bytes = plan.shared
        return f"{self.NAME}<{', '.join(map(str, words))}>({self._taps(outer)}, {depth},"

    def _further_words(self, along: bool) -> list[int]:
        return [1] if along else []

    def _origin(self) -> str:
        """Where a block's rows begin, in positions."""
        assert self.schedule.tile is not None
        steps = " * ".join(str(p.step) for p in self.phases)
        return f"m0 = {f'blockIdx.x / {grouped(steps)}' if steps else 'blockIdx.x'} * {self.schedule.tile[0]}, "

    def _span(self) -> str:
        """Positions of a halo tile besides the tile's rows."""
        return self.planes.span(self.plan.inner, named=True)

    def _taps(self, axes: Sequence[Axis]) -> str:
        return self._size(x.window for x in axes)

    def _rows(self) -> None:
        """Where in the result a row of the tile lies; past its end where there is none."""
        lines, planes, sides = self.lines, self.planes, self.sides
        if not planes.axes:
            lines.add("const auto at = [&](int m) { return m0 + m; };")
            return
        past, text = [], ""
        with lines.block("const auto at = [&](int m)"):
            found = []
            if planes.plain:
                found.append(f"row = place / {grouped(size_of(x.name for x in planes.axes))}")
                past, text = [f"row >= {size_of(planes.plain)}"], "row"
            for at, x in enumerate(planes.axes):
                name, size = f"q{x.out[1:]}", self._size([x.out])
                found.append(f"{name} = {planes.index(at)}")
                past.append(f"{name} >= {size}")
                text = f"{grouped(text)} * {size} + {name}" if text else name
            lines.add(f"const int place = m0 + m, {', '.join(found)};")
            lines.add(f"return {' || '.join(past)} ? {self._size(sides.m)} : {text};")
        lines.text[-1] += ";"

    def _steps(self, variable: str, axes: Sequence[Axis]) -> list[str]:
        """Of the window along each axis, out of a number that counts them."""
        found = []
        for at, x in enumerate(axes):
            inner = self._taps(axes[at + 1 :])
            text = variable if inner == "1" else f"{variable} / {grouped(inner)}"
            found.append(text + (f" % {self._size([x.window])}" if at else ""))
        return found

    def _digits(self, variable: str, axes: Sequence[Axis]) -> list[str]:
        """Steps along each axis, in positions, out of a number that counts them."""
        found = []
        for x, text in zip(axes, self._steps(variable, axes), strict=True):
            if x.far < 0:
                text = f"{self._size([x.window])} - 1 - {text}"
            found.append(product(abs(x.far), grouped(text)) if abs(x.far) > 1 else text)
        return found

    def _image(self, outer: Sequence[Axis]) -> None:
        """[&](int o) { return [=](int p) { return s0 + (p * places + m0) * 4; }; },"""
        begin = self._begin(outer)
        at = f"{grouped(self._plane('p'))} * places + m0{f' + {begin}' if begin != '0' else ''}"
        lines = self.lines
        with lines.block(f"[&](int{' o' if outer else ''})"):
            lines.add(f"return [=](int p) {{ return {self.packed[0].name} + ({at}) * {self.vector}; }};")
        lines.text[-1] += ","

    def _begin(self, outer: Sequence[Axis]) -> str:
        """Positions from the block's first row to what the outer step `o` reads for it first."""
        steps = [*self._digits("o", outer), *["0"] * self.plan.inner]
        begins = []
        for x, step in zip(self.planes.axes, steps, strict=True):
            own = [step] if step != "0" else []
            if x.step > 1:
                phase = next(p for p in self.phases if p.out == x.out)
                offset = f"({phase.names[0]} + {x.offset})" if x.offset else phase.names[0]
                own.append(f"{offset} / {x.step}")
            own += [str(x.first)] if x.first else []
            begins.append(" + ".join(own) or "0")
        return self.planes.distance(begins, named=True) if any(b != "0" for b in begins) else "0"

    def _plane(self, p: str) -> str:
        parts = ["g * planes"] if self.sides.batch else []
        parts += [f"begin / {self.vector}"] if self.schedule.splits > 1 else []
        return " + ".join([*parts, p])

    def _shift(self, inner: Sequence[Axis]) -> None:
        text = self.planes.distance(self._digits("tap", inner), named=True)
        self.lines.add(f"[&](int{' tap' if text != '0' else ''}) {{ return {text}; }},")

    def _weight(self) -> None:
        """[&](int t) { return [=](int p) { return s1 + ((t * 8 + p) * 64 + n0) * 4; }; },"""
        lines, sides, axes = self.lines, self.sides, self.planes.axes
        tap = "t"
        with lines.block(f"[&](int{' t' if axes else ''})"):
            if self.phases:
                space = self._space((Var("t", sides.taps),))
                lines.add(*self._indices("t", sides.taps, set(sides.taps), space))
                tap = ""
                for x in axes:
                    own = axis_index(x.window)
                    tap = f"{grouped(tap)} * {x.window} + {own}" if tap else own
            whole = grouped(size_of([*sides.batch, "planes"]))
            plane = f"{grouped(tap)} * {whole} + {self._plane('p')}" if axes else self._plane("p")
            at = f"({grouped(plane)} * columns + n0) * {self.vector}"
            lines.add(f"return [=](int p) {{ return {self.packed[-1].name} + {at}; }};")
        lines.text[-1] += ","
