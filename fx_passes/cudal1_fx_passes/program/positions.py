"""Exact simplifications of what is computed from positions: attention masks and shifted labels.

    t0 i64[d3] = iota() along d3
    t1 f32[d1,d3] = neg(in0[d2=t0])            ->  neg(in0[d2=d3])
    lt(t0, 0)                                  ->  false: a position lies in [0,size)
    where(false, t4, t0)                       ->  t0
    t2 i64[d0,d3] = where(lt(t0, 512), in1[d4=d3], -100)
    t3 bool[d0,d1] = ne(t2[d3=d1+1], -100)     ->  ne(where(lt(t5, 512), in1[d4=d1+1], -100), -100)

There t5 is add(iota() along d1, 1). The last one computes integers and booleans again at the index where they
are read, so that accesses stand on inputs. It is done only where the read is in bounds for certain (an access of
an axis of unknown size is not) and takes few operations. Floating-point values are left where they are.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count

from cudal1_fx_passes.program.ir import FLOAT_DTYPES, Axis, Index, Literal, Op, Operand, Ref, operand_axes
from cudal1_fx_passes.program.merge import Parts
from cudal1_fx_passes.program.ops import OPS, Kind
from cudal1_fx_passes.program.simplify import follow

MAX_AGAIN = 8  # operations that one read may compute again
_ORDERINGS = ("lt", "le", "gt", "ge")

Bounds = tuple[float, float]  # closed
Env = tuple[tuple[str, Index], ...]  # axis of a value -> where it is read


def fold_positions(parts: Parts) -> Parts:
    """Returns the parts; the same ones where nothing applies. What is no longer needed is left for simplify."""
    return _Folder(parts).run()


def plain(axis: str) -> Index:
    return Index(((1, axis),))


@dataclass
class _Folder:
    parts: Parts
    made: dict[str, Op] = field(default_factory=dict)  # the operations so far, in an executable order
    alias: dict[str, str] = field(default_factory=dict)
    truth: dict[str, bool] = field(default_factory=dict)  # comparisons with a known result
    copies: dict[tuple[str, Env], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.axis: dict[str, Axis] = {a.name: a for a in self.parts.axes}
        self.axes_of = {i.name: i.axes for i in self.parts.inputs}
        self.dtype_of = {i.name: i.dtype for i in self.parts.inputs}
        taken = {op.name for op in self.parts.ops}
        self.fresh = (name for n in count(len(taken)) if (name := f"t{n}") not in taken)

    def run(self) -> Parts:
        for op in self.parts.ops:
            self.alias[op.name] = self._add(op)
        ops = tuple(self.made.values())
        if ops == self.parts.ops:
            return self.parts
        outputs = tuple(replace(o, value=self.alias.get(o.value, o.value)) for o in self.parts.outputs)
        return replace(self.parts, ops=ops, outputs=outputs)

    def _add(self, op: Op) -> str:
        """Adds the operation unless a value that is there already equals it; returns the value's name."""
        moves = OPS[op.fn].kind is Kind.POINTWISE  # the bounds of windows decide what takes part
        op = replace(op, operands=tuple(self._operand(follow(x, self.alias), moves) for x in op.operands))
        if same := self._chosen(op):
            return same
        self.made[op.name] = op
        self.axes_of[op.name], self.dtype_of[op.name] = op.axes, op.dtype
        if (known := self._compare(op)) is not None:
            self.truth[op.name] = known
        return op.name

    def _operand(self, x: Operand, moves: bool) -> Operand:
        if isinstance(x, Literal) or not x.access:
            return x
        access = tuple((axis, self._affine(index)) for axis, index in x.access)
        access = tuple((axis, index) for axis, index in access if index != plain(axis))
        if moves and all(self._is_inside(a, i) for a, i in access) and self._is_cheap(x.name, access):
            return Ref(self._copy(x.name, access))
        return Ref(x.name, access)

    # positions and their bounds

    def _affine(self, index: Index) -> Index:
        """An index value that is a position plus a number, written as an index."""
        found = None if index.value is None else self._position(index.value)
        return index if found is None else found

    def _position(self, name: str) -> Index | None:
        op = self.made.get(name)
        if op is None or op.dtype != "i64":
            return None
        if op.fn == "iota":
            return plain(op.over[0])
        if op.fn not in ("add", "sub"):
            return None
        x, y = op.operands
        if isinstance(x, Literal) and op.fn == "add":
            x, y = y, x
        base = self._position(x.name) if isinstance(x, Ref) and not x.access else None
        if base is None or not isinstance(y, Literal):
            return None
        return replace(base, offset=base.offset + int(y.value if op.fn == "add" else -y.value))

    def _span(self, index: Index) -> Bounds | None:
        """The positions that an affine index takes; None where a size is not known."""
        axes = [(c, self.axis[a]) for c, a in index.terms]
        if index.value is not None or index.divisor != 1 or any(a.symbolic for _, a in axes):
            return None
        ends = [c * (a.size - 1) for c, a in axes]
        return index.offset + sum(min(0, e) for e in ends), index.offset + sum(max(0, e) for e in ends)

    def _is_inside(self, axis: str, index: Index) -> bool:
        span, held = self._span(index), self.axis[axis]
        return span is not None and not held.symbolic and span[0] >= 0 and span[1] < held.size

    def _bounds(self, x: Operand) -> Bounds | None:
        """Closed bounds of an integer operand that is a number or a position; they hold for every size."""
        if isinstance(x, Literal):
            return (x.value, x.value)
        position = None if x.access else self._position(x.name)
        if position is None:
            return None
        return self._span(position) or (position.offset, float("inf"))

    def _compare(self, op: Op) -> bool | None:
        """The result of a comparison that comes out the same everywhere."""
        if op.fn not in _ORDERINGS:
            return None
        a, b = (self._bounds(x) for x in op.operands)
        if a is None or b is None:
            return None
        compare: Callable[[float, float], bool] = getattr(operator, op.fn)
        ends = {compare(x, y) for x in a for y in b}
        return ends.pop() if len(ends) == 1 else None

    def _chosen(self, op: Op) -> str | None:
        """The value that a `where` with a known condition passes on."""
        if op.fn != "where" or not isinstance(condition := op.operands[0], Ref) or condition.access:
            return None
        if (known := self.truth.get(condition.name)) is None:
            return None
        x = op.operands[1 if known else 2]
        if isinstance(x, Literal) or x.access or set(self.axes_of[x.name]) != set(op.axes):
            return None
        return x.name if self.dtype_of[x.name] == op.dtype else None

    # computing a value again at the index where it is read

    def _is_cheap(self, name: str, env: Env) -> bool:
        """Whether the value at these indices takes only inputs and a few operations on integers and booleans."""
        if name not in self.made:
            return False
        seen: set[tuple[str, Env]] = set()
        todo = [(name, env)]
        while todo:
            name, env = todo.pop()
            if not env or name not in self.made or (name, env) in seen:
                continue
            seen.add((name, env))
            op = self.made[name]
            below = self._below(op, env)
            if below is None or len(seen) > MAX_AGAIN:
                return False
            todo += below
        return True

    def _below(self, op: Op, env: Env) -> list[tuple[str, Env]] | None:
        """The values that an operation reads when its own axes stand at `env`; None where it cannot be moved."""
        if op.fn == "iota":
            index = dict(env)[op.over[0]]
            return [] if len(index.terms) == 1 and index.terms[0][0] == 1 else None
        dtypes = {op.dtype, *(self.dtype_of[x.name] for x in op.operands if isinstance(x, Ref))}
        if OPS[op.fn].kind is not Kind.POINTWISE or dtypes & set(FLOAT_DTYPES):
            return None
        below: list[tuple[str, Env]] = []
        for x in op.operands:
            if isinstance(x, Ref) and x.access:
                if x.name in self.made or any(i.value is not None for _, i in x.access):
                    return None
            elif isinstance(x, Ref):
                below.append((x.name, self._of(x.name, env)))
        return below

    def _of(self, name: str, env: Env) -> Env:
        return tuple((a, i) for a, i in env if a in self.axes_of[name])

    def _copy(self, name: str, env: Env) -> str:
        """The name of the value at these indices."""
        if not env:
            return name
        if (name, env) not in self.copies:
            op = self.made[name]
            found = self._shifted(dict(env)[op.over[0]]) if op.fn == "iota" else self._again(op, env)
            self.copies[name, env] = found
        return self.copies[name, env]

    def _again(self, op: Op, env: Env) -> str:
        operands = tuple(self._operand_at(x, env) for x in op.operands)
        return self._add(self._op(op.dtype, op.fn, operands))

    def _operand_at(self, x: Operand, env: Env) -> Operand:
        if isinstance(x, Literal):
            return x
        if not x.access and x.name in self.made:
            return Ref(self._copy(x.name, self._of(x.name, env)))
        at, moved = dict(x.access), dict(env)
        positions = [(a, _compose(at.get(a, plain(a)), moved)) for a in self.axes_of[x.name]]
        return Ref(x.name, tuple(sorted((a, i) for a, i in positions if i != plain(a))))

    def _shifted(self, index: Index) -> str:
        ((_, axis),) = index.terms
        start = self._add(self._op("i64", "iota", (), (axis,)))
        if not index.offset:
            return start
        return self._add(self._op("i64", "add", (Ref(start), Literal(index.offset))))

    def _op(self, dtype: str, fn: str, operands: tuple[Operand, ...], over: tuple[str, ...] = ()) -> Op:
        span = set(over).union(*(operand_axes(self.axes_of, x) for x in operands))
        return Op(next(self.fresh), dtype, tuple(a for a in self.axis if a in span), fn, operands, over)


def _compose(index: Index, inside: dict[str, Index]) -> Index:
    """An affine index whose axes are read at affine indices themselves."""
    terms: dict[str, int] = {}
    offset = index.offset
    for factor, axis in index.terms:
        other = inside.get(axis, plain(axis))
        offset += factor * other.offset
        for inner, name in other.terms:
            terms[name] = terms.get(name, 0) + factor * inner
    return Index(tuple((c, a) for a, c in terms.items() if c), offset, index.divisor)
