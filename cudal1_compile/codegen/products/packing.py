"""Packs a product's operands K-major, so that the reduction axis is contiguous (for warp_groups.py).

One kernel packs both, each by blocks of its own: an image transposed in tiles, so that its channels are innermost;
a weight tap by tap. The prologue is computed there, once an element, and rounded to TF32 where the arithmetic is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cudal1_compile.codegen.products.copies import COPY_BYTES, ITEMS, copied, ordered
from cudal1_compile.codegen.products.product import ProductWriter
from cudal1_compile.codegen.products.sides import Sides, before, behind
from cudal1_compile.codegen.stages.source import Kernel, signature
from cudal1_compile.codegen.stages.space import Space, Var, grouped, size_of
from cudal1_compile.codegen.stages.stage import Buffer, Stage, read_names
from cudal1_fx_passes.program.ir import ITEM_BYTES, Ref

THREADS = 256  # of a block
TILE = 4096  # elements
ROWS, COLUMNS = (8, 64), 256  # of a tile: at least and at most, at most

Packed = tuple[Ref, Buffer]  # an operand and where it is packed to


def pack_stage(stage: Stage, arithmetic: str, first: int, raw: bool = False) -> tuple[Stage, list[Packed]] | None:
    """The stage over packed operands, and which are packed to where; scratch is numbered from `first`.

    raw: the larger one stays as it is, in float32. None where one cannot lie k by k, or is needed behind the sum.
    """
    sides = ordered(stage, raw)
    item = ITEMS.get(arithmetic, arithmetic)
    vector = COPY_BYTES // ITEM_BYTES[item]
    moved = {a for i in dict(sides.a.access).values() for _, a in i.terms} | set(dict(sides.a.access))
    depth = stage.program.size(sides.channels)
    if sides.b.access or any(a.symbolic for a in stage.program.axes) or set(sides.channels) & moved:
        return None
    if depth % vector or any(b.index_values or b.access for b in stage.loads):
        return None
    later = {n for o in behind(stage, sides.dot) for n in read_names(o)} | {w.value for w in stage.writes}
    new: list[Packed] = []
    loads = [b for b in stage.loads if b.value in later]
    for x, rows in ((sides.a, sides.m), (sides.b, sides.n)):
        c = copied(stage, sides, x, rows)
        as_it_is = item != "f32" or (raw and x is sides.a)
        if as_it_is and c is not None and (c.step, c.vector, c.buffer.dtype) == (1, vector, item):
            loads.append(c.buffer)
            continue
        if x.name in later or (raw and x is sides.a):
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
    """Writes the kernel that packs operands of a stage."""

    rounds = False

    def pack(self, packed: Sequence[Packed], rounds: bool) -> Kernel:
        self.rounds, lines = rounds, self.lines
        reads = {b.name: b for x, _ in packed for b in self._before(x.name)[0]}
        writes = [to for _, to in packed]
        grids = [self._blocks(*p) for p in packed]
        with lines.block(signature(self.name, THREADS, reads.values(), writes)):
            lines.add(f"{'int' if grids[1:] else 'const int'} b = blockIdx.x;")
            for p, blocks in zip(packed[:-1], grids, strict=False):
                with lines.block(f"if (b < {blocks})"):
                    self._write(*p)
                    lines.add("return;")
                lines.add(f"b -= {blocks};")
            self._write(*packed[-1])
        declared = tuple(f"{to.name} {to.dtype}[{', '.join(to.axes)}]" for to in writes)
        made = self._kernel(" + ".join(grids), str(THREADS), [*reads.values()], writes)
        return replace(made, scratch=declared)

    def _blocks(self, x: Ref, to: Buffer) -> str:
        if run := self._run(x):
            across, down, others = self._tiles(run, to)
            return " * ".join([across, down, *others])
        return f"cdiv({size_of(_inner(to))}, {THREADS})"

    def _write(self, x: Ref, to: Buffer) -> None:
        if run := self._run(x):
            self._turn(x, to, run)
        else:
            self._each(x, to)

    def _run(self, x: Ref) -> tuple[str, ...]:
        """The operand's axes within what is summed, but for a window alone: along these it is read."""
        axes = _held(self.stage, x).axes
        summed = [a for a in axes if a in self.stage.reduced and not a.startswith("k")]
        run = axes[axes.index(summed[-1]) + 1 :]
        return run if any(not a.startswith("k") for a in run) else ()

    def _tiles(self, run: tuple[str, ...], to: Buffer) -> tuple[str, str, list[str]]:
        """Tiles along the run, along what is summed, and the axes around them."""
        channels = self._channels(run, to)
        others = [a for a in to.axes if a not in (*run, *channels)]
        rows, columns = self._edges(channels)
        return f"cdiv({size_of(run)}, {columns})", f"cdiv({size_of(channels)}, {rows})", others

    def _channels(self, run: tuple[str, ...], to: Buffer) -> tuple[str, ...]:
        return tuple(a for a in to.axes if a in self.stage.reduced and a not in run)

    def _edges(self, channels: tuple[str, ...]) -> tuple[int, int]:
        """Of a tile: few channels leave room for a longer run."""
        depth = self.program.size(channels)
        rows = min(max(1 << (depth - 1).bit_length(), ROWS[0]), ROWS[1])
        return rows, min(TILE // rows, COLUMNS)

    def _turn(self, x: Ref, to: Buffer, run: tuple[str, ...]) -> None:
        """Tiles through shared memory: read along the run, written along what is summed."""
        lines, channels = self.lines, self._channels(run, to)
        rows, columns = self._edges(channels)
        across, down, others = self._tiles(run, to)
        space = Space(self.program, (Var("y", channels), Var("x", run), Var("g", tuple(others))))
        position = "const int y = top + row, x = left + column;"
        inside = f"y < {size_of(channels)} && x < {size_of(run)}"
        lines.add(f"const int left = b % {across} * {columns}, top = b / {across} % {down} * {rows};")
        lines.add(*([f"const int g = b / ({across} * {down});"] if others else []))
        lines.add(f"turn_tile<{rows}, {columns}, {THREADS}>(")
        lines.depth += 1
        with lines.block("[&](int row, int column)"):
            lines.add(position, f"if (!({inside})) return 0.0f;")
            value = self._register(x, space)
            lines.add(f"return {value};")
        lines.text[-1] += ","
        with lines.block(f"[&](int row, int column, float {value})"):
            lines.add(position, *[line for a in space.needed_axes([to]) if (line := space.index_line(a))])
            lines.add(f"if ({inside}) st({to.name} + {space.offset(to)}, {value});")
        lines.text[-1] += ");"
        lines.depth -= 1

    def _each(self, x: Ref, to: Buffer) -> None:
        """One thread an element, or a whole window, which lies side by side; neighbours write neighbours."""
        order, lines = _inner(to), self.lines
        taps = to.axes[: len(to.axes) - len(order)]
        space = Space(self.program, (Var("i", order), Var("tap", taps)))
        lines.add(f"const int i = b * {THREADS} + threadIdx.x;", f"if (i >= {size_of(order)}) return;")
        if not taps:
            value = self._register(x, space)
            lines.add(f"st({to.name} + i, {value});")
            return
        lines.add("#pragma unroll")
        with lines.block(f"for (int tap = 0; tap < {size_of(taps)}; tap++)"):
            value = self._register(x, space)
            lines.add(f"st({to.name} + tap * {grouped(size_of(order))} + i, {value});")

    def _register(self, x: Ref, space: Space) -> str:
        """Writes what computes the operand at the current position; returns its register, rounded."""
        loads, _ = self._before(x.name)
        self.lines.add(*[line for a in space.needed_axes(loads) if (line := space.index_line(a))])
        value = self._value(x.name, space)
        if not self.rounds:
            return value
        self.lines.add(f"const float r{value[1:]} = round_to<tf32>({value});")
        return f"r{value[1:]}"


def _inner(to: Buffer) -> tuple[str, ...]:
    """The axes without windows."""
    return tuple(a for a in to.axes if not a.startswith("k"))
