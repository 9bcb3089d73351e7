"""Values that callers may pass and that are far from ordinary ones: every magnitude, NaN, infinities, denormals.

    program + input + ordinary values -> the same values, each line at a magnitude of its own, or with a NaN in it

Lines (lines.py) keep one magnitude, so that no sum hides its small terms; most stay finite, so that one NaN does
not spoil every result. A program with few lines meets the kinds of line case by case.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cudal1_compile.judge.inputs.indices import indexing, markers
from cudal1_compile.judge.inputs.lines import (
    FIRST_LINE,
    FROM,
    coordinate,
    from_start,
    lines,
    one_a_line,
    place_along,
    reduced_dims,
)
from cudal1_fx_passes.program.ir import ANY, FLOAT_DTYPES, INT_DTYPES, Input, Program, Ref
from cudal1_fx_passes.program.ops import OPS, Kind

MAGNITUDES = "magnitudes"
NONFINITE = "nonfinite"
SCALARS = "nan scalars"  # beside ordinary tensors
INFINITE = "infinite"  # of what is reduced to a single number, or is one; beside a NaN none would be seen
ZEROS = "zeros"  # single numbers are 0, masks of one line and labels all say no, vectors beside rows hold a -inf
# used as they are, however few of their references are finite
EXTREMES = (MAGNITUDES, NONFINITE, SCALARS, INFINITE, ZEROS)
# powers of two; squares and their sums stay finite in f32
_LEVELS = (-30.0, 14.0, -12.0, 45.0, 6.0, -60.0, -22.0, 24.0, 3.0)
_LEVELS_F16 = (-8.0, 3.0, -6.0, 9.0, -4.0, 1.0, 12.0)
PRODUCTS = ("prod", "cumprod")
_FACTORS = 32  # ordinary numbers whose product is neither
# a sum or two of which nobody would round to another whole number
_EXACT = ("floor", "ceil", "round", "trunc", "neg", "abs", "relu", "maximum", "minimum", "cast", "add", "sub")
_KINDS = 8  # of lines that are not finite
_OF_ONE_SIGN = (3, 21)  # large lines of MAGNITUDES, of either
_SHORT = 8  # operations
_IN_WINDOWS = 8  # elements that are not finite: each spoils all windows that hold it
_DENORMAL = {"f16": 3e-7, "f64": 1e-310}
_DIVIDES = 1e-12  # whatever is divided by it may be squared and summed up
_DIVISIONS = {"div", "reciprocal", "rsqrt", "pow", "remainder", "fmod"}


def further_lines(program: Program) -> list[str]:
    """Of programs with few lines: distributions whose kinds of line these are too few for, from later lines on."""
    inputs = [
        i for i in program.inputs if i.dtype in FLOAT_DTYPES and i.domain == ANY and reduced_dims(program, i)
    ]
    if not inputs or not all(a.size for a in program.axes):
        return []
    most = max(inputs, key=lambda i: program.size(i.axes))
    count = program.size(tuple(a for d, a in enumerate(most.axes) if d not in reduced_dims(program, most)))
    kinds = 2 if takes_variance(program) else _KINDS
    starts = {
        NONFINITE: range(count, kinds, count),
        MAGNITUDES: [k for k in _OF_ONE_SIGN if k >= count and count < 5],
        "near_rows": range(count, 4, count),
        "scaled": range(count, 2),  # every second line has its first element far from the others
    }
    return [f"{name}{FROM}{k}" for name, ks in starts.items() for k in ks]


def with_magnitudes(program: Program, item: Input, x: Tensor, generator: torch.Generator) -> Tensor:
    """Each line times a power of two; a single line gets a small one: other distributions have large values."""
    levels = torch.tensor(_LEVELS_F16 if item.dtype == "f16" else _LEVELS, device=x.device, dtype=torch.float64)
    levels = levels * 2 / max(2, summed_degree(program))
    line = lines(program, item, x)
    spread = torch.rand(line.shape, generator=generator, device=x.device, dtype=torch.float64)
    # a largest or smallest value that starts anywhere but at infinity is not that of such a line
    x = torch.where(line % 5 == 3, -x.abs(), torch.where(line % 5 == 1, x.abs(), x))
    return x * torch.exp2(levels[line % len(levels)] + spread)


def summed_degree(program: Program) -> int:
    """Of the highest product of inputs that is summed up: if it overflows, the order decides what the sum is."""
    degree = {i.name: 1 for i in program.inputs}
    summed = 0
    for op in program.ops:
        found = [degree[x.name] for x in op.operands if isinstance(x, Ref)]
        if op.fn == "mul" or OPS[op.fn].kind is Kind.DOT:
            degree[op.name] = sum(found)
        elif op.fn == "var":
            degree[op.name] = 2 * max(found)
        elif op.fn in PRODUCTS:
            degree[op.name] = program.size(op.over) * max(found)
        else:
            degree[op.name] = 0 if op.fn == "rsqrt" else max(found, default=0)
        if op.over:
            summed = max(summed, degree[op.name])
    return summed


def with_nonfinite(program: Program, item: Input, x: Tensor, generator: torch.Generator) -> Tensor:
    """One NaN, infinity or denormal in some lines; others are zero, or masked by -inf: all, at first or at last.

    Where nothing is reduced: every kind of odd value, also zeros of both signs, denormals and huge ones. Within a
    domain: the values at its ends. What convolutions read in windows: a few NaN and infinities, at corners too.
    """
    if x.dim() == 0:
        return x
    if any(op.fn in PRODUCTS for op in program.ops):  # beside an infinity no part may be 0 in one order alone
        x = x.sign() * x.abs() ** min(1.0, _FACTORS / summed_degree(program))
    line = lines(program, item, x)
    order = torch.randperm(line.numel(), generator=generator, device=x.device)[line - FIRST_LINE.get()]
    order = order + FIRST_LINE.get()
    if item.domain != ANY:
        return _at_ends(program, item, x, order, generator)
    images, weights = products_in_windows(program)
    if item.name in weights:
        x = x.masked_fill(torch.rand(x.shape, generator=generator, device=x.device) < 0.25, 0.0)
        return _inside_windows(program, item, x, order, generator)
    if item.name in images:
        places = torch.randint(x.numel(), [_IN_WINDOWS], generator=generator, device=x.device)
        zero = torch.rand(x.shape, generator=generator, device=x.device) < 0.05  # times an infinite weight: NaN
        flat = x.masked_fill(zero, 0.0).flatten().index_fill(0, places[2::3], -torch.inf)
        flat = flat.index_fill(0, places[::3], torch.nan).index_fill(0, places[1::3], torch.inf)
        flat[:1], flat[-1:] = torch.inf, torch.nan
        return flat.reshape(x.shape)
    if line.numel() == x.numel():
        kinds = _odd_values(program, item, x)
        share = 4 if x.numel() >= 4 * len(kinds) else 2  # of few numbers half
        x = torch.where(order % share == 0, kinds[order // share % len(kinds)], x)
        return x.masked_fill(line < line.numel() // 8, -torch.inf) if _lies_in_windows(program, item) else x
    if is_beside_rows(program, item):  # a zero there is no reason to skip what is not finite in a row
        place = torch.arange(x.numel(), device=x.device).reshape(x.shape)
        return x.masked_fill((place % 8 == 1) | (place == x.numel() - 1), 0.0)
    return _with_nonfinite_lines(program, item, x, order, generator)


def _inside_windows(program: Program, item: Input, x: Tensor, order: Tensor, generator: torch.Generator) -> Tensor:
    """A factor of products in windows with a NaN in one line and an infinity in another, of four or more.

    At places whose partner is never read beyond its ends: a library may multiply others by 0 there, or skip them.
    """
    inside = torch.ones(x.shape, dtype=torch.bool, device=x.device)
    for op in program.ops:
        refs = [r for r in op.operands if isinstance(r, Ref)] if OPS[op.fn].kind is Kind.DOT else []
        for axis, index in (pair for r in refs for pair in r.access):
            if index.value is not None or index.divisor != 1:
                return x
            place = torch.full([1] * x.dim(), index.offset, device=x.device)
            low = high = 0
            for factor, name in index.terms:
                if name in item.axes:
                    place = place + factor * coordinate(x, item.axes.index(name))
                else:
                    span = factor * (program.axis[name].size - 1)
                    low, high = low + min(0, span), high + max(0, span)
            inside = inside & (place + low >= 0) & (place + high < program.axis[axis].size)
    if order.numel() < 4:
        return x
    score = torch.rand(x.shape, generator=generator, device=x.device)
    for kind, value in enumerate((torch.nan, torch.inf)):
        chosen = (order == kind) & inside
        x = x.masked_fill(chosen & (score == torch.where(chosen, score, -1.0).max()), value)
    return x


def _with_nonfinite_lines(
    program: Program, item: Input, x: Tensor, order: Tensor, generator: torch.Generator
) -> Tensor:
    """Kinds of line in turn. A line that another kind marks too would hide it, so few lines take turns by case."""
    few = order.numel() < _KINDS
    kind = order % _KINDS
    place, along = one_a_line(program, item, x, generator), place_along(program, item, x)
    last = along == along.max()
    # a sum that ends at infinity, in whatever thread, misses what makes it NaN
    ended = kind == (0 if few else 4)
    x = x.masked_fill(ended & (along < 0.25), torch.inf).masked_fill(ended & (along >= 0.75), torch.nan)
    x = x.masked_fill(place & (kind == 1 if few else (kind == 0) | (kind == 4)), torch.nan)
    if not few and not divides(program):
        x = x.masked_fill(place & (kind == 7), denormal(item))
    if takes_variance(program):
        return x
    before = from_start(program, item, x, generator)
    masked = ((kind == 3) & before) | ((kind == 5) & ~before)
    masked = masked | (kind == 4 if few else order % 16 == 1)
    x = x.masked_fill(place & (kind == 2), torch.inf).masked_fill(masked, -torch.inf)
    # what is skipped once a product is zero, or for a factor that is: 0 * NaN is NaN
    spoilt = torch.where(order % 16 == 6, torch.nan, torch.where(order % 32 == 14, torch.inf, 0.0))
    x = torch.where(kind == 6, torch.where(last, spoilt, 0.0), x)
    opposed = kind == 7 if few else order % 16 == 10  # infinities of both signs, in one thread too
    return x.masked_fill(opposed & (along < 0.25), torch.inf).masked_fill(opposed & (along >= 0.75), -torch.inf)


def is_beside_rows(program: Program, item: Input) -> bool:
    """Whether an input is a vector that takes part in every row, or in the one row that there is."""
    lone = [i for i in program.inputs if _is_one_line(program, i)]
    if item not in lone or any(item.name in names for names in products_in_windows(program)):
        return False
    return any(_has_lines(program, i) for i in program.inputs) or item != max(
        lone, key=lambda i: program.size(i.axes)
    )


def _is_one_line(program: Program, item: Input) -> bool:
    free = item.dtype in FLOAT_DTYPES and item.domain == ANY and bool(item.axes)
    return free and len(reduced_dims(program, item)) == len(item.axes)


def at_one_place(item: Input, x: Tensor, value: float, third: int) -> Tensor:
    """With `value` at a place that no other input has it at, in another third of the vector for others."""
    place = (x.numel() * third // 3 + 1 + 7 * int(item.name[2:])) % x.numel()
    return x.masked_fill(torch.arange(x.numel(), device=x.device).reshape(x.shape) == place, value)


def total(program: Program) -> Input | None:
    """The first input that is reduced to single numbers as a whole, where torch's infinities are any formula's."""
    if takes_variance(program) or any(_has_lines(program, i) for i in program.inputs):
        return None
    return next((i for i in program.inputs if _is_one_line(program, i)), None)


def all_infinite(program: Program, x: Tensor) -> Tensor:
    """Of the sign that a largest or smallest element does not begin with, where it is not infinite."""
    made = {op.fn for op in program.ops}
    return torch.full_like(x, -torch.inf if "amax" in made and "amin" not in made else torch.inf)


def nan_of_all_kinds(x: Tensor) -> Tensor:
    """NaN in turns as it is, negative as CPUs make it, and with all bits set as GPUs do."""
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.dtype.itemsize]
    bits = x.contiguous().view(integer)
    ones = torch.full([], torch.inf, dtype=x.dtype, device=x.device).view(integer).bitwise_not()
    turn = torch.arange(x.numel(), device=x.device).reshape(x.shape) % 3
    negative, full = bits | torch.iinfo(integer).min, bits | (ones & torch.iinfo(integer).max)
    kinds = torch.where(turn == 1, negative, torch.where(turn == 2, full, bits))
    return torch.where(x.isnan(), kinds, bits).view(x.dtype)


def _at_ends(program: Program, item: Input, x: Tensor, order: Tensor, generator: torch.Generator) -> Tensor:
    """Every fourth line becomes what make.py maps to an end of the domain; others hold a NaN or an infinity.

    What a square, an exponential or a softmax gives is NaN or infinite where it was given that.
    """
    place = one_a_line(program, item, x, generator) if reduced_dims(program, item) else x == x
    x = x.masked_fill(place & (order % 8 == 2), torch.nan)
    if takes_variance(program):
        return x
    closed = None not in (item.domain.lo, item.domain.hi)
    if not closed:
        x = x.masked_fill(place & (order % 8 == 6), torch.inf)
    pick = torch.tensor([-torch.inf, torch.inf] if closed else [0.0], device=x.device, dtype=torch.float64)
    return torch.where(order % 4 == 0, pick[order // 4 % len(pick)], x)


def takes_variance(program: Program) -> bool:
    """Also as the square of a difference. Of infinities every formula for it, and for the mean, has its own."""
    squares = (op.operands for op in program.ops if op.fn == "mul")
    differences = {op.name for op in program.ops if op.fn == "sub"}
    squared = any(isinstance(a, Ref) and a == b and a.name in differences for a, b in squares)
    return squared or any(op.fn == "var" for op in program.ops)


def finite_inputs(program: Program) -> set[str]:
    """Inputs of which an index is computed: a NaN may become any."""
    todo = [value for value, _ in indexing(program)]
    found: set[str] = set()
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += [x.name for x in program.op[name].operands if isinstance(x, Ref)] if name in program.op else []
    return {i.name for i in program.inputs if i.dtype in FLOAT_DTYPES} & found


def products_in_windows(program: Program) -> tuple[set[str], set[str]]:
    """Inputs of products that read at other places: what is read so, and what it is multiplied by.

    The latter stay finite: at a boundary a library may add up its padding, which is 0, times NaN. Some are 0.
    """
    sources: dict[str, set[str]] = {i.name: {i.name} for i in program.inputs}
    images: set[str] = set()
    weights: set[str] = set()
    for op in program.ops:
        refs = [x for x in op.operands if isinstance(x, Ref)]
        sources[op.name] = set().union(*(sources[x.name] for x in refs))
        if OPS[op.fn].kind is Kind.DOT and any(x.access for x in refs):
            for x in refs:
                alone = x.access and not all(y.access for y in refs)
                (images if alone else weights).update(sources[x.name])
    return images - weights, weights


def is_free_scalar(item: Input) -> bool:
    """Whether an input is a single number, whatever it may be."""
    return not item.axes and item.dtype in FLOAT_DTYPES and item.domain == ANY


def has_zeros(program: Program) -> bool:
    """Whether ZEROS is another case than "normal"."""
    masks = [i for i in program.inputs if i.dtype == "bool" and i.axes]
    alone = any(len(reduced_dims(program, i)) == len(i.axes) for i in masks)
    ignored = any(markers(program, i.name) for i in program.inputs if i.dtype in INT_DTYPES)
    return alone or ignored or any(is_free_scalar(i) or is_beside_rows(program, i) for i in program.inputs)


def has_infinite_scalars(program: Program) -> bool:
    """Whether single numbers may be infinite: any formula gives the same for them."""
    own = takes_variance(program) or reaches_integers(program)
    return not own and any(is_free_scalar(i) for i in program.inputs)


def whole_dtype(program: Program) -> str | None:
    """The one integer dtype that floats are cast to, where they reach that with one rounding at most; no index."""
    casts = [op for op in program.ops if op.fn == "cast" and op.dtype in INT_DTYPES]
    todo = [x.name for op in casts for x in op.operands if isinstance(x, Ref)]
    todo = [name for name in todo if program.value_dtype[name] in FLOAT_DTYPES]
    while todo:
        op = program.op.get(todo.pop())
        if op is not None and op.fn not in _EXACT:
            return None
        todo += [x.name for x in op.operands if isinstance(x, Ref)] if op else []
    found = {op.dtype for op in casts}
    return found.pop() if len(found) == 1 and not finite_inputs(program) else None


def only_maxima_see(program: Program, item: Input) -> bool:
    """Whether an input is compared, and what a maximum leaves of it is used, but nothing else of its size."""
    own = {item.name}
    for op in program.ops:
        if own & {x.name for x in op.operands if isinstance(x, Ref)}:
            if op.fn == "cast" and op.dtype in FLOAT_DTYPES:
                own.add(op.name)
            elif op.fn not in ("amax", "logsumexp", "sub"):
                return False
    return any(op.fn in ("amax", "logsumexp") for op in program.ops)


def reaches_integers(program: Program) -> bool:
    """Whether a float input's value is cast to an integer."""
    known = {i.name for i in program.inputs if i.dtype in FLOAT_DTYPES}
    for op in program.ops:
        sources = {x.name for x in op.operands if isinstance(x, Ref)} & known
        if sources:
            known.add(op.name)
        floats = any(program.value_dtype[name] in FLOAT_DTYPES for name in sources)
        if op.fn == "cast" and op.dtype in INT_DTYPES and floats:
            return True
    return False


def denormal(item: Input) -> float:
    """A number that its dtype holds with few digits."""
    return _DENORMAL.get(item.dtype, 1e-39)


def divides(program: Program) -> bool:
    """Whether anything is divided, which a denormal makes infinite."""
    return any(op.fn in _DIVISIONS for op in program.ops)


def _odd_values(program: Program, item: Input, x: Tensor) -> Tensor:
    reduces = any(op.over for op in program.ops)
    tiny = denormal(item)
    # in sums and long formulas it depends on the order of work whether an overflow shows
    if reduces and divides(program) and item.dtype != "f16":
        tiny = _DIVIDES  # a denormal divisor leaves terms of which a few overflow together, or cancel first
    short = len(program.ops) <= _SHORT and not reduces
    huge = 1e30 if short and item.dtype != "f16" else 1e4
    found = [torch.nan, 0.0, torch.inf, -torch.inf, -0.0, tiny, -tiny, huge, -huge, 1 / huge]
    return torch.tensor(found, device=x.device, dtype=torch.float64)


def _has_lines(program: Program, item: Input) -> bool:
    dims = reduced_dims(program, item)
    return item.dtype in FLOAT_DTYPES and item.domain == ANY and 0 < len(dims) < len(item.axes)


def _lies_in_windows(program: Program, item: Input) -> bool:
    reduced = (x for op in program.ops if op.over for x in op.operands if isinstance(x, Ref))
    return any(axis in item.axes for x in reduced for axis, _ in x.access)
