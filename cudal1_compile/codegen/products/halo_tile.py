"""Writes convolutions whose taps read one halo tile of the image in shared memory (product_patch of the header).

A tile's rows are neighbours in the result, so what they read lies within a run of the image's positions, row after
row, and a tap moves all of them by the same distance. A halo tile is that run, for some channels at a time: each
value is read, computed and stored once for all taps of the window. Where the run is too long (planes of a volume),
the outermost window axes get halo tiles of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cudal1_compile.codegen.products.copies import (
    COPY_BYTES,
    ITEMS,
    Copied,
    copied,
    ordered,
    packed,
    wants_packing,
)
from cudal1_compile.codegen.products.halo_walk import Moved, Walk, halo_length, walk_of, windows_size
from cudal1_compile.codegen.products.multistage import MultistageWriter, tile_bytes
from cudal1_compile.codegen.products.sides import HALO_TILE, PHASED, Sides, arithmetic_of, before, phases_of
from cudal1_compile.codegen.products.warp_layouts import LAYOUTS, Layout, estimate, evaluated, layouts_for, warp_of
from cudal1_compile.codegen.stages.schedule import StageSchedule
from cudal1_compile.codegen.stages.source import product
from cudal1_compile.codegen.stages.space import Space, Var, axis_index, grouped, size_of
from cudal1_compile.codegen.stages.stage import Buffer, Stage
from cudal1_compile.kernel.candidate import MAX_EXPRESSION
from cudal1_fx_passes.program.ir import ITEM_BYTES, Index, Ref

MAX_SHARED = 225 * 1024  # of an SM; two blocks of 128 threads share it
STAGES_B = 3
MAX_REGISTERS = 140  # of a thread, for its sums and its part of the next halo tile
GROUPED_DEPTH = 32  # terms of a sum between two barriers, at least
HALO_TILE_LAYOUTS = (
    *LAYOUTS,
    *(Layout((256, 64), (64, 64)), Layout((256, 64), (64, 32)), Layout((256, 32), (64, 32))),
    *(Layout((256, 16), (64, 16)), Layout((128, 16), (32, 16))),
)


@dataclass(frozen=True, slots=True)
class HaloTilePlan:
    """inner: window axes in a halo tile; positions (its length) and shared_bytes: launch expressions."""

    inner: int
    positions: str
    shared_bytes: str


def group_of(depth: int) -> int:
    """Taps between two barriers."""
    return max(1, GROUPED_DEPTH // depth)


def plan_of(stage: Stage, walk: Walk, schedule: StageSchedule, b: Copied) -> HaloTilePlan | None:
    """The most window axes that a halo tile has room for; None where not even one has."""
    assert schedule.tile is not None
    bm, bn, bk = schedule.tile
    arithmetic = arithmetic_of(schedule)
    size = ITEM_BYTES[ITEMS.get(arithmetic, arithmetic)]
    most = MAX_SHARED // (1 if schedule.block > 128 else 2)
    for inner in range(len(walk.moved), 0, -1):
        length = halo_length(walk, bm, inner)
        tiles = f"{product(STAGES_B, group_of(bk))} * {tile_bytes(b, bn, bk)}"
        taken = f"(2 * ({length}) + 1) * ({bk} * {size} + 16) + {tiles}"
        if len(taken) > MAX_EXPRESSION:
            continue
        positions = evaluated(stage, length)
        parts = -(-windows_size(stage, walk, inner) // group_of(bk))
        held = -(-positions * bk * size // (COPY_BYTES * parts * schedule.block)) * COPY_BYTES // 4
        registers = bm * bn // schedule.block + held
        if positions <= 6 * bm and evaluated(stage, taken) <= most and registers <= MAX_REGISTERS:
            return HaloTilePlan(inner, length, taken)
    return None


def halo_tile_schedules(stage: Stage, resident: int) -> list[StageSchedule]:
    """Tiles by an estimate of their time."""
    sides = ordered(stage)
    walk, b = walk_of(stage, sides), weight_of(stage, sides)
    if walk is None or b is None:
        return []
    usable = [a for a in sides.arithmetics if a[:3] != "f32" and b.buffer.dtype == ITEMS.get(a, a)]
    found = [s for a in usable for s in _tiles(stage, sides, walk, b, a, resident)]
    return sorted(found, key=lambda s: estimate(stage, sides, s, resident))


def _tiles(
    stage: Stage, sides: Sides, walk: Walk, b: Copied, arithmetic: str, resident: int
) -> Iterator[StageSchedule]:
    """Each tile at the depth that leaves room for the most of the window, then at the largest."""
    depth = stage.program.size(sides.channels)
    least = 8 if arithmetic in ITEMS else 16
    depths = [k for k in (32, 16, 8) if k >= least and (k <= depth or k == least and depth > 2)]
    form = arithmetic + (PHASED if phases_of(sides.a) else "") + HALO_TILE
    for x in layouts_for(stage, sides, arithmetic, resident, HALO_TILE_LAYOUTS):
        tiles = [StageSchedule(form, 1, x.threads, tile=(*x.tile, bk)) for bk in depths]
        plans = [(plan.inner, s) for s in tiles if (plan := plan_of(stage, walk, s, b)) is not None]
        yield from [s for _, s in sorted(plans, key=lambda p: -p[0])[:1]]


def weight_of(stage: Stage, sides: Sides) -> Copied | None:
    """The weight as copies see it, packed or not."""
    if before(stage, sides.b.name)[1]:
        return None
    if wants_packing(stage, sides):
        stage = packed(stage, sides, "s0")
        sides = ordered(stage)
    return copied(stage, sides, sides.b, sides.n)


class HaloTileWriter(MultistageWriter):
    """One convolution over halo tiles."""

    def _prepare(self) -> tuple[Walk, HaloTilePlan]:
        sides = self.sides
        walk, b = walk_of(self.stage, sides), copied(self.stage, sides, sides.b, sides.n)
        assert walk is not None and b is not None
        plan = plan_of(self.stage, walk, self.schedule, b)
        assert plan is not None
        return walk, plan

    def _call(self, depth: str) -> str:
        sides, tile = self.sides, self.schedule.tile
        walk, plan = self._prepare()
        assert tile is not None
        bm, bn, bk = tile
        arithmetic = arithmetic_of(self.schedule)
        wm, wn = warp_of(self.schedule, HALO_TILE_LAYOUTS)
        b = copied(self.stage, sides, sides.b, sides.n)
        assert b is not None
        self.shared_bytes = plan.shared_bytes
        outer, inner = self._cut(walk, plan)
        arithmetic += "_ready" if self._rounds() else ""
        words = (
            arithmetic,
            bm,
            bn,
            bk,
            wm,
            wn,
            self._taps(inner),
            group_of(bk),
            "places",
            b.vector,
            self._step(b),
        )
        self.lines.add(f"constexpr int places = {plan.positions.replace('max(', 'larger(')};")
        self._first(walk, inner)
        return f"product_patch<{', '.join(map(str, words))}>({self._taps(outer)}, {depth},"

    def _cut(self, walk: Walk, plan: HaloTilePlan) -> tuple[tuple[Moved, ...], tuple[Moved, ...]]:
        at = len(walk.moved) - plan.inner
        return walk.moved[:at], walk.moved[at:]

    def _taps(self, moved: tuple[Moved, ...]) -> str:
        return self._size(x.window for x in moved)

    def _first(self, walk: Walk, inner: tuple[Moved, ...]) -> None:
        """Where a row's positions begin, and those of the block's first row."""
        lines, space = self.lines, self._space((Var("i", self.sides.m),))
        with lines.block("const auto start = [&](int i)"):
            lines.add(*self._indices("i", self.sides.m, set(self.sides.m), space))
            text = space.offset(Buffer("", "", "f32", walk.plain, None)) if walk.plain else ""
            for x in walk.moved:
                here = space.affine(Index(((x.out_factor, x.out),), x.index.offset))
                if x.step > 1:
                    window = self.steps[x.window].names[1]
                    here = f"({space.affine(Index(((1, x.out),), x.index.offset))} - {window}) / {x.step}"
                text = f"{grouped(text)} * {x.image} + {here}" if text else here
            lines.add(f"return {text};")
        lines.text[-1] += ";"
        back = [f" - {_times(f'({self._taps((x,))} - 1)', walk, x)}" for x in inner if x.step > 1]
        lines.add(f"const int first = start(m0){''.join(back)};")

    def _operand(self, x: Ref, parameter: str, variable: str, axes: tuple[str, ...]) -> None:
        if parameter == "n":
            super()._operand(x, parameter, variable, axes)
            return
        walk, plan = self._prepare()
        self._halo(walk, self._cut(walk, plan)[0])
        self._position(walk, *self._cut(walk, plan))

    def _shift(self, text: str, walk: Walk, moved: tuple[Moved, ...]) -> str:
        """`text` and the distance by which these window axes move a position."""
        for x in moved:
            w = axis_index(x.window)
            if x.step > 1:
                text += f" - {_times(f'({w} - {self.steps[x.window].names[1]}) / {x.step}', walk, x)}"
            else:
                text += f" + {_times(f'{x.window_factor} * {w}' if x.window_factor > 1 else w, walk, x)}"
        return text

    def _window_lines(self, variable: str, moved: tuple[Moved, ...]) -> list[str]:
        windows = tuple(x.window for x in moved)
        if len(windows) == 1 and not set(windows) & set(self.steps):
            return [f"const int {axis_index(windows[0])} = {variable};"]
        return self._indices(variable, windows, set(windows), Space(self.program, (Var(variable, windows),)))

    def _halo(self, walk: Walk, outer: tuple[Moved, ...]) -> None:
        """[&](int p) { return [=](int o) { const int q = first + p; ... return [=](int k) { ... }; }; },"""
        lines, sides = self.lines, self.sides
        variables = (Var("r", walk.plain), Var("s", walk.image), Var("k", sides.channels), Var("g", sides.batch))
        space = Space(self.program, tuple(v for v in variables if v.axes))
        needed = set(space.needed_axes(self._before(sides.a.name)[0]))
        whole = grouped(size_of(walk.image))
        with lines.block("[&](int p)"), lines.block(f"return [=](int{' o' if outer else ''})"):
            lines.add(*self._window_lines("o", outer))
            lines.add(f"const int q = {self._shift('first + p', walk, outer)};")
            lines.add(*([f"const int r = q / {whole};"] if walk.plain else []))
            lines.add(f"const int s = q % {whole};" if walk.plain else "const int s = q;")
            known = [a for a in (*walk.plain, *walk.image, *sides.batch) if a in needed]
            lines.add(*[x for a in known if (x := space.index_line(a))])
            with lines.block("return [=](int k)"):
                lines.add(f"if (q < 0 || q >= {size_of((*walk.plain, *walk.image))}) return 0.0f;")
                lines.add(*[x for a in sides.channels if a in needed and (x := space.index_line(a))])
                lines.add(f"return {self._value(sides.a.name, space)};")
            lines.text[-1] += ";"
        lines.text[-2] += ";"
        lines.text[-1] += ","

    def _position(self, walk: Walk, outer: tuple[Moved, ...], inner: tuple[Moved, ...]) -> None:
        """[&](int m) { const int i = m0 + m; ... return [=](int o, int tap) { ... return at + w0 * d3; }; },"""
        lines, sides = self.lines, self.sides
        space = self._space((Var("i", sides.m),), sides.a)
        positions, outside = self._positions(sides.a, space)
        checked = {o.split(" ")[0] for o in outside}
        positions = [p for p in positions if p.split(" ")[2] in checked]
        used = {a for x, i in sides.a.access if axis_index(x) in checked for _, a in i.terms}
        with lines.block("[&](int m)"):
            lines.add("const int i = m0 + m, at = start(i) - first;")
            lines.add(*self._indices("i", sides.m, used, space))
            with lines.block(f"return [=](int{' o' if outer else ''}, int tap)"):
                lines.add(*self._window_lines("o", outer), *self._window_lines("tap", inner))
                lines.add(*positions)
                leaves = self._leaves((*sides.m, *sides.taps))
                past = " || ".join([f"i >= {self._size(sides.m)}", *leaves, *outside])
                lines.add(f"return {past} ? -1 : {self._shift('at', walk, inner)};")
            lines.text[-1] += ";"
        lines.text[-1] += ","


def _times(text: str, walk: Walk, x: Moved) -> str:
    """Indices of an image axis as a distance in positions."""
    inner = walk.image[walk.image.index(x.image) + 1 :]
    return " * ".join([text, *inner])
