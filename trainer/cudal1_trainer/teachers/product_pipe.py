"""Writes product stages whose tiles are copied ahead of the tensor cores (product_pipe of the device header).

Both operands must be tensors that lie in memory as the arithmetic wants them, and what is summed besides a window
must be one run of equal steps. A weight whose steps suit no vector (a window is its innermost axis) is first
packed by a kernel of its own: window, then channels, then the outputs side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

from cudal1_fx_passes.program import ITEM_BYTES, Ref
from cudal1_trainer.teachers.pointwise import memory_order
from cudal1_trainer.teachers.product import ProductWriter
from cudal1_trainer.teachers.product_sides import PHASED, PIPE, Sides, phases_of
from cudal1_trainer.teachers.schedule import StageSchedule
from cudal1_trainer.teachers.source import Kernel, Lines, product, signature
from cudal1_trainer.teachers.space import Space, Var, grouped, size_of
from cudal1_trainer.teachers.stage import Buffer, Stage

STAGES = 3
COPY_BYTES = 16
ASKED = 0  # where an element lies depends on k in no simple way
ROWS = 32  # a tile wants at least so many without a gradient's windows
PACKERS = 128  # threads of a block that packs
ITEMS = {"tf32": "f32", "tf32_long": "f32", "f32_split": "f32"}  # what memory holds; else the arithmetic itself
LONG = ("f32_split", "tf32_long")  # a thread holds each of its sums twice
MAX_LONG = 2048  # results of a warp that does


@dataclass(frozen=True, slots=True)
class Layout:
    """Rows and columns of a tile, and of a warp within it."""

    tile: tuple[int, int]
    warp: tuple[int, int]

    @property
    def threads(self) -> int:
        return 32 * (self.tile[0] // self.warp[0]) * (self.tile[1] // self.warp[1])


# Of two for a tile, the one with more threads is for results that have few blocks: a multiprocessor has one then.
LAYOUTS = (
    *(Layout((128, 128), (64, 64)), Layout((128, 128), (64, 32)), Layout((256, 128), (64, 64))),
    *(Layout((128, 64), (64, 32)), Layout((128, 64), (32, 32)), Layout((128, 256), (64, 64))),
    *(Layout((64, 128), (32, 64)), Layout((64, 128), (32, 32)), Layout((128, 32), (32, 32))),
    *(Layout((64, 64), (32, 32)), Layout((64, 64), (32, 16)), Layout((64, 32), (32, 16))),
)


@dataclass(frozen=True, slots=True)
class Copied:
    """An operand as copies see it. step: elements from one k to the next, or ASKED; vector: of one copy."""

    buffer: Buffer
    step: int
    vector: int
    run: tuple[str, ...]  # the axes whose sizes make the step


def layouts_for(
    stage: Stage, sides: Sides, arithmetic: str, resident: int, known: Sequence[Layout]
) -> list[Layout]:
    """One of each tile: of two, the one with more threads where there are few blocks."""
    chosen: dict[tuple[int, int], Layout] = {}
    for x in sorted(known, key=lambda x: x.threads):
        more = arithmetic in LONG or _blocks(stage, sides, x.tile) <= resident
        if (x.tile not in chosen or more) and (arithmetic not in LONG or prod(x.warp) <= MAX_LONG):
            chosen[x.tile] = x
    return list(chosen.values())


def warp_of(schedule: StageSchedule, known: Sequence[Layout]) -> tuple[int, int]:
    assert schedule.tile is not None
    return next(x.warp for x in known if (x.tile, x.threads) == (schedule.tile[:2], schedule.block))


def strides_of(stage: Stage, buffer: Buffer) -> dict[str, int]:
    """In elements, by axis."""
    if buffer.strides is not None:
        return dict(zip(buffer.axes, buffer.strides, strict=True))
    sizes = [stage.program.axis[a].size for a in buffer.axes]
    found, step = {}, 1
    for axis, size in zip(reversed(buffer.axes), reversed(sizes), strict=True):
        found[axis] = step
        step *= size
    return found


def _load(stage: Stage, x: Ref) -> Buffer | None:
    return next((b for b in stage.loads if b.value == x.name and not b.access), None)


def copied(stage: Stage, sides: Sides, x: Ref, rows: tuple[str, ...]) -> Copied | None:
    """None where what is summed is no run of equal steps."""
    buffer, channels, axis = _load(stage, x), sides.channels, stage.program.axis
    if buffer is None or not channels:
        return None
    moved = dict(x.access)
    if any(a in channels for i in moved.values() for _, a in i.terms):
        return Copied(buffer, ASKED, 1, ())
    if any(a in moved for a in channels) or not set(channels) <= set(buffer.axes):
        return None
    strides = strides_of(stage, buffer)
    if any(strides[a] != strides[b] * axis[b].size for a, b in pairwise(channels)):
        return None
    step = strides[channels[-1]]
    phased = {a for p in phases_of(x) for a in (p.out, p.window)}
    inner = set(channels) if step == 1 else set()
    whole = stage.program.size(channels) if step == 1 else 1
    for a in reversed(rows) if step != 1 else ():
        if a in moved or a in phased or strides.get(a) != whole:
            break
        inner.add(a)
        whole *= axis[a].size
    rest = [s for a, s in strides.items() if a not in inner]
    vector = _vector(ITEM_BYTES[buffer.dtype], [whole, *rest] if inner else [1])
    return Copied(buffer, step, vector, buffer.axes[buffer.axes.index(channels[-1]) + 1 :])


def _vector(size: int, numbers: Sequence[int]) -> int:
    """Elements of the widest copy that divides all numbers."""
    vector = COPY_BYTES // size
    while vector > 1 and (any(n % vector for n in numbers) or vector * size < 4):
        vector //= 2
    return vector if vector * size >= 4 else 1


def packed(stage: Stage, sides: Sides, name: str) -> Stage:
    """The stage with its weight read from a packed copy in the scratch `name`."""
    old = _load(stage, sides.b)
    assert old is not None
    inner = (sides.n, sides.channels)
    if _vector(ITEM_BYTES[old.dtype], [stage.program.size(sides.channels)]) == 1:
        inner = inner[::-1]
    axes = (*sides.taps, *sides.batch, *inner[0], *inner[1])
    new = replace(old, name=name, axes=axes, strides=None)
    swap = {old.name: new}
    loads = tuple(swap.get(b.name, b) for b in stage.loads)
    return replace(stage, loads=loads, reads=tuple(swap.get(b.name, b) for b in stage.reads))


def wants_packing(stage: Stage, sides: Sides) -> bool:
    b = copied(stage, sides, sides.b, sides.n)
    windows = [a for a in sides.taps if a.startswith("k")]
    return bool(windows) and (b is None or b.vector == 1)


def ordered(stage: Stage) -> Sides:
    """The sides with the summed axes in the order of the larger operand, neighbours of the result along m."""
    sides = Sides(stage)
    if not sides.a.access and memory_order(stage)[-1:] == sides.n[-1:]:
        sides.a, sides.b, sides.m, sides.n = sides.b, sides.a, sides.n, sides.m
    if any(a in sides.channels for i in dict(sides.a.access).values() for _, a in i.terms):
        _order_gradient(stage, sides)
    held = _load(stage, sides.a)
    if held is not None and set(sides.channels) <= set(held.axes):
        sides.channels = tuple(a for a in held.axes if a in sides.channels)
    moved = dict(sides.a.access)
    walked = [a for x in stage.program.value_axes[sides.a.name] if x in moved for _, a in moved[x].terms]
    sides.taps = tuple(sorted(sides.taps, key=lambda a: walked.index(a) if a in walked else -1))
    return sides


def _order_gradient(stage: Stage, sides: Sides) -> None:
    """A weight's gradient: inside, what lies side by side in the other operand; windows apart from the rows."""
    held, program = _load(stage, sides.b), stage.program
    if held is None or not set(sides.over) <= set(held.axes):
        return
    strides = strides_of(stage, held)
    inner: list[str] = []
    whole = 1
    for a in sorted(sides.over, key=lambda a: strides[a]):
        if strides[a] != whole:
            break
        inner, whole = [a, *inner], whole * program.axis[a].size
    sides.channels, sides.taps = tuple(inner), tuple(a for a in held.axes if a in sides.over and a not in inner)
    rows = tuple(a for a in sides.m if not a.startswith("k"))
    if program.size(rows) >= ROWS:
        sides.batch, sides.m = (*sides.batch, *(a for a in sides.m if a not in rows)), rows


def pipe_schedules(stage: Stage, resident: int) -> list[StageSchedule]:
    """Tiles by an estimate of their time; none where an operand cannot be copied as it is."""
    sides = ordered(stage)
    if sides.b.access or any(a.symbolic for a in stage.program.axes):
        return []
    usable = [a for a in sides.arithmetics if a != "f32" and _fits(stage, sides, ITEMS.get(a, a))]
    found = [s for a in usable for s in _tiles(stage, sides, a, resident)]
    return sorted(found, key=lambda s: estimate(stage, sides, s, resident))


def _fits(stage: Stage, sides: Sides, item: str) -> bool:
    loads = [_load(stage, x) for x in (sides.a, sides.b)]
    if any(load is None or load.index_values or load.dtype != item for load in loads):
        return False
    if wants_packing(stage, sides):
        stage = packed(stage, sides, "s0")
        sides = ordered(stage)
    return all(copied(stage, sides, x, r) is not None for x, r in ((sides.a, sides.m), (sides.b, sides.n)))


def _tiles(stage: Stage, sides: Sides, arithmetic: str, resident: int) -> Iterator[StageSchedule]:
    """One warp layout a tile, with its sums whole and cut so that every multiprocessor has blocks."""
    depth = stage.program.size(sides.channels)
    deepest = 32 if arithmetic in ITEMS or sides.taps else 64
    bk = next((k for k in (64, 32, 16) if k <= min(deepest, depth)), 0)
    form = arithmetic + (PHASED if phases_of(sides.a) else "") + PIPE
    for x in layouts_for(stage, sides, arithmetic, resident, LAYOUTS) if bk else ():
        whole = StageSchedule(form, 1, x.threads, tile=(*x.tile, bk))
        wanted = resident * (2 if prod(x.tile) >= 128 * 128 else 512 // x.threads)
        parts = min(depth // (2 * bk), wanted // _blocks(stage, sides, x.tile))
        yield whole
        if parts > 1 and not phases_of(sides.a):
            yield replace(whole, splits=2 ** (parts.bit_length() - 1))


def _blocks(stage: Stage, sides: Sides, tile: tuple[int, int]) -> int:
    program, (bm, bn) = stage.program, tile
    phases = prod(p.step for p in phases_of(sides.a))
    groups = program.size(sides.batch) * phases
    return -(-program.size(sides.m) // (phases * bm)) * -(-program.size(sides.n) // bn) * groups


def estimate(stage: Stage, sides: Sides, schedule: StageSchedule, resident: int) -> float:
    """For comparison within a stage: the busiest multiprocessor's products, dearer in small tiles."""
    assert schedule.tile is not None
    bm, bn, _ = schedule.tile
    blocks = -(-_blocks(stage, sides, (bm, bn)) * schedule.splits // resident)
    alone = 1.3 if blocks == 1 and schedule.block <= 128 else 1.0
    cut = 1.2 if schedule.splits > 1 else 1.0
    return blocks * bm * bn / schedule.splits * (1 + 40 / bm + 40 / bn) * alone * cut


class PipeWriter(ProductWriter):
    """One product stage: its kernels are numbered from `first`, its scratch from `scratch`."""

    def __init__(self, stage: Stage, schedule: StageSchedule, first: int, scratch: int) -> None:
        self.packs = wants_packing(stage, ordered(stage))
        self.plain, self.scratch = stage, scratch
        stage = packed(stage, ordered(stage), f"s{scratch}") if self.packs else stage
        super().__init__(stage, schedule, f"f{first + self.packs}")
        self.threads = schedule.block
        self.sides = ordered(stage)
        self.first = first

    def write_all(self) -> list[Kernel]:
        made = [self._pack()] if self.packs else []
        if self.schedule.splits > 1:
            return made + self.write_split(f"f{self.first + self.packs + 1}", self.scratch + self.packs)
        return [*made, self.write()]

    def _pack(self) -> Kernel:
        """One thread reads a whole window, which lies side by side; neighbours write neighbours."""
        old, new, taps = _load(self.plain, self.sides.b), _load(self.stage, self.sides.b), self.sides.taps
        assert old is not None and new is not None
        lines, name, order = Lines(), f"f{self.first}", new.axes[len(taps) :]
        space = Space(self.program, (Var("i", order), Var("tap", taps)))
        needed = space.needed_axes([old])
        value = f"{old.name}[{space.offset(old)}]"
        with lines.block(signature(name, PACKERS, (old,), (new,))):
            lines.add(
                f"const int i = blockIdx.x * {PACKERS} + threadIdx.x;", f"if (i >= {size_of(order)}) return;"
            )
            lines.add(*self._indices("i", order, set(needed), space), "#pragma unroll")
            with lines.block(f"for (int tap = 0; tap < {size_of(taps)}; tap++)"):
                lines.add(*[x for a in taps if a in needed and (x := space.index_line(a))])
                rounded = f"round_to<tf32>({value})" if self._rounds() else value
                lines.add(f"{new.name}[tap * ({size_of(order)}) + i] = {rounded};")
        declared = (f"{new.name} {new.dtype}[{', '.join(new.axes)}]",)
        grid = f"cdiv({size_of(order)}, {PACKERS})"
        return Kernel(name, "\n".join(lines.text), grid, str(PACKERS), (old.name, new.name), declared)

    def _rounds(self) -> bool:
        """Whether packing rounds the weight, so that nobody else has to."""
        return self.packs and self.schedule.mapping.startswith("tf32")

    def _depth(self) -> str:
        return size_of(self.sides.channels)

    def _call(self, depth: str) -> str:
        """Opens the call; its launch asks for the stages' memory."""
        sides, tile = self.sides, self.schedule.tile
        assert tile is not None
        bm, bn, bk = tile
        arithmetic = self.schedule.mapping.removesuffix(PIPE).removesuffix(PHASED)
        wm, wn = warp_of(self.schedule, LAYOUTS)
        copies = [copied(self.stage, sides, x, r) for x, r in ((sides.a, sides.m), (sides.b, sides.n))]
        arithmetic += "_ready" if self._rounds() else ""
        words, self.shared_bytes = [arithmetic, bm, bn, bk, wm, wn, STAGES], 0
        for c, rows in zip(copies, (bm, bn), strict=True):
            assert c is not None
            size = ITEM_BYTES[c.buffer.dtype]
            self.shared_bytes += STAGES * (
                rows * (bk * size + 16) if c.step in (1, ASKED) else bk * (rows + 8) * size
            )
            words += [c.vector, self._step(c)]
        return f"product_pipe<{', '.join(map(str, words))}>({self._size(sides.taps)}, {depth},"

    def _step(self, c: Copied) -> str:
        if c.step == ASKED:
            return "0"
        if c.buffer.strides is not None:
            return f"{c.buffer.name}_{self.sides.channels[-1]}"
        return size_of(c.run)

    def _operand(self, x: Ref, parameter: str, variable: str, axes: tuple[str, ...]) -> None:
        """[&](int m) { const int i = m0 + m; ... return [=](int tap) { ... return in0 + ...; }; },"""
        lines, sides = self.lines, self.sides
        c = copied(self.stage, sides, x, axes)
        assert c is not None
        inner = (Var("k", sides.channels),) if c.step == ASKED else ()
        space = self._space((Var(variable, axes), Var("tap", sides.taps), *inner), x)
        if c.step != ASKED:
            space = replace(space, renamed={**space.renamed, **dict.fromkeys(sides.channels, "0")})
        used = {a for _, i in x.access for _, a in i.terms}
        used |= set(space.needed_axes([c.buffer])) - set(space.renamed)
        with lines.block(f"[&](int {parameter})"):
            lines.add(f"const int {variable} = {parameter}0 + {parameter};")
            lines.add(*self._indices(variable, axes, used, space), *self._indices("g", sides.batch, used, space))
            with lines.block(f"return [=](int{' tap' if sides.taps else ''})"):
                lines.add(*self._tap_lines(used))
                if c.step == ASKED:
                    with lines.block("return [=](int k)"):
                        lines.add(*(["k += begin;"] if self.schedule.splits > 1 else []))
                        self._address(x, c, space, used, variable, axes)
                    lines.text[-1] += ";"
                else:
                    self._address(x, c, space, used, variable, axes)
            lines.text[-1] += ";"
        lines.text[-1] += ","

    def _tap_lines(self, used: set[str]) -> list[str]:
        taps = self.sides.taps
        return self._indices("tap", taps, used, self._space((Var("tap", taps),))) if taps else []

    def _address(
        self, x: Ref, c: Copied, space: Space, used: set[str], variable: str, axes: tuple[str, ...]
    ) -> None:
        """Returns where the element lies: the first of its run, or of this k."""
        sides = self.sides
        self.lines.add(*(self._indices("k", sides.channels, used, space) if c.step == ASKED else []))
        places, further = self._places(x, space)
        self.lines.add(*places)
        leaves = self._leaves((*axes, *sides.taps))
        outside = " || ".join([f"{variable} >= {self._size(axes)}", *leaves, *further])
        at = f"{c.buffer.name} + {space.offset(c.buffer)}".replace(" + 0)", ")").removesuffix(" + 0")
        at += (
            f" + {product('begin', grouped(self._step(c)))}"
            if self.schedule.splits > 1 and c.step != ASKED
            else ""
        )
        self.lines.add(f"return {outside} ? nullptr : {at};")

    def _epilogue(self, writes: Sequence[Buffer]) -> None:
        """[&](int m) { const int i = m0 + m; ... return [=](int n, float t0) { ... }; });"""
        sides, lines = self.sides, self.lines
        space = self._space((Var("i", sides.m), Var("j", sides.n)))
        with lines.block("[&](int m)"):
            lines.add("const int i = m0 + m;")
            rows = [space.index_line(a) for a in (*sides.m, *sides.batch)]
            known = [x for x in self._index_lines(writes, space) if x in rows]
            if self.phases:
                known = self._indices("i", sides.m, set(sides.m), space)
            lines.add(*known)
            with lines.block(f"return [=](int n, float {sides.dot.name})"):
                lines.add("const int j = n0 + n;", f"if ({self._past()}) return;")
                self._store(writes, space, known)
            lines.text[-1] += ";"
        lines.text[-1] += ");"
