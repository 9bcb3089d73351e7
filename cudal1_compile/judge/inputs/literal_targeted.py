"""Inputs at literals that a candidate names and its region does not: on, next to and between them.

    code -> foreign_numbers() -> on_numbers(ordinary inputs, turn): a path chosen by such a value is taken
                              -> literal_case_count(): cases until the shortest input has held all these values
                              -> put_together(): of a few, what they make with other literals; one case more

Ordinary kernels name sizes of blocks and tiles beside their region's numbers, so they have no such case. It knows
literals, also as the bits of a float, names of such, and what + - * / make of them, or + - | ^ << ~ of bits;
sizeof; functions and macros of one expression where they are called with literals; of a few such numbers also what
+ - * / make of one and any literal, wherever it stands: `x / 7.0f == 131.0f`, `enum { A = 7, B = 131 * A }`.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import math
import operator
import re
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cudal1_compile.judge.inputs.extremes import reaches_integers
from cudal1_compile.judge.inputs.lines import lines
from cudal1_compile.judge.inputs.names import LITERAL_LARGE, LITERAL_TARGETED
from cudal1_compile.judge.inputs.sizes import USUAL, body_of, in_decimal
from cudal1_compile.judge.oracle.error_budget import UNIT
from cudal1_fx_passes.program.ir import Input, Literal, Program

LARGE = 1e15  # numbers from there on have cases of their own: a product of two may leave float32
MAX_NUMBERS = 256
MAX_CASES = 32
MAX_EXPANDED = 128 * 1024  # characters
MAX_NESTED = 48  # names within what a name stands for
MAX_DIGITS = 40  # of a whole number, of which others are too large for any dtype
FEW, FEW_OTHERS = 6, 16  # foreign numbers that are put together with others, and how many of these
WIDE, WHOLE = 4.0, 2.0**52  # a gap that holds both; numbers from there on are whole
_MIXER = 2654435761
_LARGEST = {"f16": 6e4, "bf16": 3e38, "f32": 3e38, "f64": 1e300}
_HEX_FLOAT = r"0[xX][0-9a-fA-F]*+(?:\.[0-9a-fA-F]*+)?+[pP][+-]?\d++"
_DECIMAL = r"(?:\d[\d']*+(?:\.\d*+)?+|\.\d++)(?:[eE][+-]?\d++)?+"
_NUMBER = re.compile(rf"(?<![\w.])({_HEX_FLOAT}|0[xX][0-9a-fA-F']+|{_DECIMAL})[fFuUlL]*")
_FLOAT = rf"(?<![\w.])(?:{_HEX_FLOAT}|{_DECIMAL})[fF]?(?![\w.])"
_NEXT = rf"[-+(\s]*+{_FLOAT}[)\s]*+"
_TERM = re.compile(rf"([-+*/]){_NEXT}")
_FIRST = re.compile(rf"[(\s]*+{_FLOAT}[)\s]*+")
_SUM = re.compile(rf"{_FIRST.pattern}(?:[-+*/]{_NEXT})++")
_SHIFT = re.compile(r">>\s*(\d{1,2})\b")
_OF_BITS = re.compile(r"\b(0[xX][0-9a-fA-F]+|\d{5,})[uU]?\s*([-+|^])\s*(0[xX][0-9a-fA-F]+|\d+)[uU]?\b(?!\.)")
_MOVED_BITS = re.compile(r"(~|\b(?:0[xX][0-9a-fA-F]+|\d+)[uU]?\s*<<)\s*(0[xX][0-9a-fA-F]+|\d+)[uU]?\b(?!\.)")
_SCALED = re.compile(rf"\b(?:ldexp|scalbn)f?\s*\(\s*({_DECIMAL})[fF]?\s*,\s*(-?\d{{1,3}})\s*\)")
_FMA = re.compile(rf"\bfmaf?\s*\(\s*({_FLOAT})\s*,\s*({_FLOAT})\s*,\s*(-?{_FLOAT})\s*\)")
_CALL = re.compile(rf"\b(exp2?|expm1|log2?|log10|log1p|sqrt|sinh?|cosh?|tanh?)f?\s*\(\s*({_DECIMAL})[fF]?\s*\)")
_NAMED = re.compile(
    rf"(?:\b(?:float|double|auto)\s+|#define\s+)(\w+)[\s=]+([-+(]*{_FLOAT}[-+*/()\s.\w]*?)\s*[;,\n]"
)
_PARAMETERS = r"\(([^()]*)\)"
_ONE_EXPRESSION = re.compile(
    rf"(?:\b(\w+)\s*{_PARAMETERS}\s*\{{\s*return\s+([^;{{}}]+);\s*\}}|#define\s+(\w+){_PARAMETERS}\s+(\S.*))"
)
_OF_LITERALS = re.compile(rf"\b(\w+)\s*\(\s*((?:-?{_FLOAT}(?:\s*,\s*-?{_FLOAT})*+)?+)\s*\)")
_WORD = re.compile(r"\b(\w+)\b")
_SIZEOF = re.compile(r"\bsizeof\s*\(\s*(?:unsigned\s+)?(\w+)\s*\)")
_SIZE = {"double": 8, "f64": 8, "i64": 8, "long": 8, "f16": 2, "bf16": 2, "short": 2, "i16": 2} | dict.fromkeys(
    ("bool", "char", "i8", "u8"), 1
)
_BITWISE: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "|": operator.or_,
    "^": operator.xor,
}
_ARITHMETIC: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def foreign_numbers(program: Program, code: str) -> tuple[float, ...]:
    """Absolute values, sorted."""
    known = {_single(abs(o.value)) for op in program.ops for o in op.operands if isinstance(o, Literal)}
    found: set[float] = set()
    body = _called_with_literals(_SIZEOF.sub(lambda m: str(_SIZE.get(m[1], 4)), body_of(code)))
    body = _FMA.sub(r"(\1 * \2 + \3)", _SCALED.sub(_scaled, body))
    body = _CALL.sub(_called, body)
    shifts = {0, *(k for k in map(int, _SHIFT.findall(body)) if k < 32)}
    for text in set(_NUMBER.findall(body)):
        found |= _meanings(text.replace("'", ""), shifts)
    for left, sign, right in _OF_BITS.findall(body):
        found |= _meanings(hex(_BITWISE[sign](int(left, 0), int(right, 0)) & 0xFFFFFFFF), shifts)
    found |= {v for m in _MOVED_BITS.finditer(body) for v in _of_bits(_moved(m[1], m[2]))}
    for axis in program.axes:  # of a size and a literal
        body = re.sub(rf"\b{axis.name}\b(?=\s*\*\s*{_DECIMAL}[fF]\b)", f"{axis.size}.0", body)
    body = _with_values(body)
    for text in _sums(body):
        found |= _computed(text)
    foreign = {v for v in found if _single(v) not in known | {0.0, 0.5, 1.0, 2.0}}
    foreign |= {math.sqrt(v) for v in foreign}  # a square may be compared
    return tuple(sorted(foreign))[:MAX_NUMBERS]


def by_distribution(numbers: Sequence[float]) -> dict[str, tuple[float, ...]]:
    """Large ones apart, where results may be infinite whatever the others are."""
    small, large = (tuple(v for v in numbers if (v >= LARGE) is is_large) for is_large in (False, True))
    return {name: found for name, found in ((LITERAL_TARGETED, small), (LITERAL_LARGE, large)) if found}


def put_together(foreign: Sequence[float], code: str) -> tuple[float, ...]:
    """What + - * / make of a foreign number and any literal, of the plan's too: a block has as many threads.

    Of few: what a polynomial names is not put together so.
    """
    if len(foreign) > 2 * FEW:  # each with its root
        return ()
    others = {_value(text.replace("'", "")) for text in _NUMBER.findall(in_decimal(code))} - {0.0, 1.0, math.inf}
    pairs = [(a, b) for a in foreign for b in sorted(others)[:FEW_OTHERS]]
    found = {v for a, b in pairs for v in (a * b, a + b, abs(a - b), a / b, b / a)}
    singles = {_single(v) for v in found if 1e-30 < v < 1e30}
    return tuple(sorted(singles - set(foreign)))[:MAX_NUMBERS]


def _value(text: str) -> float:
    """Of a literal without its suffix; infinity where no double holds it."""
    try:
        if text[:2] in ("0x", "0X"):
            return float.fromhex(text)
        return float(text)
    except OverflowError:
        return math.inf


def _scaled(found: re.Match[str]) -> str:
    """A literal times a power of two, as a literal."""
    with contextlib.suppress(OverflowError):
        return repr(math.ldexp(float(found[1]), int(found[2])))
    return found[0]


def _moved(how: str, bits: str) -> int:
    """~bits, or a number moved up by so many bits."""
    if how == "~":
        return ~int(bits, 0) & 0xFFFFFFFF
    return (int(how.rstrip("< \t").rstrip("uU"), 0) << min(31, int(bits, 0))) & 0xFFFFFFFF


def _of_bits(bits: int) -> set[float]:
    """The size of the float that bits are, if it is a normal number."""
    value: float = abs(struct.unpack("f", struct.pack("I", bits))[0])
    return {value} if math.isfinite(value) and value >= 2.0**-126 else set()


def _meanings(text: str, shifts: set[int]) -> set[float]:
    """shifts: by which the bits of floats may have been moved before they are compared."""
    whole = int(text, 0) if re.fullmatch(r"0[xX][0-9a-fA-F]+|[1-9]\d*", text) and len(text) < MAX_DIGITS else None
    if whole is None:
        return {_value(text)}
    floats: set[float] = set()
    if whole >> 32 == 0 and whole not in USUAL:
        floats = floats.union(*(_of_bits((whole << shift) & 0xFFFFFFFF) for shift in shifts))
    return ({float(whole)} - USUAL) | floats


@dataclass(frozen=True, slots=True)
class _Meaning:
    """What a name stands for from its declaration on: number `place` of its kind in the code."""

    place: int
    text: str
    parameters: tuple[str, ...] = ()


class _Expansion:
    """Puts what names stand for in their place, as if they were put in one by one, the first declared first.

    So a name within what is put in is one of a later declaration, and none comes back. Texts may double with every
    name: once MAX_EXPANDED characters are put in, the others stay.
    """

    def __init__(self, pattern: re.Pattern[str], meanings: Iterable[tuple[str, _Meaning]]) -> None:
        self.pattern = pattern
        self.left = MAX_EXPANDED
        self.meanings: dict[tuple[str, int], list[_Meaning]] = {}
        for name, meaning in meanings:
            self.meanings.setdefault((name, len(meaning.parameters)), []).append(meaning)

    def of(self, text: str, after: int = -1, depth: int = 0) -> str:
        return self.pattern.sub(lambda found: self._put(found, after, depth), text)

    def _put(self, found: re.Match[str], after: int, depth: int) -> str:
        given = _listed(found[2]) if found.re.groups > 1 else []
        meant = self.meanings.get((found[1], len(given)), [])
        at = bisect_right(meant, after, key=lambda meaning: meaning.place)
        if at == len(meant) or self.left <= 0 or depth == MAX_NESTED:
            return found[0]
        text = _given(meant[at], given)
        self.left -= len(text) + len(found[0])
        return f"({self.of(text, meant[at].place, depth + 1)})"


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _given(meaning: _Meaning, given: Sequence[str]) -> str:
    """The text with what is given for its parameters."""
    values = dict(zip(meaning.parameters, given, strict=True))
    return re.sub(r"\b\w+\b", lambda word: values.get(word[0], word[0]), meaning.text) if values else meaning.text


def _with_values(body: str) -> str:
    """Names of literals, and of what is made of such, as that."""
    named = enumerate(_NAMED.findall(body + "\n"))
    return _Expansion(_WORD, ((name, _Meaning(i, value)) for i, (name, value) in named)).of(body)


def _called_with_literals(body: str) -> str:
    """Calls of functions and macros of one expression as that expression, where all that is given is literals."""
    meanings = []
    for i, (name, given, value, macro, of_macro, expression) in enumerate(_ONE_EXPRESSION.findall(body)):
        names = tuple(p.split()[-1].lstrip("*&") for p in _listed(given or of_macro))
        meanings.append((name or macro, _Meaning(i, value or expression, names)))
    return _Expansion(_OF_LITERALS, meanings).of(body)


def _sums(body: str) -> Iterator[str]:
    """Chains of literals with operators between them, up to a term that is another's factor."""
    for chain in _SUM.finditer(body):
        terms = list(_TERM.finditer(chain[0], _FIRST.match(chain[0]).end()))  # type: ignore[union-attr]
        if body[chain.end() : chain.end() + 1] in ("*", "/"):
            added = [i for i, term in enumerate(terms) if term[1] in "+-"]
            last = added[-1] if added else 0
            if last > 0:
                yield chain[0][: terms[last].start()]
        else:
            yield chain[0]


def _called(found: re.Match[str]) -> str:
    """The value of a function of a literal, as a literal."""
    with contextlib.suppress(ValueError, OverflowError):
        function: Callable[[float], float] = getattr(math, found[1])
        return repr(function(float(found[2])))
    return found[0]


def _computed(text: str) -> set[float]:
    """Absolute values of all parts of a sum or product of literals."""
    if text.count("(") != text.count(")"):
        text = text.replace("(", " ").replace(")", " ")
    plain = re.sub(_HEX_FLOAT, lambda m: repr(_value(m[0])), text).replace("'", "")
    plain = re.sub(r"(?<=[\d.])[fF]\b", "", plain).strip()
    try:
        tree = ast.parse(plain, mode="eval").body
        found: set[float] = set()
        _fold(tree, found)
    except (SyntaxError, RecursionError, OverflowError, MemoryError):  # thousands of terms, or of digits
        return set()
    found = {v for v in found if math.isfinite(v)}
    return found if re.search(r"[.eE]", plain) else {v for v in found if v not in USUAL}  # of sizes most are


def _fold(tree: ast.expr, found: set[float]) -> float:
    """The value of an expression of literals; notes the results of its parts. NaN for anything else."""
    value = math.nan
    if isinstance(tree, ast.Constant):
        return float(tree.value) if isinstance(tree.value, int | float) else math.nan
    if isinstance(tree, ast.UnaryOp):
        return -_fold(tree.operand, found) if isinstance(tree.op, ast.USub) else _fold(tree.operand, found)
    if isinstance(tree, ast.BinOp) and type(tree.op) in _ARITHMETIC:
        with contextlib.suppress(ZeroDivisionError, OverflowError):
            value = _ARITHMETIC[type(tree.op)](_fold(tree.left, found), _fold(tree.right, found))
        found.add(abs(value))
    return value


def _single(value: float) -> float:
    return ctypes.c_float(value).value


def literal_case_count(program: Program, inputs: Sequence[Tensor], numbers: Sequence[float]) -> int:
    """Cases: one in which inputs meet or rest (tied_values.py), then as many as the shortest needs to hold all."""
    count = 2 * len(_pool(program, 0.0, numbers))
    short = [x.numel() for x in inputs if x.dtype != torch.bool and 0 < x.numel() <= 2 * count]
    return 1 + (min(MAX_CASES, math.ceil(count / min(short))) if short else len(inputs) > 1)


def on_numbers(program: Program, item: Input, x: Tensor, numbers: Sequence[float], turn: int) -> Tensor:
    """Half of the elements, and every second whole line, at the numbers, next to them and between two of them.

    In a wide gap also at a whole number and at half of an odd one. A short input holds others of these values in
    each turn.
    """
    limit = 1e4 if reaches_integers(program) else _LARGEST.get(item.dtype, 2.0**62)
    pool = [min(v, limit) for v in _pool(program, UNIT.get(item.dtype, 0.0), numbers)]
    values = torch.tensor([s * v for s in (1, -1) for v in pool], device=x.device, dtype=torch.float64)
    place = torch.arange(x.numel(), device=x.device).reshape(x.shape)
    if x.numel() <= 2 * len(values):
        return values[(place + max(0, turn - 1) * x.numel()) % len(values)]
    # in no order: values of both signs would cancel in a sum
    pick = (place * _MIXER % (1 << 32) >> 16) % len(values)
    single = torch.where(place % 2 == 0, x.double(), values[pick])
    line = lines(program, item, x)
    if not 1 < line.numel() < x.numel():
        return single
    return torch.where(line % 2 == 1, values[line // 2 % len(values)], single)


def _pool(program: Program, unit: float, numbers: Sequence[float]) -> list[float]:
    """Positive values: the numbers first."""
    own = {abs(float(o.value)) for op in program.ops for o in op.operands if isinstance(o, Literal)}
    ends = sorted({0.0, *(v for v in own if math.isfinite(v)), *numbers, 2.0 * numbers[-1] + 1.0})
    gaps = list(zip(ends, ends[1:], strict=False))
    whole = [float(math.floor((a + b) / 2)) for a, b in gaps if b - a > WIDE and b < WHOLE]
    near = [v * (1 + s * 2 * unit) for v in numbers for s in (1, -1)]
    return [*numbers, *((a + b) / 2 for a, b in gaps), *whole, *(v + 0.5 for v in whole), *near]
