"""Writes convolutions of few channels whose halo tile a block holds whole (product_stem of the device header).

A tile's rows are a rectangle of one plane of the result. All that their windows read, the rectangle and its halo,
is a small box of the image with every channel. It is read, computed and rounded once, to shared memory, from
where im2col is one addition a term: offsets of k are looked up, and no bounds are left to check.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cudal1_compile.codegen.products.copies import COPY_BYTES, ITEMS, load_of
from cudal1_compile.codegen.products.halo_tile import MAX_SHARED, STAGES_B
from cudal1_compile.codegen.products.multistage import PACKERS
from cudal1_compile.codegen.products.product import ProductWriter
from cudal1_compile.codegen.products.sides import (
    FEW_CHANNEL_HALO,
    Sides,
    Slide,
    arithmetic_of,
    position_of,
    windows_of,
)
from cudal1_compile.codegen.products.warp_layouts import Layout, evaluated, warp_of
from cudal1_compile.codegen.stages.schedule import StageSchedule
from cudal1_compile.codegen.stages.source import Kernel, Lines, product, signature
from cudal1_compile.codegen.stages.space import Space, Var, axis_index, grouped, size_of
from cudal1_compile.codegen.stages.stage import Buffer, Stage
from cudal1_compile.kernel.candidate import MAX_EXPRESSION
from cudal1_fx_passes.program.ir import ITEM_BYTES

ARITHMETICS = ("tf32", "f16", "bf16")
# where it may be the fastest: of 171 measured programs beyond these it won 16
MAX_CHANNELS, MAX_COLUMNS, MIN_TERMS, MIN_WORK = 8, 128, 24, 1_500_000
FEW_CHANNEL_LAYOUTS = (
    *(Layout((128, 16), (32, 16)), Layout((256, 16), (64, 16)), Layout((128, 32), (32, 32))),
    *(Layout((256, 32), (64, 32)), Layout((128, 64), (32, 64)), Layout((256, 64), (64, 64))),
    Layout((256, 64), (32, 64)),
)
WIDTHS = (16, 8, 32, 64, 4)  # of a tile's rectangle, the usual one first


@dataclass(frozen=True, slots=True)
class HaloBox:
    """Axes of the image that a window moves: across and down the tile's rectangle, and the others."""

    across: Slide
    down: Slide | None
    outer: tuple[Slide, ...]
    planes: tuple[str, ...]  # axes of the result's rows besides the rectangle's
    inner: tuple[str, ...]  # axes of the sum that make the halo tile's planes
    high: int  # results of the rectangle
    wide: int


def halo_box_of(stage: Stage, sides: Sides, rows: int) -> HaloBox | None:
    """For tiles of so many rows; None where no forward window slides along the innermost of them."""
    slides = {s.out: s for s in windows_of(stage, sides)}
    forward = all(s.dilation > 0 and s.stride > 0 for s in slides.values())
    if len(slides) != len(sides.a.access) or not set(slides) <= set(sides.m) or not forward:
        return None
    if not sides.m or sides.m[-1] not in slides or {s.window for s in slides.values()} != set(sides.taps):
        return None
    across, down = slides[sides.m[-1]], slides.get(sides.m[-2]) if len(sides.m) > 1 else None
    outer = tuple(s for s in slides.values() if s not in (across, down))
    planes, inner = sides.m[: -2 if down else -1], (*sides.channels, *(s.window for s in outer))
    shapes = [(rows // w, w) for w in WIDTHS if rows % w == 0] if down else [(1, rows)]
    found = [HaloBox(across, down, outer, planes, inner, *shape) for shape in shapes]
    return min(found, key=lambda x: _dearness(stage, sides, x))


def _dearness(stage: Stage, sides: Sides, x: HaloBox) -> int:
    """What an SM does for all tiles of a plane: warps that copy, and warps that multiply."""
    products = x.high * x.wide * stage.program.size((*sides.over, *sides.n))
    return tiles_of(stage, x) * (8 * halo_parts(stage, x) + products // 512)


def tiles_of(stage: Stage, x: HaloBox) -> int:
    """Of a plane."""
    size = stage.program.size
    return -(-size((x.across.out,)) // x.wide) * (-(-size((x.down.out,)) // x.high) if x.down else 1)


def _reach(s: Slide, results: int) -> str:
    """Positions of the image that the windows of so many results read."""
    moved = [product(results - 1, s.stride)] if results > 1 else []
    window = [s.window] if s.dilation == 1 else [f"{s.dilation} * ({s.window} - 1)", "1"]
    return " + ".join([*moved, *window])


def _pitch(x: HaloBox) -> str:
    """Pitch of the halo tile in elements: a window's next row goes on where the last one's banks end."""
    s = x.across
    return f"{product(x.wide, s.stride)} + {s.window}" if s.dilation == 1 else _reach(s, x.wide)


def _halo_text(x: HaloBox) -> str:
    """Elements of a halo tile."""
    high = [grouped(_reach(x.down, x.high))] if x.down else []
    return size_of([*x.inner, *high, grouped(_pitch(x))])


def shared_text(stage: Stage, sides: Sides, x: HaloBox, schedule: StageSchedule) -> str:
    """Bytes of a block, as a launch expression."""
    assert schedule.tile is not None
    _, bn, bk = schedule.tile
    size = ITEM_BYTES[stage.program.value_dtype[sides.b.name]]
    table = f"cdiv({size_of(sides.over)}, {bk}) * {bk * 4}"
    return f"cdiv({_halo_text(x)}, 8) * {8 * size} + {table} + {STAGES_B * bn * (bk * size + 16)}"


def halo_parts(stage: Stage, x: HaloBox) -> int:
    """Reads of a warp that fill a halo tile."""
    wide = evaluated(stage, _pitch(x))
    return evaluated(stage, _halo_text(x)) // wide * -(-wide // 32)


def few_channel_halo_schedules(stage: Stage) -> Iterator[StageSchedule]:
    """The narrowest tiles that hold all columns, and those of half as many."""
    sides, size = Sides(stage), stage.program.size
    usable = [a for a in sides.arithmetics if a in ARITHMETICS and _fits(stage, sides, ITEMS.get(a, a))]
    columns, terms = size(sides.n), size(sides.over)
    if columns > MAX_COLUMNS or terms < MIN_TERMS or terms * size((*sides.m, *sides.batch)) < MIN_WORK:
        return
    for arithmetic in usable:
        for x in FEW_CHANNEL_LAYOUTS:
            (bm, bn), deep = x.tile, 32 if terms > 48 else 16
            if bn // 2 >= columns and bn > 16 or bn * 4 <= columns and bn < 64:
                continue
            schedule = StageSchedule(arithmetic + FEW_CHANNEL_HALO, 1, x.threads, tile=(bm, bn, deep))
            box = halo_box_of(stage, sides, bm)
            if box is None:
                continue
            taken = shared_text(stage, sides, box, schedule)
            if len(taken) <= MAX_EXPRESSION and evaluated(stage, taken) <= MAX_SHARED:
                yield schedule


def _fits(stage: Stage, sides: Sides, item: str) -> bool:
    """Few channels, and a weight whose terms lie innermost."""
    load, size = load_of(stage, sides.b), stage.program.size
    if load is None or load.index_values or load.dtype != item or load.strides is not None:
        return False
    if any(a.symbolic for a in stage.program.axes) or size(sides.channels) > MAX_CHANNELS or not sides.taps:
        return False
    return not sides.b.access and load.axes[-len(sides.over) :] == sides.over


class FewChannelHaloWriter(ProductWriter):
    """One convolution, its tiles rectangles."""

    def __init__(self, stage: Stage, schedule: StageSchedule, first: int, scratch: int) -> None:
        super().__init__(stage, schedule, f"f{first + 1}")
        assert schedule.tile is not None
        found, load = halo_box_of(stage, self.sides, schedule.tile[0]), load_of(stage, self.sides.b)
        assert found is not None and load is not None
        self.box, self.threads, self.weight, self.first = found, schedule.block, load, first
        self.vector = COPY_BYTES // ITEM_BYTES[load.dtype]
        self.run = f"cdiv({size_of(self.sides.over)}, {self.vector}) * {self.vector}"
        self.packed = replace(load, name=f"s{scratch}", axes=load.axes[: -len(self.sides.over)])
        self.stage = replace(stage, reads=tuple(self.packed if b.name == load.name else b for b in stage.reads))

    def write_all(self) -> list[Kernel]:
        return [self._pack(), self.write()]

    def _pack(self) -> Kernel:
        """The weight, rounded once, its rows padded to whole copies."""
        old, new, lines, terms = self.weight, self.packed, Lines(), size_of(self.sides.over)
        a = old.register
        with lines.block(signature(f"f{self.first}", PACKERS, (old,), (new,))):
            lines.add(f"constexpr int run = {self.run};", f"const int i = blockIdx.x * {PACKERS} + threadIdx.x;")
            lines.add(f"if (i >= {size_of([*new.axes, 'run'])}) return;")
            lines.add("const int j = i / run;", "const int k = i % run;")
            lines.add(f"const float {a} = k < {terms} ? ld({old.name} + j * {grouped(terms)} + k) : 0.0f;")
            if new.dtype == "f32":
                lines.add(f"const float r{a[1:]} = round_to<tf32>({a});")
                a = f"r{a[1:]}"
            lines.add(f"st({new.name} + i, {a});")
        declared = (f"{new.name} {new.dtype}[{', '.join([*new.axes, self.run])}]",)
        grid, names = f"cdiv({size_of([*new.axes, self.run])}, {PACKERS})", (old.name, new.name)
        return Kernel(f"f{self.first}", "\n".join(lines.text), grid, str(PACKERS), names, declared)

    def _tile(self, writes: Sequence[Buffer]) -> str:
        assert self.schedule.tile is not None
        sides, box, lines, bn = self.sides, self.box, self.lines, self.schedule.tile[1]
        tiles = [f"cdiv({box.across.out}, {box.wide})"]
        lines.add(f"const int left = blockIdx.x % {tiles[0]} * {box.wide};", f"const int n0 = blockIdx.y * {bn};")
        if box.down:
            tiles.append(f"cdiv({box.down.out}, {box.high})")
            lines.add(f"const int top = blockIdx.x / {tiles[0]} % {tiles[1]} * {box.high};")
        if box.planes:
            lines.add(f"const int plane = blockIdx.x / {grouped(size_of(tiles))};")
        lines.add(*(["const int g = blockIdx.z;"] if sides.batch else []))
        if box.down:
            lines.add(f"constexpr int high = {_reach(box.down, box.high)};")
        lines.add(f"constexpr int wide = {_pitch(box)};", f"constexpr int run = {self.run};")
        self._position()
        self._settle(bn)
        lines.add(self._open())
        lines.depth += 1
        self._halo()
        self._within()
        self._behind()
        self._weight()
        self._epilogue_of_rows(writes, "at(m)")
        lines.depth -= 1
        tall = size_of([*box.planes, *tiles[::-1]])
        return f"dim3({tall}, cdiv({size_of(sides.n)}, {bn}){f', {size_of(sides.batch)}' if sides.batch else ''})"

    def _position(self) -> None:
        """Where in the result a row of the tile lies; past its end where there is none."""
        lines, box, whole = self.lines, self.box, size_of(self.sides.m)
        text, past = "plane" if box.planes else "", []
        with lines.block("const auto at = [&](int m)"):
            if box.down:
                lines.add(f"const int y = top + m / {box.wide};", f"const int x = left + m % {box.wide};")
                text, past = f"{text} * {box.down.out} + y" if text else "y", [f"y >= {box.down.out}"]
            else:
                lines.add("const int x = left + m;")
            text = f"{grouped(text)} * {box.across.out} + x" if text else "x"
            lines.add(f"return {' || '.join([*past, f'x >= {box.across.out}'])} ? {whole} : {text};")
        lines.text[-1] += ";"

    def _open(self) -> str:
        """Opens the call; its launch asks for the memory."""
        sides, box = self.sides, self.box
        assert self.schedule.tile is not None
        self.shared_bytes = shared_text(self.stage, sides, box, self.schedule)
        warp = warp_of(self.schedule, FEW_CHANNEL_LAYOUTS)
        arithmetic = arithmetic_of(self.schedule) + ("_ready" if self.packed.dtype == "f32" else "")
        halo = (size_of(box.inner), "high" if box.down else 1, "wide")
        words = (arithmetic, *self.schedule.tile, *warp, *halo, self.vector, 1)
        return f"product_stem<{', '.join(map(str, words))}>({size_of(sides.over)},"

    def _halo(self) -> None:
        """[&](int p) { const int i1 = p / k0; ... return [=](int y) { ... return [=](int x) { ... }; }; },"""
        lines, sides, box = self.lines, self.sides, self.box
        space = self._space((Var("plane", box.planes), Var("p", box.inner)), sides.a)
        used = self._used_axes(sides.a, space)
        outside: list[str] = []
        with lines.block(f"[&](int{' p' if box.inner else ''})"):
            lines.add(*[x for a in box.inner if (x := space.index_line(a))])
            lines.add(*[x for a in (*box.planes, *sides.batch) if a in used and (x := space.index_line(a))])
            for s in box.outer:
                self._moved(s, space.index(s.out), product(s.dilation, space.index(s.window)), outside)
            with lines.block(f"return [=](int{' y' if box.down else ''})"):
                if box.down:
                    self._moved(box.down, "top", "y", outside)
                if outside:
                    lines.add(f"const bool outside = {' || '.join(outside)};")
                with lines.block("return [=](int x)"):
                    past = ["outside"] if outside else []
                    self._moved(box.across, "left", "x", past)
                    lines.add(f"if ({' || '.join(past)}) return 0.0f;")
                    lines.add(f"return {self._value(sides.a.name, space)};")
                lines.text[-1] += ";"
            lines.text[-1] += ";"
        lines.text[-1] += ","

    def _moved(self, s: Slide, first: str, at: str, outside: list[str]) -> None:
        """An index of the image, and the conditions under which it lies outside."""
        name = axis_index(s.read)
        self.lines.add(f"const int {name} = {position_of(s, first, at)};")
        outside += [f"{name} < 0", f"{name} >= {s.read}"]

    def _within(self) -> None:
        box, text = self.box, product("m", self.box.across.stride)
        if box.down:
            down = grouped(product(box.down.stride, "wide"))
            text = f"m / {box.wide} * {down} + {product(f'm % {box.wide}', box.across.stride)}"
        self.lines.add(f"[&](int m) {{ return {text}; }},")

    def _behind(self) -> None:
        """[&](int k) { const int w0 = ...; return (i1 * high + w0) * wide + w1; },"""
        lines, sides, box = self.lines, self.sides, self.box
        space = Space(self.program, (Var("k", sides.over),))
        text = ""
        for axis in box.inner:
            text = f"{grouped(text)} * {axis} + {space.index(axis)}" if text else space.index(axis)
        for s, size in ((box.down, "high"), (box.across, "wide")):
            if s is not None:
                step = product(s.dilation, space.index(s.window))
                text = f"{grouped(text)} * {size} + {step}" if text else step
        with lines.block("[&](int k)"):
            lines.add(*[x for a in sides.over if (x := space.index_line(a))], f"return {text};")
        lines.text[-1] += ","

    def _weight(self) -> None:
        """[&](int n) { const int j = n0 + n; return [=](int) { return ... ? nullptr : s0 + ...; }; },"""
        lines, sides, packed = self.lines, self.sides, self.packed
        space = self._space((Var("j", sides.n),))
        used = space.needed_axes([packed])
        with lines.block("[&](int n)"):
            lines.add("const int j = n0 + n;")
            lines.add(*[x for a in (*sides.n, *sides.batch) if a in used and (x := space.index_line(a))])
            at = f"{packed.name} + {grouped(space.offset(packed))} * run"
            lines.add(f"return [=](int) {{ return j >= {size_of(sides.n)} ? nullptr : {at}; }};")
        lines.text[-1] += ","
