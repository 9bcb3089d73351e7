"""Writes multistage products: cp.async runs some stages ahead of the tensor cores (product_pipe of the header).

Both operands are tensors that lie in memory as the arithmetic wants them, as copies.py says. A weight that is
packed first takes a kernel of its own, which rounds it to TF32 as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from cudal1_compile.codegen.products.copies import (
    ASKED,
    ITEMS,
    Copied,
    copied,
    load_of,
    ordered,
    packed,
    wants_packing,
)
from cudal1_compile.codegen.products.product import ProductWriter
from cudal1_compile.codegen.products.sides import MULTISTAGE, PHASED, Sides, arithmetic_of, phases_of
from cudal1_compile.codegen.products.warp_layouts import LAYOUTS, blocks_of, estimate, layouts_for, warp_of
from cudal1_compile.codegen.stages.schedule import StageSchedule
from cudal1_compile.codegen.stages.source import Kernel, Lines, product, signature
from cudal1_compile.codegen.stages.space import Space, Var, grouped, size_of
from cudal1_compile.codegen.stages.stage import Buffer, Stage
from cudal1_fx_passes.program.ir import ITEM_BYTES, Ref

STAGES = 3
PACKERS = 128  # threads of a block that packs


def multistage_schedules(stage: Stage, resident: int) -> list[StageSchedule]:
    """Tiles by an estimate of their time; none where an operand cannot be copied as it is."""
    sides = ordered(stage)
    if sides.b.access or any(a.symbolic for a in stage.program.axes):
        return []
    usable = [a for a in sides.arithmetics if a != "f32" and _fits(stage, sides, ITEMS.get(a, a))]
    found = [s for a in usable for s in _tiles(stage, sides, a, resident)]
    return sorted(found, key=lambda s: estimate(stage, sides, s, resident))


def _fits(stage: Stage, sides: Sides, item: str) -> bool:
    loads = [load_of(stage, x) for x in (sides.a, sides.b)]
    if any(load is None or load.index_values or load.dtype != item for load in loads):
        return False
    if wants_packing(stage, sides):
        stage = packed(stage, sides, "s0")
        sides = ordered(stage)
    return all(copied(stage, sides, x, r) is not None for x, r in ((sides.a, sides.m), (sides.b, sides.n)))


def _tiles(stage: Stage, sides: Sides, arithmetic: str, resident: int) -> Iterator[StageSchedule]:
    """One warp layout a tile, with its sums whole and cut so that every SM has blocks."""
    depth = stage.program.size(sides.channels)
    deepest = 32 if arithmetic in ITEMS or sides.taps else 64
    bk = next((k for k in (64, 32, 16) if k <= min(deepest, depth)), 0)
    form = arithmetic + (PHASED if phases_of(sides.a) else "") + MULTISTAGE
    for x in layouts_for(stage, sides, arithmetic, resident, LAYOUTS) if bk else ():
        whole = StageSchedule(form, 1, x.threads, tile=(*x.tile, bk))
        wanted = resident * (2 if prod(x.tile) >= 128 * 128 else 512 // x.threads)
        parts = min(depth // (2 * bk), wanted // blocks_of(stage, sides, x.tile))
        yield whole
        if parts > 1:
            yield replace(whole, splits=2 ** (parts.bit_length() - 1))


def tile_bytes(c: Copied, rows: int, bk: int) -> str:
    """Of one stage in shared memory, as product_pipe lays it out."""
    size = ITEM_BYTES[c.buffer.dtype]
    return f"{rows} * ({bk} * {size} + 16)" if c.step in (1, ASKED) else f"{bk} * ({rows} + 8) * {size}"


class MultistageWriter(ProductWriter):
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
        old, new, taps = load_of(self.plain, self.sides.b), load_of(self.stage, self.sides.b), self.sides.taps
        assert old is not None and new is not None
        lines, name, order = Lines(), f"f{self.first}", new.axes[len(taps) :]
        space = Space(self.program, (Var("i", order), Var("tap", taps)))
        needed = space.needed_axes([old])
        a = old.register
        with lines.block(signature(name, PACKERS, (old,), (new,))):
            lines.add(
                f"const int i = blockIdx.x * {PACKERS} + threadIdx.x;", f"if (i >= {size_of(order)}) return;"
            )
            lines.add(*self._indices("i", order, set(needed), space), "#pragma unroll")
            with lines.block(f"for (int tap = 0; tap < {size_of(taps)}; tap++)"):
                lines.add(*[x for a in taps if a in needed and (x := space.index_line(a))])
                lines.add(f"const float {a} = ld({old.name} + {space.offset(old)});")
                if self._rounds():
                    lines.add(f"const float r{a[1:]} = round_to<tf32>({a});")
                    a = f"r{a[1:]}"
                lines.add(f"st({new.name} + tap * {grouped(size_of(order))} + i, {a});")
        declared = (f"{new.name} {new.dtype}[{', '.join(new.axes)}]",)
        grid = f"cdiv({size_of(order)}, {PACKERS})"
        return Kernel(name, "\n".join(lines.text), grid, str(PACKERS), (old.name, new.name), declared)

    def _rounds(self) -> bool:
        """Whether packing rounds the weight, so that nobody else has to."""
        return self.packs and self.schedule.kind.startswith("tf32")

    def _depth(self) -> str:
        return size_of(self.sides.channels)

    def _call(self, depth: str) -> str:
        """Opens the call; its launch asks for the stages' memory."""
        sides, tile = self.sides, self.schedule.tile
        assert tile is not None
        bm, bn, bk = tile
        arithmetic = arithmetic_of(self.schedule)
        wm, wn = warp_of(self.schedule, LAYOUTS)
        copies = [copied(self.stage, sides, x, r) for x, r in ((sides.a, sides.m), (sides.b, sides.n))]
        arithmetic += "_ready" if self._rounds() else ""
        stages = self.schedule.in_flight or STAGES
        words, tiles = [arithmetic, bm, bn, bk, wm, wn, stages], []
        for c, rows in zip(copies, (bm, bn), strict=True):
            assert c is not None
            tiles.append(tile_bytes(c, rows, bk))
            words += [c.vector, self._step(c)]
        self.shared_bytes = f"{stages} * ({' + '.join(tiles)})"
        return f"product_pipe<{', '.join(map(str, words))}>({self._size(sides.taps)}, {depth},"

    def _step(self, c: Copied) -> str:
        if c.is_asked:
            return str(c.step)
        if c.buffer.strides is not None:
            return f"{c.buffer.name}_{self.sides.channels[-1]}"
        return size_of(c.run)

    def _operand(self, x: Ref, parameter: str, variable: str, axes: tuple[str, ...]) -> None:
        """[&](int m) { const int i = m0 + m; ... return [=](int tap) { ... return in0 + ...; }; },"""
        lines, sides = self.lines, self.sides
        c = copied(self.stage, sides, x, axes)
        assert c is not None
        inner = (Var("k", sides.channels),) if c.is_asked else ()
        space = self._space((Var(variable, axes), Var("tap", sides.taps), *inner), x)
        if not c.is_asked:
            space = replace(space, renamed={**space.renamed, **dict.fromkeys(sides.channels, "0")})
        used = {a for _, i in x.access for _, a in i.terms}
        used |= set(space.needed_axes([c.buffer])) - set(space.renamed)
        with lines.block(f"[&](int {parameter})"):
            lines.add(f"const int {variable} = {parameter}0 + {parameter};")
            lines.add(*self._indices(variable, axes, used, space), *self._indices("g", sides.batch, used, space))
            with lines.block(f"return [=](int{' tap' if sides.taps else ''})"):
                lines.add(*self._tap_lines(used))
                if c.is_asked:
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
        self.lines.add(*(self._indices("k", sides.channels, used, space) if c.is_asked else []))
        positions, further = self._positions(x, space)
        self.lines.add(*positions)
        leaves = self._leaves((*axes, *sides.taps))
        outside = " || ".join([f"{variable} >= {self._size(axes)}", *leaves, *further])
        at = f"{c.buffer.name} + {_without_zeros(space.offset(c.buffer))}".removesuffix(" + 0")
        at += (
            f" + {product('begin', grouped(self._step(c)))}" if self.schedule.splits > 1 and not c.is_asked else ""
        )
        self.lines.add(f"return {outside} ? nullptr : {at};")

    def _epilogue(self, writes: Sequence[Buffer]) -> None:
        self._epilogue_of_rows(writes, "m0 + m")


def _without_zeros(text: str) -> str:
    """An offset without the channels, which count from 0 there."""
    before = ""
    while text != before:
        before = text
        text = re.sub(r"(?<![\w.])0 \* (?:\w+|\([^()]*\)) \+ ", "", text).replace(" + 0)", ")")
        text = re.sub(r"\(0(?: \* (?:\w+|\([^()]*\)))?\)", "0", text)
    return text
