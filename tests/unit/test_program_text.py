"""Region text V1: what is printed parses back to the same program, and bad text is refused with its line."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from program_strategies import programs

from cudal1_fx_passes.errors import ProgramError
from cudal1_fx_passes.program.ir import ANY, Axis, Domain, Index, Input, Literal, Output, Program, Ref
from cudal1_fx_passes.program.text import parse_program, print_literal, print_program

WINDOW = """region v1
dims d0=32 d1=64 d2=?56 d3=28 k0=3
in0 f32[d0,d1,d2]
in1 f32[d1] strides(2) >0
in2 i64[d0] in [0,d1)
t0 f32[d0,d1,d2] = mul(in0, in1)
t1 f32[d0,d1,d3] = amax(t0[d2=2*d3+k0-1]) over k0
t2 f32[d0,d3] = neg(t1[d1=in2])
t3 i64[d3] = iota() along d3
t4 f32[d0,d1,d3] = sum(in0[d2=(d3-k0+1)/2]) over k0
t5 bool[d0,d3] = gt(t2, -1.5e-07)
out0 f32[d0,d1,d3] = t1
out1 f32[d0,d1,d3] strides(2048,32,1) = t4
out2 bool[d0,d3] = t5
"""


@given(programs())
def test_round_trip(program: Program) -> None:
    text = print_program(program)
    assert parse_program(text) == program
    assert print_program(parse_program(text)) == text


def test_golden_text_round_trips() -> None:
    assert print_program(parse_program(WINDOW)) == WINDOW


def test_the_parts_of_the_golden_text() -> None:
    p = parse_program(WINDOW)
    assert p.axis["d2"] == Axis("d2", 56, True) and p.is_symbolic
    assert p.inputs[1] == Input("in1", "f32", ("d1",), (2,), Domain(lo=0.0, lo_open=True))
    assert p.inputs[2].domain == Domain(below="d1") and p.inputs[0].domain == ANY
    pooled = p.op["t1"].operands[0]
    assert pooled == Ref("t0", (("d2", Index(((2, "d3"), (1, "k0")), -1)),))
    assert p.op["t2"].operands == (Ref("t1", (("d1", Index(value="in2")),)),)
    assert p.op["t4"].operands == (Ref("in0", (("d2", Index(((1, "d3"), (-1, "k0")), 1, 2)),)),)
    assert p.op["t5"].operands[1] == Literal(-1.5e-07)
    assert p.outputs[1] == Output("out1", "t4", ("d0", "d1", "d3"), (2048, 32, 1))
    assert p.value_axes["t2"] == ("d0", "d3") and p.value_dtype["t5"] == "bool"


_NUMBERS = st.one_of(st.booleans(), st.integers(-(2**62), 2**62), st.floats(allow_nan=False))


@given(_NUMBERS)
def test_literals_round_trip_bit_for_bit(number: float | int | bool) -> None:
    text = (
        f"region v1\ndims d0=2\nin0 f32[d0]\nt0 f32[d0] = add(in0, {print_literal(number)})\nout0 f32[d0] = t0\n"
    )
    literal = parse_program(text).ops[0].operands[1]
    assert isinstance(literal, Literal)
    assert type(literal.value) is type(number) and literal.value == number
    assert math.copysign(1, literal.value) == math.copysign(1, number)


def test_nan_and_infinity_round_trip() -> None:
    text = "region v1\ndims d0=2\nin0 f32[d0]\nt0 f32[d0] = add(in0, {})\nout0 f32[d0] = t0\n"
    for word, check in (("inf", lambda x: x == math.inf), ("-inf", lambda x: x == -math.inf), ("nan", math.isnan)):
        literal = parse_program(text.format(word)).ops[0].operands[1]
        assert isinstance(literal, Literal) and check(literal.value)
        assert print_literal(literal.value) == word


_BOUND = st.one_of(st.integers(-9, 9).map(float), st.floats(-10, 10, allow_nan=False))


@given(st.one_of(
    st.just(ANY),
    st.just(Domain(below="d0")),
    st.builds(lambda lo, is_open: Domain(lo=lo, lo_open=is_open), _BOUND, st.booleans()),
    st.builds(lambda hi: Domain(hi=hi), _BOUND),
    st.builds(lambda lo, hi, is_open: Domain(min(lo, hi), max(lo, hi), is_open), _BOUND, _BOUND, st.booleans()),
))  # fmt: skip
def test_domains_round_trip(domain: Domain) -> None:
    inputs = (Input("in0", "f32", ("d0",), None, domain),)
    program = Program((Axis("d0", 4),), inputs, (), (Output("out0", "in0", ("d0",)),))
    assert parse_program(print_program(program)) == program


BASE = "region v1\ndims d0=4 d1=5\nin0 f32[d0,d1]\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "region v1"),
        ("region v2\ndims d0=1\n", "region v1"),
        ("region v1\n", "dims"),
        ("region v1\ndims x=4\n", "d0=32"),
        ("region v1\ndims d0=4 d0=5\nin0 f32[d0]\nout0 f32[d0] = in0\n", "once"),
        (BASE, "at least one output"),
        (BASE + "foo\n", "expected an input"),
        (BASE + "in1 f32[d0] around 3\nout0 f32[d0] = in1\n", "domain"),
        (BASE + "in1 f33[d0]\nout0 f32[d0] = in1\n", "dtype"),
        (BASE + "in1 f32[d0,d0]\nout0 f32[d0] = in1\n", "repeat"),
        (BASE + "in1 f32[d7]\nout0 f32[d0] = in1\n", "not declared"),
        (BASE + "in1 f32[d0] strides(1,2)\nout0 f32[d0] = in1\n", "2 strides for 1 axes"),
        (BASE + "in0 f32[d0]\nout0 f32[d0,d1] = in0\n", "once"),
        (BASE + "t0 f32[d0,d1] = frobnicate(in0)\nout0 f32[d0,d1] = t0\n", "unknown operation"),
        (BASE + "t0 f32[d0,d1] = neg(in0, in0)\nout0 f32[d0,d1] = t0\n", "takes 1 operands"),
        (BASE + "t0 f32[d0,d1] = neg(t1)\nout0 f32[d0,d1] = t0\n", "not defined"),
        (BASE + "t0 f32[d0] = neg(in0)\nout0 f32[d0] = t0\n", "expected"),
        (BASE + "t0 f32[d1,d0] = neg(in0)\nout0 f32[d0,d1] = t0\n", "expected"),
        (BASE + "t0 f32[d0,d1] = neg(in0) over d1\nout0 f32[d0,d1] = t0\n", "takes no axes"),
        (BASE + "t0 f32[d0,d1] = sum(in0)\nout0 f32[d0,d1] = t0\n", "over"),
        (BASE + "t0 f32[d0,d1] = cumsum(in0) along d0,d1\nout0 f32[d0,d1] = t0\n", "exactly one axis"),
        (BASE + "t0 f32[d0,d1] = neg(in0[d3=d0])\nout0 f32[d0,d1] = t0\n", "no axis"),
        (BASE + "t0 f32[d0,d1] = neg(in0[d0=t9])\nout0 f32[d0,d1] = t0\n", "not defined"),
        (BASE + "t0 f32[d0,d1] = neg(in0[d0=d0 d1])\nout0 f32[d0,d1] = t0\n", "index"),
        (BASE + "t0 f32[d0,d1] = neg(@)\nout0 f32[d0,d1] = t0\n", "neither a value nor a literal"),
        (BASE + "t0 f32[d0,d1] neg(in0)\nout0 f32[d0,d1] = t0\n", "expected like"),
        (BASE + "out0 f32[d0] = in0\n", "are not those of"),
        (BASE + "out0 f32[d0,d1] = t4\n", "not defined"),
        (BASE + "out0 f32[d0,d1]\n", "expected like"),
    ],
)
def test_bad_text_is_refused(text: str, says: str) -> None:
    with pytest.raises(ProgramError, match="(?s)" + says.replace("(", r"\(")):
        parse_program(text)


def test_seven_dims_are_too_many() -> None:
    axes = ",".join(f"d{i}" for i in range(7))
    sizes = " ".join(f"d{i}=2" for i in range(7))
    with pytest.raises(ProgramError, match="at most 6"):
        parse_program(f"region v1\ndims {sizes}\nin0 f32[{axes}]\nout0 f32[{axes}] = in0\n")
