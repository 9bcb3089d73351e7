"""Arithmetic on positions folds to the same bits, and only where it is exact."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cudal1_fx_passes.program.canonical import canonicalise
from cudal1_fx_passes.program.evaluate import evaluate
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.merge import Parts
from cudal1_fx_passes.program.positions import fold_positions
from cudal1_fx_passes.program.simplify import simplify
from cudal1_fx_passes.program.text import parse_program, print_program

MASK = """region v1
dims d0=4 d1=8 d2=8 d3=8 d4=8
in0 i64[d0,d2]
in1 i64[d0,d1]
t0 bool[d0,d1,d2] = eq(in0, in1)
t1 i64[d3] = iota() along d3
t2 i64[d3] = add(t1, 0)
t3 i64[d2] = iota() along d2
t4 i64[d2] = add(t3, 0)
t5 bool[d2] = lt(t4, 0)
t6 i64[d2] = add(t4, 8)
t7 i64[d2] = where(t5, t6, t4)
t8 i64[d4] = iota() along d4
t9 i64[d4] = add(t8, 0)
t10 i64[d1] = iota() along d1
t11 bool[d1,d2] = le(t2[d3=t7], t9[d4=t10])
t12 bool[d0,d1,d2] = logical_and(t0, t11)
t13 f32[d0,d1,d2] = where(t12, 0.0, -inf)
out0 f32[d0,d1,d2] = t13
"""
FOLDED_MASK = """region v1
dims d0=4 d1=8 d2=8
in0 i64[d0,d1]
in1 i64[d0,d2]
t0 bool[d0,d1,d2] = eq(in0, in1)
t1 i64[d2] = iota() along d2
t2 i64[d1] = iota() along d1
t3 bool[d1,d2] = le(t1, t2)
t4 bool[d0,d1,d2] = logical_and(t0, t3)
t5 f32[d0,d1,d2] = where(t4, 0.0, -inf)
out0 f32[d0,d1,d2] = t5
"""
LABELS = """region v1
dims d0=4 d1=8 d2=9 d3=8
in0 i64[d0,d3]
t0 i64[d2] = iota() along d2
t1 bool[d2] = lt(t0, 8)
t2 i64[d0,d2] = where(t1, in0[d3=d2], -100)
t3 bool[d0,d1] = ne(t2[d2=d1+1], -100)
t4 i64[d0,d1] = where(t3, t2[d2=d1+1], 0)
out0 i64[d0,d1] = t4
"""
FOLDED_LABELS = """region v1
dims d0=4 d1=8 d2=8
in0 i64[d0,d1]
t0 i64[d2] = iota() along d2
t1 i64[d2] = add(t0, 1)
t2 bool[d2] = lt(t1, 8)
t3 i64[d0,d2] = where(t2, in0[d1=d2+1], -100)
t4 bool[d0,d2] = ne(t3, -100)
t5 i64[d0,d2] = where(t4, t3, 0)
out0 i64[d0,d2] = t5
"""


def fold(program: Program) -> Program:
    """As the canonical form does, with names and order kept."""
    parts = simplify(Parts(program.axes, program.inputs, program.ops, program.outputs), keep_inputs=True)
    while (folded := fold_positions(parts)) is not parts:
        parts = simplify(folded, keep_inputs=True)
    return parts.build()


@pytest.mark.parametrize(("text", "wanted"), [(MASK, FOLDED_MASK), (LABELS, FOLDED_LABELS)])
def test_masks_and_shifted_labels(text: str, wanted: str) -> None:
    assert print_program(canonicalise(parse_program(text))) == wanted
    assert print_program(canonicalise(parse_program(wanted))) == wanted


def test_an_embedding_of_positions_reads_along_an_axis() -> None:
    head = "region v1\ndims d0=8 d1=6 d2=4\nin0 f32[d0,d2]\nt0 i64[d1] = iota() along d1\n"
    text = head + "t1 i64[d1] = add(t0, 2)\nt2 f32[d1,d2] = exp(in0[d0=t1])\nout0 f32[d1,d2] = t2\n"
    assert "exp(in0[d0=d1+2])" in print_program(fold(parse_program(text)))


HEAD = "region v1\ndims d0=?4 d1=8 d2=4\nin0 i64[d1]\nin1 f32[d1]\n"
LEFT_ALONE = {
    "a symbolic axis has no largest position": "t0 i64[d0] = iota() along d0\nt1 bool[d0] = lt(t0, 9)\n"
    "t2 i64[d0] = where(t1, t0, 7)\nout0 i64[d0] = t2\n",
    "a read of a symbolic axis": "t0 i64[d0] = iota() along d0\nt1 i64[d0] = mul(t0, 3)\n"
    "t2 i64[d2] = neg(t1[d0=d2])\nout0 i64[d2] = t2\n",
    "a read that may be out of bounds": "t0 i64[d1] = mul(in0, 3)\nt1 i64[d2] = neg(t0[d1=d2+5])\n"
    "out0 i64[d2] = t1\n",
    "floating-point values": "t0 f32[d1] = exp(in1)\nt1 f32[d2] = neg(t0[d1=d2+1])\nout0 f32[d2] = t1\n",
    "negative zero": "t0 f32[d1] = add(in1, 0.0)\nout0 f32[d1] = t0\n",
    "a position that may be negative": "t0 i64[d1] = iota() along d1\nt1 i64[d1] = sub(t0, 1)\n"
    "t2 bool[d1] = lt(t1, 0)\nt3 i64[d1] = where(t2, t0, t1)\nout0 i64[d1] = t3\n",
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_left_alone(name: str) -> None:
    program = parse_program(HEAD + LEFT_ALONE[name])
    assert fold(program).ops == program.ops


def test_what_would_take_many_operations_again_stays() -> None:
    lines = "".join(f"t{i + 1} i64[d1] = mul(t{i}, in0)\n" for i in range(12))
    text = HEAD + "t0 i64[d1] = neg(in0)\n" + lines + "t13 i64[d2] = neg(t12[d1=d2+1])\nout0 i64[d2] = t13\n"
    program = parse_program(text)
    assert fold(program).ops == program.ops


class _Positions:
    """Random integer arithmetic on positions, masks and labels, read at shifted, strided and flipped indices."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.sizes = [rng.choice((2, 3, 5, 8)) for _ in range(3)]
        self.lines = [f"in{i} i64[d{i}]" for i in range(3)]
        self.held = {f"in{i}": i for i in range(3)}  # each integer value varies over one axis

    def add(self, dtype: str, axis: int, body: str) -> str:
        name = f"t{len(self.lines) - 3}"
        self.lines.append(f"{name} {dtype}[d{axis}] = {body}")
        return name

    def read(self, axis: int) -> str:
        """An operand over the axis."""
        name, held = self.rng.choice(list(self.held.items()))
        if held == axis and self.rng.random() < 0.7:
            return name
        index = self.rng.choice((f"d{axis}", f"d{axis}{self.rng.randint(-3, 3):+d}", f"2*d{axis}"))
        values = [n for n, a in self.held.items() if a == axis]
        index = self.rng.choice((index, f"-d{axis}+{self.sizes[axis] - 1}", *values[:1])).removesuffix("+0")
        return f"{name}[d{held}={index.removesuffix('-0')}]"

    def step(self) -> None:
        axis, kind = self.rng.randrange(3), self.rng.choice(("iota", "shift", "shift", "where", "mul"))
        number = self.rng.choice((-100, -1, 0, 0, 1, 2, self.sizes[axis]))
        if kind == "iota":
            name = self.add("i64", axis, f"iota() along d{axis}")
        elif kind == "shift":
            name = self.add("i64", axis, f"{self.rng.choice(('add', 'sub'))}({self.read(axis)}, {number})")
        elif kind == "mul":
            name = self.add("i64", axis, f"mul({self.read(axis)}, {self.read(axis)})")
        else:
            fn = self.rng.choice(("lt", "le", "gt", "ge", "eq", "ne"))
            other = self.rng.choice((str(number), self.read(axis)))
            test = self.add("bool", axis, f"{fn}({self.read(axis)}, {other})")
            name = self.add("i64", axis, f"where({test}, {self.read(axis)}, {other})")
        self.held[name] = axis

    def program(self) -> Program:
        for _ in range(self.rng.randint(2, 10)):
            self.step()
        last = list(self.held)[-3:]
        outs = [f"out{i} i64[d{self.held[n]}] = {n}" for i, n in enumerate(last)]
        dims = " ".join(f"d{i}={n}" for i, n in enumerate(self.sizes))
        return parse_program("\n".join(["region v1", f"dims {dims}", *self.lines, *outs]))


@given(st.integers(0, 2**32))
def test_the_bits_stay(seed: int) -> None:
    program = _Positions(random.Random(seed)).program()
    folded = fold(program)
    generator = torch.Generator().manual_seed(seed)
    inputs = [torch.randint(-4, 9, [a.size], generator=generator) for a in program.axes]
    for old, new in zip(evaluate(program, inputs), evaluate(folded, inputs), strict=True):
        assert torch.equal(old, new), f"{print_program(program)}{print_program(folded)}"
    assert fold(folded).ops == folded.ops


@given(st.integers(0, 2**32))
def test_a_second_time_changes_nothing(seed: int) -> None:
    once = canonicalise(_Positions(random.Random(seed)).program())
    assert canonicalise(once) == once


@given(st.integers(0, 2**32))
def test_symbolic_sizes_fold_to_what_holds_for_every_size(seed: int) -> None:
    program = _Positions(random.Random(seed)).program()
    program = replace(program, axes=tuple(replace(a, symbolic=True) for a in program.axes))
    folded = fold(program)
    for extent in (1, 4, 7):
        sizes = {a.name: extent + i for i, a in enumerate(program.axes)}
        inputs = [torch.arange(n) * 3 % 7 - 2 for n in sizes.values()]
        for old, new in zip(evaluate(program, inputs, sizes), evaluate(folded, inputs, sizes), strict=True):
            assert torch.equal(old, new), f"{print_program(program)}{print_program(folded)}"
