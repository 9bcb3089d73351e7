"""Builds a program operation by operation and tracks an interval for each value, so that tasks stay finite.

The interval is what values normally are when inputs are of unit scale; an operation whose operand lies outside
its domain (log of a negative, exp of something large) raises Unsuitable, and the caller tries another one.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping

from cudal1_fx_passes.program.ir import ANY, Axis, Domain, Index, Input, Literal, Op, Operand, Output, Program, Ref
from cudal1_fx_passes.program.ops import OPS, Result

Interval = tuple[float, float]
Value = str | float | int | bool  # a value's name, or a literal

UNIT: Interval = (-5.0, 5.0)  # a normal input
POSITIVE = Domain(lo=0.0, lo_open=True)
UNBOUNDED = 1e30
FLAT = 1e-4  # an interval narrower than this is a constant
LIMIT = {"f16": 2e3, "bf16": 1e5, "f32": 1e6, "f64": 1e6}


class Unsuitable(Exception):
    """The operation has no finite or no interesting result here."""


def is_float(dtype: str) -> bool:
    return dtype in LIMIT


class Builder:
    """A program under construction over fixed axes."""

    def __init__(self, rng: random.Random, axes: Iterable[Axis]) -> None:
        self.rng = rng
        self.axes = tuple(axes)
        self.size = {a.name: a.size for a in self.axes}
        self.order = {a.name: i for i, a in enumerate(self.axes)}
        self.inputs: list[Input] = []
        self.ops: list[Op] = []
        self.dtype: dict[str, str] = {}
        self.held: dict[str, tuple[str, ...]] = {}
        self.interval: dict[str, Interval] = {}
        self.uses: dict[str, int] = {}

    def input(
        self,
        axes: Iterable[str],
        dtype: str = "f32",
        interval: Interval = UNIT,
        domain: Domain = ANY,
        strides: tuple[int, ...] | None = None,
    ) -> str:
        """A new input; `axes` in memory order."""
        axes = tuple(axes)
        name = f"in{len(self.inputs)}"
        self.inputs.append(Input(name, dtype, axes, strides, domain))
        self._know(name, dtype, self._sorted(axes), interval)
        return name

    def positive(self, axes: Iterable[str], dtype: str = "f32") -> str:
        """An input such as a variance or a reciprocal deviation: above zero."""
        return self.input(axes, dtype, (0.05, 3.0), POSITIVE)

    def mask(self, axes: Iterable[str]) -> str:
        return self.input(axes, "bool", (0.0, 1.0))

    def op(self, fn: str, *operands: Value | Ref, over: Iterable[str] = (), dtype: str | None = None) -> str:
        """Appends an operation; the result's dtype and axes follow from the operands."""
        refs = [self._operand(x) for x in operands]
        over = self._sorted(over)
        name = f"t{len(self.ops)}"
        result = dtype or self._dtype(fn, refs)
        span = {a for x in refs if isinstance(x, Ref) for a in self._axes_of(x)}
        axes = self._sorted(span | set(over) if fn in ("cumsum", "cumprod", "iota") else span - set(over))
        interval = self._interval(fn, refs, over, result)
        if is_float(result) and max(abs(interval[0]), abs(interval[1])) > LIMIT[result]:
            raise Unsuitable(f"{fn} reaches {interval}")
        self.ops.append(Op(name, result, axes, fn, tuple(refs), over))
        for x in refs:
            if isinstance(x, Ref):
                self.uses[x.name] += 1
        self._know(name, result, axes, interval)
        return name

    def at(self, name: str, **places: Index) -> Ref:
        """A reference that reads `name` at other indices."""
        return Ref(name, tuple(sorted(places.items())))

    def cast(self, x: str, dtype: str) -> str:
        return x if self.dtype[x] == dtype else self.op("cast", x, dtype=dtype)

    def finish(self, values: Iterable[str], orders: Mapping[str, tuple[str, ...]] | None = None) -> Program:
        """The program with one output a value; dead operations and inputs are dropped, names made dense."""
        wanted = list(dict.fromkeys(values))
        outputs = [Output(f"out{i}", v, (orders or {}).get(v, self.held[v])) for i, v in enumerate(wanted)]
        return _compact(self.axes, self.inputs, self.ops, outputs)

    def _know(self, name: str, dtype: str, axes: tuple[str, ...], interval: Interval) -> None:
        self.dtype[name], self.held[name], self.interval[name], self.uses[name] = dtype, axes, interval, 0

    def _sorted(self, axes: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted(set(axes), key=self.order.__getitem__))

    def _axes_of(self, x: Ref) -> set[str]:
        replaced = dict(x.access)
        found = {a for a in self.held[x.name] if a not in replaced}
        for index in replaced.values():
            found |= {axis for _, axis in index.terms}
            found |= set(self.held[index.value]) if index.value is not None else set()
        return found

    def _operand(self, x: Value | Ref) -> Operand:
        if isinstance(x, Ref):
            return x
        return Ref(x) if isinstance(x, str) else Literal(x)

    def _dtype(self, fn: str, refs: list[Operand]) -> str:
        result = OPS[fn].result
        if result is Result.BOOL:
            return "bool"
        if result is Result.INDEX:
            return "i64"
        names = [x.name for x in (refs[1:] if fn == "where" else refs) if isinstance(x, Ref)]
        if not names:
            raise Unsuitable(f"{fn} of literals only")
        found = {self.dtype[n] for n in names}
        if len(found) > 1:
            raise Unsuitable(f"{fn} of {found}")
        return found.pop()

    def _of(self, x: Operand) -> Interval:
        if isinstance(x, Ref):
            return self.interval[x.name]
        return (float(x.value), float(x.value))

    def _interval(self, fn: str, refs: list[Operand], over: tuple[str, ...], dtype: str) -> Interval:
        count = math.prod(self.size[a] for a in over)
        known = [self._of(x) for x in refs]
        if fn == "iota":
            return (0.0, float(self.size[over[0]] - 1))
        if OPS[fn].result is Result.BOOL:
            return (0.0, 1.0)
        if over:
            return _reduced(fn, known[0], count)
        found = _POINTWISE[fn](*known)
        if math.isnan(found[0]) or math.isnan(found[1]) or found[0] > found[1]:
            raise Unsuitable(f"{fn} of {known}")
        if is_float(dtype) and found[1] - found[0] < FLAT and any(hi - lo > FLAT for lo, hi in known):
            raise Unsuitable(f"{fn} of {known} is constant")
        if fn in ("maximum", "minimum") and (known[0][0] >= known[1][1] or known[1][0] >= known[0][1]):
            raise Unsuitable(f"{fn} of {known} always takes one side")
        return found


def _reduced(fn: str, x: Interval, count: int) -> Interval:
    lo, hi = x
    center, spread = (lo + hi) / 2, (hi - lo) / 2
    if fn in ("sum", "cumsum"):  # what independent values add up to, not the worst case
        reach = spread * math.sqrt(count) * 1.5 + (abs(center) * count if lo >= 0 or hi <= 0 else 0)
        return (0.0 if lo >= 0 else -reach, 0.0 if hi <= 0 else reach)
    if fn == "mean":
        return (lo / 2, hi / 2) if lo < 0 < hi else (lo, hi)
    if fn in ("amax", "amin"):
        return (lo, hi)
    if fn == "var":
        return (0.0, spread * spread)
    if fn == "logsumexp":
        return (lo, hi + math.log(count))
    if fn in ("argmax", "argmin"):
        return (0.0, float(count - 1))
    if fn in ("prod", "cumprod"):
        if not (lo > 0.5 and hi < 1.5 and count * math.log(max(hi, 1 / lo)) < 8):
            raise Unsuitable(f"{fn} of {count} values in {x}")
        return (lo**count, hi**count)
    raise ValueError(f"no interval for {fn!r}")


def _monotone(
    f: Callable[[float], float], lo_limit: float = -UNBOUNDED, hi_limit: float = UNBOUNDED
) -> Callable[[Interval], Interval]:
    def run(x: Interval) -> Interval:
        if x[0] < lo_limit or x[1] > hi_limit:
            raise Unsuitable(f"{x} outside [{lo_limit}, {hi_limit}]")
        a, b = f(x[0]), f(x[1])
        return (min(a, b), max(a, b))

    return run


def _products(a: Interval, b: Interval) -> Interval:
    found = [x * y for x in a for y in b]
    return (min(found), max(found))


def _quotient(a: Interval, b: Interval) -> Interval:
    if b[0] <= 0.02 and b[1] >= -0.02:
        raise Unsuitable(f"division by {b}")
    return _products(a, (1 / b[1], 1 / b[0]))


def _power(a: Interval, b: Interval) -> Interval:
    if b[0] != b[1] or b[0] not in (2.0, 3.0, 0.5, 1.5, -0.5):
        raise Unsuitable(f"power {b}")
    if b[0] == 2.0:
        return (0.0 if a[0] <= 0 <= a[1] else min(a[0] ** 2, a[1] ** 2), max(a[0] ** 2, a[1] ** 2))
    if b[0] == 3.0:
        return (a[0] ** 3, a[1] ** 3)
    if a[0] < 0.02:
        raise Unsuitable(f"power {b[0]} of {a}")
    found = (a[0] ** b[0], a[1] ** b[0])
    return (min(found), max(found))


def _absolute(a: Interval) -> Interval:
    return (0.0 if a[0] <= 0 <= a[1] else min(abs(a[0]), abs(a[1])), max(abs(a[0]), abs(a[1])))


def _softened(x: float) -> float:
    return 1 / (1 + math.exp(-max(-60.0, min(60.0, x))))


def _join(a: Interval, b: Interval) -> Interval:
    return (min(a[0], b[0]), max(a[1], b[1]))


_POINTWISE: dict[str, Callable[..., Interval]] = {
    "neg": lambda a: (-a[1], -a[0]),
    "abs": _absolute,
    "sign": lambda a: (-1.0 if a[0] < 0 else 0.0, 1.0 if a[1] > 0 else 0.0),
    "exp": _monotone(lambda x: math.exp(max(x, -80.0)), hi_limit=8.0),
    "exp2": _monotone(lambda x: 2.0 ** max(x, -80.0), hi_limit=12.0),
    "expm1": _monotone(lambda x: math.expm1(max(x, -80.0)), hi_limit=8.0),
    "log": _monotone(math.log, lo_limit=0.02),
    "log2": _monotone(math.log2, lo_limit=0.02),
    "log1p": _monotone(math.log1p, lo_limit=-0.9),
    "sqrt": _monotone(math.sqrt, lo_limit=0.0),
    "rsqrt": _monotone(lambda x: x**-0.5, lo_limit=9e-13),
    "reciprocal": lambda a: _quotient((1.0, 1.0), a),
    "sin": lambda a: (-1.0, 1.0),
    "cos": lambda a: (-1.0, 1.0),
    "tanh": _monotone(math.tanh),
    "sigmoid": _monotone(_softened),
    "erf": _monotone(math.erf),
    "relu": _monotone(lambda x: max(x, 0.0)),
    "floor": _monotone(math.floor),
    "ceil": _monotone(math.ceil),
    "round": _monotone(round),
    "trunc": _monotone(math.trunc),
    "cast": lambda a: a,
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _products,
    "div": _quotient,
    "pow": _power,
    "fmod": lambda a, b: _join(a, (0.0, 0.0)) if b[0] == b[1] and b[0] > 0 else _quotient(a, b),
    "remainder": lambda a, b: (0.0, b[1]) if b[0] == b[1] and b[0] > 0 else _quotient(a, b),
    "maximum": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "minimum": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "where": lambda c, a, b: _join(a, b),
    "fma": lambda a, b, c: (_products(a, b)[0] + c[0], _products(a, b)[1] + c[1]),
}


def _compact(axes: tuple[Axis, ...], inputs: list[Input], ops: list[Op], outputs: list[Output]) -> Program:
    """Drops what no output needs and renumbers inputs and operations densely."""
    live: set[str] = set()
    todo = [o.value for o in outputs]
    by_name = {o.name: o for o in ops}
    while todo:
        name = todo.pop()
        if name in live:
            continue
        live.add(name)
        if name in by_name:
            for x in by_name[name].operands:
                if isinstance(x, Ref):
                    todo.append(x.name)
                    todo += x.index_values
    renamed: dict[str, str] = {}
    for i, item in enumerate([x for x in inputs if x.name in live]):
        renamed[item.name] = f"in{i}"
    for i, op in enumerate([o for o in ops if o.name in live]):
        renamed[op.name] = f"t{i}"
    new_inputs = tuple(
        Input(renamed[x.name], x.dtype, x.axes, x.strides, x.domain) for x in inputs if x.name in live
    )
    new_ops = tuple(
        Op(renamed[o.name], o.dtype, o.axes, o.fn, tuple(_rename(x, renamed) for x in o.operands), o.over)
        for o in ops
        if o.name in live
    )
    new_outputs = tuple(Output(o.name, renamed[o.value], o.axes, o.strides) for o in outputs)
    used = {a for x in new_inputs for a in x.axes} | {a for o in new_ops for a in (*o.axes, *o.over)}
    return Program(tuple(a for a in axes if a.name in used), new_inputs, new_ops, new_outputs)


def _rename(x: Operand, renamed: dict[str, str]) -> Operand:
    if not isinstance(x, Ref):
        return x
    access = tuple(
        (axis, Index(i.terms, i.offset, i.divisor, renamed[i.value]) if i.value is not None else i)
        for axis, i in x.access
    )
    return Ref(renamed[x.name], access)
