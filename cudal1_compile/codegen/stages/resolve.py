"""Pushes accesses down to memory: an operand that reads a computed value at another index becomes a copy of that
value's operations at that index.

    t2[d3] = neg(in0[d2=d3+8])              t2[d2] = neg(in0[d2=d2+8])
    t3[d2] = where(t1, t2[d3=d2], ...)  ->  t3[d2] = where(t1, t2, ...)

Afterwards accesses stand only on inputs and on results of reductions and scans, which are read from memory. The
operand of a window reduction stays as it is: its bounds decide what takes part. An access outside the bounds
otherwise reads a clamped index, because `where` discards what it gives.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import reduce

from cudal1_fx_passes.program.ir import Index, Literal, Op, Operand, Program, Ref
from cudal1_fx_passes.program.ops import OPS, Kind

REDUCING = (Kind.REDUCE, Kind.DOT)
Env = tuple[tuple[str, Index], ...]  # axis of the value -> where it is read


class Unresolvable(Exception):
    """An access that no affine index expresses."""


def is_window(op: Op) -> bool:
    """Whether the operation reduces window axes."""
    return OPS[op.fn].kind is Kind.REDUCE and any(a.startswith("k") for a in op.over)


def reads_windows(op: Op) -> bool:
    """Whether what lies outside the bounds of what the operation reads takes no part in it."""
    return is_window(op) or OPS[op.fn].kind is Kind.DOT


def resolve(program: Program) -> Program:
    """Returns an equal program; the same one where nothing is accessed. Raises Unresolvable."""
    if not any(isinstance(x, Ref) and x.access for op in program.ops for x in op.operands):
        return program
    return _Resolver(program).run()


@dataclass
class _Resolver:
    program: Program
    ops: list[Op] = field(default_factory=list)
    made: dict[tuple[str, Env], str] = field(default_factory=dict)
    copies: dict[str, int] = field(default_factory=dict)
    axes: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def run(self) -> Program:
        p = self.program
        self.axes = {i.name: p.value_axes[i.name] for i in p.inputs}
        needed = {o.value for o in p.outputs} | {op.name for op in p.ops if not self._inlines(op.name)}
        for op in p.ops:
            if op.name in needed or self._read_in_place(op.name):
                self._instance(op.name, ())
        return Program(p.axes, p.inputs, tuple(self.ops), p.outputs)

    def _inlines(self, name: str) -> bool:
        op = self.program.op.get(name)
        return op is not None and OPS[op.fn].kind in (Kind.POINTWISE, Kind.IOTA)

    def _read_in_place(self, name: str) -> bool:
        """Also as an index: positions then stand in the program's order, not just before what is read there."""
        refs = [x for op in self.program.ops for x in op.operands if isinstance(x, Ref)]
        return any(x == Ref(name) or any(i.value == name for _, i in x.access) for x in refs)

    def _instance(self, name: str, env: Env) -> str:
        """The name of the value's operation at these indices, made on first use."""
        env = tuple((a, i) for a, i in env if i != Index(((1, a),)))
        if (name, env) in self.made:
            return self.made[name, env]
        op = self.program.op[name]
        if env and OPS[op.fn].kind is Kind.IOTA:
            made = self._position(op, env[0][1])
        else:
            window = reads_windows(op)
            made = self._add(replace(op, operands=tuple(self._operand(x, env, window) for x in op.operands)))
        self.made[name, env] = made
        return made

    def _position(self, op: Op, index: Index) -> str:
        """An index value read elsewhere: the position itself, put together from the axes' own index values."""
        if index.value is not None:
            return self._add(replace(op, fn="cast", operands=(Ref(index.value),), over=()))
        if index.divisor != 1:
            raise Unresolvable(f"{op.name}: an index value read at a quotient")
        if not index.terms:
            return self._add(replace(op, fn="cast", operands=(Literal(index.offset),), over=()))
        terms = [(factor, self._add(replace(op, over=(axis,)))) for factor, axis in index.terms]
        return self._sum(op, terms, index.offset)

    def _sum(self, op: Op, terms: list[tuple[int, str]], offset: int) -> str:
        """Operations that add up factor * value and an offset; `op` lends its name and dtype."""

        def add(fn: str, a: str, b: Operand) -> str:
            return self._add(replace(op, fn=fn, operands=(Ref(a), b), over=()))

        scaled = [add("mul", name, Literal(factor)) if factor != 1 else name for factor, name in terms]
        total = reduce(lambda a, b: add("add", a, Ref(b)), scaled)
        return add("add", total, Literal(offset)) if offset else total

    def _add(self, op: Op) -> str:
        """Appends the operation under a name of its own, over the axes that its operands have now."""
        copy = self.copies.get(op.name, -1) + 1
        self.copies[op.name] = copy
        name = f"{op.name}x{copy}" if copy else op.name
        span: set[str] = set() if op.over == () or OPS[op.fn].kind in REDUCING else set(op.over)
        for x in op.operands:
            if isinstance(x, Ref):
                span |= self._span(x)
        if OPS[op.fn].kind in REDUCING:
            span -= set(op.over)
        axes = tuple(a.name for a in self.program.axes if a.name in span)
        self.ops.append(replace(op, name=name, axes=axes))
        self.axes[name] = axes
        return name

    def _operand(self, x: Operand, env: Env, window: bool) -> Operand:
        if not isinstance(x, Ref):
            return x
        if window:
            return Ref(self._instance(x.name, ()) if self._inlines(x.name) else x.name, x.access)
        inside = dict(env)
        moved: list[tuple[str, Index]] = []
        for axis in self.program.value_axes[x.name]:
            index = dict(x.access).get(axis, Index(((1, axis),)))
            moved.append((axis, self._compose(index, inside)))
        if self._inlines(x.name):
            return Ref(self._instance(x.name, tuple(moved)))
        return Ref(x.name, tuple((a, i) for a, i in moved if i != Index(((1, a),))))

    def _compose(self, index: Index, inside: dict[str, Index]) -> Index:
        if index.value is not None:
            return Index(value=self._value_at(index.value, inside))
        if not any(axis in inside for _, axis in index.terms):
            return index
        if len(index.terms) == 1 and index == Index(((1, index.terms[0][1]),)):
            return inside[index.terms[0][1]]
        if any(inside[axis].value is not None for _, axis in index.terms if axis in inside):
            return Index(value=self._shifted(index, inside))
        terms: dict[str, int] = {}
        offset = index.offset
        for factor, axis in index.terms:
            other = inside.get(axis, Index(((1, axis),)))
            if other.divisor != 1:
                raise Unresolvable(f"{axis} read at {other}")
            offset += factor * other.offset
            for inner, name in other.terms:
                terms[name] = terms.get(name, 0) + factor * inner
        return Index(tuple((c, a) for a, c in terms.items() if c), offset, index.divisor)

    def _shifted(self, index: Index, inside: dict[str, Index]) -> str:
        """An affine index of positions that are themselves values: a value again."""
        positions = [(factor, inside.get(axis, Index(((1, axis),)))) for factor, axis in index.terms]
        name = next(i.value for _, i in positions if i.value is not None).replace("in", "i")
        self.copies.setdefault(name, 0)  # the bare name is taken
        op = Op(name, "i64", (), "iota", ())
        if index.divisor != 1:
            raise Unresolvable(f"{name}: read at a quotient")
        return self._sum(op, [(factor, i.value or self._position(op, i)) for factor, i in positions], index.offset)

    def _value_at(self, name: str, inside: dict[str, Index]) -> str:
        held = self.program.value_axes[name]
        env = tuple((a, inside[a]) for a in held if a in inside)
        if self._inlines(name):
            return self._instance(name, env)
        if env:
            raise Unresolvable(f"index value {name} read elsewhere")
        return name

    def _span(self, x: Ref) -> set[str]:
        replaced = dict(x.access)
        found = {a for a in self.axes[x.name] if a not in replaced}
        for index in replaced.values():
            found |= {axis for _, axis in index.terms}
            found |= set(self.axes[index.value]) if index.value is not None else set()
        return found
