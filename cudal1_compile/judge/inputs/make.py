"""Inputs for a program: secret seeds, several value distributions, always inside each input's domain.

    (program, distribution, seed) -> one tensor an input, dims in memory order, strides as declared

The distributions are chosen for what they uncover: `offset` an identity taken for a norm, `blocks` work left
out, `edges` a path chosen by values (both sides of every literal of the program), `coherent` a rounding of
inputs that averages out in wide sums, `uniform_rows` a rounding of intermediates that does, `near_rows` what
cancels where rows hardly vary (a mean of squares less the square of the mean), those of extremes.py what holds
for ordinary values only, `coincident` what holds where no values tie, `mixed` all of it at once where there is
room for few cases. What a distribution must satisfy beyond its domain (finite references, a task that can be told
from a stand-in) is checked elsewhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from cudal1_compile.judge.inputs.extremes import (
    EXTREMES,
    MAGNITUDES,
    NONFINITE,
    SCALARS,
    denormal,
    divides,
    nan_of_all_kinds,
)
from cudal1_compile.judge.inputs.floats import MIXED, NEAR, coherent_mantissa, float_values
from cudal1_compile.judge.inputs.integers import booleans, integer_bounds, integers
from cudal1_compile.judge.inputs.lines import base_of, first_line
from cudal1_compile.judge.inputs.literal_targeted import on_numbers
from cudal1_compile.judge.inputs.names import TIED_VALUES
from cudal1_compile.judge.inputs.tied_values import at_rest, together
from cudal1_compile.judge.sandbox.device_lock import give_way
from cudal1_fx_passes.program.evaluate import TORCH_DTYPE
from cudal1_fx_passes.program.ir import ANY, FLOAT_DTYPES, INT_DTYPES, Domain, Input, Program, Ref

DISTRIBUTIONS = (
    *("normal", "offset", "scaled", "heavy", "blocks", "integers"),
    *("edges", "coherent", "uniform_rows", "near_rows", *EXTREMES, TIED_VALUES),
)
ALONG_ROWS = ("uniform_rows", "near_rows")  # like "normal" where nothing is reduced
# for regions so large that a dozen full runs cost too much; the first and the third are of the example's sizes
FULL_SIZE = ("coherent", MAGNITUDES, MIXED, TIED_VALUES)
HUGE = ("coherent", MIXED)  # for regions so large that memory is short
OPEN_MARGIN = 1e-3  # from an open bound of a domain; float16 can hold it
TINIEST = {"f16": 6.2e-5}  # normal numbers; of other formats far smaller ones


def make_inputs(
    program: Program,
    distribution: str,
    seed: int,
    device: torch.device,
    sizes: Mapping[str, int] | None = None,
    numbers: Sequence[float] = (),
    turn: int = 0,
) -> list[Tensor]:
    """One tensor an input. The same arguments give the same bits on the same kind of device.

    numbers: of literal_targeted.by_distribution, absolute values; turn: which of its cases.
    """
    extent = {a.name: a.size for a in program.axes} | dict(sizes or {})
    base = base_of(distribution)
    made = []
    with first_line(distribution):
        for item in program.inputs:
            give_way()
            # half of the scaled values are those of "normal": a result kept for its first value is then wrong
            words = "normal" if distribution == "scaled" else distribution
            generator = torch.Generator(device).manual_seed(derive_seed(seed, words, item.name))
            shape = [extent[a] for a in item.axes]
            dense = _values(program, item, shape, extent, base, generator)
            if numbers and item.dtype != "bool":
                dense = _at_numbers(program, item, dense, extent, numbers, turn)
            made.append(with_strides(dense, item.strides))
    if base == "near_rows":
        return _near_each_other(program, made, seed)
    if base != TIED_VALUES:
        return made
    return [_clone(x) for x in as_one(program, made, sizes or {})]


def without_zero_divisors(program: Program, inputs: Sequence[Tensor]) -> list[Tensor] | None:
    """The same with ones for zeros in inputs that are divided by; None where there are none."""
    divisors = {op.operands[-1] for op in program.ops if op.fn in ("div", "reciprocal")}
    names = {x.name for x in divisors if isinstance(x, Ref)}
    for op in reversed(program.ops):
        if op.name in names and op.fn in ("cast", "neg", "abs", "mul"):
            names |= {x.name for x in op.operands if isinstance(x, Ref)}
    found = list(inputs)
    changed = False
    for n, item in enumerate(program.inputs):
        if item.name in names and item.domain == ANY and item.dtype in FLOAT_DTYPES:
            changed = changed or bool((inputs[n] == 0).any())
            found[n] = with_strides(inputs[n].masked_fill(inputs[n] == 0, 1.0), item.strides)
    return found if changed else None


def _near_each_other(program: Program, inputs: Sequence[Tensor], seed: int) -> list[Tensor]:
    """Of two inputs whose difference is taken the smaller one lies next to the other.

    So do predictions and labels, or values and their mean: what a square or a product of the two loses then is
    more than what is left.
    """
    found = list(inputs)
    free = (n for n, item in enumerate(program.inputs) if item.domain == ANY and item.dtype in FLOAT_DTYPES)
    numbers = {program.inputs[n].name: n for n in free}
    for op in program.ops:
        names = [x.name for x in op.operands if isinstance(x, Ref) and not x.access]
        if op.fn == "cast" and names and names[0] in numbers:
            numbers[op.name] = numbers[names[0]]
        if op.fn != "sub" or len(names) < 2 or not all(name in numbers for name in names):
            continue
        first, second = sorted((numbers[name] for name in names), key=lambda n: -inputs[n].numel())
        larger, smaller = program.inputs[first], program.inputs[second]
        if first == second or larger.dtype != smaller.dtype or not set(smaller.axes) <= set(larger.axes):
            continue
        base = found[first][tuple(slice(None) if a in smaller.axes else 0 for a in larger.axes)]
        order = [a for a in larger.axes if a in smaller.axes]
        base = base.permute([order.index(a) for a in smaller.axes])
        generator = torch.Generator(base.device).manual_seed(derive_seed(seed, "near", smaller.name))
        noise = torch.randn(base.shape, generator=generator, device=base.device, dtype=torch.float64)
        found[second] = with_strides((base * (1.0 + NEAR * noise)).to(base.dtype), smaller.strides)
    return found


def as_one(program: Program, inputs: Sequence[Tensor], sizes: Mapping[str, int]) -> list[Tensor]:
    """Views in which inputs of the same kind begin where the longest of them does."""
    extent = {a.name: a.size for a in program.axes} | dict(sizes)
    owners: dict[object, Tensor] = {}
    kinds = []
    for item in program.inputs:
        bounds = integer_bounds(program, item, extent) if item.dtype in INT_DTYPES else None
        kinds.append((item.dtype, item.domain, bounds))
    for kind, x in sorted(zip(kinds, inputs, strict=True), key=lambda pair: -_span(pair[1])):
        owners.setdefault(kind, x)
    return [
        owners[kind].as_strided(x.shape, x.stride(), owners[kind].storage_offset())
        for kind, x in zip(kinds, inputs, strict=True)
    ]


def _span(x: Tensor) -> int:
    """Elements from the first to the last."""
    return 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)) if x.numel() else 0


def _clone(x: Tensor) -> Tensor:
    """In memory of its own, gaps included."""
    flat = x.as_strided([_span(x)], [1], x.storage_offset()).clone()
    return flat.as_strided(x.shape, x.stride())


def derive_seed(seed: int, *words: str) -> int:
    """A seed for one use of a secret seed."""
    digest = hashlib.sha256(":".join((str(seed), *words)).encode()).digest()
    return int.from_bytes(digest[:7], "big")


def with_strides(dense: Tensor, strides: Sequence[int] | None) -> Tensor:
    if strides is None or dense.numel() == 0:
        return dense.contiguous()
    shape = dense.shape
    length = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    # gaps hold other values of the same kind, so that a kernel that reads them gets a wrong result
    flat = dense.flatten()
    storage = flat.flip(0).repeat(-(-length // flat.numel()))[:length].clone()
    for dim in (d for d, step in enumerate(strides) if step == 0):
        dense = dense.narrow(dim, 0, 1)  # expanded: one value along it
    storage.as_strided(dense.shape, strides).copy_(dense)
    return storage.as_strided(shape, strides)


def _values(
    program: Program,
    item: Input,
    shape: list[int],
    extent: Mapping[str, int],
    distribution: str,
    generator: torch.Generator,
) -> Tensor:
    dtype = TORCH_DTYPE[item.dtype]
    if item.dtype == "bool":
        return booleans(program, item, shape, distribution, generator)
    if item.dtype not in FLOAT_DTYPES:
        return integers(program, item, shape, extent, distribution, generator).to(dtype)
    least = _least(program, item, distribution)
    whole = float_values(program, item, shape, distribution, generator)
    x = _into_domain(whole, item.domain, distribution, least)
    if distribution == "coherent":
        x = _clip(coherent_mantissa(x), item.domain)
    x = _clip(x.to(dtype), item.domain, least)
    if distribution == NONFINITE and item.domain.lo_open:  # what only a logarithm asks for may be 0 all the same
        every_second = torch.arange(x.numel(), device=x.device).reshape(x.shape) % 2 == 0
        x = x.masked_fill(every_second & ((whole == 0.0) | (whole == -torch.inf)), 0.0)
    return nan_of_all_kinds(x) if distribution in (NONFINITE, SCALARS, MIXED) else x


def _least(program: Program, item: Input, distribution: str) -> float:
    """How near to an open bound values may come."""
    if item.domain.lo == 0 and distribution == MAGNITUDES:
        return TINIEST.get(item.dtype, 1e-30)
    if item.domain.lo == 0 and distribution == NONFINITE and not divides(program):
        return denormal(item)
    return OPEN_MARGIN


def _at_numbers(
    program: Program, item: Input, x: Tensor, extent: Mapping[str, int], numbers: Sequence[float], turn: int
) -> Tensor:
    """`x` with values at the numbers, as far as its domain has them; of integers that are no indices at all."""
    found = on_numbers(program, item, x, numbers, turn)
    if item.dtype in FLOAT_DTYPES:
        if turn == 0:
            found = together(program, item, at_rest(program, item, found), numbers)
        found = _clip(found, item.domain)
    else:
        bounds, limits = integer_bounds(program, item, extent), torch.iinfo(x.dtype)
        found = found.clamp(
            limits.min if bounds.lo_open else bounds.lo, limits.max if bounds.hi_open else bounds.hi
        )
    return found.to(x.dtype)


def _into_domain(x: Tensor, domain: Domain, distribution: str, least: float) -> Tensor:
    if domain == ANY or domain.below is not None:
        return x
    lo, hi = domain.lo, domain.hi
    if distribution in ("edges", "integers"):
        return _clip(x, domain)
    if lo is not None and hi is not None:
        return lo + (hi - lo) * torch.sigmoid(x if distribution != "offset" else x - 5.0)
    if lo is not None:
        return lo + (x.abs() + least if domain.lo_open and distribution != MAGNITUDES else x.abs())
    assert hi is not None
    return hi - x.abs()


def _clip(x: Tensor, domain: Domain, margin: float = OPEN_MARGIN) -> Tensor:
    """Clips into the closed domain; an open lower bound is left by a margin, relative where it is over 1."""
    lo, hi = domain.lo, domain.hi
    if lo is None and hi is None:
        return x
    if lo is not None and domain.lo_open:
        lo += max(abs(lo), 1.0) * margin
    return x.clamp(lo, hi)
