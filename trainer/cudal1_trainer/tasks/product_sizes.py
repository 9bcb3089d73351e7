"""New sizes for programs with sums of products or with windows, where an index ties axes to one another.

    resize_product(program, rng, most) -> Program
    resize_structure(program, rng) -> Program, by its windows where their axes follow from one another

A convolution reads at (step*out + dilation*window + offset) / divisor: the size of `out` follows from what is read
and from the window, so the other axes are drawn by what they are to the product (batch, channels, places, rows),
and now and then the window, its step and its padding too. What is too large is halved, axis by axis, until it
fits. Axes that an index of another kind reads keep their sizes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from cudal1_fx_passes.errors import ProgramError
from cudal1_fx_passes.program.canonical import canonicalise
from cudal1_fx_passes.program.ir import ITEM_BYTES, Index, Op, Operand, Program, Ref, operand_axes
from cudal1_fx_passes.program.ops import OPS, Kind
from cudal1_trainer.tasks.single import without_single
from cudal1_trainer.tasks.structures import MAX_BYTES, MAX_ELEMENTS, draw_size, resize, tied_axes, with_sizes

ATTEMPTS = 20
REDRAWN = 0.6  # share of draws with another window
BATCHES = (1, 1, 2, 4, 8, 16, 32, 64, 128)  # 1: no axis
GROUPS = (2, 4, 8, 16, 32)
CHANNELS = (
    *(1, 3, 4, 8, 16, 16, 24, 32, 32, 40, 48, 64, 64, 64, 80, 96, 96, 112, 128, 128, 128, 144, 160, 192, 240, 256),
    *(256, 320, 384, 480, 512, 512, 640, 672, 768, 960, 1000, 1024, 1280, 2048),
)
# share of convolutions drawn as a network's first, by axes; 3% of all were, and their strides were not learned
STEMS = {1: 0.1, 2: 0.2, 3: 0.6}
LASTS = 0.5  # of transposed ones as a generator's last: few outputs
FEW, FIRST_COLUMNS = (1, 1, 2, 3, 3, 3, 4, 6, 8), (8, 16, 24, 32, 32, 48, 64, 64, 96)
FIRST_SIDES = 6  # of PLACES, the largest
PLACES = {
    1: (50, 100, 128, 256, 400, 512, 1000, 1024, 2048, 4096, 8000, 16384, 65536),
    2: (
        *(4, 7, 8, 14, 14, 16, 17, 20, 28, 28, 32, 32, 35, 40, 56, 56, 64, 64, 96, 112, 128, 224, 256),
        *(320, 384, 512),
    ),
    3: (4, 7, 8, 8, 14, 16, 16, 28, 32, 32, 48, 56, 64, 96, 128),
}
ROWS = (1, 2, 8, 16, 50, 128, 197, 256, 512, 1000, 1024, 2048, 3072, 4096, 8192, 12544, 16384, 65536)
WIDTHS = (16, 32, 64, 64, 96, 128, 128, 197, 256, 320, 384, 512, 512, 768, 1000, 1024, 1024, 1280, 1536, 2048)
WIDE = (3072, 4096, 4096, 5120, 6144, 8192, 11008, 14336)


@dataclass(frozen=True, slots=True)
class Most:
    """Limits of a program: multiplications, elements of a value, bytes of all inputs and outputs."""

    multiplications: int
    elements: int
    moved: int


TRAINED = Most(1 << 38, 1 << 27, 1 << 30)
MEASURED = Most(1 << 33, 1 << 24, 1 << 26)  # about a millisecond, and a float64 reference beside it


@dataclass(frozen=True, slots=True)
class Slide:
    """One axis read at (step*out + dilation*window + offset) / divisor; window is empty where it is 1 wide."""

    read: str
    out: str
    window: str
    step: int
    dilation: int
    offset: int
    divisor: int

    @property
    def is_transposed(self) -> bool:
        return self.dilation < 0 or self.divisor > 1

    def made(self, read: int, window: int) -> int:
        """The least size of `out`; where transposed, it may be up to max(divisor, dilation) - 1 more."""
        reach = abs(self.dilation) * (window - 1)
        if self.is_transposed:
            return (read - 1) * self.divisor - 2 * self.offset + reach + 1
        return (read - 2 * self.offset - reach - 1) // self.step + 1

    @property
    def slack(self) -> int:
        return max(self.divisor, -self.dilation) if self.is_transposed else 1

    @property
    def index(self) -> Index:
        window = ((self.dilation, self.window),) if self.window else ()
        return Index(((self.step, self.out), *window), self.offset, self.divisor)


def dots(p: Program) -> list[Op]:
    return [o for o in p.ops if OPS[o.fn].kind is Kind.DOT]


def multiplications(p: Program) -> int:
    return sum(p.size((*o.axes, *o.over)) for o in dots(p))


def resize_product(program: Program, rng: random.Random, most: Most = TRAINED) -> Program:
    """Canonical. Raises ProgramError where no draw of ATTEMPTS holds together."""
    slides = list(dict.fromkeys(s for o in program.ops for s in _slides(program, o)))
    fixed = _fixed(program, slides)
    slides = [s for s in slides if s.out not in fixed]
    for _ in range(ATTEMPTS):
        chosen, moved = _another_window(program, slides, rng) if rng.random() < REDRAWN else (program, slides)
        sizes = _Draw(chosen, moved, fixed, rng, most).run()
        if sizes is None:
            continue
        with suppress(ProgramError):
            return canonicalise(without_single(with_sizes(chosen, sizes)))
    raise ProgramError(f"{ATTEMPTS} draws of sizes break an index or a limit")


def resize_structure(program: Program, rng: random.Random) -> Program:
    """One without products; canonical."""
    return resize_windows(program, rng) or resize(program, rng)


def resize_windows(program: Program, rng: random.Random) -> Program | None:
    """Pooling and its gradients at other sizes; canonical. None where positions are computed or all is tied."""
    slides = list(dict.fromkeys(s for o in program.ops for s in _slides(program, o) if s.window))
    placed = {a for o in program.ops if OPS[o.fn].kind is Kind.IOTA for a in o.over if not a.startswith("k")}
    fixed = _fixed(program, slides)
    if program.has_product or placed or not slides or fixed & {s.out for s in slides}:
        return None
    for _ in range(ATTEMPTS):
        sizes = _Draw(program, slides, fixed, rng, Most(0, MAX_ELEMENTS, MAX_BYTES)).run()
        if sizes is not None:
            with suppress(ProgramError):
                return canonicalise(without_single(with_sizes(program, sizes)))
    return None


class _Draw:
    """One draw of sizes for every axis."""

    def __init__(
        self, program: Program, slides: list[Slide], fixed: set[str], rng: random.Random, most: Most
    ) -> None:
        self.program, self.slides, self.fixed, self.rng, self.most = program, slides, fixed, rng, most
        forward = [s for s in slides if not s.is_transposed]
        known = {s.out for s in forward} | {s.read for s in forward}
        # of two that tie the same axes, as the gradients of a strided layer do, the forward one decides
        self.makers = forward + [s for s in slides if s.is_transposed and s.out not in known]
        often = 0.3 if program.has_product else 0.8  # what is pooled has an even size, mostly
        self.extra = {s: rng.randrange(s.slack) if rng.random() < often else 0 for s in self.makers}

    def run(self) -> dict[str, int] | None:
        sizes = {a.name: a.size for a in self.program.axes}
        made = {s.out for s in self.makers}
        free = [n for n in sizes if n not in self.fixed | made and not n.startswith("k")]
        sizes |= self._roots(free)
        while (whole := self._complete(sizes)) is not None and not self._fits(whole):
            large = [a for a in free if sizes[a] > 1]
            if not large:
                return None
            at = self.rng.choices(large, [sizes[a] for a in large])[0]
            sizes[at] = (sizes[at] + 1) // 2
        return whole

    def _complete(self, roots: dict[str, int]) -> dict[str, int] | None:
        """With the sizes that follow; None where an axis would be empty or two indices disagree."""
        sizes = dict(roots)
        for _ in self.makers:  # a chain of them is at most so long
            for s in self.makers:
                sizes[s.out] = self._made(s, sizes) + self.extra[s]
        held = all(0 <= sizes[s.out] - self._made(s, sizes) < s.slack for s in self.slides)
        return sizes if held and min(sizes.values()) > 0 else None

    @staticmethod
    def _made(s: Slide, sizes: dict[str, int]) -> int:
        return s.made(sizes[s.read], sizes.get(s.window, 1))

    def _fits(self, sizes: dict[str, int]) -> bool:
        p, most = with_sizes(self.program, sizes), self.most
        moved = sum(p.size(i.axes) * ITEM_BYTES[i.dtype] for i in p.inputs)
        moved += sum(p.size(o.axes) * ITEM_BYTES[p.output_dtype(o)] for o in p.outputs)
        largest = max(p.size(axes) for axes in p.value_axes.values())
        return multiplications(p) <= most.multiplications and largest <= most.elements and moved <= most.moved

    def _roots(self, free: list[str]) -> dict[str, int]:
        """By what an axis is to the first product, or to windows."""
        if not self.program.has_product:
            return self._of_windows(free)
        dot = dots(self.program)[0]
        if any(s.read in free for s in self.slides):
            return self._of_convolution(dot, free)
        return self._of_matrices(dot, free)

    def _of_windows(self, free: list[str]) -> dict[str, int]:
        read = {s.read for s in self.slides}
        places = PLACES[min(3, len(read & set(free)) or 1)]
        side = self.rng.choice(places)
        sizes = {a: draw_size(self.rng) for a in free}
        return sizes | {
            a: side if self.rng.random() < 0.75 else self.rng.choice(places) for a in free if a in read
        }

    def _of_convolution(self, dot: Op, free: list[str]) -> dict[str, int]:
        rng, read = self.rng, {s.read for s in self.slides}
        image = {
            a for x in dot.operands if isinstance(x, Ref) and x.access for a in self.program.value_axes[x.name]
        }
        rank = min(3, max(1, sum(1 for _, i in _accessed(dot) if i.value is None)))
        places = PLACES[rank]
        side = rng.choice(places)
        kept, summed = _shared(self.program, dot)
        gradient = any(a.startswith("k") for a in dot.axes)  # of a weight: it sums over the batch
        alone = not kept and all(a.startswith("k") for a in summed)  # one channel
        first = not gradient and (alone or rng.random() < STEMS[rank])
        last = not (gradient or first) and any(s.divisor > 1 for s in self.slides) and rng.random() < LASTS
        if first or last:
            side = rng.choice(places[-FIRST_SIDES:])
        sizes = {}
        for a in free:
            if a in read:
                sizes[a] = side if rng.random() < 0.75 else rng.choice(places)
            elif a in kept:
                deep = summed - {a} and not gradient
                sizes[a] = rng.choice(GROUPS if deep else CHANNELS[2:])
            else:
                is_batch = (a in summed) == gradient and a in image
                channels = (FEW if a in summed else FIRST_COLUMNS) if first else CHANNELS
                channels = FEW if last and a not in summed else channels
                sizes[a] = rng.choice(BATCHES if is_batch else channels)
        return sizes

    def _of_matrices(self, dot: Op, free: list[str]) -> dict[str, int]:
        """Squares, few rows or columns, long sums and whatever else; 1x1 convolutions are among them."""
        rng = self.rng
        kept, summed = _shared(self.program, dot)
        before, behind = _around(self.program, dot)
        square = rng.choice(WIDE) if rng.random() < 0.15 else 0
        tall = rng.choice([a for a in free if a in dot.axes] or free) if free else ""
        sizes = {}
        for a in free:
            if a in kept | before:
                sizes[a] = rng.choice(BATCHES)
            elif a in behind:
                sizes[a] = rng.choice(PLACES[2]) ** 2
            elif square:
                sizes[a] = square
            elif a == tall:
                sizes[a] = rng.choice(ROWS)
            else:
                long = rng.random() < (0.3 if a in summed else 0.15)
                sizes[a] = rng.choice(WIDE if long else WIDTHS)
        return sizes


def _slides(p: Program, op: Op) -> Iterator[Slide]:
    """The indices of an operation that hold together as a window's do."""
    for axis, index in _accessed(op):
        terms = {a: c for c, a in index.terms}
        windows = [a for a in terms if a.startswith("k")]
        outs = [a for a in terms if a not in windows]
        if index.value is not None or len(outs) != 1 or len(windows) > 1:
            continue
        window = windows[0] if windows else ""
        s = Slide(axis, outs[0], window, terms[outs[0]], terms.get(window, 1), index.offset, index.divisor)
        sums = OPS[op.fn].kind in (Kind.DOT, Kind.REDUCE)
        plain = s.step >= 1 and (not s.is_transposed or s.step == 1) and (sums or s.index == Index(((1, s.out),)))
        made = s.made(p.axis[axis].size, p.axis[window].size if window else 1)
        if plain and 0 <= p.axis[s.out].size - made < s.slack:
            yield s


def _accessed(op: Op) -> list[tuple[str, Index]]:
    return [pair for x in op.operands if isinstance(x, Ref) for pair in x.access]


def _fixed(p: Program, slides: list[Slide]) -> set[str]:
    """Axes that keep their sizes: those of any other index, and what hangs on them."""
    known = {(s.read, s.index) for s in slides}
    others = [(a, i) for o in p.ops for a, i in _accessed(o) if (a, i) not in known and i.value is None]
    found = {a for axis, index in others for a in (axis, *(n for _, n in index.terms))}
    found |= tied_axes(p) - {a for s in slides for a in (s.read, s.out, s.window)} - found
    while hanging := [s for s in slides if found & {s.read, s.out} and not {s.read, s.out} <= found]:
        found |= {a for s in hanging for a in (s.read, s.out)}
    return found


def _shared(p: Program, dot: Op) -> tuple[set[str], set[str]]:
    """Axes of both operands that are kept, and those that are summed."""
    a, b = (operand_axes(p.value_axes, x) for x in dot.operands)
    return (a & b) - set(dot.over), set(dot.over)


def _around(p: Program, dot: Op) -> tuple[set[str], set[str]]:
    """Of an image that is multiplied channel by channel, the axes before the summed ones and those behind them."""
    for x in dot.operands:
        axes = next((i.axes for i in p.inputs if isinstance(x, Ref) and i.name == x.name), ())
        at = [n for n, a in enumerate(axes) if a in dot.over]
        if at and at[0] > 0 and at[-1] < len(axes) - 1:
            return set(axes[: at[0]]), set(axes[at[-1] + 1 :])
    return set(), set()


def _another_window(p: Program, slides: list[Slide], rng: random.Random) -> tuple[Program, list[Slide]]:
    """Another window, step, dilation and padding for a program's only product, where the window is its own."""
    dot, *more = dots(p)
    own = [s for s in slides if s.window and (s.read, s.index) in _accessed(dot)]
    if more or not own or any(s.window in o.over for s in own for o in p.ops if o is not dot):
        return p, slides
    drawn = _window(own[0].is_transposed, len(own), rng)
    each = rng.random() < 0.25  # another for every axis, as in 1x7 or 1x3x3
    windows = {s: _window(s.is_transposed, len(own), rng) if each else drawn for s in own if rng.random() < 0.9}
    new = {s: _moved(s, *window) for s, window in windows.items()}
    sizes = {s.window: windows[s][0] for s in new}
    by_index = {(s.read, s.index): n.index for s, n in new.items()}

    def operand(x: Operand) -> Operand:
        if not isinstance(x, Ref):
            return x
        return replace(x, access=tuple((a, by_index.get((a, i), i)) for a, i in x.access))

    axes = tuple(replace(a, size=sizes.get(a.name, a.size)) for a in p.axes)
    ops = tuple(replace(o, operands=tuple(operand(x) for x in o.operands)) if o is dot else o for o in p.ops)
    return Program(axes, p.inputs, ops, p.outputs), [new.get(s, s) for s in slides]


def _window(transposed: bool, rank: int, rng: random.Random) -> tuple[int, int, int, int]:
    """Size, step, dilation and padding."""
    if transposed:
        size, step = rng.choice((2, 3, 3, 4, 4, 5, 6)), rng.choice((1, 2, 2, 2, 3, 4))
        if rank == 1 and rng.random() < 0.4:  # waves
            size, step = rng.choice((7, 8, 11, 12, 16, 20, 25)), rng.choice((2, 4, 4, 5, 8, 8, 10))
        return size, step, 1, rng.choice((0, max(0, (size - step) // 2), (size - 1) // 2))
    if rank == 1 and rng.random() < 0.3:  # waves and speech
        size = rng.choice((9, 11, 15, 16, 17, 25, 31, 32, 41, 64))
        return size, rng.choice((1, 1, 1, 2, 4, 5, 8)), 1, rng.choice((0, size // 2, size // 2))
    if rank == 2 and rng.random() < 0.06:  # the largest of images
        size = rng.choice((13, 15, 21, 31))
        return size, 1, 1, rng.choice((0, size // 2, size // 2))
    size = rng.choice((2, 3, 3, 3, 3, 4, 5, 5, 7, 9, 11)[: 11 - 2 * (rank == 3)])
    dilation = rng.choice((1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 3, 6, 12))
    same = dilation * (size - 1) // 2
    return size, rng.choice((1, 1, 1, 1, 2, 2, 3, 4)), dilation, rng.choice((0, same, same, same, 1))


def _moved(s: Slide, size: int, step: int, dilation: int, padding: int) -> Slide:
    if s.is_transposed:
        return replace(s, dilation=-dilation, divisor=step, offset=padding)
    return replace(s, step=step, dilation=dilation, offset=-padding)
