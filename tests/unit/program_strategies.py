"""Random programs for property tests. Not a test module itself."""

from __future__ import annotations

import random

import torch
from hypothesis import strategies as st
from torch import Tensor

from cudal1_fx_passes.program.evaluate import TORCH_DTYPE
from cudal1_fx_passes.program.ir import (
    FLOAT_DTYPES,
    Axis,
    Domain,
    Index,
    Input,
    Literal,
    Op,
    Operand,
    Output,
    Program,
    Ref,
    operand_axes,
)
from cudal1_fx_passes.program.ops import OPS, Kind, Result

_UNARY = ("neg", "abs", "exp", "tanh", "sigmoid", "relu", "sin")
_BINARY = ("add", "sub", "mul", "maximum", "minimum")
_REDUCE = ("sum", "mean", "amax", "amin", "logsumexp")


class _Maker:
    """Grows one program from a random source; the same seed gives the same program."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.axes = [Axis(f"d{i}", rng.choice((2, 3, 4, 5)), rng.random() < 0.1) for i in range(rng.randint(1, 4))]
        self.order = {a.name: i for i, a in enumerate(self.axes)}
        self.inputs: list[Input] = []
        self.ops: list[Op] = []
        self.axes_of: dict[str, tuple[str, ...]] = {}
        self.dtype_of: dict[str, str] = {}

    def make(self) -> Program:
        for _ in range(self.rng.randint(1, 3)):
            self._input()
        for _ in range(self.rng.randint(1, 8)):
            self._op()
        names = [o.name for o in self.ops]
        chosen = sorted({names[-1], self.rng.choice(names)})
        outputs = [Output(f"out{i}", name, self._shuffled(self.axes_of[name])) for i, name in enumerate(chosen)]
        return Program(tuple(self.axes), tuple(self.inputs), tuple(self.ops), tuple(outputs))

    def _shuffled(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        found = list(axes)
        if self.rng.random() < 0.3:
            self.rng.shuffle(found)
        return tuple(found)

    def _input(self) -> None:
        names = [a.name for a in self.axes]
        held = self._shuffled(tuple(a for a in names if self.rng.random() < 0.75) or (names[0],))
        strides = None
        if self.rng.random() < 0.2:
            step, found = 2, []
            for a in reversed(held):
                found.append(step)
                step *= self.axes[self.order[a]].size
            strides = tuple(reversed(found))
        name, dtype = f"in{len(self.inputs)}", self.rng.choice(("f32", "f32", "f64"))
        domain = self.rng.choice((Domain(), Domain(lo=0.0, lo_open=True), Domain(0.0, 1.0)))
        self.inputs.append(Input(name, dtype, held, strides, domain))
        self._note(name, held, dtype)

    def _note(self, name: str, axes: tuple[str, ...], dtype: str) -> None:
        self.axes_of[name] = tuple(sorted(axes, key=self.order.__getitem__))
        self.dtype_of[name] = dtype

    def _write(self, fn: str, dtype: str, operands: tuple[Operand, ...], over: tuple[str, ...] = ()) -> None:
        span: set[str] = set()
        for x in operands:
            span |= operand_axes(self.axes_of, x)
        spec = OPS[fn]
        axes = span - set(over) if spec.kind is Kind.REDUCE else span | set(over)
        name = f"t{len(self.ops)}"
        ordered = tuple(sorted(axes, key=self.order.__getitem__))
        self.ops.append(Op(name, dtype, ordered, fn, operands, over))
        self._note(name, ordered, dtype)

    def _pick(self, dtype: str | None = None) -> str:
        names = [n for n, d in self.dtype_of.items() if d in FLOAT_DTYPES and (dtype is None or d == dtype)]
        return self.rng.choice(names)

    def _op(self) -> None:
        kind = self.rng.choice(("unary", "binary", "binary", "reduce", "scan", "where", "cast", "flip"))
        name = self._pick()
        dtype, axes = self.dtype_of[name], self.axes_of[name]
        if kind == "reduce" and axes:
            over = tuple(a for a in axes if self.rng.random() < 0.5) or (axes[-1],)
            self._write(self.rng.choice(_REDUCE), dtype, (Ref(name),), over)
        elif kind == "scan" and axes:
            self._write("cumsum", dtype, (Ref(name),), (self.rng.choice(axes),))
        elif kind == "where":
            self._write("gt", "bool", (Ref(name), Literal(0.3)))
            other = Literal(self.rng.choice((0.0, 1.7)))
            self._write("where", dtype, (Ref(self.ops[-1].name), Ref(name), other))
        elif kind == "cast":
            self._write("cast", "f64" if dtype == "f32" else "f32", (Ref(name),))
        elif kind == "flip" and axes:
            axis = self.rng.choice(axes)
            place = Index(((-1, axis),), self.axes[self.order[axis]].size - 1)
            self._write("add", dtype, (Ref(name, ((axis, place),)), Ref(name)))
        elif kind == "binary":
            other = self._pick(dtype) if self.rng.random() < 0.8 else None
            operands: list[Operand] = [Ref(name), Ref(other) if other else Literal(self.rng.choice((0.75, 2.5)))]
            self.rng.shuffle(operands)
            self._write(self.rng.choice(_BINARY), dtype, tuple(operands))
        else:
            self._write(self.rng.choice(_UNARY), dtype, (Ref(name),))


def programs() -> st.SearchStrategy[Program]:
    return st.integers(0, 2**32).map(lambda seed: _Maker(random.Random(seed)).make())


def random_inputs(program: Program, seed: int = 0) -> list[Tensor]:
    """One tensor an input in memory order, inside its domain."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for i in program.inputs:
        sizes = [program.axis[a].size for a in i.axes]
        x = torch.randn(sizes, generator=generator, dtype=torch.float64)
        if i.domain.below is not None:
            x = torch.randint(0, program.axis[i.domain.below].size, sizes, generator=generator)
        elif i.domain.lo == 0:
            x = x.abs().clamp(1e-3, i.domain.hi or 1e6)
        found.append(x.to(TORCH_DTYPE[i.dtype]))
    return found


def rename(program: Program, seed: int) -> tuple[Program, list[int], list[int]]:
    """The same computation written otherwise: names, order, commuted operands.

    Returns also where each input and output of the new program stood in the old one.
    """
    rng = random.Random(seed)
    numbers = list(range(len(program.axes)))
    rng.shuffle(numbers)
    letters = {a.name: f"{a.name[0]}{numbers[i]}" for i, a in enumerate(program.axes)}
    axes = [Axis(letters[a.name], a.size, a.symbolic) for a in program.axes]
    rng.shuffle(axes)
    order = {a.name: i for i, a in enumerate(axes)}
    ins, outs = list(range(len(program.inputs))), list(range(len(program.outputs)))
    rng.shuffle(ins)
    rng.shuffle(outs)
    names = {program.inputs[old].name: f"in{new}" for new, old in enumerate(ins)}
    ops = _reordered(program, rng)
    names |= {op.name: f"t{new}" for new, op in enumerate(ops)}

    def operand(x: Operand) -> Operand:
        if isinstance(x, Literal):
            return x
        access = []
        for axis, index in x.access:
            terms = [(c, letters[a]) for c, a in index.terms]
            rng.shuffle(terms)
            value = None if index.value is None else names[index.value]
            access.append((letters[axis], Index(tuple(terms), index.offset, index.divisor, value)))
        return Ref(names[x.name], tuple(sorted(access)))

    def rewrite(op: Op) -> Op:
        operands = [operand(x) for x in op.operands]
        if OPS[op.fn].commutative and rng.random() < 0.5:
            operands.reverse()
        spread = tuple(sorted((letters[a] for a in op.axes), key=order.__getitem__))
        over = [letters[a] for a in op.over]
        if OPS[op.fn].result is not Result.INDEX:
            rng.shuffle(over)
        return Op(names[op.name], op.dtype, spread, op.fn, tuple(operands), tuple(over))

    inputs = []
    for old in ins:
        i = program.inputs[old]
        domain = Domain(below=letters[i.domain.below]) if i.domain.below else i.domain
        inputs.append(Input(names[i.name], i.dtype, tuple(letters[a] for a in i.axes), i.strides, domain))
    outputs = []
    for new, old in enumerate(outs):
        o = program.outputs[old]
        outputs.append(Output(f"out{new}", names[o.value], tuple(letters[a] for a in o.axes), o.strides))
    return Program(tuple(axes), tuple(inputs), tuple(rewrite(op) for op in ops), tuple(outputs)), ins, outs


def _reordered(program: Program, rng: random.Random) -> list[Op]:
    """Another executable order of the operations."""
    waiting = list(program.ops)
    rng.shuffle(waiting)
    done = {i.name for i in program.inputs}
    ordered: list[Op] = []
    while waiting:
        for op in waiting:
            needed = {x.name for x in op.operands if isinstance(x, Ref)}
            needed |= {
                i.value for x in op.operands if isinstance(x, Ref) for _, i in x.access if i.value is not None
            }
            if needed <= done:
                waiting.remove(op)
                ordered.append(op)
                done.add(op.name)
                break
    return ordered
