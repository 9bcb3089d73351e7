"""Exact simplifications of a program's parts before it is put in canonical order.

    t1 = cast(t0) to its own dtype, mul(t0, 1), div(t0, 1), sub(t0, 0), logical_and(t0, true)   ->  t0
    t1 = add(t0, 0) of integers                                          ->  t0
    two operations that compute the same                                 ->  one
    operations and inputs that no output needs                           ->  gone
    literals                                                             ->  of the operands' dtype

Nothing here changes a bit of a result; rewrites that round differently belong to the generator.
"""

from __future__ import annotations

import math
from dataclasses import replace

from cudal1_fx_passes.program.evaluate import fit_number
from cudal1_fx_passes.program.ir import INT_DTYPES, Literal, Op, Operand, Ref
from cudal1_fx_passes.program.merge import Parts
from cudal1_fx_passes.program.ops import OPS, Kind

_NEUTRAL = {"mul": 1, "div": 1, "sub": 0, "logical_and": True, "logical_or": False}


def simplify(parts: Parts, keep_inputs: bool = False) -> Parts:
    """Returns the parts in one pass over the operations, which are in an executable order."""
    dtypes = {i.name: i.dtype for i in parts.inputs}
    alias: dict[str, str] = {}
    seen: dict[tuple[object, ...], str] = {}
    kept: list[Op] = []
    for op in parts.ops:
        op = replace(op, operands=tuple(follow(x, alias) for x in op.operands))
        op = replace(op, operands=_fit_literals(op, dtypes))
        dtypes[op.name] = op.dtype
        same = _same_as(op, dtypes)
        if same is None:
            key = (op.fn, op.dtype, op.over, tuple(map(repr, commuted(op))))  # -0.0 equals 0.0
            same = seen.setdefault(key, op.name)
        if same == op.name:
            kept.append(op)
        else:
            alias[op.name] = same
    outputs = tuple(replace(o, value=alias.get(o.value, o.value)) for o in parts.outputs)
    alive = drop_dead(replace(parts, ops=tuple(kept), outputs=outputs))
    return replace(alive, inputs=parts.inputs) if keep_inputs else alive


def drop_dead(parts: Parts) -> Parts:
    """Drops operations and inputs that no output needs."""
    needed = {o.value for o in parts.outputs}
    kept: list[Op] = []
    for op in reversed(parts.ops):
        if op.name in needed:
            kept.append(op)
            needed |= sources(op)
    return replace(parts, ops=tuple(reversed(kept)), inputs=tuple(i for i in parts.inputs if i.name in needed))


def sources(op: Op) -> set[str]:
    """Names of the values that an operation reads, as operands or as indices."""
    found: set[str] = set()
    for x in op.operands:
        if isinstance(x, Ref):
            found.add(x.name)
            found |= set(x.index_values)
    return found


def commuted(op: Op) -> tuple[Operand, ...]:
    """The operands in an order that does not depend on how a commutative operation was written."""
    count = commutative_count(op)
    head = sorted(op.operands[:count], key=repr)
    return (*head, *op.operands[count:])


def commutative_count(op: Op) -> int:
    """How many leading operands commute."""
    if op.fn == "fma":
        return 2
    return len(op.operands) if OPS[op.fn].commutative else 0


def follow(x: Operand, alias: dict[str, str]) -> Operand:
    """The operand under the names that its values have now."""
    if isinstance(x, Literal):
        return x
    access = tuple(
        (axis, replace(i, value=alias.get(i.value, i.value)) if i.value is not None else i) for axis, i in x.access
    )
    return Ref(alias.get(x.name, x.name), access)


def _fit_literals(op: Op, dtypes: dict[str, str]) -> tuple[Operand, ...]:
    if OPS[op.fn].kind is not Kind.POINTWISE:
        return op.operands
    typed = op.operands[1:] if op.fn == "where" else op.operands
    dtype = next((dtypes[x.name] for x in typed if isinstance(x, Ref)), op.dtype)
    fitted = tuple(Literal(fit_number(x.value, dtype)) if isinstance(x, Literal) else x for x in typed)
    return (op.operands[0], *fitted) if op.fn == "where" else fitted


def _same_as(op: Op, dtypes: dict[str, str]) -> str | None:
    """The value that an operation passes on unchanged."""
    first = op.operands[0] if op.operands else None
    if op.fn == "cast" and isinstance(first, Ref) and not first.access and dtypes[first.name] == op.dtype:
        return first.name
    neutral = 0 if op.fn == "add" and op.dtype in INT_DTYPES else _NEUTRAL.get(op.fn)  # -0.0 + 0 is 0.0
    if neutral is None:
        return None
    pairs = [op.operands, op.operands[::-1]] if OPS[op.fn].commutative else [op.operands]
    for x, y in pairs:
        if isinstance(x, Ref) and not x.access and isinstance(y, Literal) and _is(y.value, neutral):
            return x.name
    return None


def _is(value: float, neutral: float) -> bool:
    """-0.0 is not 0: x - -0.0 of x = -0.0 is 0.0."""
    return value == neutral and math.copysign(1.0, value) > 0
