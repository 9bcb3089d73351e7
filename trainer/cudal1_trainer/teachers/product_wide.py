"""Writes product stages for warp groups (product_wide of the device header).

Operands lie k by k in memory, in whole vectors of 16 bytes. Those that do not are packed first, by kernels of
their own: an image with its channels innermost, a weight window by window. What is computed before the sum is
computed there, once an element, and rounded to TF32 where the arithmetic is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil, prod

from cudal1_fx_passes.program import ITEM_BYTES, Ref
from cudal1_trainer.teachers.product import ProductWriter
from cudal1_trainer.teachers.product_copies import COPY_BYTES, ITEMS, copied, load_of, ordered
from cudal1_trainer.teachers.product_layouts import blocks_of
from cudal1_trainer.teachers.product_pipe import PipeWriter
from cudal1_trainer.teachers.product_sides import PHASED, WIDE, Sides, before, behind, phases_of
from cudal1_trainer.teachers.schedule import StageSchedule
from cudal1_trainer.teachers.source import Kernel, signature
from cudal1_trainer.teachers.space import Space, Var, grouped, size_of
from cudal1_trainer.teachers.stage import Buffer, Stage, read_names

PACKERS = 256  # threads of a block that packs
TURNED = 64  # elements of a packing tile's edge
MAX_SHARED = 225 * 1024  # of a multiprocessor
ROW_BYTES = (128, 64, 32)  # of a tile's row
TILES = (
    *((64, 32), (64, 64), (64, 128), (64, 256), (128, 32), (128, 64), (128, 128), (128, 192), (128, 256)),
    *((256, 64), (256, 128)),
)
SPLITS = (1, 2, 4, 8, 16)


def wide_schedules(stage: Stage, resident: int) -> list[StageSchedule]:
    """Tiles by their expected time; none where an operand cannot lie as it has to."""
    sides = ordered(stage)
    found = [
        s
        for a in sides.arithmetics
        if a in ("f16", "bf16") or a.startswith("tf32") and stage.program.size(sides.taps) > 1
        if pack_stage(stage, a, 0) is not None
        for s in _tiles(stage, sides, a, resident)
    ]
    return sorted(found, key=lambda s: expected_us(stage, sides, s, resident))


def _tiles(stage: Stage, sides: Sides, arithmetic: str, resident: int) -> Iterator[StageSchedule]:
    """Each tile with its sums whole, and cut where that is expected to be faster."""
    size, depth = ITEM_BYTES[ITEMS.get(arithmetic, arithmetic)], stage.program.size(sides.channels)
    bk = min((b // size for b in ROW_BYTES if b // size <= depth), key=lambda k: -(-depth // k) * (k * size + 64))
    form = arithmetic + (PHASED if phases_of(sides.a) else "") + WIDE
    for bm, bn in TILES:
        if not room_for((bm, bn, bk), arithmetic):
            continue
        whole = StageSchedule(form, 1, 2 * bm, tile=(bm, bn, bk))
        parts = [1] if phases_of(sides.a) else [n for n in SPLITS if n * bk <= depth]
        fastest = min(parts, key=lambda n: expected_us(stage, sides, replace(whole, splits=n), resident))
        yield whole
        if fastest > 1:
            yield replace(whole, splits=fastest)


def arithmetic_of(schedule: StageSchedule) -> str:
    return schedule.mapping.removesuffix(WIDE).removesuffix(PHASED)


def stages_of(tile: tuple[int, int, int], size: int) -> int:
    """Tiles on their way: as many as let two blocks share a multiprocessor, if that is three."""
    taken = (tile[0] + tile[1]) * tile[2] * size
    return min(5, MAX_SHARED // 2 // taken) if 3 * taken <= MAX_SHARED // 2 else 4


def shared_bytes(tile: tuple[int, int, int], size: int) -> int:
    bm, bn, bk = tile
    return 1024 + max(stages_of(tile, size) * (bm + bn) * bk * size, bn * (bm + 4) * 4)


def room_for(tile: tuple[int, int, int], arithmetic: str) -> int:
    """Blocks that share a multiprocessor."""
    bm, bn, _ = tile
    registers = (bn if arithmetic.endswith("long") else bn // 2) + 60  # of a thread
    size = ITEM_BYTES[ITEMS.get(arithmetic, arithmetic)]
    return 0 if registers > 255 else min(MAX_SHARED // shared_bytes(tile, size), 65536 // (2 * bm * registers), 8)


def expected_us(stage: Stage, sides: Sides, schedule: StageSchedule, resident: int) -> float:
    """For comparison within a stage, on an H100: what limits a step, times the rounds of blocks."""
    assert schedule.tile is not None
    program, (bm, bn, bk) = stage.program, schedule.tile
    arithmetic = arithmetic_of(schedule)
    size = ITEM_BYTES[ITEMS.get(arithmetic, arithmetic)]
    blocks = blocks_of(stage, sides, (bm, bn)) * schedule.splits
    at_once = min(room_for(schedule.tile, arithmetic), ceil(blocks / resident))
    depth = -(-program.size(sides.channels) // (schedule.splits * bk))
    steps = depth * program.size(sides.taps) / prod(p.step for p in phases_of(sides.a))
    products = bm * bn * bk * size / 4096 * (1.5 if arithmetic.endswith("long") else 1.2)
    copies = (bm + bn) * bk * size / 40
    step = max(at_once * max(products, copies), 1000 / (stages_of(schedule.tile, size) - 2))
    cycles = ceil(blocks / (resident * at_once)) * (1500 + steps * step + at_once * bm * bn / 6)
    joined = 2 + program.size((*sides.batch, *sides.m, *sides.n)) * (schedule.splits * 4 + 4) / 2e6
    return cycles / 1700 + (joined if schedule.splits > 1 else 0)


def pack_stage(stage: Stage, arithmetic: str, first: int) -> tuple[Stage, list[tuple[Ref, Buffer]]] | None:
    """The stage over packed operands, and which are packed to where; scratch is numbered from `first`.

    None where one cannot lie k by k, or is needed behind the sum too.
    """
    sides = ordered(stage)
    item = ITEMS.get(arithmetic, arithmetic)
    vector = COPY_BYTES // ITEM_BYTES[item]
    moved = {a for i in dict(sides.a.access).values() for _, a in i.terms} | set(dict(sides.a.access))
    depth = stage.program.size(sides.channels)
    if sides.b.access or any(a.symbolic for a in stage.program.axes) or set(sides.channels) & moved:
        return None
    if depth < 2 * vector or depth % vector or any(b.index_values or b.access for b in stage.loads):
        return None
    later = {n for o in behind(stage, sides.dot) for n in read_names(o)} | {w.value for w in stage.writes}
    new: list[tuple[Ref, Buffer]] = []
    loads = [b for b in stage.loads if b.value in later]
    for x, rows in ((sides.a, sides.m), (sides.b, sides.n)):
        held = load_of(stage, x)
        c = copied(stage, sides, x, rows) if held is not None else None
        if (
            c is not None
            and held is not None
            and (c.step, c.vector, held.dtype) == (1, vector, item)
            and item != "f32"
        ):
            loads.append(held)
            continue
        if x.name in later:
            return None
        axes = _packed_axes(stage, sides, x)
        name = f"s{first + len(new)}"
        new.append((x, Buffer(name, x.name, item, axes, span=axes, register=x.name)))
        loads.append(new[-1][1])
    reads = tuple({b.name: b for b in loads}.values())
    return replace(stage, loads=tuple(loads), reads=reads, ops=(sides.dot, *behind(stage, sides.dot))), new


def _packed_axes(stage: Stage, sides: Sides, x: Ref) -> tuple[str, ...]:
    """Windows outermost, what is summed besides innermost."""
    order = _held(stage, x).axes
    taps = [a for a in sides.taps if a in order]
    return (*taps, *(a for a in order if a not in (*taps, *sides.channels)), *sides.channels)


def _held(stage: Stage, x: Ref) -> Buffer:
    """The operand's largest tensor in memory: its order decides who reads what."""
    return max(before(stage, x.name)[0], key=lambda b: (len(b.axes), stage.program.size(b.axes)))


class Packer(ProductWriter):
    """Packs one operand of a stage; its kernel has the writer's name."""

    rounds = False

    def pack(self, x: Ref, to: Buffer, rounds: bool) -> Kernel:
        loads, _ = self._before(x.name)
        reads = tuple({b.name: b for b in loads}.values())
        self.rounds = rounds
        with self.lines.block(signature(self.name, PACKERS, reads, (to,))):
            grid = self._turn(x, to) if self._across(x) else self._each(x, to)
        declared = (f"{to.name} {to.dtype}[{', '.join(to.axes)}]",)
        return replace(self._kernel(grid, str(PACKERS), reads, (to,)), scratch=declared)

    def _across(self, x: Ref) -> tuple[str, ...]:
        """The operand's innermost axes, where they are neither summed nor a window."""
        run: list[str] = []
        for a in reversed(_held(self.stage, x).axes):
            if a in self.stage.reduced:
                break
            run.insert(0, a)
        return tuple(run)

    def _register(self, x: Ref, space: Space) -> str:
        """Writes what computes the operand at the current place; returns its register, rounded."""
        loads, _ = self._before(x.name)
        needed = space.needed_axes(loads)
        self.lines.add(*[line for a in needed if (line := space.index_line(a))])
        value = self._value(x.name, space)
        if not self.rounds:
            return value
        self.lines.add(f"const float r{value[1:]} = round_to<tf32>({value});")
        return f"r{value[1:]}"

    def _turn(self, x: Ref, to: Buffer) -> str:
        """Tiles through shared memory: read along the innermost axes, written along k."""
        run, channels = self._across(x), tuple(a for a in to.axes if a in self.stage.reduced)
        others = tuple(a for a in to.axes if a not in (*run, *channels))
        rows = TURNED if self.program.size(channels) > TURNED // 2 else TURNED // 2
        space, lines = Space(self.program, (Var("y", channels), Var("x", run), Var("g", others))), self.lines
        place = f"const int y = blockIdx.y * {rows} + row, x = blockIdx.x * {TURNED} + column;"
        inside = f"y < {size_of(channels)} && x < {size_of(run)}"
        lines.add(*(["const int g = blockIdx.z;"] if others else []), f"turn_tile<{rows}, {TURNED}>(")
        lines.depth += 1
        with lines.block("[&](int row, int column)"):
            lines.add(place, f"if (!({inside})) return 0.0f;")
            value = self._register(x, space)
            lines.add(f"return {value};")
        lines.text[-1] += ","
        with lines.block(f"[&](int row, int column, float {value})"):
            lines.add(place, *[line for a in space.needed_axes([to]) if (line := space.index_line(a))])
            lines.add(f"if ({inside}) st({to.name} + {space.offset(to)}, {value});")
        lines.text[-1] += ");"
        lines.depth -= 1
        third = f", {size_of(others)}" if others else ""
        return f"dim3(cdiv({size_of(run)}, {TURNED}), cdiv({size_of(channels)}, {rows}){third})"

    def _each(self, x: Ref, to: Buffer) -> str:
        """One thread an element, or a whole window, which lies side by side; neighbours write neighbours."""
        taps = tuple(a for a in to.axes if a.startswith("k"))
        order, lines = to.axes[len(taps) :], self.lines
        space = Space(self.program, (Var("i", order), Var("tap", taps)))
        lines.add(f"const int i = blockIdx.x * {PACKERS} + threadIdx.x;", f"if (i >= {size_of(order)}) return;")
        if not taps:
            value = self._register(x, space)
            lines.add(f"st({to.name} + i, {value});")
        else:
            lines.add("#pragma unroll")
            with lines.block(f"for (int tap = 0; tap < {size_of(taps)}; tap++)"):
                value = self._register(x, space)
                lines.add(f"st({to.name} + tap * {grouped(size_of(order))} + i, {value});")
        return f"cdiv({size_of(order)}, {PACKERS})"


class WideWriter(PipeWriter):
    """One product stage: its kernels are numbered from `first`, its scratch from `scratch`."""

    def __init__(self, stage: Stage, schedule: StageSchedule, first: int, scratch: int) -> None:
        self.arithmetic = arithmetic_of(schedule)
        made = pack_stage(stage, self.arithmetic, scratch)
        assert made is not None
        self.plain, self.first, self.scratch, self.packs = stage, first, scratch, False
        packed, self.packed = made
        ProductWriter.__init__(self, packed, schedule, f"f{first + len(self.packed)}")
        self.threads = schedule.block
        self.sides = ordered(packed)

    def write_all(self) -> list[Kernel]:
        rounds = self.arithmetic.startswith("tf32")
        made = [
            Packer(self.plain, self.schedule, f"f{self.first + i}").pack(x, to, rounds)
            for i, (x, to) in enumerate(self.packed)
        ]
        if self.schedule.splits > 1:
            return made + self.write_split(f"f{self.first + len(made) + 1}", self.scratch + len(made))
        return [*made, self.write()]

    def _call(self, depth: str) -> str:
        """Opens the call; its launch asks for the stages' memory."""
        tile = self.schedule.tile
        assert tile is not None
        size = ITEM_BYTES[ITEMS.get(self.arithmetic, self.arithmetic)]
        self.shared_bytes = shared_bytes(tile, size)
        words: Sequence[object] = (self.arithmetic, *tile, stages_of(tile, size))
        return f"product_wide<{', '.join(map(str, words))}>({self._size(self.sides.taps)}, {depth},"
