"""Structures: regions that the partitioner cut from small models, given new sizes at every draw.

    read_structures(path)                   texts of the data folder
    resize(program, rng) -> Program         the same structure at sizes like those of real use

A structure is what a program is without sizes, so one small model teaches regions of every size. Sizes that an
index ties together (slices, halves) keep their distance at any length: a label shifted by one stays so, and which
vectors are aligned there is learned. Those of windows grow by a factor.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from cudal1_compile.errors import damage_named
from cudal1_fx_passes.errors import ProgramError
from cudal1_fx_passes.program.canonical import canonicalise
from cudal1_fx_passes.program.ir import ITEM_BYTES, Index, Input, Literal, Op, Operand, Program, Ref
from cudal1_fx_passes.program.ops import OPS, Kind
from cudal1_trainer.tasks.single import without_single

NICE = (64, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 784, 1000, 1024, 1280, 1536, 2048, 3072, 3136, 4096)
LARGE = (5120, 8192, 9216, 11008, 12544, 16384, 28672, 32000, 32768, 50257, 65536, 131072)
MIN_ELEMENTS, MAX_ELEMENTS = 1 << 13, 1 << 26  # of the largest value
MAX_BYTES = 1 << 28
ATTEMPTS = 40
FACTORS = (1, 2, 3, 4, 6, 8, 16, 32, 64)  # of axes that indices tie together
PAIR = 4  # an axis read at constant places keeps its size up to this: halves, real and imaginary parts
NEAR = 2  # places: two sizes so close are one and a shift
STRETCHED = 0.75  # share of draws whose tied axes get any length, where their indices allow it
# in the data folder, whose README says where each comes from
STRUCTURES = (
    "structures.jsonl.gz",
    "products.jsonl.gz",
    "hard.jsonl.gz",
    "written.jsonl.gz",
    "gathered.jsonl.gz",  # products of which a kernel gathers (epilogue_reduction.py) at two of four drawn sizes
)


def read_structures(path: Path) -> tuple[str, ...]:
    """Texts; none without a file. Raises ValueError for a damaged one."""
    if not path.is_file():
        return ()
    with damage_named(path), gzip.open(path, "rt") as stream:
        return tuple(json.loads(line) for line in stream)


def write_structures(texts: Sequence[str], path: Path) -> None:
    lines = "".join(json.dumps(text) + "\n" for text in texts)
    path.write_bytes(gzip.compress(lines.encode(), 9, mtime=0))


def resize(program: Program, rng: random.Random) -> Program:
    """New sizes for every axis that no index ties; counts among the literals follow. Canonical again."""
    tied = tied_axes(program)
    free = [a.name for a in program.axes if a.name not in tied]
    for _ in range(ATTEMPTS):
        sizes = {name: draw_size(rng) for name in free}
        try:
            length = lambda: rng.choice(NICE) if rng.random() < 0.5 else draw_size(rng)  # noqa: E731
            grown = stretch_tied(program, tied, length) if rng.random() < STRETCHED else None
            sized = with_sizes(grown or grow_tied(program, tied, rng.choice(FACTORS)), sizes)
            if _fits(sized):  # three of four do not, and a canonical form takes a hundred times as long
                return canonicalise(without_single(sized))
        except ProgramError:
            continue
    return canonicalise(program)


def draw_size(rng: random.Random) -> int:
    kind = rng.random()
    if kind < 0.25:
        return rng.choice((1, 2, 3, 4, 6, 8, 12, 16, 32)) if kind < 0.2 else rng.randint(2, 63)
    if kind < 0.7:
        return rng.choice(NICE)
    # which vectors divide a size is learned by sizes of every remainder
    return rng.choice(LARGE) if kind < 0.78 else rng.randint(16, 1250) * rng.choice((1, 1, 2, 4))


def tied_axes(p: Program) -> set[str]:
    """Axes that an affine index reads or computes with; whose positions meet integer literals, or are scaled."""
    counted = _counts_positions(p)
    tied: set[str] = set() if counted else set().union(*_computed_places(p))
    inputs = {i.name for i in p.inputs}
    for op in p.ops:
        if counted and OPS[op.fn].kind is Kind.IOTA:
            tied |= set(op.over)
        for axis, index in _places(op):
            if index.value is None:
                tied |= {axis} | {name for _, name in index.terms}
            elif counted and index.value not in inputs:
                tied.add(axis)
    return tied


def _computed_places(p: Program) -> list[set[str]]:
    """Of each index that is computed from positions: the axis that it reads, and those that it has."""
    positions: set[str] = set()
    for op in p.ops:
        read = {x.name for x in op.operands if isinstance(x, Ref)}
        if OPS[op.fn].kind is Kind.IOTA or (op.dtype != "bool" and read & positions):
            positions.add(op.name)
    indices = [place for op in p.ops for place in _places(op)]
    return [{axis, *p.value_axes[i.value]} for axis, i in indices if i.value in positions]


def _places(op: Op) -> Iterator[tuple[str, Index]]:
    for x in op.operands:
        if isinstance(x, Ref):
            yield from x.access


def _counts_positions(p: Program) -> bool:
    """Whether some integer is computed with a literal that may be a size."""
    along = _iotas(p)
    return any(_is_count(p, op, x, along, set(along.values())) for op in p.ops for x in op.operands)


def _iotas(p: Program) -> dict[str, str]:
    """The axis of every value that counts along one."""
    return {op.name: op.over[0] for op in p.ops if OPS[op.fn].kind is Kind.IOTA}


def _is_count(p: Program, op: Op, x: Operand, along: dict[str, str], grows: set[str]) -> bool:
    """Whether a literal is a place along an axis that grows, or may be one: integers computed from it are."""
    if not isinstance(x, Literal) or isinstance(x.value, bool) or x.value == 0:
        return False
    names = [y.name for y in op.operands if isinstance(y, Ref)]
    counted = {along[name] for name in names if name in along}
    if counted:
        return bool(counted & grows)
    return x.value not in (-100, -1, 1) and bool({p.value_dtype[name] for name in names} & {"i64", "i32"})


def grow_tied(p: Program, tied: set[str], factor: int) -> Program:
    """Tied axes `factor` times as long, with the offsets of slices and the sizes among integer literals.

    Window axes keep their size, and offsets beside them (padding) too. As it is where an index is of another kind.
    """
    indices = [(axis, index) for op in p.ops for axis, index in _places(op) if index.value is None]
    size = {a.name: a.size for a in p.axes}
    kept = {axis for axis, index in indices if not index.terms and size[axis] <= PAIR}
    grows = {a for a in tied if not a.startswith("k")} - kept
    if factor == 1 or not grows or not all(_is_plain(axis, index, kept) for axis, index in indices):
        return p
    ends = {size[a]: size[a] * factor for a in grows}

    def grown(axis: str, index: Index) -> Index:
        if index.value is not None or _is_window(index) or axis in kept:
            return index
        if not index.terms:
            return replace(index, offset=_grown_count(index.offset, ends, factor) if index.offset else 0)
        flipped = any(c < 0 for c, _ in index.terms)
        return replace(index, offset=(index.offset + flipped) * factor - flipped)

    def operand(op: Op, x: Operand) -> Operand:
        if isinstance(x, Ref):
            return replace(x, access=tuple((a, grown(a, i)) for a, i in x.access))
        return Literal(_grown_count(int(x.value), ends, factor)) if _is_count(p, op, x, along, grows) else x

    along, longer = _iotas(p), {a: size[a] * factor for a in grows}
    renewed = with_sizes(p, longer)
    ops = (replace(op, operands=tuple(operand(op, x) for x in op.operands)) for op in renewed.ops)
    return replace(renewed, ops=tuple(ops))


def stretch_tied(p: Program, tied: set[str], draw: Callable[[], int]) -> Program | None:
    """Tied axes at any length: what is a few places off the shortest of them, or off a multiple of it, stays so.

    d1=9 d2=10 in0[d2=d1+1]   ->   d1=512 d2=513 in0[d2=d1+1]

    draw: the new length of the shortest axis of those that indices tie together; pairs stay as they are. None for
    windows and enlarged maps, which grow by a factor, and where some index would leave its bounds.
    """
    computed = _computed_places(p)
    if computed and not _counts_positions(p):
        return None
    indices = [(axis, index) for op in p.ops for axis, index in _places(op) if index.value is None]
    size = {a.name: a.size for a in p.axes}
    kept = {axis for axis, index in indices if not index.terms and size[axis] <= PAIR}
    grows = {a for a in tied if not a.startswith("k")} - kept
    steps = all(len(i.terms) <= 1 and _is_plain(axis, i, kept) and not _is_window(i) for axis, i in indices)
    joined = [{axis, *(name for _, name in index.terms)} for axis, index in indices] + computed
    groups = _tied_together([a.name for a in p.axes if a.name in grows], joined)
    groups = [group for group in groups if min(size[a] for a in group) > 2]
    units = {a: min(size[b] for b in group) for group in groups for a in group}
    if not steps or not units:
        return None
    lengths = {a: length for group in groups for length in (draw(),) for a in group}
    along = _iotas(p)

    def stretched(n: int, axis: str) -> int:
        unit, length = units[axis], lengths[axis]
        near = min(NEAR, (unit - 1) // 2)
        times = (abs(n) + near) // unit
        rest = abs(n) - times * unit
        return (times * length + rest if abs(rest) <= near else abs(n) * length // unit) * (-1 if n < 0 else 1)

    def operand(op: Op, x: Operand) -> Operand:
        if isinstance(x, Ref):
            access = ((a, replace(i, offset=stretched(i.offset, a)) if a in units else i) for a, i in x.access)
            return replace(x, access=tuple(access))
        beside = [a for a in op.axes if a in units]
        return Literal(stretched(int(x.value), beside[0])) if beside and _is_count(p, op, x, along, grows) else x

    sizes = {a: stretched(size[a], a) for a in units}
    if min(sizes.values()) < 1:  # one just below a multiple of the others, which became 1
        return None
    renewed = with_sizes(p, sizes)
    ops = (replace(op, operands=tuple(operand(op, x) for x in op.operands)) for op in renewed.ops)
    found = replace(renewed, ops=tuple(ops))
    return found if _leaves_bounds(found) == _leaves_bounds(p) else None


def _tied_together(axes: Sequence[str], indices: Sequence[set[str]]) -> list[set[str]]:
    """The axes in groups, in order: those that an index joins are in one."""
    groups = [{a} for a in axes]
    for index in indices:
        joined = [g for g in groups if g & index]
        for other in joined[1:]:
            joined[0] |= other
            groups.remove(other)
    return groups


def _leaves_bounds(p: Program) -> list[tuple[bool, bool]]:
    """Of each affine index, whether it begins before and ends behind what it reads."""
    last = {a.name: a.size - 1 for a in p.axes}
    found = []
    for axis, index in ((axis, index) for op in p.ops for axis, index in _places(op) if index.value is None):
        low = index.offset + sum(min(0, c * last[a]) for c, a in index.terms)
        high = index.offset + sum(max(0, c * last[a]) for c, a in index.terms)
        found.append((low < 0, high > last[axis]))
    return found


def _is_window(index: Index) -> bool:
    return any(name.startswith("k") for _, name in index.terms)


def _is_plain(axis: str, index: Index, kept: set[str]) -> bool:
    if index.divisor != 1 or (index.terms and kept & {axis, *(name for _, name in index.terms)}):
        return False
    return _is_window(index) or all(abs(c) == 1 for c, _ in index.terms)


def _grown_count(value: int, ends: dict[int, int], factor: int) -> int:
    """A size, a last place, or a place in between, of an axis that grows. Keeps its sign."""
    sign, n = (-1 if value < 0 else 1), abs(value)
    if n in ends:
        return sign * ends[n]
    return sign * (ends[n + 1] - 1 if n + 1 in ends else n * factor)


def with_sizes(p: Program, sizes: dict[str, int]) -> Program:
    """The program at other sizes. A literal that is a reduction's count, or one over it, becomes the new count."""
    axes = tuple(replace(a, size=sizes.get(a.name, a.size)) for a in p.axes)
    before, after = ({a.name: a.size for a in part} for part in (p.axes, axes))
    inputs = tuple(replace(i, strides=restride(i, before, after)) for i in p.inputs)
    renewed = Program(axes, inputs, p.ops, p.outputs)
    counts: dict[int, int] = {}
    for op in p.ops:
        if op.over and OPS[op.fn].kind is Kind.REDUCE:
            counts[p.size(op.over)] = renewed.size(op.over)
    ops = tuple(replace(op, operands=tuple(_recounted(op, x, counts) for x in op.operands)) for op in p.ops)
    return replace(renewed, ops=ops)


def restride(x: Input, before: dict[str, int], after: dict[str, int]) -> tuple[int, ...] | None:
    """Strides at other sizes: an axis lies as many times the one inside it apart, or the same gap beyond it."""
    if x.strides is None:
        return None
    found: dict[str, int] = {}
    old = new = 1  # what the axes so far take
    for stride, axis in sorted(zip(x.strides, x.axes, strict=True)):
        found[axis] = stride
        if stride >= old:
            found[axis] = new * (stride // old) if stride % old == 0 else new + stride - old
            old, new = stride * before[axis], found[axis] * after[axis]
    return tuple(found[axis] for axis in x.axes)


def _recounted(op: Op, x: Operand, counts: dict[int, int]) -> Operand:
    if not isinstance(x, Literal) or isinstance(x.value, bool) or op.fn not in ("mul", "div") or x.value in (0, 1):
        return x
    sign = 1 if x.value > 0 else -1
    for old, new in counts.items():
        if old > 1 and abs(x.value) == old:
            return Literal(type(x.value)(sign * new))
        if old > 1 and abs(abs(x.value) * old - 1) < 1e-9:
            return Literal(sign / new)
    return x


def _fits(p: Program) -> bool:
    largest = max(p.size(axes) for axes in p.value_axes.values())
    moved = sum(p.size(i.axes) * ITEM_BYTES[i.dtype] for i in p.inputs)
    moved += sum(p.size(o.axes) * ITEM_BYTES[p.output_dtype(o)] for o in p.outputs)
    return MIN_ELEMENTS <= largest <= MAX_ELEMENTS and moved <= MAX_BYTES
