"""A region while it is being imported: values over atoms, and the operations written so far.

A Value is what an FX node stands for: a source (an input, an operation of the draft, or a literal), the
dims of the FX tensor as atoms, and pending accesses (a slice or a gather becomes an operation only inside
its consumer). A dim may hold atoms over which the source does not vary: that is an expanded dim.

The Draft's methods write one operation each. Lowerings (lower_*.py) are built from them; emit.py turns
the finished draft into a Program.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from cudal1_fx_passes.importer.unify import (
    Atom,
    AxisConflict,
    Dim,
    find,
    keep_apart,
    keep_whole,
    leaves,
    new_atom,
    unify,
)
from cudal1_fx_passes.program.evaluate import DTYPE_NAME, TORCH_DTYPE, fit_number
from cudal1_fx_passes.program.ir import Domain, Literal, Number
from cudal1_fx_passes.program.ops import OPS, Result

MOST_F16 = 65504


@dataclass(frozen=True, slots=True)
class DraftIndex:
    """An index over atoms: (sum of coefficient * atom + offset) / divisor, or an integer value."""

    terms: tuple[tuple[int, Atom], ...] = ()
    offset: int = 0
    divisor: int = 1
    value: str | None = None

    def is_plain(self, atom: Atom) -> bool:
        """Whether it is just the position along `atom`."""
        return (
            self.value is None
            and (self.offset, self.divisor) == (0, 1)
            and len(self.terms) == 1
            and self.terms[0][0] == 1
            and find(self.terms[0][1]) is atom
        )


Access = tuple[tuple[Atom, DraftIndex], ...]


@dataclass(frozen=True, slots=True)
class Value:
    source: str | Literal
    dims: tuple[Dim, ...]
    dtype: str
    access: Access = ()


@dataclass(frozen=True, slots=True)
class DraftRef:
    source: str
    access: Access = ()


@dataclass(frozen=True, slots=True)
class DraftOp:
    name: str
    dtype: str
    fn: str
    operands: tuple[DraftRef | Literal, ...]
    over: tuple[Atom, ...] = ()
    origin: str = ""  # the FX node that it came from


@dataclass
class Draft:
    """Operations in order, and the atoms over which each source varies."""

    ops: list[DraftOp] = field(default_factory=list)
    atoms: dict[str, tuple[Atom, ...]] = field(default_factory=dict)
    origin: str = ""
    chunks: bool = True  # equal slices of a dim become an axis; else they are read at an offset
    below: dict[str, Atom] = field(default_factory=dict)  # input that indexes -> the axis
    domains: dict[str, Domain] = field(default_factory=dict)  # input -> what its readers ask of it

    # sources

    def add_input(self, name: str, atoms: Sequence[Atom]) -> None:
        self.atoms[name] = tuple(atoms)

    def write(
        self,
        fn: str,
        dtype: str,
        operands: Sequence[DraftRef | Literal],
        atoms: Sequence[Atom],
        over: Sequence[Atom] = (),
    ) -> str:
        name = f"t{len(self.ops)}"
        self.ops.append(DraftOp(name, dtype, fn, tuple(operands), tuple(over), self.origin))
        self.atoms[name] = tuple(atoms)
        return name

    def varies_over(self, value: Value) -> list[Atom]:
        """The atoms over which a value really varies, once its accesses are applied."""
        if isinstance(value.source, Literal):
            return []
        replaced = {find(atom): index for atom, index in value.access}
        found = [a for a in leaves(self.atoms[value.source]) if a not in replaced]
        for index in replaced.values():
            found += leaves(atom for _, atom in index.terms)
            if index.value is not None:
                found += leaves(self.atoms[index.value])
        return list(dict.fromkeys(found))

    # pointwise

    def pointwise(self, fn: str, operands: Sequence[Value | Number], dtype: str | None = None) -> Value:
        """Writes a pointwise operation over operands of one dtype (`where`: a condition first).

        Numbers become literals of that dtype. dtype: the result's, by default as the table says.
        """
        values = [x for x in operands if isinstance(x, Value)]
        typed = [x for x in operands[1:] if isinstance(x, Value)] if fn == "where" else values
        operand_dtype = typed[0].dtype if typed else dtype
        if operand_dtype is None or any(x.dtype != operand_dtype for x in typed):
            raise AssertionError(f"{fn}: operands of dtypes {[x.dtype for x in typed]}; the lowering must cast")
        dims = self._broadcast([v.dims for v in values])
        result = "bool" if OPS[fn].result is Result.BOOL else (dtype or operand_dtype)
        if not any(isinstance(v.source, str) for v in values):
            return self._fold(fn, operands, dims, operand_dtype, result)
        atoms: list[Atom] = []
        for v in values:
            atoms += self.varies_over(v)
        refs = [self._operand(x, operand_dtype) for x in operands]
        keep_apart(atom for dim in dims for atom in dim)
        name = self.write(fn, result, refs, list(dict.fromkeys(leaves(atoms))))
        return Value(name, dims, result)

    def cast(self, value: Value, dtype: str) -> Value:
        if value.dtype == dtype:
            return value
        if isinstance(value.source, Literal):
            number = torch.tensor(value.source.value, dtype=TORCH_DTYPE[value.dtype]).to(TORCH_DTYPE[dtype]).item()
            return Value(Literal(number), value.dims, dtype)
        return self.pointwise("cast", [value], dtype)

    def literal(self, number: Number, dtype: str, dims: Sequence[Dim] = ()) -> Value:
        return Value(Literal(fit_number(number, dtype)), tuple(dims), dtype)

    def _operand(self, x: Value | Number, dtype: str) -> DraftRef | Literal:
        if not isinstance(x, Value):
            return Literal(fit_number(x, dtype))
        if isinstance(x.source, Literal):
            return x.source
        return DraftRef(x.source, x.access)

    def _fold(
        self, fn: str, operands: Sequence[Value | Number], dims: tuple[Dim, ...], dtype: str, result: str
    ) -> Value:
        """An operation on literals only: computed here."""
        tensors = []
        for x in operands:
            number = x.source.value if isinstance(x, Value) and isinstance(x.source, Literal) else x
            kind = x.dtype if isinstance(x, Value) else dtype
            tensors.append(torch.tensor(number, dtype=TORCH_DTYPE[kind]))
        got = OPS[fn].run(*tensors).to(TORCH_DTYPE[result])
        return Value(Literal(got.item()), dims, result)

    def _broadcast(self, shapes: Sequence[tuple[Dim, ...]]) -> tuple[Dim, ...]:
        rank = max(len(s) for s in shapes)
        dims: list[Dim] = []
        for i in range(rank):
            here = [s[i - rank + len(s)] for s in shapes if i - rank + len(s) >= 0]
            wide = [d for d in here if d]
            for other in wide[1:]:
                unify(wide[0], other)
            dims.append(tuple(leaves(wide[0])) if wide else ())
        return tuple(dims)

    # reductions and scans

    def reduce(
        self,
        fn: str,
        value: Value,
        dims: Sequence[int],
        keepdim: bool,
        dtype: str | None = None,
        literals: Sequence[Number] = (),
    ) -> Value:
        """Writes a reduction over dims of the value; expanded dims are accounted for without an axis."""
        dims = sorted({d % len(value.dims) for d in dims}) if value.dims else []
        over = leaves(atom for d in dims for atom in value.dims[d])
        varies = self.varies_over(value)
        real = [a for a in over if a in varies]
        kept = tuple(d if i not in dims else () for i, d in enumerate(value.dims) if keepdim or i not in dims)
        dtype = dtype or value.dtype
        ghosts = [a for a in over if a not in varies]
        if ghosts:
            value = self._account(fn, value, ghosts)
        if not real:
            return self._degenerate(fn, value, kept, dtype, literals)
        if not isinstance(value.source, str):
            raise AssertionError("a literal does not vary")
        operands: list[DraftRef | Literal] = [DraftRef(value.source, value.access)]
        operands += [Literal(x) for x in literals]
        name = self.write(fn, dtype, operands, [a for a in varies if a not in real], real)
        return Value(name, kept, dtype)

    def _account(self, fn: str, value: Value, ghosts: list[Atom]) -> Value:
        """What a reduction over an expanded dim does to the value itself."""
        if fn in ("mean", "amax", "amin", "any", "all"):
            return value
        if fn == "sum" and not any(a.symbolic for a in ghosts):
            count = math.prod(a.hint for a in ghosts)
            if value.dtype == "f16" and count > MOST_F16:
                raise AxisConflict("a sum of more equal values than float16 can count")
            return self.pointwise("mul", [value, count], value.dtype)
        raise AxisConflict(f"{fn} over an expanded dim")

    def _degenerate(
        self, fn: str, value: Value, kept: tuple[Dim, ...], dtype: str, literals: Sequence[Number]
    ) -> Value:
        """A reduction over size-1 dims."""
        result = replace(value, dims=kept)
        if fn in ("sum", "mean", "amax", "amin", "prod", "logsumexp"):
            return self.cast(result, dtype)
        if fn in ("argmax", "argmin"):
            return self.literal(0, dtype, kept)
        if fn in ("any", "all"):
            return self.pointwise("ne", [result, 0]) if result.dtype != "bool" else result
        raise AxisConflict(f"{fn} over dims of size 1")

    def scan(self, fn: str, value: Value, dim: int) -> Value:
        if not value.dims or not value.dims[dim]:
            return value
        atoms = value.dims[dim]
        if len(leaves(atoms)) != 1:
            raise AxisConflict(f"{fn} runs along one axis, the dim is split")
        atom = keep_whole(atoms[0], fn)
        if not isinstance(value.source, str) or atom not in self.varies_over(value):
            raise AxisConflict(f"{fn} along an expanded dim")
        name = self.write(fn, value.dtype, [DraftRef(value.source, value.access)], self.varies_over(value), [atom])
        return Value(name, value.dims, value.dtype)

    def iota(self, atom: Atom, dtype: str = "i64") -> Value:
        name = self.write("iota", dtype, [], [atom], [atom])
        return Value(name, ((atom,),), dtype)

    # accesses

    def access(self, value: Value, dim: int, make: Dim, index: DraftIndex, why: str) -> Value:
        """Replaces one dim by `make`, reading the value there at `index`.

        Composes with what is pending on the same axis. A dim over which the value does not vary just
        changes its atoms.
        """
        atom = self.whole_axis(value, dim, why)
        dims = (*value.dims[:dim], make, *value.dims[dim + 1 :])
        if not isinstance(value.source, str) or atom not in self.varies_over(value):
            return replace(value, dims=dims)
        pending = [(find(key), p) for key, p in value.access]
        through = [key for key, p in pending if any(find(a) is atom for _, a in p.terms)]
        if any(p.value is not None and atom in leaves(self.atoms[p.value]) for _, p in pending):
            raise AxisConflict(f"{why} of a gather")
        composed = [(key, _compose(p, atom, index) if key in through else p) for key, p in pending]
        if atom in leaves(self.atoms[value.source]) and atom not in [key for key, _ in pending]:
            composed.append((atom, index))
        keep_apart(a for d in dims for a in d)
        return Value(value.source, dims, value.dtype, tuple(composed))

    def whole_axis(self, value: Value, dim: int, why: str) -> Atom:
        found = leaves(value.dims[dim])
        if len(found) != 1:
            raise AxisConflict(f"{why} needs one axis, the dim has {[a.hint for a in found]}")
        return keep_whole(found[0], why)

    def settle(self, value: Value) -> Value:
        """Writes pending accesses as a copy, so that the value has a name of its own."""
        if not value.access or not isinstance(value.source, str):
            return value
        refs = [DraftRef(value.source, value.access)]
        name = self.write("cast", value.dtype, refs, self.varies_over(value))
        return Value(name, value.dims, value.dtype)


def _compose(outer: DraftIndex, atom: Atom, inner: DraftIndex) -> DraftIndex:
    """`outer` with its position along `atom` replaced by `inner`."""
    if outer.is_plain(atom):
        return inner
    if inner.value is not None or inner.divisor != 1 or outer.divisor != 1:
        raise AxisConflict("an access through another one that is not affine")
    terms: dict[Atom, int] = {}
    offset = outer.offset
    for coefficient, axis in outer.terms:
        if find(axis) is not atom:
            terms[find(axis)] = terms.get(find(axis), 0) + coefficient
            continue
        offset += coefficient * inner.offset
        for c, a in inner.terms:
            terms[find(a)] = terms.get(find(a), 0) + coefficient * c
    return DraftIndex(tuple((c, a) for a, c in terms.items() if c), offset)


def dtype_name(dtype: torch.dtype) -> str:
    """Raises AxisConflict for dtypes that Region text V1 lacks (complex, float8, uint16 ...)."""
    if dtype not in DTYPE_NAME:
        raise AxisConflict(f"dtype {dtype} is not supported")
    return DTYPE_NAME[dtype]


def window_atom(size: int) -> Atom:
    return new_atom(size, size, window=True)
