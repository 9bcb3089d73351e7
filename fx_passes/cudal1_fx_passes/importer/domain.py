"""Domains of a region's inputs, so that tests stay inside what the graph can produce.

Two sources. Producers: interval analysis over the FX graph outside the region (exp and variances are not
negative, sigmoid and softmax lie in [0, 1]); nothing is known of a graph's own inputs, saved values of the forward
among them. Consumers: an input whose root or logarithm the region takes is not negative, whoever made it
(running variances).

Bounds are rounded outward to a few: >0, >=0, <=0, in [0,1], in [-1,1]; finer ones would only split fingerprints.
Indices are bounded by the axis that they index (lower_gather.py).
"""

from __future__ import annotations

import math
import operator
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from cudal1_fx_passes.program.ir import ANY, FLOAT_DTYPES, Domain, Literal, Op, Program, Ref
from cudal1_fx_passes.program.ops import OPS, Result

MAX_DEPTH = 12  # producers looked at in a chain
TINY = 0.01  # of what is added to a variance


@dataclass(frozen=True, slots=True)
class Span:
    """A closed interval; `positive` excludes 0 from one that starts there."""

    lo: float = -math.inf
    hi: float = math.inf
    positive: bool = False


ALL = Span()
UNIT = Span(0.0, 1.0)
SYMMETRIC = Span(-1.0, 1.0)
NOT_NEGATIVE = Span(0.0)


def domain_of(node: fx.Node, known: dict[fx.Node, Span] | None = None) -> Domain:
    """The rounded domain of an FX node's floating-point values; `known` is a memo shared between calls."""
    val = node.meta.get("val")
    if not getattr(val, "is_floating_point", lambda: False)():
        return ANY
    return round_span(span_of(node, {} if known is None else known))


def round_span(span: Span) -> Domain:
    if span.lo > 0 or (span.lo == 0 and span.positive):
        return Domain(lo=0.0, lo_open=True) if span.hi > 1 else Domain(0.0, 1.0, lo_open=True)
    if span.lo == 0:
        return Domain(0.0, 1.0) if span.hi <= 1 else Domain(lo=0.0)
    if span.hi <= 0:
        return Domain(hi=0.0)
    return Domain(-1.0, 1.0) if span.lo >= -1 and span.hi <= 1 else ANY


def span_of(node: fx.Node, known: dict[fx.Node, Span], depth: int = 0) -> Span:
    if node in known:
        return known[node]
    if node.op != "call_function" or depth > MAX_DEPTH:
        return ALL
    found = _held(node, _result(node, lambda x: _argument(x, known, depth + 1)))
    found = ALL if math.isnan(found.lo + found.hi) and (found.lo, found.hi) != (-math.inf, math.inf) else found
    known[node] = found
    return found


def _held(node: fx.Node, x: Span) -> Span:
    """As the node's dtype holds it: no f16 holds 1e-8."""
    dtype = getattr(node.meta.get("val"), "dtype", None)
    if x.lo <= 0 or dtype is None or not dtype.is_floating_point:
        return x
    lo = float(torch.tensor(x.lo).to(dtype))
    return Span(lo, x.hi, x.positive and lo > 0)


def _argument(x: Any, known: dict[fx.Node, Span], depth: int) -> Span:
    if isinstance(x, fx.Node):
        return span_of(x, known, depth)
    return Span(float(x), float(x), x > 0) if isinstance(x, (int, float)) else ALL


Read = Callable[[Any], Span]


def _result(node: fx.Node, read: Read) -> Span:
    if node.target is operator.getitem:
        source, at = node.args
        return _item(source, at, read) if isinstance(source, fx.Node) else ALL
    if not isinstance(node.target, OpOverload) or not node.args:
        return ALL
    name = node.target._schema.name.split("::")[1]
    if name in _FIXED:
        return _FIXED[name]
    rule = _RULES.get(name)
    return ALL if rule is None else rule(node, read)


def _item(source: fx.Node, at: Any, read: Read) -> Span:
    name = str(source.target)
    if "var_mean" in name:
        return NOT_NEGATIVE if at == 0 else ALL
    if at == 0 and ("max_pool" in name or "split" in name) or "split" in name or "unbind" in name:
        return read(source.args[0])
    return ALL


def _same(node: fx.Node, read: Read) -> Span:
    return read(node.args[0])


def _add(node: fx.Node, read: Read) -> Span:
    if node.kwargs.get("alpha", 1) != 1:
        return ALL
    a, b = read(node.args[0]), read(node.args[1])
    return Span(a.lo + b.lo, a.hi + b.hi, (a.positive and b.lo >= 0) or (b.positive and a.lo >= 0))


def _sub(node: fx.Node, read: Read) -> Span:
    a, b = node.args[:2]
    if _is_call(b, "amax", a):
        return Span(hi=0.0)
    x, y = read(a), read(b)
    return ALL if node.kwargs.get("alpha", 1) != 1 else Span(x.lo - y.hi, x.hi - y.lo)


def _is_call(x: Any, name: str, first: Any) -> bool:
    """Whether x is a reduction of `first`, each element of which meets its own result again."""
    if not isinstance(x, fx.Node) or x.op != "call_function" or f".{name}." not in str(x.target):
        return False
    return x.args[0] is first and _stays_in_place(x)


def _stays_in_place(reduction: fx.Node) -> bool:
    """Whether what is reduced meets its own result again when both are broadcast."""
    dims, keeps = (*reduction.args[1:], None, None)[:2]
    first = reduction.args[0]
    assert isinstance(first, fx.Node)
    rank = first.meta["val"].dim()
    return bool(keeps) or not isinstance(dims, (list, tuple)) or len(dims) in (0, rank)


def _mul(node: fx.Node, read: Read) -> Span:
    a, b = node.args[:2]
    x, y = read(a), read(b)
    if a is b:
        return NOT_NEGATIVE
    if x.lo >= 0 and y.lo >= 0:
        return Span(0.0, _product(x.hi, y.hi))
    if (x.lo >= 0 and y.hi <= 0) or (x.hi <= 0 and y.lo >= 0):
        return Span(hi=0.0)
    return SYMMETRIC if _within(x) and _within(y) else ALL


def _within(x: Span) -> bool:
    return x.lo >= -1 and x.hi <= 1


def _product(a: float, b: float) -> float:
    return 0.0 if 0.0 in (a, b) else a * b


def _div(node: fx.Node, read: Read) -> Span:
    a, b = node.args[:2]
    x, y = read(a), read(b)
    if _is_call(b, "sum", a) and x.lo >= 0:
        return UNIT  # a softmax
    if x.lo >= 0 and y.lo >= 0:
        return Span(0.0, x.hi / y.lo if y.lo > 0 else math.inf)
    return ALL


def _pow(node: fx.Node, read: Read) -> Span:
    x, exponent = read(node.args[0]), node.args[1]
    even = isinstance(exponent, (int, float)) and exponent > 0 and exponent % 2 == 0
    return NOT_NEGATIVE if even or x.lo >= 0 else ALL


def _exp(node: fx.Node, read: Read) -> Span:
    high = read(node.args[0]).hi
    return Span(0.0, math.exp(high) if high < 80 else math.inf)  # it may underflow to 0


def _relu(node: fx.Node, read: Read) -> Span:
    x = read(node.args[0])
    return Span(max(0.0, x.lo), max(0.0, x.hi))


def _neg(node: fx.Node, read: Read) -> Span:
    x = read(node.args[0])
    return Span(-x.hi, -x.lo)


def _log(node: fx.Node, read: Read) -> Span:
    return Span(hi=0.0) if read(node.args[0]).hi <= 1 else ALL


def _reciprocal(node: fx.Node, read: Read) -> Span:
    return Span(0.0) if read(node.args[0]).lo >= 0 else ALL


def _sum(node: fx.Node, read: Read) -> Span:
    x = read(node.args[0])
    return NOT_NEGATIVE if x.lo >= 0 else Span(hi=0.0) if x.hi <= 0 else ALL


def _where(node: fx.Node, read: Read) -> Span:
    return _union(read(node.args[1]), read(node.args[2]))


def _union(*spans: Span) -> Span:
    return Span(min(s.lo for s in spans), max(s.hi for s in spans), all(s.positive for s in spans))


def _cat(node: fx.Node, read: Read) -> Span:
    pieces = node.args[0]
    assert isinstance(pieces, (list, tuple))
    return _union(*(read(x) for x in pieces))


def _clamp(node: fx.Node, read: Read) -> Span:
    x = read(node.args[0])
    low = node.args[1] if len(node.args) > 1 else node.kwargs.get("min")
    high = node.args[2] if len(node.args) > 2 else node.kwargs.get("max")
    if low is not None:
        x = _at_least(x, read(low))
    return x if high is None else _at_most(x, read(high))


def _maximum(node: fx.Node, read: Read) -> Span:
    return _at_least(read(node.args[0]), read(node.args[1]))


def _minimum(node: fx.Node, read: Read) -> Span:
    return _at_most(read(node.args[0]), read(node.args[1]))


def _at_least(a: Span, b: Span) -> Span:
    return Span(max(a.lo, b.lo), max(a.hi, b.hi), a.positive or b.positive)


def _at_most(a: Span, b: Span) -> Span:
    return Span(min(a.lo, b.lo), min(a.hi, b.hi), a.positive and b.positive)


def _pooled(node: fx.Node, read: Read) -> Span:
    """Of an average, unless it is divided by another number; zeros around the image take part in it."""
    divisor = node.args[6] if len(node.args) > 6 else node.kwargs.get("divisor_override")
    padding = node.args[3] if len(node.args) > 3 else node.kwargs.get("padding", 0)
    if divisor is not None:
        return ALL
    padded = any(padding) if isinstance(padding, (list, tuple)) else bool(padding)
    return _union(read(node.args[0]), Span(0.0, 0.0)) if padded else read(node.args[0])


def _converted(node: fx.Node, read: Read) -> Span:
    """To bool 0 or 1; to integers towards zero, as far as they hold it."""
    dtype = node.meta["val"].dtype
    x = read(node.args[0])
    if dtype == torch.bool:
        return UNIT
    if dtype.is_floating_point or x == ALL:
        return x
    limits = torch.iinfo(dtype)
    if not limits.min <= x.lo <= x.hi <= limits.max:
        return ALL
    return Span(float(math.trunc(x.lo)), float(math.trunc(x.hi)))


def _random(node: fx.Node, read: Read) -> Span:
    return UNIT if node.args[2:3] == ("rand",) else ALL


def _full(node: fx.Node, read: Read) -> Span:
    return read(node.args[1])


_FIXED: dict[str, Span] = {
    "sigmoid": UNIT,
    "_softmax": UNIT,
    "tanh": SYMMETRIC,
    "erf": SYMMETRIC,
    "sin": SYMMETRIC,
    "cos": SYMMETRIC,
    "sign": SYMMETRIC,
    "abs": NOT_NEGATIVE,
    "sqrt": NOT_NEGATIVE,
    "rsqrt": Span(0.0, math.inf, True),
    "var": NOT_NEGATIVE,
    "std": NOT_NEGATIVE,
    "linalg_vector_norm": NOT_NEGATIVE,
}
_PASSING = (
    "view reshape _unsafe_view flatten unsqueeze squeeze expand permute transpose t slice select clone alias "
    "detach mean amax amin max min flip rev gather as_strided repeat "
    "_adaptive_avg_pool2d index _unsafe_index embedding"
)
_RULES: Mapping[str, Callable[[fx.Node, Read], Span]] = dict.fromkeys(_PASSING.split(), _same) | {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "pow": _pow,
    "exp": _exp,
    "relu": _relu,
    "neg": _neg,
    "log": _log,
    "reciprocal": _reciprocal,
    "sum": _sum,
    "where": _where,
    "cat": _cat,
    "clamp": _clamp,
    "clamp_min": _clamp,
    "maximum": _maximum,
    "minimum": _minimum,
    "full": _full,
    "scalar_tensor": _same,
    "convert_element_type": _converted,
    "_to_copy": _converted,
    "inductor_random": _random,
    "avg_pool2d": _pooled,
    "avg_pool3d": _pooled,
}


# what the region asks of its inputs


def with_demands(program: Program) -> Program:
    """Inputs without a domain get the one that a root or a logarithm asks of them.

    Not where the region itself looks at what it asks for: a logarithm that is taken only where it is one. Where it
    looks for zero alone, as x * log(x) does, zero is allowed.
    """
    wanted: dict[str, Domain] = {}
    users: defaultdict[str, list[Op]] = defaultdict(list)
    for op in program.ops:
        for x in op.operands:
            if isinstance(x, Ref):
                users[x.name].append(op)
    for op in program.ops:
        if op.fn in ("sqrt", "rsqrt", "log", "log2") and isinstance(x := op.operands[0], Ref):
            chain = _Chain(program, users, {x.name})
            _demand(chain, x.name, Domain(lo=0.0, lo_open=op.fn != "sqrt"), op, wanted)
    inputs = tuple(
        replace(i, domain=wanted[i.name])
        if i.domain == ANY and i.name in wanted and i.dtype in FLOAT_DTYPES
        else i
        for i in program.inputs
    )
    return program if inputs == program.inputs else replace(program, inputs=inputs)


@dataclass(frozen=True, slots=True)
class _Chain:
    """The values from an input to the root or logarithm that asks."""

    program: Program
    users: Mapping[str, list[Op]]
    names: set[str]

    def looks_for_zero(self, op: Op | None) -> bool:
        """Whether an operation compares one of them with zero, or asks whether it is a number."""
        if op is None or not self.names & {x.name for x in op.operands if isinstance(x, Ref)}:
            return False
        return op.fn == "isnan" or (op.fn in ("eq", "ne") and Literal(0.0) in op.operands)

    def is_chosen(self, op: Op) -> bool:
        """Whether a value goes element by element into a `where` that looks for anything else."""
        ahead, seen = [op], set[str]()
        while ahead:
            users = [u for u in self.users[ahead.pop().name] if set(u.axes) == set(op.axes) and not u.over]
            for user in users:
                condition = user.operands[0] if user.fn == "where" else None
                made = self.program.op.get(condition.name) if isinstance(condition, Ref) else None
                if user.fn == "where" and not self.looks_for_zero(made):
                    return True
            ahead += [u for u in users if u.name not in seen]
            seen |= {u.name for u in users}
        return False


def _demand(chain: _Chain, name: str, domain: Domain, root: Op, wanted: dict[str, Domain]) -> None:
    """Follows casts, smallest elements and sums with small positive literals back to the inputs.

    Not sums, means and largest elements: what these must be says nothing of a single element.
    """
    chain.names.add(name)
    for user in chain.users[name]:
        if OPS[user.fn].result is Result.BOOL:
            if not chain.looks_for_zero(user):
                return
            domain = Domain(lo=0.0)
    op = chain.program.op.get(name)
    if op is None:
        if not chain.is_chosen(root):
            wanted[name] = domain
        return
    first = next((x for x in op.operands if isinstance(x, Ref)), None)
    if first is None or op.fn not in ("cast", "add", "mul", "amin"):
        return
    if op.fn == "add":
        if not _has_literal(op, 0, TINY):
            return
        domain = Domain(lo=0.0)
    if op.fn == "mul" and not _has_literal(op, 0):
        return
    _demand(chain, first.name, domain, root, wanted)


def _has_literal(op: Op, above: float, most: float = math.inf) -> bool:
    return any(isinstance(x, Literal) and above < x.value <= most for x in op.operands)
