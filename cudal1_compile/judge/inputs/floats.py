"""Values of float inputs before their domain is applied; make.py tells what each distribution uncovers."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cudal1_compile.judge.inputs.extremes import (
    INFINITE,
    MAGNITUDES,
    NONFINITE,
    SCALARS,
    ZEROS,
    all_infinite,
    at_one_place,
    finite_inputs,
    is_beside_rows,
    is_free_scalar,
    only_maxima_see,
    reaches_integers,
    takes_variance,
    total,
    whole_dtype,
    with_magnitudes,
    with_nonfinite,
)
from cudal1_compile.judge.inputs.lines import FIRST_LINE, coordinate, lines, one_a_line, place_along, reduced_dims
from cudal1_compile.judge.inputs.names import TIED_VALUES
from cudal1_compile.judge.inputs.tied_values import at_rest, rests, with_ties
from cudal1_compile.judge.inputs.wide_integers import with_wide_integers
from cudal1_compile.judge.oracle.error_budget import LARGEST, UNIT
from cudal1_compile.judge.oracle.exact_values import behind
from cudal1_compile.judge.sandbox.device_lock import give_way
from cudal1_fx_passes.program.ir import ANY, Input, Literal, Op, Program, Ref
from cudal1_fx_passes.program.ops import OPS, Kind

MIXED = "mixed"
NEAR = 1e-4  # relative deviation within a row of `near_rows`
SMALL = 3e-3  # deviation of its rows about zero: a variance of about 1e-5
FAR = 150.0  # below zero
APART = 2.0 * FAR
HIGH = 1000.0  # times a normal number: where all of a row lies
_ORDINARY = ("normal", "offset", "scaled", "heavy", "blocks", "integers", "edges", "uniform_rows", "near_rows")
# times the last of them: far from all others where these are of one sign, and nearest to zero where they are not
_AT_END = {"offset": 8.0, "coherent": 8.0, "scaled": 0.05}
_RUN = 64  # elements
_LARGE = 1 << 24  # elements; only regions that get few distributions have such tensors
_SLAB = 1 << 24  # elements
_WHOLE = {"i64": 2.0**61, "i32": 2.0**29}  # of floats that become such integers
_LARGEST = {"f16": 100.0, "bf16": 1e4, "f32": 1e4, "f64": 1e4}


def float_values(
    program: Program, item: Input, shape: list[int], distribution: str, generator: torch.Generator
) -> Tensor:
    """In float64, over the whole line. Large tensors are made slab by slab: that takes many times their size."""
    if shape and shape[0] > 1 and math.prod(shape) > _LARGE:
        found = torch.empty(shape, dtype=torch.float64, device=generator.device)
        for slab in torch.split(found, max(1, _SLAB // math.prod(shape[1:]))):
            give_way()
            slab.copy_(_values(program, item, list(slab.shape), distribution, generator))
    else:
        found = _values(program, item, shape, distribution, generator)
    return _with_extreme_at_end(program, item, found, distribution)


def _values(
    program: Program, item: Input, shape: list[int], distribution: str, generator: torch.Generator
) -> Tensor:
    if distribution == MIXED:
        return _mixed(program, item, shape, generator)
    x = _ordinary(program, item, shape, distribution, generator)
    if distribution == "heavy" and _takes_maximum(program):
        x = _far_above(program, item, x)
    if distribution == "scaled" and takes_variance(program):
        x = _first_apart(program, item, x)
    if distribution == "uniform_rows":
        x = _along_reductions(program, item, x, generator)
    if distribution == "near_rows":
        x = _near_rows(program, item, x)
    if distribution == "coherent" and _takes_maximum(program):
        x = _of_both_signs(program, item, x)
    if distribution == MAGNITUDES:
        x = with_magnitudes(program, item, x, generator)
    if distribution == TIED_VALUES:
        x = with_ties(program, item, x)
    limit = _largest(program, item) if distribution == MAGNITUDES else _LARGEST[item.dtype]
    x = x.clamp(-limit, limit)
    if distribution == MAGNITUDES and item.domain == ANY and only_maxima_see(program, item):
        least = -LARGEST[item.dtype] * (1.0 - 2.0 * UNIT[item.dtype])
        x = torch.where(lines(program, item, x) % 11 == 10, least, x)  # as masks make them
    if distribution == "integers":
        x = with_wide_integers(program, item, x, generator)
    if item.name in finite_inputs(program):
        return x
    if distribution == NONFINITE:
        x = with_nonfinite(program, item, x, generator)
    if distribution == SCALARS:
        x = torch.full_like(x, torch.nan) if is_free_scalar(item) else x
        x = at_one_place(item, x, torch.nan, 2) if is_beside_rows(program, item) else x
    if distribution == ZEROS:
        x = torch.zeros_like(x) if is_free_scalar(item) else x
        x = at_one_place(item, x, -torch.inf, 1) if is_beside_rows(program, item) else x
    if distribution == INFINITE and item == total(program):
        x = all_infinite(program, x)
    elif distribution == INFINITE and is_free_scalar(item) and total(program) is None:
        x = torch.full_like(x, torch.inf)
    return x


def _largest(program: Program, item: Input) -> float:
    """Of `magnitudes`: a sine of millions, or a cast of them to i8, is not the same twice."""
    if any(op.fn in ("sin", "cos") for op in program.ops):
        return 100.0
    if not reaches_integers(program):
        return math.inf
    return _WHOLE.get(whole_dtype(program) or "", _LARGEST[item.dtype])


def _mixed(program: Program, item: Input, shape: list[int], generator: torch.Generator) -> Tensor:
    """Each line of another distribution, alike in all inputs; each row, or run, where nothing is reduced.

    Each is drawn for its own lines alone: for all of them it would take as many times as long as there are kinds.
    """
    kinds: tuple[str, ...] = (*_ORDINARY, MAGNITUDES, TIED_VALUES, NONFINITE)
    dims, numel = range(len(shape)), math.prod(shape)
    along = [d for d in reduced_dims(program, item) if shape[d] > 1]
    if not along and math.prod(shape[:-1]) >= len(kinds):
        along = [len(shape) - 1]
    across = [d for d in dims if d not in along]
    count = math.prod(shape[d] for d in across)
    some, order = [shape[d] if d in along else 1 for d in dims], [*across, *along]
    if count in (1, numel):
        kinds = kinds[:-1] if count == 1 else kinds  # a NaN would be all that is seen of one line
        last, order = along[-1] if along else len(shape) - 1, [*dims]
        some = [max(1, min(_RUN, numel)) if d == last else 1 for d in dims]
    width = math.prod(some)
    rows = torch.empty([-(-numel // width), width], dtype=torch.float64, device=generator.device)
    for i, kind in enumerate(kinds):
        mine = rows[(i - FIRST_LINE.get()) % len(kinds) :: len(kinds)]
        if len(mine):
            give_way()
            drawn = [n * len(mine) if d == order[0] else n for d, n in enumerate(some)]
            x = float_values(program, item, drawn, kind, generator)
            mine.copy_(x.permute(order).reshape(mine.shape))
    found = rows.flatten()[:numel].reshape([shape[d] for d in order])
    return found.permute([order.index(d) for d in dims])


def _ordinary(
    program: Program, item: Input, shape: list[int], distribution: str, generator: torch.Generator
) -> Tensor:
    device = generator.device
    x = torch.randn(shape, generator=generator, device=device, dtype=torch.float64)
    match distribution:
        case "offset":
            return x + 5.0
        case "scaled":
            return torch.where(torch.rand(shape, generator=generator, device=device) < 0.5, x * 10.0, x)
        case "small":
            return x * 0.1
        case "heavy":
            spread = torch.rand(shape, generator=generator, device=device, dtype=torch.float64)
            return x / spread.clamp_min(1e-4)  # about one value in a hundred is over 88, where exp overflows
        case "blocks":
            return torch.where(block_mask(shape, generator), x * 2.0, torch.zeros_like(x))
        case "integers":
            found = torch.randint(-4, 5, shape, generator=generator, device=device).double()
            # a zero that is left out of a sum is not missed
            return found.masked_fill_((found == 0) & (lines(program, item, x) % 2 == 0), 3.0)
        case "edges":
            return at_rest(program, item, _edges(program, item, x, generator))
        case "coherent":
            return x.abs() + 0.5
        case _:
            return x


def block_mask(shape: list[int], generator: torch.Generator) -> Tensor:
    """True on one contiguous block of each row and on some single elements; the rest of the tensor is constant."""
    device = generator.device
    sparse = torch.rand(shape, generator=generator, device=device) < 0.02
    if not shape:
        return torch.ones_like(sparse)
    width = shape[-1]
    start = torch.randint(0, width, [*shape[:-1], 1], generator=generator, device=device)
    place = torch.arange(width, device=device)
    return sparse | ((place >= start) & (place < start + max(1, width // 8)))


def _edges(program: Program, item: Input, x: Tensor, generator: torch.Generator) -> Tensor:
    """Values at, next to and around every literal, zero and one included; the rest normal, and sixteenths.

    In every second line one such value stands alone, so that it alone decides an any(), an all() or a maximum.
    """
    own = {float(o.value) for op in program.ops for o in op.operands if isinstance(o, Literal)}
    own = {v for v in own if abs(v) < 1e6}
    ends = [*sorted(own), *sorted({0.0, 1.0, -1.0, 0.5} - own)]
    centre = torch.tensor(ends, device=x.device, dtype=torch.float64)
    shape = list(x.shape)

    def draw(count: int) -> Tensor:
        return torch.randint(0, count, shape, generator=generator, device=x.device)

    pick = draw(len(centre))
    step = torch.tensor([0, 0, 0, 0, 1e-3, -1e-3, 0.1, -0.1, 1, -1], device=x.device, dtype=torch.float64)
    move = draw(len(step))
    ulp = (2.0 * UNIT[item.dtype] * centre.abs())[pick].clamp_min(1e-30)
    # below a power of two numbers lie twice as close: `x + 0.5` rounds the one below 0.5 to 1
    closer = [0.5 if abs(math.frexp(end)[0]) == 0.5 else 1.0 for end in ends]
    inner = torch.tensor(closer, device=x.device, dtype=torch.float64)[pick] * ulp
    above, below = (torch.where(side, inner, ulp) for side in (centre[pick] < 0, centre[pick] > 0))
    next_to = torch.where(move == 2, above, 0.0) - torch.where(move == 3, below, 0.0)
    near = centre[pick] + next_to + step[move] * (1.0 + 0.5 * x.abs().clamp_max(1.0))
    kind = draw(6)
    found = torch.where(kind == 0, (x * 16.0).round() / 16.0, torch.where(kind == 1, x, near))
    exact = rests(x) | rests(x, 3)  # each in turn, however few elements there are
    turn = (exact.flatten().cumsum(0).reshape(shape) - 1) // 2
    found = torch.where(exact, centre[turn % len(centre)], found)
    line = lines(program, item, x)
    if not 1 < line.numel() < x.numel():
        return found
    alone = _decisive_lines(item, x, line // 2, centre, one_a_line(program, item, x, generator))
    return torch.where(line % 2 == 1, alone, found)


def _decisive_lines(item: Input, x: Tensor, turn: Tensor, centre: Tensor, place: Tensor) -> Tensor:
    """At `place` a value on a literal, then next to it; the others are small, all below it or all above it."""
    at = centre[turn % len(centre)]
    side = turn // len(centre) % 3
    beside = (turn // len(centre) // 3 + 1) % 3 - 1
    decisive = at + beside * (2.0 * UNIT[item.dtype] * at.abs()).clamp_min(1e-30)
    others = torch.where(side == 0, at - x.abs(), torch.where(side == 1, 0.01 * x, at + x.abs()))
    return torch.where(place, decisive, others)


def _along_reductions(program: Program, item: Input, x: Tensor, generator: torch.Generator) -> Tensor:
    """One value along all reduced axes, or two values in every second row: roundings do not average out.

    Equal terms uncover rounded terms of a sum, and sums of squares whose mean is taken away afterwards; two
    values uncover rounded deviations from a mean.
    """
    dims = reduced_dims(program, item)
    if not dims:
        return x
    rows = torch.zeros([1] * x.dim(), dtype=torch.int64, device=x.device)
    second = torch.rand(x.shape, generator=generator, device=x.device) < 0.5
    for d, size in enumerate(x.shape):
        if d not in dims:
            steps = torch.arange(size, device=x.device)
            rows = rows + steps.reshape([size if i == d else 1 for i in range(x.dim())])
    x = _first_along_reductions(program, item, x)
    return torch.where(second & (rows % 2 == 1), 0.4 * x, x)


def _near_rows(program: Program, item: Input, x: Tensor) -> Tensor:
    """Rows that hardly vary, in turn about a value, a large one and zero, where a norm's epsilon decides.

    Where a maximum is taken, to which exponents may be relative, the large value is far larger and every fourth
    row is far below zero, in turns all of it, less its first element, less its last one: a maximum that starts at
    zero, or leaves out an end, is not its own.
    """
    base = _first_along_reductions(program, item, x)
    near = base * (1.0 + NEAR * x)
    kinds = [near, 30.0 * near, SMALL * x]
    line = lines(program, item, x)
    turn = line % len(kinds)
    if _takes_maximum(program):
        kinds[1] = HIGH * near
        kinds.append(torch.where(_at_end(program, item, x, line // 4 % 3), x, x - FAR))
        turn = (line + max(0, len(kinds) - line.numel())) % len(kinds)  # of few rows one is such
    for i, kind in enumerate(kinds[1:], 1):
        near = torch.where(turn == i, kind, near)
    return near


def _takes_maximum(program: Program) -> bool:
    return any(op.fn in ("amax", "logsumexp") for op in program.ops)


def _of_both_signs(program: Program, item: Input, x: Tensor) -> Tensor:
    """A factor of a sum of products is below zero in every second row, and with it all of the row's sums.

    Of many sums of random sign hardly all are below zero, so that a maximum over them that starts there is seen.
    """
    for op in program.ops:
        for factor in op.operands if OPS[op.fn].kind is Kind.DOT else ():
            if not isinstance(factor, Ref) or factor.name != item.name:
                continue
            plain = set(op.axes) - program.reduced_axes - {axis for axis, _ in factor.access}
            for d, axis in enumerate(item.axes):
                if axis in plain and x.shape[d] > 1:
                    row = torch.arange(x.shape[d], device=x.device).reshape([-1] + [1] * (x.dim() - d - 1))
                    return torch.where(row % 2 == 1, -x, x)
    return x


def _far_above(program: Program, item: Input, x: Tensor) -> Tensor:
    """With a first or a last element, in two lines of three, far above all others."""
    end = _at_end(program, item, x, (lines(program, item, x) + 1) % 3)
    return torch.where(end, 8.0 * FAR + x.abs(), x)


def _with_extreme_at_end(program: Program, item: Input, x: Tensor, distribution: str) -> Tensor:
    """With what makes the last one of many sums the largest, or the smallest.

    Of a thousand sums the last one hardly ever is, so that a search that leaves out the last tile looks right.
    """
    factor = _AT_END.get(distribution)
    op = _search_of_sums(program)
    if factor is None or op is None:
        return x
    if factor > 1.0 and op.fn in ("argmin", "amin"):
        factor = -factor
    for d in (d for d, axis in enumerate(item.axes) if axis in op.over):
        x = torch.where(coordinate(x, d) == x.shape[d] - 1, factor * x, x)
    return x


def _search_of_sums(program: Program) -> Op | None:
    """The first operation that looks for one of several sums over other axes.

    But for a maximum that exponents are relative to: what is left out of that one is not missed.
    """
    made = {op.fn for op in program.ops}
    searches = {"argmax", "argmin"} if made & {"exp", "logsumexp"} else {"argmax", "argmin", "amax", "amin"}
    for op in program.ops:
        if op.fn in searches and not any(x.access for x in op.operands if isinstance(x, Ref)):
            sums = (program.op[name].over for name in behind(program, [op]) if name in program.op)
            if any(over and not set(over) & set(op.over) for over in sums):
                return op
    return None


def _first_apart(program: Program, item: Input, x: Tensor) -> Tensor:
    """With a first element, in every second line, far from all others: no number to take deviations from.

    Not as far as its square hides theirs from a thread that adds them all up.
    """
    first = _at_end(program, item, x, lines(program, item, x) % 2)
    return torch.where(first, APART + x.abs(), x)


def _at_end(program: Program, item: Input, x: Tensor, which: Tensor) -> Tensor:
    """True at the first element of lines of which this is 1, at the last one where it is 2."""
    if not reduced_dims(program, item):
        return torch.zeros_like(x, dtype=torch.bool)
    along = place_along(program, item, x)
    return ((which == 1) & (along == along.min())) | ((which == 2) & (along == along.max()))


def _first_along_reductions(program: Program, item: Input, x: Tensor) -> Tensor:
    """The first element along every reduced axis, which stays as an axis of size one."""
    for d in reduced_dims(program, item):
        x = x.narrow(d, 0, 1)
    return x


def coherent_mantissa(x: Tensor) -> Tensor:
    """Positive values whose rounding to bf16, f16 or TF32 always goes down, by a visible part of an ulp.

    Mantissa: seven bits as they were, then 001, then 01, then bits as they were; f32 holds it exactly.
    """
    bits = x.float().view(torch.int32)
    kept = bits & ~0xFFFF
    return (kept | (0b001 << 13) | (0b01 << 11) | (bits & 0x7FF)).view(torch.float32).double()
