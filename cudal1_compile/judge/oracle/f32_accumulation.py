"""Float32 accumulation: what a kernel must give that keeps float32 until it stores, in a region of half types.

    region in bf16 or f16 -> widened(): the same in f32 -> expect_f32_accumulation(): its oracle, rounded once

The ordinary budget of a half type leaves room for a rounding after each operation, as the native reference does
it, and an arithmetic that is a little wrong hides in it. So kernels are held against float32's own budget (copies
in half types are exact). Those that call round_to have the ordinary one, if their unrounded form passes float32's;
so have those that hold factors of a product in a half type, as tensor cores want them, where the region computes
such factors. Both must give what one READING of the region gives, within float32's budget: nothing is
rounded before it is stored, or the computed factors are, or for those that call round_to the result of every
operation in a half type, as eager mode does it. What is rounded in none of these ways is no longer told from an
arithmetic that is a little wrong.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from cudal1_compile.judge.oracle.bounds import Bounded, bounded_outputs
from cudal1_compile.judge.oracle.compare import Expected, expected_floats, expected_of
from cudal1_compile.judge.oracle.error_budget import F32_ACCUMULATION_SAFETY, TINY, UNIT
from cudal1_compile.judge.oracle.exact_values import is_short
from cudal1_compile.kernel.candidate import Candidate, parse_candidate
from cudal1_compile.kernel.text import body_of, folded, is_plan, plan_lines
from cudal1_fx_passes.program.evaluate import DTYPE_NAME, TORCH_DTYPE, evaluate
from cudal1_fx_passes.program.ir import FLOAT_DTYPES, Output, Program, Ref
from cudal1_fx_passes.program.ops import OPS, Kind

HALF = ("bf16", "f16")
_SELECT = ("cast", "neg", "abs", "relu", "maximum", "minimum", "where")
_ADD = ("add", "sub")
_TINIEST_ULP = {"bf16": 2.0**-133, "f16": 2.0**-24}  # of subnormal numbers
# a half type that is no pointer's
_VALUES = re.compile(r"\b(?:bf16|f16|(?:in|out)\d+_t)\b(?!\s*(?:const\s*)?\*)")
_ROUND = re.compile(r"\bround_to\b")
_LITERAL = r"[-+]?\d*\.?\d+\.?(?:[eE][-+]?\d+)?[fF]?"
_NAMED_LITERAL = re.compile(
    rf"\b(?:float|double|auto)\s+(\w+)\s*(?:=|\()\s*({_LITERAL})\s*\)?\s*;|#define\s+(\w+)\s+({_LITERAL})"
)
_ASSIGNED = re.compile(r"\b(\w+)\s*=(?!=)")
_CHANGED = tuple(
    map(
        re.compile,
        (r"\b(\w+)\s*(?:[-+*/]=|\+\+|--)", r"&\s*(\w+)\b", r"(?<!>)[(,]\s*(\w+)(?=\s*[,)])"),
    )
)
_OF_LITERALS = re.compile(r"\bround_to\s*<[^<>]*>\s*\([-+*/().\s\deEfF]*\)")
_UNROUNDED = """template <class T> struct Unrounded {
  template <class V> static __device__ compute<T> of(V v) { return cudal1::widen(cudal1::Narrow<T>::from(v)); }
};
template <> struct Unrounded<bf16> { template <class V> static __device__ float of(V v) { return (float)v; } };
template <> struct Unrounded<f16> { template <class V> static __device__ float of(V v) { return (float)v; } };
template <class T, class V> __device__ compute<T> unrounded(V v) { return Unrounded<T>::of(v); }
"""


def widened(program: Program) -> Program | None:
    """The program with f32 for every half type; None where no operation has one."""
    if not any(op.dtype in HALF for op in program.ops):
        return None
    inputs = tuple(replace(i, dtype="f32") if i.dtype in HALF else i for i in program.inputs)
    ops = tuple(replace(op, dtype="f32") if op.dtype in HALF else op for op in program.ops)
    return replace(program, inputs=inputs, ops=ops)


def rounds(candidate: Candidate) -> bool:
    """Whether a candidate says that it rounds before it stores."""
    return _ROUND.search(candidate.code) is not None


def foreign_rounding(program: Program, candidate: Candidate) -> str | None:
    """The half type that a candidate rounds to though nothing in the region is of it."""
    named = set(re.findall(r"\bround_to\s*<\s*(bf16|f16)\s*>", candidate.code))
    found = named - set(program.value_dtype.values())
    return min(found, default=None)


def rounds_literals(candidate: Candidate) -> bool:
    """Whether a candidate rounds a constant, by whose value it could tell itself from its unrounded form."""
    body = folded(body_of(candidate.code))
    assigned = Counter(_ASSIGNED.findall(body))
    # a number that a loop or a function may change is none
    changed = {name for pattern in _CHANGED for name in pattern.findall(body)}
    values: dict[str, str] = {}
    for variable, value, macro, of_macro in _NAMED_LITERAL.findall(body + "\n"):
        name = variable or macro
        if assigned[name] < 2 and name not in changed:
            values.setdefault(name, f"({value or of_macro})")
    body = re.sub(r"\b\w+\b", lambda word: values.get(word[0], word[0]), body)
    return _OF_LITERALS.search(body) is not None


def keeps_float32(program: Program, candidate: Candidate) -> bool:
    """Whether a candidate has no reason to round before it stores."""
    if rounds(candidate):
        return False
    body = folded(body_of(candidate.code))
    holds = _VALUES.search(body) is not None or any(s.dtype in HALF for s in candidate.scratch)
    return not (holds and bool(_computed_factors(program)))


def _computed_factors(program: Program) -> dict[str, str]:
    """Operations in a half type whose results are factors of sums of products, each with its dtype."""
    factors = {
        x.name for op in program.ops if OPS[op.fn].kind is Kind.DOT for x in op.operands if isinstance(x, Ref)
    }
    return {op.name: op.dtype for op in program.ops if op.name in factors and op.dtype in HALF}


def held_by(program: Program, candidate: Candidate) -> list[dict[str, str]]:
    """What else than nothing a candidate that does not keep float32 may round: the operations of each reading."""
    everything = {op.name: op.dtype for op in program.ops if op.dtype in HALF} if rounds(candidate) else {}
    return [held for held in (_computed_factors(program), everything) if held]


def unrounded(program: Program, candidate: Candidate) -> Candidate | None:
    """The candidate without its roundings to half types; None where it has none, or the region nothing in them."""
    if widened(program) is None or not rounds(candidate):
        return None
    body = [line for line in candidate.code.splitlines() if not is_plan(line)]
    code = [*plan_lines(candidate.code), _UNROUNDED + _ROUND.sub("unrounded", "\n".join(body))]
    return parse_candidate("\n".join(code), program)


@torch.inference_mode()
def expect_f32_accumulation(
    program: Program,
    wide: Program,
    inputs: Sequence[Tensor],
    sizes: Mapping[str, int] | None,
    coherent: bool,
    integral: bool,
    held: Mapping[str, str] | None = None,
) -> list[Expected]:
    """As compare.expect. wide: the program widened. held: operations whose results are rounded all the same."""
    exact = in_float32(inputs)
    oracle = bounded_outputs(wide, exact, sizes, coherent, integral, held)
    native = stored_of(oracle) if held else evaluate(wide, exact, sizes)
    return [
        expected_of_f32(program, out, n[None], o.of_one)[0]
        for out, n, o in zip(program.outputs, native, oracle, strict=True)
    ]


def in_float32(inputs: Sequence[Tensor]) -> list[Tensor]:
    """Inputs of the widened program: the same values."""
    return [x.float() if DTYPE_NAME[x.dtype] in HALF else x for x in inputs]


def stored_of(oracle: Sequence[Bounded]) -> list[Tensor]:
    """What stands in for the native reference, which is never rounded in that way."""
    return [o.value.float() if o.value.is_floating_point() else o.value for o in oracle]


def expected_of_f32(program: Program, out: Output, native: Tensor, oracle: Bounded) -> list[Expected]:
    """As compare.expected_of. native, oracle: of the widened program."""
    dtype = program.output_dtype(out)
    if dtype not in FLOAT_DTYPES:
        return expected_of(out.name, dtype, native, oracle)
    rounding = partial(_half_ulp, dtype=dtype) if dtype in HALF else None
    stored = native.to(TORCH_DTYPE[dtype])
    # the store's rounding alone may use 0.58 of the root mean square
    found = expected_floats(
        out.name, dtype, native, stored, oracle, F32_ACCUMULATION_SAFETY, rounding, rms_limit=1.0
    )
    if dtype not in HALF or not _is_exact(program, out.value):
        return found
    return [_ties_to_even(e, n, s) for e, n, s in zip(found, native, stored, strict=True)]


def _ties_to_even(expected: Expected, native: Tensor, stored: Tensor) -> Expected:
    """With nothing else than the native reference where what is stored lies exactly between two numbers."""
    away = 2.0 * native.double() - stored.double()  # the number on the other side, if there is one
    tie = (native.double() == expected.want) & (away != native) & (away == away.to(stored.dtype))
    tie &= native.abs() >= TINY["f32"]  # what is less may be flushed
    assert expected.tolerance is not None
    want, tolerance = expected.want.where(~tie, stored.double()), expected.tolerance.masked_fill(tie, 0.0)
    return replace(expected, want=want, tolerance=tolerance)


def _is_exact(program: Program, name: str, may_add: bool = True) -> bool:
    """Whether float32 that holds a value of this formula has it in any order of work.

    Inputs and numbers of few digits, their products, a sum of two of these, and what selects of them.
    """
    if (op := program.op.get(name)) is None:
        return True
    if op.fn not in (*_SELECT, "mul", *(_ADD if may_add else ())) or op.dtype not in FLOAT_DTYPES:
        return False
    condition, operands = (op.operands[:1], op.operands[1:]) if op.fn == "where" else ((), op.operands)
    if any(isinstance(x, Ref) and (x.access or x.name in program.op) for x in condition):
        return False  # what decides may itself be rounded
    return all(
        not x.access and _is_exact(program, x.name, may_add and op.fn in _SELECT)
        if isinstance(x, Ref)
        else is_short(x)
        for x in operands
    )


def _half_ulp(size: Tensor, dtype: str) -> Tensor:
    """The most by which a number of about that size is rounded."""
    size = size.nan_to_num(0.0, 0.0, 0.0)
    power = size / (2.0 * torch.frexp(size)[0])  # of two, the largest that is not above
    return power.nan_to_num(0.0).mul(UNIT[dtype]).clamp_min(_TINIEST_ULP[dtype] / 2)
