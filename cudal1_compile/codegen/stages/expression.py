"""Spells one pointwise operation of the table as one CUDA expression.

Values are held in their compute type (float for f32, f16 and bf16), so a cast between those three is a plain
copy: an intermediate is rounded only when it is stored. Nothing here knows of memory, loops or threads.
"""

from __future__ import annotations

from math import isinf, isnan

from cudal1_compile.codegen.stages.narrow import NARROW
from cudal1_compile.codegen.stages.stage import key_of
from cudal1_fx_passes.program.ir import FLOAT_DTYPES, Literal, Op, Program, Ref

COMPUTE_TYPE = {
    "f32": "float",
    "f16": "float",
    "bf16": "float",
    "f64": "double",
    "i64": "long long",
    "i32": "int",
    "i16": "int",
    "i8": "int",
    "u8": "int",
    "bool": "bool",
}

# functions with a C name: float takes the suffix f, double does not
_C_FUNCTIONS = {
    "abs": "fabs",
    "exp": "exp",
    "exp2": "exp2",
    "expm1": "expm1",
    "log": "log",
    "log2": "log2",
    "log1p": "log1p",
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
    "sin": "sin",
    "cos": "cos",
    "tanh": "tanh",
    "erf": "erf",
    "floor": "floor",
    "ceil": "ceil",
    "round": "rint",
    "trunc": "trunc",
    "pow": "pow",
    "fmod": "fmod",
}
_HEADER_FUNCTIONS = {
    "sigmoid": "sigmoid",
    "relu": "relu",
    "sign": "sign",
    "isnan": "isnan",
    "maximum": "maximum",
    "minimum": "minimum",
    "remainder": "remainder_",
}
_INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "logical_and": "&&",
    "logical_or": "||",
    "logical_xor": "!=",
}
_FITS = (("i8", "i16"), ("u8", "i16"))  # casts between integers that lose nothing


def is_float(dtype: str) -> bool:
    return dtype in FLOAT_DTYPES


def literal(value: float | int | bool, dtype: str) -> str:
    """A literal in the compute type of `dtype`: 0.5f, 3, true."""
    if dtype == "bool":
        return "true" if value else "false"
    if not is_float(dtype):
        return str(int(value))
    number = float(value)
    if isnan(number):
        return "NAN"
    if isinf(number):
        return "INFINITY" if number > 0 else "-INFINITY"
    return repr(number) if dtype == "f64" else f"{number!r}f"


def operand_dtype(program: Program, op: Op) -> str:
    """The dtype in which the operands of `op` meet (of `where`: its two choices)."""
    operands = op.operands[1:] if op.fn == "where" else op.operands
    names = [x.name for x in operands if isinstance(x, Ref)]
    return program.value_dtype[names[0]] if names else op.dtype


def expression(program: Program, op: Op, operands: list[str]) -> str:
    """The right-hand side of the operation's statement; `operands` are spelled already."""
    dtype = operand_dtype(program, op)
    suffix = "" if dtype == "f64" else "f"
    a = operands[0]
    if op.fn == "cast":
        return _cast(a, dtype, op.dtype)
    if op.fn == "where":
        return f"{a} ? {operands[1]} : {operands[2]}"
    if op.fn == "fma":
        return f"{a} * {operands[1]} + {operands[2]}"
    if op.fn == "neg":
        return f"-{a}"
    if op.fn == "logical_not":
        return f"!{a}"
    if op.fn == "reciprocal":
        return f"{literal(1, dtype)} / {a}"
    if op.fn in ("pow", "fmod") and not is_float(dtype):
        return f"{a} % {operands[1]}" if op.fn == "fmod" else f"int_pow<{COMPUTE_TYPE[dtype]}>({a}, {operands[1]})"
    if op.fn == "pow":
        return _power(a, operands[1], suffix)
    if op.fn in _INFIX:
        return f"{a} {_INFIX[op.fn]} {operands[1]}"
    if op.fn == "abs" and not is_float(dtype):
        return f"{a} < 0 ? -{a} : {a}"
    if op.fn in _C_FUNCTIONS:
        return f"{_C_FUNCTIONS[op.fn]}{suffix}({', '.join(operands)})"
    return f"{_HEADER_FUNCTIONS[op.fn]}({', '.join(operands)})"


def _power(a: str, exponent: str, suffix: str) -> str:
    """Small literal exponents without powf, as torch computes them too."""
    products = {
        "2.0": f"{a} * {a}",
        "3.0": f"{a} * {a} * {a}",
        "0.5": f"sqrt{suffix}({a})",
        "-0.5": f"rsqrt{suffix}({a})",
    }
    return products.get(exponent.removesuffix("f"), f"pow{suffix}({a}, {exponent})")


def _cast(a: str, source: str, target: str) -> str:
    if target == "bool" and source != "bool":
        return f"{a} != {literal(0, source)}"
    if target in NARROW and (source, target) not in _FITS and source not in (target, "bool"):
        return f"({target}){'(int)' if is_float(source) else ''}{a}"
    if COMPUTE_TYPE[source] == COMPUTE_TYPE[target]:
        return a
    return f"({COMPUTE_TYPE[target]}){a}"


def spell_operand(program: Program, op: Op, operand: Ref | Literal, spelled: dict[str, str]) -> str:
    """A literal in the operands' dtype, or the register that holds the value."""
    if isinstance(operand, Ref):
        return spelled[key_of(operand)]
    dtype = "bool" if isinstance(operand.value, bool) and op.fn == "where" else operand_dtype(program, op)
    text = literal(operand.value, dtype)
    return f"({text})" if text.startswith("-") and op.fn == "neg" else text
