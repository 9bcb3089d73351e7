"""Region text V1: prints a program and parses it back, exactly.

    region v1
    dims d0=32 d1=64 d2=?56 k0=3
    in0 f32[d0,d1,d2]
    in1 f32[d1] strides(2) >0
    in2 i64[d0] in [0,d1)
    t0 f32[d0,d1,d2] = mul(in0, in1)
    t1 f32[d0,d1] = amax(t0[d2=2*d2+k0-1]) over k0,d2
    out0 f32[d0,d1] = t1

`?` marks a symbolic size (the number is the example's). Axes of inputs and outputs stand in memory order;
`strides(...)` follows only where the tensor is not dense in that order. The text is frozen: models, caches
and corpora depend on it, so a change of meaning needs `region v2`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from cudal1_fx_passes.errors import ProgramError
from cudal1_fx_passes.program.ir import ANY, Axis, Domain, Index, Input, Literal, Op, Operand, Output, Program, Ref
from cudal1_fx_passes.program.ops import OPS, Kind

HEADER = "region v1"

_NUMBER = r"-?(?:\d+(?:\.\d*)?(?:e[+-]?\d+)?|inf|nan)"
_AXES = re.compile(r"[dk]\d+")
_TENSOR = re.compile(r"(\w+) (\w+)\[([\w,]*)\]")
_OP = re.compile(r"(t\d+) (\w+)\[([\w,]*)\] = (\w+)\((.*)\)(?: (?:over|along) ([\w,]+))?$")
_STRIDES = re.compile(r" strides\(([\d,-]*)\)")
_TERM = re.compile(r"([+-]?)(?:(\d+)\*)?([dk]\d+|\d+)")


def print_program(program: Program) -> str:
    """Returns the text, ended by a newline."""
    dims = " ".join(f"{a.name}={'?' if a.symbolic else ''}{a.size}" for a in program.axes)
    lines = [HEADER, f"dims {dims}".rstrip()]
    lines += [f"{_tensor(i.name, i.dtype, i.axes, i.strides)}{_print_domain(i.domain)}" for i in program.inputs]
    lines += [_print_op(o) for o in program.ops]
    for out in program.outputs:
        dtype = program.output_dtype(out)
        lines.append(f"{_tensor(out.name, dtype, out.axes, out.strides)} = {out.value}")
    return "\n".join(lines) + "\n"


def print_literal(value: float | int | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value)


def parse_program(text: str) -> Program:
    """Parses what print_program wrote. Raises ProgramError, naming the line."""
    lines = [line.strip() for line in text.strip().splitlines()]
    if not lines or lines[0] != HEADER:
        raise ProgramError(f"first line {lines[0] if lines else ''!r}: expected {HEADER!r}")
    if len(lines) < 2 or not (lines[1] + " ").startswith("dims "):
        raise ProgramError("second line: expected 'dims d0=4 d1=8 ...'")
    axes = tuple(_parse_axis(word) for word in lines[1].split()[1:])
    inputs: list[Input] = []
    ops: list[Op] = []
    outputs: list[Output] = []
    for line in lines[2:]:
        if line.startswith("in"):
            inputs.append(_parse_input(line))
        elif line.startswith("t"):
            ops.append(_parse_op(line))
        elif line.startswith("out"):
            outputs.append(_parse_output(line))
        else:
            raise ProgramError(f"line {line!r}: expected an input (in*), an operation (t*) or an output (out*)")
    return Program(axes, tuple(inputs), tuple(ops), tuple(outputs))


def _tensor(name: str, dtype: str, axes: Iterable[str], strides: tuple[int, ...] | None) -> str:
    tail = "" if strides is None else f" strides({','.join(map(str, strides))})"
    return f"{name} {dtype}[{','.join(axes)}]{tail}"


def _print_domain(domain: Domain) -> str:
    if domain == ANY:
        return ""
    if domain.below is not None:
        return f" in [0,{domain.below})"
    if domain.hi is None:
        return f" >{'' if domain.lo_open else '='}{_bound(domain.lo)}"
    if domain.lo is None:
        return f" <={_bound(domain.hi)}"
    return f" in {'(' if domain.lo_open else '['}{_bound(domain.lo)},{_bound(domain.hi)}]"


def _bound(value: float | None) -> str:
    assert value is not None
    return str(int(value)) if value == int(value) else repr(value)


def _print_op(o: Op) -> str:
    operands = ", ".join(_print_operand(x) for x in o.operands)
    tail = ""
    if o.over:
        word = "along" if OPS[o.fn].kind in (Kind.SCAN, Kind.IOTA) else "over"
        tail = f" {word} {','.join(o.over)}"
    return f"{_tensor(o.name, o.dtype, o.axes, None)} = {o.fn}({operands}){tail}"


def _print_operand(x: Operand) -> str:
    if isinstance(x, Literal):
        return print_literal(x.value)
    if not x.access:
        return x.name
    return f"{x.name}[{', '.join(f'{axis}={print_index(index)}' for axis, index in x.access)}]"


def print_index(index: Index) -> str:
    if index.value is not None:
        return index.value
    parts = []
    for coefficient, axis in index.terms:
        sign = "-" if coefficient < 0 else "+"
        factor = "" if abs(coefficient) == 1 else f"{abs(coefficient)}*"
        parts.append(f"{sign}{factor}{axis}")
    if index.offset or not parts:
        parts.append(f"{index.offset:+d}")
    text = "".join(parts).removeprefix("+")
    return text if index.divisor == 1 else f"({text})/{index.divisor}"


def _parse_axis(word: str) -> Axis:
    m = re.fullmatch(r"([dk]\d+)=(\??)(\d+)", word)
    if not m:
        raise ProgramError(f"dims: {word!r} is not like d0=32, d0=?32 or k0=3")
    return Axis(m[1], int(m[3]), m[2] == "?")


def _parse_head(line: str, rest: str) -> tuple[str, str, tuple[str, ...], tuple[int, ...] | None, str]:
    m = _TENSOR.match(line)
    if not m:
        raise ProgramError(f"line {line!r}: expected {rest}")
    tail = line[m.end() :]
    strides = None
    if s := _STRIDES.match(tail):
        strides = tuple(int(x) for x in s[1].split(",") if x)
        tail = tail[s.end() :]
    return m[1], m[2], _split_axes(m[3]), strides, tail


def _split_axes(text: str) -> tuple[str, ...]:
    return tuple(x for x in text.split(",") if x)


def _parse_input(line: str) -> Input:
    name, dtype, axes, strides, tail = _parse_head(line, "like 'in0 f32[d0,d1]'")
    return Input(name, dtype, axes, strides, _parse_domain(tail.strip(), line))


def _parse_domain(text: str, line: str) -> Domain:
    if not text:
        return ANY
    if m := re.fullmatch(r"in \[0,([dk]\d+)\)", text):
        return Domain(below=m[1])
    if m := re.fullmatch(rf"in ([\[(])({_NUMBER}),({_NUMBER})\]", text):
        return Domain(float(m[2]), float(m[3]), m[1] == "(")
    if m := re.fullmatch(rf">(=?)({_NUMBER})", text):
        return Domain(lo=float(m[2]), lo_open=not m[1])
    if m := re.fullmatch(rf"<=({_NUMBER})", text):
        return Domain(hi=float(m[1]))
    raise ProgramError(f"line {line!r}: domain {text!r} is not like >0, >=0, <=0, in [0,1] or in [0,d1)")


def _parse_op(line: str) -> Op:
    m = _OP.match(line)
    if not m:
        raise ProgramError(f"line {line!r}: expected like 't0 f32[d0] = add(in0, in1)'")
    operands = tuple(_parse_operand(x, line) for x in _split_operands(m[5]))
    return Op(m[1], m[2], _split_axes(m[3]), m[4], operands, _split_axes(m[6] or ""))


def _split_operands(text: str) -> list[str]:
    return [x.strip() for x in re.split(r",\s*(?![^\[]*\])", text)] if text.strip() else []


def _parse_operand(text: str, line: str) -> Operand:
    if text in ("true", "false"):
        return Literal(text == "true")
    if re.fullmatch(r"-?\d+", text):
        return Literal(int(text))
    if re.fullmatch(_NUMBER, text):
        return Literal(float(text))
    m = re.fullmatch(r"(in\d+|t\d+)(?:\[(.*)\])?", text)
    if not m:
        raise ProgramError(f"line {line!r}: operand {text!r} is neither a value nor a literal")
    if not m[2]:
        return Ref(m[1])
    pairs = [part.strip().split("=", 1) for part in m[2].split(",")]
    return Ref(m[1], tuple((pair[0], _parse_index(pair[-1], line)) for pair in pairs))


def _parse_index(text: str, line: str) -> Index:
    if re.fullmatch(r"in\d+|t\d+", text):
        return Index(value=text)
    divisor = 1
    if m := re.fullmatch(r"\((.*)\)/(\d+)", text):
        text, divisor = m[1], int(m[2])
    terms: list[tuple[int, str]] = []
    offset = 0
    at = 0
    while at < len(text):
        m = _TERM.match(text, at)
        if not m or (at > 0 and not m[1]):
            raise ProgramError(f"line {line!r}: index {text!r} is not like 2*d4+k0-1")
        sign = -1 if m[1] == "-" else 1
        if _AXES.fullmatch(m[3]):
            terms.append((sign * int(m[2] or 1), m[3]))
        else:
            offset += sign * int(m[3])
        at = m.end()
    return Index(tuple(terms), offset, divisor)


def _parse_output(line: str) -> Output:
    name, _, axes, strides, tail = _parse_head(line, "like 'out0 f32[d0,d1] = t3'")
    m = re.fullmatch(r" = (\w+)", tail)
    if not m:
        raise ProgramError(f"line {line!r}: expected like 'out0 f32[d0,d1] = t3'")
    return Output(name, m[1], axes, strides)
