"""A second implementation of what a program computes: numpy, real arithmetic, and where every order is exact.

    run(program, inputs)             every value, in float64 or integers, with a mask of the EXACT elements
    run(program, inputs, noise=rng)  the same with a random rounding error at every operation

It shares no code with evaluate.py, ops.py and bounds.py: every operand is read through explicit index grids, every
operation is written anew in numpy. An element is exact where it follows from exactly representable values by
operations whose result is representable too, sums so short that float32 adds them up exactly in any order:
a right kernel must give exactly that, whatever its schedule. Elsewhere the spread of noisy runs (Monte Carlo
arithmetic) tells how far honest rounding may move a result; it is crude and meant to be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import erf, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cudal1_fx_passes.program.ir import Index, Literal, Op, Program, Ref

Array = NDArray[Any]

MANTISSA = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8}  # bits, the hidden one included
LARGEST = {
    "f64": 1.7976931348623157e308,
    "f32": 3.4028234663852886e38,
    "f16": 65504.0,
    "bf16": 3.3895313892515355e38,
}
SMALLEST = {"f64": 2.0**-1022, "f32": 2.0**-126, "f16": 2.0**-14, "bf16": 2.0**-126}  # normal numbers
_INTS = {"i64": np.int64, "i32": np.int32, "i16": np.int16, "i8": np.int8, "u8": np.uint8}
_GRAINS = (1.0, 4.0, 64.0, 1024.0)  # a sum is exact where its terms are multiples of one over one of these ...
_ROOM = 2.0**24  # ... and their magnitudes add up to less than this many such grains
_AMPLITUDE = 4.0  # of the noise, in unit roundoffs of the operation's dtype


class Unsupported(Exception):
    """The program does what this implementation leaves out."""


@dataclass(frozen=True)
class ArrayValue:
    data: Array  # float64, int64 or bool, dims in the program's axis order
    exact: Array  # bool, same shape


@dataclass(frozen=True)
class _Operand:
    """An operand over an operation's grid. `inside`: where its access is within bounds."""

    data: Array
    exact: Array
    inside: Array
    dtype: str


def run(
    program: Program,
    inputs: Mapping[str, Array],
    sizes: Mapping[str, int] | None = None,
    noise: np.random.Generator | None = None,
) -> dict[str, ArrayValue]:
    """inputs: by name, dims in memory order, values that their dtypes can hold. Raises Unsupported."""
    machine = _Machine(program, {a.name: a.size for a in program.axes} | dict(sizes or {}), noise)
    with np.errstate(all="ignore"):
        for item in program.inputs:
            order = [item.axes.index(a) for a in program.value_axes[item.name]]
            data = np.transpose(inputs[item.name], order)
            machine.values[item.name] = ArrayValue(data, np.ones(data.shape, bool))
        for op in program.ops:
            machine.values[op.name] = machine.compute(op)
    return machine.values


class _Machine:
    def __init__(self, program: Program, extent: Mapping[str, int], noise: np.random.Generator | None) -> None:
        self.program = program
        self.extent = extent
        self.noise = noise
        self.values: dict[str, ArrayValue] = {}

    def compute(self, op: Op) -> ArrayValue:
        size: Array | float
        grid = [a.name for a in self.program.axes if a.name in op.axes or a.name in op.over]
        if op.fn == "iota":
            steps = np.arange(self.extent[op.over[0]])
            return ArrayValue(steps, np.ones(steps.shape, bool))
        dtype = self._operand_dtype(op)
        operands = [self._read(x, grid, dtype) for x in op.operands]
        shape = tuple(self.extent[a] for a in grid)
        if op.fn in _SUMMING or op.fn in _FOLDS:
            data, exact, size = self._reduce(op, operands, grid, shape)
        elif op.fn in ("cumsum", "cumprod"):
            data, exact, size = _scan(op.fn, operands[0], grid.index(op.over[0]), shape)
        else:
            data, exact, size = _pointwise(op.fn, operands)
            data, exact = np.broadcast_to(data, shape), np.broadcast_to(exact, shape)
        return self._finish(op, data, exact, size)

    def _finish(self, op: Op, data: Array, exact: Array, size: Array | float) -> ArrayValue:
        """The result in its dtype: integers wrap, floats overflow and, where there is noise, err."""
        if op.dtype == "bool":
            return ArrayValue(data != 0, exact)
        if op.dtype in _INTS:
            return ArrayValue(*self._whole(data, exact, _INTS[op.dtype]))
        data = data.astype(np.float64)
        if self.noise is not None and op.fn not in _EXACT:
            data = data + self.noise.uniform(-_AMPLITUDE, _AMPLITUDE, data.shape) * self._error(op, data, size)
        data = np.where(np.abs(data) > LARGEST[op.dtype], np.copysign(np.inf, data), data)
        return ArrayValue(data, exact & representable(data, op.dtype))

    def _whole(self, data: Array, exact: Array, dtype: type[Any]) -> tuple[Array, Array]:
        """Integers wrap. What a float beyond the range (NaN, infinity) becomes is nobody's promise: all noise."""
        if data.dtype.kind == "f":
            fits = np.abs(data) < np.iinfo(dtype).max
            exact, data = exact & fits, np.where(fits, np.trunc(data), 0.0)
            if self.noise is not None:
                data = np.where(fits, data, self.noise.integers(0, 100, data.shape))
        return data.astype(np.int64).astype(dtype).astype(np.int64), exact

    def _error(self, op: Op, data: Array, size: Array | float) -> Array:
        """One roundoff of the result, and of a sum what its accumulator may lose."""
        unit = 2.0 ** -MANTISSA[op.dtype]
        if op.fn == "cast" and self._source_bits(op) <= MANTISSA[op.dtype]:
            unit = 0.0
        inner = 2.0 ** -max(24, MANTISSA[op.dtype])
        return np.nan_to_num(np.abs(data) * unit + inner * size, posinf=0.0)

    def _source_bits(self, op: Op) -> int:
        source = op.operands[0]
        dtype = self.program.value_dtype[source.name] if isinstance(source, Ref) else "f64"
        return MANTISSA.get(dtype, 8 if dtype in ("bool", "u8", "i8") else 64)

    def _operand_dtype(self, op: Op) -> str:
        names = [x.name for x in op.operands if isinstance(x, Ref)]
        names = names[1:] if op.fn == "where" and isinstance(op.operands[0], Ref) else names
        return self.program.value_dtype[names[0]] if names else op.dtype

    def _read(self, x: Ref | Literal, grid: Sequence[str], dtype: str) -> _Operand:
        one = np.ones([1] * len(grid), bool)
        if isinstance(x, Literal):
            value = one * x.value
            good = representable(value.astype(float), dtype) if dtype in MANTISSA else one
            if self.noise is not None and dtype in MANTISSA:
                value = value * (1.0 + self.noise.uniform(-1.0, 1.0) * 2.0 ** -MANTISSA[dtype] * ~good)
            return _Operand(value, good, one, dtype)
        source, access = self.values[x.name], dict(x.access)
        places, inside, sure = [], one, one
        for axis in self.program.value_axes[x.name]:
            at, there, known = self._place(access.get(axis, Index(((1, axis),))), grid)
            inside = inside & there & (at >= 0) & (at < self.extent[axis])
            places.append(np.clip(at, 0, self.extent[axis] - 1))
            sure = sure & known
        found = source.data[tuple(places)] if places else source.data.reshape(one.shape)
        exact = source.exact[tuple(places)] if places else source.exact.reshape(one.shape)
        return _Operand(found, exact & sure, inside, self.program.value_dtype[x.name])

    def _place(self, index: Index, grid: Sequence[str]) -> tuple[Array, Array, Array]:
        """Where an index points at each place of the grid, whether it exists there, whether that is exact."""
        true = np.ones([1] * len(grid), bool)
        if index.value is not None:
            found = self._read(Ref(index.value), grid, "i64")
            return found.data, true, found.exact
        at = np.full(true.shape, index.offset)
        for coefficient, axis in index.terms:
            steps = np.arange(self.extent[axis]).reshape([-1 if a == axis else 1 for a in grid])
            at = at + coefficient * steps
        return at // index.divisor, at % index.divisor == 0, true

    def _reduce(
        self, op: Op, operands: Sequence[_Operand], grid: Sequence[str], shape: tuple[int, ...]
    ) -> tuple[Array, Array, Array]:
        """The result, its exactness, and the size of what an accumulator adds up."""
        x = operands[0]
        data, exact, inside = (np.broadcast_to(a, shape) for a in (x.data, x.exact, x.inside))
        if op.fn in _PRODUCTS:
            y = operands[1]
            data, exact, inside = data * y.data, exact & y.exact, inside & np.broadcast_to(y.inside, shape)
        kept = [i for i, a in enumerate(grid) if a not in op.over]
        count = prod(self.extent[a] for a in op.over)
        order = [*kept, *(grid.index(a) for a in op.over)]

        def flat(a: Array) -> Array:
            return np.transpose(a, order).reshape(*(shape[i] for i in kept), count)

        correction = operands[1].data.item() if op.fn == "var" else 0.0
        terms, valid = flat(data), flat(inside)
        if self.noise is not None and op.fn in _ROUNDED_TERMS:
            terms = terms * (1.0 + self.noise.uniform(-1.0, 1.0, terms.shape) * _ROUNDED_TERMS[op.fn])
        return _fold(op.fn, terms, valid, flat(exact), correction)


def _fold(fn: str, x: Array, valid: Array, exact: Array, correction: float) -> tuple[Array, Array, Array]:
    """Reduces the last axis."""
    n: Array = valid.sum(-1)
    good = np.asarray((exact | ~valid).all(-1))
    none = np.zeros(good.shape)
    if fn in _FOLDS:
        fill, fold = _FOLDS[fn]
        if x.dtype.kind in "iu" and np.isinf(fill):
            fill = np.iinfo(np.int64).min if fill < 0 else np.iinfo(np.int64).max
        return fold(np.where(valid, x, fill)), good, none
    x = np.where(valid, x, 0)
    size = np.abs(x).sum(-1)
    if fn in ("sum", *_PRODUCTS):
        return x.sum(-1), good & _adds_exactly(x) & (fn != "dot_tf32"), size * (2.0 + np.sqrt(n))
    if fn == "mean":
        return x.sum(-1) / n, good & _adds_exactly(x) & _power_of_two(n), size / n * (2.0 + np.sqrt(n))
    if fn == "var":
        apart = np.where(valid, x - (x.sum(-1) / n)[..., None], 0.0)
        found = (apart * apart).sum(-1) / np.maximum(n - correction, 0)
        return found, np.zeros(good.shape, bool), found * (2.0 + np.sqrt(n))
    top = np.where(valid, x, -np.inf).max(-1)
    found = np.where(
        np.isfinite(top), np.log(np.exp(np.where(valid, x, -np.inf) - top[..., None]).sum(-1)) + top, top
    )
    return found, np.zeros(good.shape, bool), 4.0 + np.sqrt(n) + np.abs(top)  # logsumexp


def _scan(fn: str, x: _Operand, axis: int, shape: tuple[int, ...]) -> tuple[Array, Array, Array]:
    data = np.broadcast_to(x.data, shape)
    exact = np.logical_and.accumulate(np.broadcast_to(x.exact, shape), axis)
    n = np.arange(1, shape[axis] + 1).reshape([-1 if i == axis else 1 for i in range(len(shape))])
    if fn == "cumprod":
        found = np.cumprod(data, axis)
        whole = _whole(data) & (np.cumprod(np.maximum(np.abs(data), 1), axis) < _ROOM)
        return found, exact & np.logical_and.accumulate(whole, axis), np.abs(found) * n
    size = np.cumsum(np.abs(data), axis)
    fine = [np.logical_and.accumulate(_whole(data * g), axis) & (size * g < _ROOM) for g in _GRAINS]
    return np.cumsum(data, axis), exact & np.any(fine, 0), size * (2.0 + np.sqrt(n))


def _pointwise(fn: str, operands: Sequence[_Operand]) -> tuple[Array, Array, float]:
    data = [o.data for o in operands]
    if fn == "where":
        condition, yes, no = operands
        chosen = np.where(condition.data, yes.exact, no.exact)
        return np.where(condition.data, yes.data, no.data), condition.exact & chosen, 0.0
    function, exact_rule, size = _POINTWISE.get(fn, (None, False, 0.0))
    if function is None or (fn == "pow" and data[0].dtype.kind == "i"):
        raise Unsupported(f"{fn} of {operands[0].dtype}")
    found = function(*data)
    exact = np.asarray(exact_rule)
    if fn == "div":
        exact = _power_of_two(data[1])
    if fn == "fma":  # the product may be rounded or not
        exact = representable(np.asarray(data[0] * data[1], dtype=float), operands[0].dtype)
    for o in operands:
        exact = exact & o.exact
    return found, np.broadcast_to(exact, found.shape), size


def representable(x: Array, dtype: str) -> Array:
    """Whether a float dtype holds each value without rounding."""
    mantissa, _ = np.frexp(x)
    steps = mantissa * 2.0 ** MANTISSA[dtype]
    size = np.abs(x)
    fits = (size >= SMALLEST[dtype]) & (size <= LARGEST[dtype]) & (steps == np.rint(steps))
    return np.asarray(fits | (x == 0) | np.isinf(x))


def _adds_exactly(x: Array) -> Array:
    size = np.abs(x).sum(-1)
    return np.asarray(np.any([_whole(x * g).all(-1) & (size * g < _ROOM) for g in _GRAINS], 0))


def _whole(x: Array) -> Array:
    return np.asarray(x == np.rint(x))


def _power_of_two(x: Array) -> Array:
    return np.asarray(np.abs(np.frexp(x.astype(float))[0]) == 0.5)


def _sigmoid(x: Array) -> Array:
    return np.asarray(1.0 / (1.0 + np.exp(-x)))


def _erf(x: Array) -> Array:
    return np.asarray(np.frompyfunc(erf, 1, 1)(x), dtype=np.float64)


_Function = Callable[..., Array]
# (function, whether exact operands give an exact result, further units of error relative to one)
_POINTWISE: dict[str, tuple[_Function, bool, float]] = {
    "neg": (np.negative, True, 0.0),
    "abs": (np.abs, True, 0.0),
    "sign": (lambda x: (x > 0) * 1.0 - (x < 0), True, 0.0),  # 0 for NaN, as torch
    "relu": (lambda x: np.maximum(x, 0), True, 0.0),
    "floor": (np.floor, True, 0.0),
    "ceil": (np.ceil, True, 0.0),
    "round": (np.rint, True, 0.0),
    "trunc": (np.trunc, True, 0.0),
    "isnan": (np.isnan, True, 0.0),
    "logical_not": (lambda x: x == 0, True, 0.0),
    "cast": (lambda x: x, True, 0.0),
    "add": (np.add, True, 0.0),
    "sub": (lambda a, b: a - b, True, 0.0),
    "mul": (np.multiply, True, 0.0),
    "div": (np.true_divide, True, 0.0),
    "fma": (lambda a, b, c: a * b + c, True, 0.0),
    "fmod": (np.fmod, True, 0.0),
    "remainder": (np.mod, True, 0.0),
    "maximum": (np.maximum, True, 0.0),
    "minimum": (np.minimum, True, 0.0),
    "eq": (np.equal, True, 0.0),
    "ne": (np.not_equal, True, 0.0),
    "lt": (np.less, True, 0.0),
    "le": (np.less_equal, True, 0.0),
    "gt": (np.greater, True, 0.0),
    "ge": (np.greater_equal, True, 0.0),
    "logical_and": (lambda a, b: (a != 0) & (b != 0), True, 0.0),
    "logical_or": (lambda a, b: (a != 0) | (b != 0), True, 0.0),
    "logical_xor": (lambda a, b: (a != 0) ^ (b != 0), True, 0.0),
    "exp": (np.exp, False, 0.0),
    "exp2": (np.exp2, False, 0.0),
    "expm1": (np.expm1, False, 0.0),
    "log": (np.log, False, 0.0),
    "log2": (np.log2, False, 0.0),
    "log1p": (np.log1p, False, 0.0),
    "sqrt": (np.sqrt, False, 0.0),
    "rsqrt": (lambda x: 1.0 / np.sqrt(x), False, 0.0),
    "reciprocal": (lambda x: 1.0 / x, False, 0.0),
    "sin": (np.sin, False, 1.0),
    "cos": (np.cos, False, 1.0),
    "tanh": (np.tanh, False, 0.0),
    "sigmoid": (_sigmoid, False, 0.0),
    "erf": (_erf, False, 1.0),
    "pow": (np.power, False, 0.0),
}
_PRODUCTS = ("dot", "dot_tf32")
_SUMMING = ("sum", "mean", "var", "logsumexp", *_PRODUCTS)
# by how much each term errs: a deviation as its operand's rounding does, a product as TF32 operands do
_ROUNDED_TERMS = {"var": 2.0**-24, "dot_tf32": 2.0**-9}
_FOLDS: dict[str, tuple[float, Callable[[Array], Array]]] = {
    "amax": (-np.inf, lambda x: x.max(-1)),
    "amin": (np.inf, lambda x: x.min(-1)),
    "prod": (1.0, lambda x: x.prod(-1)),
    "argmax": (-np.inf, lambda x: x.argmax(-1)),
    "argmin": (np.inf, lambda x: x.argmin(-1)),
    "any": (0.0, lambda x: (x != 0).any(-1)),
    "all": (1.0, lambda x: (x != 0).all(-1)),
}
# never rounded, so never noisy
_STEPS = {"sign", "floor", "ceil", "round", "trunc"}
_EXACT = _STEPS | {"neg", "abs", "relu", "maximum", "minimum", "where", "amax", "amin"}
