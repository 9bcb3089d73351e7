"""Repairs of a reply's code: arithmetic, which a small model does not do, and what is never right.

fit_code(reply, prompt) -> the same reply, or one with other numbers, loads and names

copies      how many elements a copy of product_pipe takes at once, which no plan states
stages      how many tiles product_bulk and product_fill have in flight: whether they fit into shared memory
spans       how many positions a register tile walks over
loads       vectors along rows that they do not divide, or shifted by other strides than theirs: single loads
statistics  means of another tensor's variance; running sums of exponentials that do not follow their maximum
turned      windows left out of a weight that is transposed
cells       of transposed convolutions, with the numbers of another window
epilogues   sums that a product accumulates of the other sum's value
halo tiles  that leave no room for any tile: the stage is another one, and the model writes what follows anew
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from cudal1_compile.codegen.repair.region_sizes import axes_of, product_of, sizes_of
from cudal1_compile.kernel.candidate import CandidateError, Expr

_MULTISTAGE = re.compile(  # head and type of a call; copies and steps of either side; taps, summed axes
    r"(product_pipe<(\w+)(?:, \d+){6}), (\d+), ([\w* ]+), (\d+), ([\w* ]+)>\(([^,\n]+), (.+),$", flags=re.M
)
_PART = re.compile(r"max\(min\(step, (.+) - begin\), 0\)")  # of summed axes that several blocks share
# head, columns, depth and stages of a call; of its launch: positions of tiles, of halo tiles, bytes of one
_BULK_COPY = re.compile(r"(product_(?:bulk|fill)<\w+, \d+, (\d+), (\d+)), (\d+)(?=, )")
# a stage whose image lies in shared memory: what it sums over, arithmetic, phases, form, tile, the rest; kernels
_SHARED_IMAGE = re.compile(
    r"^(stage \d+ over ([^\n:]*?)(?: along [^\n:]*)?: )(tf32|f16|bf16)(_phased)?_(bulk|fill|field), vector 1, "
    r"block \d+, tile (\d+)x(\d+)x(.*)\n((?:f\d+[:>] .*\n?)*)",
    flags=re.M,
)
_KERNEL = re.compile(r"^__global__ void (?:__launch_bounds__\([^)]*\)\s+)?(\w+)\(", flags=re.M)
_SHARED = r"^(// launch: {}<<<.*, 384 \+ max\(\()(\d+)( \+ (.+)\) \* (\d+), [^,]+\)>>>)"
# a register tile's results that a window meets: which one of how many, the weight, its axis, position, stride
_MET = re.compile(
    r"for \(int (\w+) = 0; \1 < (\d{1,3}); \1\+\+\) \{\s+const int w(\d+) = "
    r"\(?(?:(\w+) - (?:(\d{1,3}) \* )?\1|(?:(\d{1,3}) \* )?\1 \+ (?:\d+ \* )?\(k\3 - 1\) - (\w+))"
    r"(?:\) / (\d{1,3}))?;"
)
# a vector of a shifted or clamped row: its width, the tensor, the row, its length, the position, a register
_LOAD = re.compile(
    r"^( *)vload<(\d+)>\((in\d+) \+ (.+) \* (d\d+) \+ "
    r"(?:min\((\w+(?: [+-] (\d+))?), \5 - \d+\)|max\((\w+(?: [+-] (\d+))?), 0\)), (\w+(?:\[k\])?)\);$",
    flags=re.M,
)
_STATISTICS = re.compile(r"^(t\d+) \w+\[[\w,]*\] = (mean|var)\((\w+)(?:, [\w.]+)?\) over ([\w,]+)$", flags=re.M)
_MEAN = re.compile(r"(const float (t\d+) = )m(\d+);")
# rows, columns, the tensor, how far apart its rows are: of windows that were begun the end alone, at times
_TURN = re.compile(
    r"if \(!\(y < (\w+) && x < ([\w* ]+)\)\) return 0\.0f;\s+"
    r"const float \w+ = ld\((in\d+) \+ y \* (\([\w* ]+\)|[\w* ]+\)|\w+) \+ x\);"
)
# sums in a product's epilogue, by number: what they add up; what the region says
_EPILOGUE_SUM = re.compile(r"(\bq(\d+)\.add\([^;]*, )(\w+)\);")
_SUMMED = re.compile(r"^t(\d+) \w+\[[\w,]*\] = sum\((t\d+)\) over", flags=re.M)
# a running maximum, and a sum of exponentials relative to it that neither moves nor grows with it
_ONLINE = re.compile(r"(const float (w\d+) = maximum\((p\d+), (\w+)\);\s+)(p\d+) = \5 \* expf\(\4 - \2\);")
_PHASES = re.compile(r"^stage \d+ .*: strip_phases, vector (\d+)", flags=re.M)
_CELL = re.compile(r"const int q(\d+) = ")
# an image's axis that a transposed convolution reads: the result's, the window's, an offset, the step
_TURNED = re.compile(r"\bd(\d+)=\(?d(\d+)-k(\d+)([+-]\d+)?\)?(?:/(\d+))?(?=[,\]])")
_ROOM = re.compile(r"(\d+) KB shared a block")
MIN_STAGES = 2  # a tile's room is free once the next one is multiplied
SPARE_BYTES = 384 + 1024  # barriers; what the kernel declares besides
ROWS_2D, MIN_ROWS_2D = 192, 128  # positions of a tile of eight rows, by how many columns it has
COMPUTE_PRODUCERS = 256  # threads that fill halo tiles


def fit_code(reply: str, prompt: str) -> str:
    """`reply` with all that is repaired in its code."""
    for fit in (fit_copies, fit_stages, fit_loads, fit_means, fit_turns, fit_phases, fit_epilogue_sums):
        reply = fit(reply, prompt)
    return fit_online(fit_spans(reply))


def fit_copies(reply: str, prompt: str) -> str:
    """`reply` with copies of product_pipe that divide the runs they copy, as those of right replies do.

    A run is the summed axes where they lie side by side (their step is 1), else what one of their steps skips.
    """
    sizes = sizes_of(prompt)

    def fitting(call: re.Match[str]) -> str:
        head, kind, *sides, taps, depth = call.groups()
        whole, item = _PART.sub(r"\1", depth), 2 if kind.endswith("16") else 4  # bytes
        for at in (0, 2):
            run = product_of(whole if sides[at + 1] == "1" else sides[at + 1], sizes)
            sides[at] = str(copy_width(int(sides[at]), item, [run]))
        return f"{head}, {', '.join(sides)}>({taps}, {depth},"

    return _MULTISTAGE.sub(fitting, reply)


@dataclass(frozen=True, slots=True)
class _Tiles:
    """Of a call of product_bulk or product_fill. columns: of a tile; fitting: tiles that fit beside halo tiles."""

    kernel: str
    call: re.Match[str]
    launch: re.Match[str]
    columns: int
    fitting: int


def _tiles(reply: str, prompt: str) -> list[_Tiles]:
    """Of every such call whose launch says how much memory it asks for; none where sizes are any."""
    sizes, room = sizes_of(prompt), _ROOM.search(prompt)
    if room is None:
        return []
    found = []
    for call in _BULK_COPY.finditer(reply):
        kernels = [k[1] for k in _KERNEL.finditer(reply, 0, call.start())]
        launch = re.search(_SHARED.format(kernels[-1]), reply, flags=re.M) if kernels else None
        if launch is None or launch.start() > call.start():
            continue
        try:
            halos = Expr(launch[4]).evaluate(sizes)
        except CandidateError:
            continue
        columns, of_position = max(int(call[2]), 1), max(int(launch[5]), 1)  # a reply may say anything
        positions = (int(room[1]) * 1024 - SPARE_BYTES) // of_position - halos
        found.append(_Tiles(kernels[-1], call, launch, columns, positions // columns))
    return found


def fit_stages(reply: str, prompt: str) -> str:
    """`reply` with as many tiles of product_bulk and product_fill on their way as fit, in call and launch."""
    changes: dict[tuple[int, int], int] = {}
    for tiles in _tiles(reply, prompt):
        call, launch = tiles.call, tiles.launch
        stages = min(max(int(call[4]), int(launch[2]) // tiles.columns), tiles.fitting)
        if stages >= MIN_STAGES:
            changes |= {call.span(4): stages, launch.span(2): stages * tiles.columns}
    for (start, end), number in sorted(changes.items(), reverse=True):
        reply = f"{reply[:start]}{number}{reply[end:]}"
    return reply


def other_tiles(reply: str, prompt: str) -> str:
    """`reply` up to its first stage whose halo tiles leave no room, with another one; empty where all do.

    Where an image has two axes and no phases, tiles of eight rows have smaller halo tiles; product_wide has none.
    """
    full = {tiles.kernel for tiles in _tiles(reply, prompt) if tiles.fitting < MIN_STAGES}
    for stage in _SHARED_IMAGE.finditer(reply) if full else ():
        head, over, arithmetic, phased, form, rows, columns, rest, kernels = stage.groups("")
        if full.isdisjoint(re.findall(r"^(f\d+): ", kernels, flags=re.M)):
            continue
        if form == "fill" and not phased and len(re.findall(r"\bk\d+=", over)) > 1:
            tall = min(int(rows), ROWS_2D if int(columns) <= 64 else MIN_ROWS_2D)
            other = (
                f"{arithmetic}_field, vector 1, block {2 * tall + COMPUTE_PRODUCERS}, tile {tall}x{columns}x{rest}"
            )
        else:
            other = f"{arithmetic}{phased}_wide, vector 1, block 256, tile 128x{min(int(columns), 128)}x32"
        return f"{reply[: stage.start()]}{head}{other}\n"
    return ""


def fit_spans(reply: str) -> str:
    """`reply` whose register tiles walk over all that their results read: (results - 1) * stride + window.

    Both are read where a result meets the place: `for (int p = 0; p < 4; p++) { const int w0 = y - 2 * p;`. Any
    other span leaves weights out, or visits positions that no result reads.
    """
    return "".join(map(_with_fitting_spans, _kernels(reply)))


def _with_fitting_spans(kernel: str) -> str:
    for _, count, window, at, stride, turned_stride, turned_at, far in _MET.findall(kernel):
        position, axis, step, by = at or turned_at, f"k{window}", int(stride or turned_stride or 1), int(far or 1)
        between = step * (int(count) - 1)
        span = f"{between} + {axis}" if by == 1 else f"{between + 1} + {by} * ({axis} - 1)"
        whole = f"{f'{step} * ' if step > 1 else ''}({count} - 1) + {axis}"  # as "strip" writes it
        other = rf"(?!{re.escape(whole)}(?!\w))[\d(][\d +*()-]*\b{axis}\b(?: - 1\))?"
        kernel = re.sub(
            rf"(for \(int {position} = 0; {position} < ){other}(?=; {position}\+\+)", rf"\g<1>{span}", kernel
        )
        kernel = re.sub(rf"\[(?=\d+ \+){other}\]", f"[{span}]", kernel)  # what holds a row of them
    return kernel


def fit_loads(reply: str, prompt: str) -> str:
    """`reply` with single loads where a vector's rows, or its shift along them, are no multiple of it."""
    sizes, axes = sizes_of(prompt), axes_of(prompt)

    def fitting(load: re.Match[str]) -> str:
        indent, width, tensor, row, axis, low, low_shift, high, high_shift, held = load.groups()
        if (
            axes.get(tensor, [""])[-1] != axis or axis not in sizes or int(width) == 0
        ):  # of any size; a reply may say anything
            return load[0]
        if math.gcd(sizes[axis], int(low_shift or high_shift or 0)) % int(width) == 0:
            return load[0]
        position = f"min({low} + j, {axis} - 1)" if low else f"max({high} + j, 0)"
        head = f"{indent}#pragma unroll\n{indent}for (int j = 0; j < {width}; j++) "
        return f"{head}{held}[j] = ld({tensor} + {row} * {axis} + {position});"

    return _LOAD.sub(fitting, reply)


def fit_means(reply: str, prompt: str) -> str:
    """`reply` with means as the variance of the same tensor found them (`t0 = m2`), not that of another one."""
    read = {name: (fn, over) for name, fn, *over in _STATISTICS.findall(prompt)}
    found_by = {tuple(over): name for name, (fn, over) in read.items() if fn == "var"}

    def fitting(mean: re.Match[str]) -> str:
        fn, over = read.get(mean[2], ("", []))
        other = found_by.get(tuple(over)) if fn == "mean" else None
        return f"{mean[1]}m{other[1:] if other else mean[3]};"

    return _MEAN.sub(fitting, reply)


def fit_turns(reply: str, prompt: str) -> str:
    """`reply` with kernels that turn a weight over all of its rows, windows included."""
    axes = axes_of(prompt)
    for kernel in _kernels(reply)[1:]:
        name, turn = _KERNEL.match(kernel), _TURN.search(kernel)
        rows, *columns = axes.get(turn[3], [""]) if turn else [""]
        if name is None or turn is None or turn[1] != rows or not columns:
            continue
        whole = " * ".join(columns)
        blocks, all_blocks = f"cdiv({turn[2]}, ", f"cdiv({whole}, "
        made = kernel.replace(blocks, all_blocks).replace(f"x < {turn[2]})", f"x < {whole})")
        apart = f"({whole})" if len(columns) > 1 else whole
        reply = reply.replace(kernel, made.replace(f" + y * {turn[4]} + x)", f" + y * {apart} + x)"))
        if launch := _launch_of(name[1], reply):
            reply = reply.replace(launch, launch.replace(blocks, all_blocks))
    return reply


def fit_epilogue_sums(reply: str, prompt: str) -> str:
    """`reply` with epilogues that accumulate what their sums add up, where they hold it but take another."""
    summed = dict(_SUMMED.findall(prompt))

    def of_kernel(kernel: str) -> str:
        def fitting(add: re.Match[str]) -> str:
            value = summed.get(add[2], "")
            held = re.findall(rf"\b(\w+)\[\w+\] = {value};", kernel) if value else []
            return add[0] if not held or add[3] in (value, *held) else f"{add[1]}{held[0]});"

        return _EPILOGUE_SUM.sub(fitting, kernel)

    return "".join(map(of_kernel, _kernels(reply)))


def fit_online(reply: str) -> str:
    """`reply` with sums of exponentials that follow their running maximum: `p4 * expf(a1 - w1)` is no sum."""
    return _ONLINE.sub(r"\g<1>\g<5> = \g<5> * expf(\g<3> - \g<2>) + expf(\g<4> - \g<2>);", reply)


def fit_phases(reply: str, prompt: str) -> str:
    """`reply` with cells of a transposed convolution that lie where its windows meet the fewest positions.

    All numbers follow from window, step and offset: those of a window of 3 do not serve one of 4.
    """
    vectors, sizes = {*_PHASES.findall(reply)}, sizes_of(prompt)
    if len(vectors) != 1:
        return reply
    turned = {out: (image, *rest) for image, out, *rest in _TURNED.findall(prompt)}
    for kernel in _kernels(reply)[1:]:
        name, outs = _KERNEL.match(kernel), _CELL.findall(kernel)
        if name is None or "weights[" not in kernel or not outs or not {*outs} <= turned.keys():
            continue
        counts, made, positions = [1] * len(outs), kernel, ""
        counts[max(len(outs) - 2, 0)] = max(int(min(vectors)), 1)  # a reply may say anything
        launch = called = _launch_of(name[1], reply)
        for out, count in zip(outs, counts, strict=True):
            image, window, offset, step = turned[out]
            cell = shifted(Cells(sizes.get(f"k{window}", 0), max(int(step or 1), 1), int(offset or 0), count))
            for pattern, right in _cell_lines(cell, out, image, window):
                made, called = re.sub(pattern, right, made), re.sub(pattern, right, called)
            positions += f"[{cell.positions}]"
        every = rf"(?:\[\d+\]){{{len(outs)}}}"
        made = re.sub(rf"(\bimage(?:\[\d+\])??){every}(?= = \{{\}};)", rf"\g<1>{positions}", made)
        reply = reply.replace(kernel, made)
        if launch:
            reply = reply.replace(launch, called)
    return reply


@dataclass(frozen=True, slots=True)
class Cells:
    """Results along one axis, and the positions of an image that they read, at (out - window + offset) / step.

    A cell is `step` results, made of the same few positions.
    """

    taps: int  # of the window
    step: int
    offset: int
    count: int  # cells of a thread
    shift: int = 0  # how much before a multiple of the step they begin

    @property
    def near(self) -> int:
        """The offset of a cell's first result."""
        return self.offset - self.shift

    @property
    def results(self) -> int:
        return self.count * self.step

    @property
    def lowest(self) -> int:
        """The first position that the first cell reads."""
        return -((self.taps - 1 - self.near) // self.step)

    @property
    def positions(self) -> int:
        return (self.results - 1 + self.near) // self.step - self.lowest + 1


AnyCells = TypeVar("AnyCells", bound=Cells)


def shifted(cells: AnyCells) -> AnyCells:
    """A single cell where it meets the fewest positions; a register tile of several gains too little by moving."""
    moved = replace(cells, shift=cells.offset % cells.step)
    return moved if cells.count == 1 and moved.positions < cells.positions else cells


def _cell_lines(cell: Cells, out: str, image: str, window: str) -> list[tuple[str, str]]:
    """What stands in the code along one axis, whatever its numbers, and what should."""
    i, q, y, p, w = f"i{out}", f"q{out}", f"y{image}", f"p{out}", f"w{window}"
    far, back, results = cell.near - cell.step * cell.lowest, -cell.near % cell.step, cell.results
    found = [
        (rf"(for \(int {y} = 0; {y} < )\d+(?=; {y}\+\+)", rf"\g<1>{cell.positions}"),
        (rf"(const int i{image} = {q} \+ {y})(?: [+-] \d+)?;", rf"\g<1>{signed(cell.lowest)};"),
    ]
    if cell.step == 1:
        return [*found, (rf"const int {y} = \d+ - {w};", f"const int {y} = {far} - {w};")]
    reached = f"d{out} + {cell.shift}" if cell.shift else f"d{out}"
    phase = f"({w} + {back})" if back else w
    below = f"{i} < 0 || " if cell.shift else ""
    return [
        *found,
        (rf"cdiv\(d{out}(?: \+ \d+)?, \d+\)", f"cdiv({reached}, {results})"),
        (rf"const int {p} = [^;]+;", f"const int {p} = {phase} % {cell.step};"),
        (rf"const int {y} = \({p} [^;]+;", f"const int {y} = ({p} + {far} - {w}) / {cell.step};"),
        (
            rf"(const int {i} = {q} \* {cell.step} \+ s[^;%]*% {results})(?: [+-] \d+)?;",
            rf"\g<1>{signed(-cell.shift)};",
        ),
        (rf"(?:{i} < 0 \|\| )?{i} >= d{out}\b", f"{below}{i} >= d{out}"),
    ]


def signed(by: int) -> str:
    """` - 1`; nothing for 0."""
    return f" {'-' if by < 0 else '+'} {abs(by)}" if by else ""


def _kernels(reply: str) -> list[str]:
    """What comes before the first one, then each with what follows it."""
    return re.split(r"(?=^__global__)", reply, flags=re.M)


def _launch_of(kernel: str, reply: str) -> str:
    """The line that states it; empty where none does."""
    found = re.search(rf"^// launch: {kernel}<<<.*$", reply, flags=re.M)
    return found[0] if found else ""


def copy_width(widest: int, item: int, runs: Sequence[int]) -> int:
    """Elements (of `item` bytes) in a copy: at most `widest`, dividing all runs; of 4 bytes at least, else one."""
    while widest > 1 and any(run % widest for run in runs):
        widest //= 2
    return widest if widest * item >= 4 else 1
