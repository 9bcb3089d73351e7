"""Inputs for a program: secret seeds, several value distributions, always inside each input's domain.

    (program, distribution, seed) -> one tensor an input, dims in memory order, strides as declared

The distributions are chosen for what they uncover: `offset` an identity taken for a norm, `blocks` work left
out, `edges` a path chosen by values (both sides of every literal of the program), `coherent` a rounding of
inputs that averages out in wide sums, `uniform_rows` a rounding of intermediates that does, `near_rows` what
cancels where rows hardly vary (a mean of squares less the square of the mean). What a distribution
must satisfy beyond its domain (finite references, a task that can be told from a stand-in) is checked elsewhere.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from cudal1_compile.judge.indices import indexed_axes, markers
from cudal1_fx_passes.evaluate import TORCH_DTYPE
from cudal1_fx_passes.program import ANY, FLOAT_DTYPES, Domain, Input, Literal, Program

DISTRIBUTIONS = (
    *("normal", "offset", "scaled", "heavy", "blocks", "integers"),
    *("edges", "coherent", "uniform_rows", "near_rows"),
)
ALONG_ROWS = ("uniform_rows", "near_rows")  # like "normal" where nothing is reduced
FULL_SIZE = ("normal", "offset", "coherent")  # for regions so large that nine full runs cost too much
HUGE = ("normal", "coherent")  # for regions so large that memory is short
FEW_INTEGERS = ("integers", "offset")  # of which equal ones are often met, whatever the domain
NONFINITE = "nonfinite"  # a last resort, for outputs that are constant over finite inputs
NEAR = 1e-4  # relative deviation within a row of `near_rows`
_LARGEST = {"f16": 100.0, "bf16": 1e4, "f32": 1e4, "f64": 1e4}


def make_inputs(
    program: Program,
    distribution: str,
    seed: int,
    device: torch.device,
    sizes: Mapping[str, int] | None = None,
) -> list[Tensor]:
    """One tensor an input. The same arguments give the same bits on the same kind of device."""
    extent = {a.name: a.size for a in program.axes} | dict(sizes or {})
    made = []
    for item in program.inputs:
        generator = torch.Generator(device).manual_seed(derive_seed(seed, distribution, item.name))
        shape = [extent[a] for a in item.axes]
        dense = _values(program, item, shape, extent, distribution, generator)
        made.append(_with_strides(dense, item.strides))
    return made


def derive_seed(seed: int, *words: str) -> int:
    """A seed for one use of a secret seed."""
    digest = hashlib.sha256(":".join((str(seed), *words)).encode()).digest()
    return int.from_bytes(digest[:7], "big")


def _with_strides(dense: Tensor, strides: Sequence[int] | None) -> Tensor:
    if strides is None or dense.numel() == 0:
        return dense.contiguous()
    length = 1 + sum((n - 1) * s for n, s in zip(dense.shape, strides, strict=True))
    # gaps hold other values of the same kind, so that a kernel that reads them gets a wrong result
    flat = dense.flatten()
    storage = flat.flip(0).repeat(-(-length // flat.numel()))[:length].clone()
    view = storage.as_strided(dense.shape, strides)
    view.copy_(dense)
    return view


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
        return _booleans(shape, distribution, generator)
    if item.dtype not in FLOAT_DTYPES:
        return _integers(program, item, shape, extent, distribution, generator).to(dtype)
    x = _floats(program, shape, distribution, generator)
    if distribution == "uniform_rows":
        x = _along_reductions(program, item, x, generator)
    if distribution == "near_rows":
        x = _first_along_reductions(program, item, x) * (1.0 + NEAR * x)
    limit = _LARGEST[item.dtype]
    x = _into_domain(x.clamp(-limit, limit), item.domain, distribution)
    if distribution == "coherent":
        x = _clip(_coherent_mantissa(x), item.domain)
    if distribution == NONFINITE and item.domain == ANY and shape:
        x = _with_nonfinite_rows(x, generator)
    return _clip(x.to(dtype), item.domain)


def _with_nonfinite_rows(x: Tensor, generator: torch.Generator) -> Tensor:
    """NaN, inf or -inf at one place of about every second row (of a vector: at about every fiftieth place).

    The first row of several and about every eighth are -inf all along, as attention masks have them.
    """
    device = x.device
    if x.dim() == 1:
        place = torch.rand(x.shape, generator=generator, device=device) < 0.02
    else:
        rows = torch.rand([*x.shape[:-1], 1], generator=generator, device=device) < 0.5
        column = torch.randint(0, x.shape[-1], [*x.shape[:-1], 1], generator=generator, device=device)
        place = rows & (torch.arange(x.shape[-1], device=device) == column)
    kinds = torch.tensor([torch.nan, torch.nan, torch.inf, -torch.inf], device=device, dtype=x.dtype)
    pick = torch.randint(0, 4, x.shape, generator=generator, device=device)
    masked = torch.rand([*x.shape[:-1], 1], generator=generator, device=device) < 0.125
    if x.dim() > 1:
        masked.view(-1)[:1] = True
    return torch.where(place, kinds[pick], x).masked_fill(masked, -torch.inf)


def _booleans(shape: list[int], distribution: str, generator: torch.Generator) -> Tensor:
    share = {"blocks": 0.04, "heavy": 0.95, "scaled": 0.75}.get(distribution, 0.5)
    return torch.rand(shape, generator=generator, device=generator.device) < share


def _integers(
    program: Program,
    item: Input,
    shape: list[int],
    extent: Mapping[str, int],
    distribution: str,
    generator: torch.Generator,
) -> Tensor:
    lo, hi = _integer_bounds(program, item, extent)
    if distribution in FEW_INTEGERS:
        lo = max(lo, min(0, hi))
        hi = min(hi, lo + 4)
    x = torch.randint(lo, hi + 1, shape, generator=generator, device=generator.device)
    if distribution in ("edges", "heavy") and (found := markers(program, item.name)) and x.numel():
        marked = torch.rand(shape, generator=generator, device=generator.device) < 0.3
        marked.view(-1)[0] = True
        return torch.where(marked, found[0], x)
    if distribution == "edges":
        ends = torch.tensor([lo, hi], device=generator.device)
        pick = torch.randint(0, 2, shape, generator=generator, device=generator.device)
        return torch.where(torch.rand(shape, generator=generator, device=generator.device) < 0.3, ends[pick], x)
    if distribution == "blocks" and shape:
        first = torch.randint(lo, hi + 1, [1] * len(shape), generator=generator, device=generator.device)
        return torch.where(_block_mask(shape, generator), x, first)
    return x


def _integer_bounds(program: Program, item: Input, extent: Mapping[str, int]) -> tuple[int, int]:
    domain = item.domain
    if domain.below is not None:
        return 0, max(0, extent[domain.below] - 1)
    if domain == ANY and (axes := indexed_axes(program, item.name)):
        return 0, max(0, min(extent[a] for a in axes) - 1)
    lo = 0 if item.dtype == "u8" else -8
    hi = 255 if item.dtype == "u8" else 8
    if domain.lo is not None:
        lo = int(domain.lo) + int(domain.lo_open)
        hi = max(hi, lo + 16)
    if domain.hi is not None:
        hi = int(domain.hi)
        lo = lo if domain.lo is not None else min(lo, hi - 16)
    return lo, hi


def _floats(program: Program, shape: list[int], distribution: str, generator: torch.Generator) -> Tensor:
    """Float64 values over the whole line; the domain comes later."""
    device = generator.device
    x = torch.randn(shape, generator=generator, device=device, dtype=torch.float64)
    match distribution:
        case "offset":
            return x + 5.0
        case "scaled":
            return x * 10.0
        case "small":
            return x * 0.1
        case "heavy":
            spread = torch.rand(shape, generator=generator, device=device, dtype=torch.float64)
            return x / spread.clamp_min(1e-4)  # about one value in a hundred is over 88, where exp overflows
        case "blocks":
            return torch.where(_block_mask(shape, generator), x * 2.0, torch.zeros_like(x))
        case "integers":
            return torch.randint(-4, 5, shape, generator=generator, device=device).double()
        case "edges":
            return _edges(program, x, generator)
        case "coherent":
            return x.abs() + 0.5
        case _:
            return x


def _block_mask(shape: list[int], generator: torch.Generator) -> Tensor:
    """True on one contiguous block of each row and on some single elements; the rest of the tensor is constant."""
    device = generator.device
    sparse = torch.rand(shape, generator=generator, device=device) < 0.02
    if not shape:
        return torch.ones_like(sparse)
    width = shape[-1]
    start = torch.randint(0, width, [*shape[:-1], 1], generator=generator, device=device)
    place = torch.arange(width, device=device)
    return sparse | ((place >= start) & (place < start + max(1, width // 8)))


def _edges(program: Program, x: Tensor, generator: torch.Generator) -> Tensor:
    """Values at, just below and just above every literal, zero and one included; a third stays normal."""
    literals = {0.0, 1.0, -1.0, 0.5}
    for op in program.ops:
        literals |= {float(o.value) for o in op.operands if isinstance(o, Literal) and math.isfinite(o.value)}
    centre = torch.tensor(sorted(v for v in literals if abs(v) < 1e6), device=x.device, dtype=torch.float64)
    shape = list(x.shape)
    pick = torch.randint(0, len(centre), shape, generator=generator, device=x.device)
    step = torch.tensor([0.0, 1e-3, -1e-3, 0.1, -0.1, 1.0, -1.0], device=x.device, dtype=torch.float64)
    move = torch.randint(0, len(step), shape, generator=generator, device=x.device)
    near = centre[pick] + step[move] * (1.0 + 0.5 * x.abs().clamp_max(1.0))
    return torch.where(torch.rand(shape, generator=generator, device=x.device) < 0.67, near, x)


def _along_reductions(program: Program, item: Input, x: Tensor, generator: torch.Generator) -> Tensor:
    """One value along all reduced axes, or two values in every second row: roundings do not average out.

    Equal terms uncover rounded terms of a sum, and sums of squares whose mean is taken away afterwards; two
    values uncover rounded deviations from a mean.
    """
    dims = _reduced_dims(program, item)
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


def _reduced_dims(program: Program, item: Input) -> list[int]:
    reduced = {a for op in program.ops for a in op.over}
    return [d for d, axis in enumerate(item.axes) if axis in reduced]


def _first_along_reductions(program: Program, item: Input, x: Tensor) -> Tensor:
    """The first element along every reduced axis, which stays as an axis of size one."""
    for d in _reduced_dims(program, item):
        x = x.narrow(d, 0, 1)
    return x


def _into_domain(x: Tensor, domain: Domain, distribution: str) -> Tensor:
    if domain == ANY or domain.below is not None:
        return x
    lo, hi = domain.lo, domain.hi
    if distribution in ("edges", "integers"):
        return _clip(x, domain)
    if lo is not None and hi is not None:
        return lo + (hi - lo) * torch.sigmoid(x if distribution != "offset" else x - 5.0)
    if lo is not None:
        return lo + (x.abs() + 1e-3 if domain.lo_open else x.abs())
    assert hi is not None
    return hi - x.abs()


def _clip(x: Tensor, domain: Domain) -> Tensor:
    """Clips into the closed domain; an open lower bound is left by a margin that float16 can hold."""
    lo, hi = domain.lo, domain.hi
    if lo is None and hi is None:
        return x
    if lo is not None and domain.lo_open:
        lo += max(abs(lo), 1.0) * 1e-3
    return x.clamp(lo, hi)


def _coherent_mantissa(x: Tensor) -> Tensor:
    """Positive values whose rounding to bf16, f16 or TF32 always goes down, by a visible part of an ulp.

    Mantissa: seven bits as they were, then 001, then 01, then bits as they were; f32 holds it exactly.
    """
    bits = x.float().view(torch.int32)
    kept = bits & ~0xFFFF
    return (kept | (0b001 << 13) | (0b01 << 11) | (bits & 0x7FF)).view(torch.float32).double()
