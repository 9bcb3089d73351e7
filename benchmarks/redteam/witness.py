"""Says whether a kernel is right, without the judge: the second implementation against isolated host runs.

    Reference(program, seed)                     inputs, exact results and noise, made once a program
    look(reference, candidate, image)            Right | Wrong | Unclear

What it shows, and what not. The kernel is built for the host target and run in killable child processes over nine
sets of inputs (small integers twice, some multiples of 1/64 among zeros, normal, spread, offset and small values,
values beside the program's literals, NaN and infinities), in all orders of threads and blocks, symbolic axes at
other sizes too. RIGHT: every element that is exact (see second_oracle.py) is equal, every other one lies within
FACTOR times the largest deviation of noisy runs, no canary, input or unwritten element is wrong. WRONG: an exact
element is off by more, a discrete or not finite one that no noise moves differs, or a deviation is over CLEARLY
times what is allowed. Between the two it is UNCLEAR. It knows no races (beyond those that an order of threads
makes visible) and no speed; it says nothing of inputs outside these sets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
import torch
from torch import Tensor

from benchmarks.redteam.second_oracle import MANTISSA, Array, ArrayValue, run
from cudal1_compile.errors import LaunchError
from cudal1_compile.kernel.candidate import Candidate
from cudal1_compile.runtime.hostrun import HostLimits, Order, run_isolated
from cudal1_compile.runtime.launch_plan import buffer_names, span_elements
from cudal1_fx_passes.program.ir import ANY, Domain, Input, Literal, Output, Program, Ref

SETS: tuple[tuple[str, Order], ...] = (
    ("integers", "forward"),
    ("normal", "reverse"),
    ("grains", "random"),
    ("spread", "forward"),
    ("more integers", "reverse"),
    ("offset", "random"),
    ("small", "reverse"),
    ("edges", "forward"),
    ("not finite", "random"),
)
NOISY_RUNS = 12
MORE_NOISE = 60  # further runs where an element is beyond its bound: it must stay there
FACTOR = 4.0
CLEARLY = 3.0
TINY = {"f64": 2.0**-1000, "f32": 2.0**-120, "bf16": 2.0**-120, "f16": 2.0**-23}  # flushed or denormal
OTHER_SIZES = (1, 5, 33)

_TORCH = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "bool": torch.bool,
}


@dataclass(frozen=True, slots=True)
class Right:
    exact: float  # share of the elements that were compared exactly
    outputs: tuple[bytes, ...]  # digests of the results, one a set


@dataclass(frozen=True, slots=True)
class Wrong:
    evidence: str


@dataclass(frozen=True, slots=True)
class Unclear:
    evidence: str


Look = Right | Wrong | Unclear


class WitnessSample:
    """One set of inputs of a program, what comes out of it, and how far rounding may move that."""

    def __init__(self, program: Program, name: str, seed: int, sizes: Mapping[str, int]) -> None:
        self.program = program
        self.name = name
        self.sizes = dict(sizes)
        self.extent = {a.name: a.size for a in program.axes} | self.sizes
        rng = np.random.default_rng(_number(seed, name))
        drawn = {i.name: (i.strides, _draw(program, i, self.extent, name, rng)) for i in program.inputs}
        self.inputs = {n: np.broadcast_to(x[_once(s)], x.shape) if s else x for n, (s, x) in drawn.items()}
        self._rng = np.random.default_rng(_number(seed, name, "noise"))
        self._values = run(program, self.inputs, self.sizes)
        self._spread: dict[str, Array] = {}
        self._widened = False

    def expected(self, out: Output) -> ArrayValue:
        return self._values[out.value]

    def allowed(self, out: Output) -> Array:
        """Absolute tolerance of each element; infinite where nothing is known."""
        dtype = self.program.output_dtype(out)
        if not self._spread:
            self._more(NOISY_RUNS)
        spread = self._spread[out.value]
        if dtype not in MANTISSA:
            return np.where(spread > 0, np.inf, 0.0)
        size = np.nan_to_num(np.abs(self.expected(out).data), posinf=0.0)
        return FACTOR * (spread + size * 2.0 ** -MANTISSA[dtype]) + TINY[dtype]

    def widen(self) -> bool:
        """More noise, once; whether there was any left to add."""
        if self._widened:
            return False
        self._widened = True
        self._more(MORE_NOISE)
        return True

    def _more(self, runs: int) -> None:
        names = {o.value for o in self.program.outputs}
        for _ in range(runs):
            found = run(self.program, self.inputs, self.sizes, self._rng)
            for name in names:
                gap = _gap(found[name].data, self._values[name].data)
                self._spread[name] = np.maximum(gap, self._spread.get(name, np.zeros(())))


@dataclass(frozen=True)
class Reference:
    """A program with its samples, made when they are first asked for."""

    program: Program
    seed: int

    @cached_property
    def samples(self) -> list[WitnessSample]:
        symbolic = [a.name for a in self.program.axes if a.symbolic]
        found = []
        for i, (name, _) in enumerate(SETS):
            other = OTHER_SIZES[i % len(OTHER_SIZES)] if i % 2 else None
            sizes = dict.fromkeys(symbolic, other) if other and not _reads_elsewhere(self.program) else {}
            found.append(WitnessSample(self.program, name, self.seed, sizes))
        return found

    def is_unverifiable(self) -> bool:
        """Whether some output is, in every sample, within its tolerance of what takes no work to write."""
        return any(self._replaceable(out) for out in self.program.outputs)

    def _replaceable(self, out: Output) -> bool:
        """Whether zeros, a constant, an input, or the result of other inputs would always pass for this output."""
        wanted = [s.expected(out).data for s in self.samples]
        alike = [i for i in self.program.inputs if set(i.axes) == set(out.axes)]
        constant = np.median(np.concatenate([w.ravel() for w in wanted]))
        stand_ins = [
            [np.zeros(())] * len(wanted),
            [np.asarray(constant)] * len(wanted),
            [*wanted[1:], wanted[0]],
            *([_in_order(s.inputs[i.name], i, self.program) for s in self.samples] for i in alike),
        ]
        return any(
            all(_passes(x, s, out) for x, s in zip(given, self.samples, strict=True)) for given in stand_ins
        )


def look(reference: Reference, candidate: Candidate, image: bytes, limit_s: float = 4.0) -> Look:
    """Stops at the first set that shows the kernel to be wrong."""
    unclear: Unclear | None = None
    digests, exact, count = [], 0, 0
    for turn, (sample, (_, order)) in enumerate(zip(reference.samples, SETS, strict=True)):
        limits = HostLimits(seconds=limit_s, order=order, seed=turn)
        found = _run_once(sample, candidate, image, limits)
        if isinstance(found, Wrong):
            return found
        for out, got in zip(sample.program.outputs, found, strict=True):
            problem = _compare(sample, out, got)
            if isinstance(problem, Wrong):
                return problem
            unclear = unclear or problem
            exact += int(sample.expected(out).exact.sum())
            count += got.size
        digests.append(hashlib.sha256(b"".join(g.tobytes() for g in found)).digest())
    return unclear or Right(exact / max(1, count), tuple(digests))


def _run_once(
    sample: WitnessSample, candidate: Candidate, image: bytes, limits: HostLimits
) -> list[Array] | Wrong:
    """The outputs in the axis order of the program, or what the run ended with."""
    program = sample.program
    outputs = [_poisoned(o, program.output_dtype(o), sample.extent) for o in program.outputs]
    scratch = [_flat(s.size_bytes(sample.extent), s.dtype) for s in candidate.scratch]
    inputs = [_to_torch(sample.inputs[i.name], i, sample.extent) for i in program.inputs]
    buffers = dict(zip(buffer_names(program, candidate), [*outputs, *scratch, *inputs], strict=True))
    try:
        found = run_isolated(program, candidate, image, buffers, limits, sample.sizes)
    except LaunchError as error:
        return Wrong(f"{sample.name}: the launch failed: {error}")
    if not found.ok:
        return Wrong(f"{sample.name}: {found.message}")
    return [_to_numpy(x, o, program) for x, o in zip(outputs, program.outputs, strict=True)]


def _compare(sample: WitnessSample, out: Output, got: Array) -> Wrong | Unclear | None:
    want = sample.expected(out)
    share, exact = _shares(sample, out, want, got)
    if (share > 1.0).any() and sample.widen():
        return _compare(sample, out, got)
    if not (exact.any() or (share > 1.0).any()):
        return None
    worst = np.where(exact, np.inf, 0.0) if share.max() <= 1.0 else share
    at = tuple(int(x) for x in np.argwhere(worst == worst.max())[0])
    size = f"{share.max():.3g} of the bound, {exact.sum()} of {got.size} elements differ though they are exact"
    text = f"{sample.name}: {out.name}{list(at)} is {got[at]}, expected {want.data[at]}: {size}"
    # an exact result that is a few roundings off was had in another way, which rounds
    few = 8.0 * np.abs(want.data) * 2.0 ** -MANTISSA.get(sample.program.output_dtype(out), 1024)
    wrong = share.max() > CLEARLY or (exact & (_gap(got, want.data) > few)).any()
    return Wrong(text) if wrong else Unclear(text)


def _shares(sample: WitnessSample, out: Output, want: ArrayValue, got: Array) -> tuple[Array, Array]:
    """Of each element the share of its tolerance, and whether it differs though it is exact."""
    wide = got.astype(np.float64) if got.dtype.kind == "f" else got
    gap = _gap(wide, want.data)
    exact = want.exact & (gap > 0)
    allowed = sample.allowed(out)
    if "f16" in sample.program.value_dtype.values():
        # a kernel may keep in float32 what overflows in half precision
        allowed = np.where(np.isfinite(want.data), allowed, np.inf)
        exact &= np.isfinite(want.data)
    with np.errstate(all="ignore"):
        share = np.where(gap == 0, 0.0, np.where(np.isinf(allowed), 0.0, gap / allowed))
    return np.where(np.isnan(share), np.inf, share), exact


def _gap(a: Array, b: Array) -> Array:
    """|a - b|; 0 where both are the same value that is not finite, infinite where only one is."""
    if a.dtype.kind != "f" and b.dtype.kind != "f":
        return np.asarray(a != b if a.dtype == bool else np.abs(a - b), dtype=np.float64)
    with np.errstate(all="ignore"):
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        return np.where(same, 0.0, np.nan_to_num(np.abs(a - b), nan=np.inf, posinf=np.inf))


def _passes(stand_in: Array, sample: WitnessSample, out: Output) -> bool:
    want = sample.expected(out).data
    if stand_in.shape not in ((), want.shape):
        return False
    return bool((_gap(np.broadcast_to(stand_in, want.shape), want) <= sample.allowed(out)).all())


def _in_order(x: Array, item: Input | Output, program: Program) -> Array:
    """Dims from memory order to the program's axis order."""
    held = program.value_axes[item.name if isinstance(item, Input) else item.value]
    return np.transpose(x, [item.axes.index(a) for a in held])


def _draw(program: Program, item: Input, extent: Mapping[str, int], name: str, rng: np.random.Generator) -> Array:
    shape = tuple(extent[a] for a in item.axes)
    if item.dtype == "bool":
        return rng.random(shape) < 0.5
    if item.dtype not in MANTISSA:
        lo, end = _integer_range(program, item, extent)
        ends = np.where(rng.random(shape) < 0.5, lo, end - 1)
        return ends if name == "edges" else rng.integers(lo, end, shape)
    x: Array
    match name:
        case "integers":
            x = rng.integers(-3, 4, shape).astype(float)
        case "more integers":
            x = rng.integers(-9, 10, shape).astype(float)
        case "grains":
            most = 4096 if MANTISSA[item.dtype] >= 24 else 2 ** MANTISSA[item.dtype] - 1
            x = rng.integers(-most, most + 1, shape) / 64.0 * (rng.random(shape) < 64 / max(64, prod(shape)))
        case "spread":
            x = rng.standard_normal(shape) * 3.0
        case "small":
            x = rng.standard_normal(shape) * 0.01
        case "offset":
            x = rng.standard_normal(shape) + 4.0
        case "edges":
            literals = [float(x.value) for op in program.ops for x in op.operands if isinstance(x, Literal)]
            near = rng.choice([0.0, 1.0, *(v for v in literals if abs(v) < 1e3)], shape)
            x = near + rng.choice([0.0, 0.0, -1.0, 1.0], shape) * rng.choice([1e-4, 0.1], shape)
        case _:
            x = rng.standard_normal(shape)
    x = _into(x, item.domain)
    if name == "not finite" and item.domain == ANY:
        x = np.where(rng.random(shape) < 0.03, rng.choice([np.nan, np.inf, -np.inf], shape), x)
        if x.ndim > 1:
            x[0] = -np.inf  # as a mask has it
    return _rounded(x, item.dtype)


def _integer_range(program: Program, item: Input, extent: Mapping[str, int]) -> tuple[int, int]:
    """[lo, end) within the domain; without one small enough to index anything that the program reads so."""
    domain = item.domain
    if domain.below is not None:
        return 0, max(1, extent[domain.below])
    lo = 0 if domain.lo is None else int(domain.lo) + int(domain.lo_open)
    if domain.hi is not None:
        return min(lo, int(domain.hi)), int(domain.hi) + 1
    refs = (x for op in program.ops for x in op.operands if isinstance(x, Ref))
    read = [extent[axis] for x in refs for axis, index in x.access if index.value is not None]
    return lo, lo + max(1, min([6, *read]))


def _into(x: Array, domain: Domain) -> Array:
    """Reflected into the domain's bounds, so that integers stay integers."""
    if domain.lo is not None and domain.hi is not None:
        width = domain.hi - domain.lo
        return domain.lo + width / 2 + np.clip(x, -4.0, 4.0) / 8.0 * width * 0.99
    if domain.lo is not None:
        x = domain.lo + np.abs(x - domain.lo)
        return np.where(x == domain.lo, domain.lo + 1.0, x) if domain.lo_open else x
    return domain.hi - np.abs(x - domain.hi) if domain.hi is not None else x


def _rounded(x: Array, dtype: str) -> Array:
    kept = torch.from_numpy(np.array(x)).to(_TORCH[dtype]).double().numpy()
    return np.asarray(kept)


def _to_torch(x: Array, item: Input, extent: Mapping[str, int]) -> Tensor:
    dense = torch.from_numpy(np.array(x, order="C")).to(_TORCH[item.dtype])
    if item.strides is None:
        return dense
    flat = torch.full((max(1, span_elements(item, extent)),), 7, dtype=dense.dtype)
    view = flat.as_strided(dense.shape, item.strides)
    once = _once(item.strides)
    view[once].copy_(dense[once])
    return view


def _once(strides: Sequence[int]) -> tuple[slice, ...]:
    """Every element of an expanded tensor once."""
    return tuple(slice(0, 1) if s == 0 else slice(None) for s in strides)


def _poisoned(out: Output, dtype: str, extent: Mapping[str, int]) -> Tensor:
    shape = [extent[a] for a in out.axes]
    flat = _flat(span_elements(out, extent) * _TORCH[dtype].itemsize, dtype)
    return flat.view(shape) if out.strides is None else flat.as_strided(shape, out.strides)


def _flat(size_bytes: int, dtype: str) -> Tensor:
    """NaN in every float dtype, -1 of integers, true and not 1 of bool."""
    return torch.full((size_bytes,), 255, dtype=torch.uint8).view(_TORCH[dtype])


def _to_numpy(x: Tensor, out: Output, program: Program) -> Array:
    if x.dtype == torch.bool:
        x = x.view(torch.uint8)  # a byte that is neither 0 nor 1 must stay visible
        found: Array = x.numpy().astype(np.int64)
        found = found.astype(bool) if bool(((found == 0) | (found == 1)).all()) else np.where(found > 1, -1, found)
    else:
        found = x.double().numpy() if x.is_floating_point() else x.long().numpy()
    return np.array(_in_order(found, out, program), order="C")


def _reads_elsewhere(program: Program) -> bool:
    return any(isinstance(x, Ref) and x.access for op in program.ops for x in op.operands)


def _number(seed: int, *words: str) -> int:
    return int.from_bytes(hashlib.sha256(":".join((str(seed), *words)).encode()).digest()[:8], "big")


__all__ = ["Look", "Reference", "Right", "Unclear", "WitnessSample", "Wrong", "look"]
