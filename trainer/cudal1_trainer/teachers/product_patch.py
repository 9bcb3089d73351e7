"""Writes convolutions whose window walks over a patch of the image in shared memory (product_patch of the header).

A tile's rows are neighbours in the result, so what they read lies within a run of the image's places, row after
row, and a step of the window moves all of them by the same distance. A patch is that run, for some channels at a
time: each value is read, computed and stored once for all steps of the window. Where the run is too long (planes
of a volume), the outermost window axes get patches of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from cudal1_fx_passes.program import ITEM_BYTES, Index, Ref
from cudal1_trainer.teachers.product_pipe import (
    ITEMS,
    Copied,
    PipeWriter,
    Shape,
    copied,
    estimate,
    ordered,
    packed,
    wants_packing,
    warps_of,
)
from cudal1_trainer.teachers.product_sides import PATCH, Sides, before
from cudal1_trainer.teachers.schedule import StageSchedule
from cudal1_trainer.teachers.space import Space, Var, axis_index, grouped, size_of
from cudal1_trainer.teachers.stage import Buffer, Stage

MAX_SHARED = 225 * 1024  # of a multiprocessor; two blocks of 128 threads share it
STAGES_B = 3
TILES: dict[Shape, Shape] = {(256, 64): (64, 64), (256, 32): (64, 32)}


@dataclass(frozen=True, slots=True)
class Walk:
    """How the result's places follow the image's: axes outermost first, one of each for every windowed axis."""

    plain: tuple[str, ...]  # of the rows, not windowed
    image: tuple[str, ...]
    outs: tuple[str, ...]
    windows: tuple[str, ...]
    indices: tuple[Index, ...]


def walk_of(stage: Stage, sides: Sides) -> Walk | None:
    """None where the image's windowed axes are not the innermost ones, in the order of the result's."""
    a, program = sides.a, stage.program
    moved, rows = dict(a.access), set(sides.m)
    held = _image(stage, sides)
    if held is None or not moved or sides.b.access:
        return None
    image = tuple(x for x in held.axes if x in moved)
    if held.axes[-len(image) :] != image:
        return None
    outs: list[str] = []
    windows: list[str] = []
    for axis in image:
        terms = {x: f for f, x in moved[axis].terms}
        out, window = [x for x in terms if x in rows], [x for x in terms if x in sides.taps]
        if (
            len(terms) != 2
            or len(out) != 1
            or len(window) != 1
            or moved[axis].divisor != 1
            or min(terms.values()) < 1
        ):
            return None
        outs, windows = [*outs, out[0]], [*windows, window[0]]
    if sides.m[-len(outs) :] != tuple(outs) or set(windows) != set(sides.taps):
        return None
    walk = Walk(sides.m[: -len(outs)], image, tuple(outs), tuple(windows), tuple(moved[x] for x in image))
    fits = set(walk.plain) <= set(held.axes) and all(a.symbolic is False for a in program.axes)
    return walk if fits and _ascends(stage, walk) else None


def _image(stage: Stage, sides: Sides) -> Buffer | None:
    """The tensor that decides the order in which the image is walked: the largest that its values come from."""
    loads, _ = before(stage, sides.a.name)
    dense = [b for b in loads if b.strides is None and not b.access]
    whole = [b for b in dense if {x for x, _ in sides.a.access} <= set(b.axes)]
    return whole[0] if whole and len(dense) == len(loads) else None


def _factor(index: Index, axis: str) -> int:
    return next(f for f, x in index.terms if x == axis)


def _steps(stage: Stage, walk: Walk) -> list[int]:
    """Places from one index of each image axis to the next."""
    sizes = [stage.program.axis[x].size for x in walk.image]
    return [prod(sizes[i + 1 :]) for i in range(len(sizes))]


def _ascends(stage: Stage, walk: Walk) -> bool:
    """Whether a later row of the tile never reads before an earlier one."""
    size, steps, reach = stage.program.axis, _steps(stage, walk), 0
    for i in reversed(range(len(steps))):
        step = steps[i] * _factor(walk.indices[i], walk.outs[i])
        if step <= reach:
            return False
        reach += step * (size[walk.outs[i]].size - 1)
    return not walk.plain or reach < prod(size[x].size for x in walk.image)


def length(stage: Stage, walk: Walk, rows: int, inner: int) -> int:
    """Places of a patch for `rows` neighbours and the last `inner` window axes."""
    size, steps = stage.program.axis, _steps(stage, walk)
    sizes = [size[x].size for x in walk.outs]
    strides = [s * _factor(i, o) for s, i, o in zip(steps, walk.indices, walk.outs, strict=True)]
    image = prod(size[x].size for x in walk.image)
    total = prod(sizes) * prod(size[x].size for x in walk.plain)

    def place(i: int) -> int:
        found = 0
        for n, s in zip(reversed(sizes), reversed(strides), strict=True):
            found, i = found + i % n * s, i // n
        return found + i * image

    longest = max(place(min(m + rows, total) - 1) - place(m) for m in range(0, total, rows))
    walked = list(zip(steps, walk.indices, walk.windows, strict=True))[len(steps) - inner :]
    return longest + sum(s * _factor(i, w) * (size[w].size - 1) for s, i, w in walked) + 1


@dataclass(frozen=True, slots=True)
class Plan:
    """inner: window axes within a patch; places: its length; shared_bytes: of a block."""

    inner: int
    places: int
    shared_bytes: int


def plan_of(stage: Stage, walk: Walk, schedule: StageSchedule, vector_b: int) -> Plan | None:
    """The most window axes that a patch has room for; None where not even one has."""
    assert schedule.tile is not None
    bm, bn, bk = schedule.tile
    arithmetic = schedule.mapping.removesuffix(PATCH)
    size = ITEM_BYTES[ITEMS.get(arithmetic, arithmetic)]
    most = MAX_SHARED // (1 if schedule.block > 128 else 2)
    for inner in range(len(walk.windows), 0, -1):
        places = length(stage, walk, bm, inner)
        tile = bn * (bk * size + 16) if vector_b == 1 else bk * (bn + 8) * size
        taken = (2 * places + 1) * (bk * size + 16) + STAGES_B * tile
        if places <= 6 * bm and taken <= most:
            return Plan(inner, places, taken)
    return None


def patch_schedules(stage: Stage, resident: int) -> list[StageSchedule]:
    """Tiles by an estimate of their time."""
    sides = ordered(stage)
    walk, b = walk_of(stage, sides), weight_of(stage, sides)
    if walk is None or b is None:
        return []
    usable = [a for a in sides.arithmetics if a[:3] != "f32" and b.buffer.dtype == ITEMS.get(a, a)]
    found = [(estimate(stage, sides, s, resident), s) for a in usable for s in _tiles(stage, sides, walk, b, a)]
    return [s for _, s in sorted(found, key=lambda f: f[0])]


def _tiles(stage: Stage, sides: Sides, walk: Walk, b: Copied, arithmetic: str) -> Iterator[StageSchedule]:
    """Each tile at the depth that leaves room for the most of the window, then at the largest."""
    depths = [k for k in (32, 16, 8)[: 3 if arithmetic in ITEMS else 2] if k <= stage.program.size(sides.channels)]
    for (bm, bn), (wm, wn) in warps(arithmetic).items():
        whole = StageSchedule(arithmetic + PATCH, 1, 32 * (bm // wm) * (bn // wn))
        tiles = [replace(whole, tile=(bm, bn, bk)) for bk in depths]
        plans = [(plan.inner, s) for s in tiles if (plan := plan_of(stage, walk, s, b.step)) is not None]
        yield from [s for _, s in sorted(plans, key=lambda p: -p[0])[:1]]


def warps(arithmetic: str) -> dict[Shape, Shape]:
    return warps_of(arithmetic) | ({} if arithmetic == "tf32_long" else TILES)


def weight_of(stage: Stage, sides: Sides) -> Copied | None:
    """The weight as copies see it, packed or not."""
    if before(stage, sides.b.name)[1]:
        return None
    if wants_packing(stage, sides):
        stage = packed(stage, sides, "s0")
        sides = ordered(stage)
    return copied(stage, sides, sides.b, sides.n)


class PatchWriter(PipeWriter):
    """One convolution over patches."""

    def _prepare(self) -> tuple[Walk, Plan]:
        sides = self.sides
        walk, b = walk_of(self.stage, sides), copied(self.stage, sides, sides.b, sides.n)
        assert walk is not None and b is not None
        plan = plan_of(self.stage, walk, self.schedule, b.step)
        assert plan is not None
        return walk, plan

    def _call(self, depth: str) -> str:
        sides, tile = self.sides, self.schedule.tile
        walk, plan = self._prepare()
        assert tile is not None
        bm, bn, bk = tile
        arithmetic = self.schedule.mapping.removesuffix(PATCH)
        wm, wn = warps(arithmetic)[bm, bn]
        b = copied(self.stage, sides, sides.b, sides.n)
        assert b is not None
        self.shared_bytes = plan.shared_bytes
        outer, inner = self._cut(walk, plan)
        arithmetic += "_ready" if self._rounds() else ""
        words = (arithmetic, bm, bn, bk, wm, wn, size_of(inner), plan.places, b.vector, self._step(b))
        self._first(walk)
        return f"product_patch<{', '.join(map(str, words))}>({size_of(outer)}, {depth},"

    def _cut(self, walk: Walk, plan: Plan) -> tuple[tuple[str, ...], tuple[str, ...]]:
        at = len(walk.windows) - plan.inner
        return walk.windows[:at], walk.windows[at:]

    def _first(self, walk: Walk) -> None:
        """Where the image's places of a row begin, and those of the block's first row."""
        lines, space = self.lines, self._space((Var("i", self.sides.m),))
        with lines.block("const auto start = [&](int i)"):
            lines.add(*self._indices("i", self.sides.m, set(self.sides.m), space))
            text = space.offset(Buffer("", "", "f32", walk.plain, None)) if walk.plain else ""
            for axis, out, index in zip(walk.image, walk.outs, walk.indices, strict=True):
                here = space.affine(Index(((_factor(index, out), out),), index.offset))
                text = f"{grouped(text)} * {axis} + {here}" if text else here
            lines.add(f"return {text};")
        lines.text[-1] += ";"
        lines.add("const int first = start(m0);")

    def _operand(self, x: Ref, parameter: str, variable: str, axes: tuple[str, ...]) -> None:
        if parameter == "n":
            super()._operand(x, parameter, variable, axes)
            return
        walk, plan = self._prepare()
        self._patch(walk, self._cut(walk, plan)[0])
        self._place(walk, *self._cut(walk, plan))

    def _shift(self, walk: Walk, windows: tuple[str, ...]) -> list[str]:
        """Terms of the distance by which these window axes move a place."""
        found = []
        for i, (index, window) in enumerate(zip(walk.indices, walk.windows, strict=True)):
            factors = [axis_index(window), *walk.image[i + 1 :]]
            dilation = _factor(index, window)
            found += (
                [" * ".join([*([str(dilation)] if dilation > 1 else []), *factors])] if window in windows else []
            )
        return found

    def _window_lines(self, variable: str, windows: tuple[str, ...]) -> list[str]:
        if len(windows) == 1:
            return [f"const int {axis_index(windows[0])} = {variable};"]
        return self._indices(variable, windows, set(windows), Space(self.program, (Var(variable, windows),)))

    def _patch(self, walk: Walk, outer: tuple[str, ...]) -> None:
        """[&](int p) { return [=](int o) { const int q = first + p; ... return [=](int k) { ... }; }; },"""
        lines, sides = self.lines, self.sides
        variables = (Var("r", walk.plain), Var("s", walk.image), Var("k", sides.channels), Var("g", sides.batch))
        space = Space(self.program, tuple(v for v in variables if v.axes))
        needed = set(space.needed_axes(self._before(sides.a.name)[0]))
        whole = size_of(walk.image)
        with lines.block("[&](int p)"), lines.block(f"return [=](int{' o' if outer else ''})"):
            lines.add(*self._window_lines("o", outer))
            lines.add(f"const int q = {' + '.join(['first + p', *self._shift(walk, outer)])};")
            lines.add(*([f"const int r = q / ({whole});"] if walk.plain else []))
            lines.add(f"const int s = q % ({whole});" if walk.plain else "const int s = q;")
            lines.add(
                *[
                    x
                    for a in (*walk.plain, *walk.image, *sides.batch)
                    if a in needed and (x := space.index_line(a))
                ]
            )
            with lines.block("return [=](int k)"):
                lines.add(f"if (q < 0 || q >= {size_of((*walk.plain, *walk.image))}) return 0.0f;")
                lines.add(*[x for a in sides.channels if a in needed and (x := space.index_line(a))])
                lines.add(f"return {self._value(sides.a.name, space)};")
            lines.text[-1] += ";"
        lines.text[-2] += ";"
        lines.text[-1] += ","

    def _place(self, walk: Walk, outer: tuple[str, ...], inner: tuple[str, ...]) -> None:
        """[&](int m) { const int i = m0 + m; ... return [=](int o, int tap) { ... return at + w0 * d3; }; },"""
        lines, sides = self.lines, self.sides
        space = self._space((Var("i", sides.m),), sides.a)
        used = {a for _, i in sides.a.access for _, a in i.terms}
        with lines.block("[&](int m)"):
            lines.add("const int i = m0 + m, at = start(i) - first;")
            lines.add(*self._indices("i", sides.m, used, space))
            with lines.block(f"return [=](int{' o' if outer else ''}, int tap)"):
                lines.add(*self._window_lines("o", outer), *self._window_lines("tap", inner))
                places, outside = self._places(sides.a, space)
                lines.add(*places)
                past = " || ".join([f"i >= {self._size(sides.m)}", *outside])
                lines.add(f"return {past} ? -1 : {' + '.join(['at', *self._shift(walk, inner)])};")
            lines.text[-1] += ";"
        lines.text[-1] += ","
