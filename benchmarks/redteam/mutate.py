"""Mutants: a right kernel changed by one token, in the ways in which generated kernels go wrong.

    mutants(program, code, rng, count) -> up to `count` Mutants, categories in turns, places at random

A category has patterns that find places, in the code or in its launch plan, and says what stands there afterwards.
Whether a mutant still builds, and whether it still computes the same, is not known here.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cudal1_compile.kernel.text import normalise
from cudal1_fx_passes.program.ir import Program


@dataclass(frozen=True, slots=True)
class Mutant:
    category: str
    line: int  # of the code, from 1
    before: str  # that line, stripped
    after: str
    code: str


Text = str | Callable[[re.Match[str]], str]  # a template as of Match.expand, or a function
EditSite = tuple[int, int, str]  # start, end, what stands there instead


def mutants(program: Program, code: str, rng: random.Random, count: int) -> list[Mutant]:
    """Distinct ones; fewer where the code has fewer places."""
    places = {name: sorted(_places(program, code, name)) for name in CATEGORIES}
    for found in places.values():
        rng.shuffle(found)
    order = list(places)
    rng.shuffle(order)
    chosen: dict[str, Mutant] = {}
    original = normalise(code)
    for turn in range(max(map(len, places.values()))):
        for name in order:
            if turn < len(places[name]) and len(chosen) < count:
                mutant = _apply(name, code, *places[name][turn])
                if (key := normalise(mutant.code)) != original:
                    chosen.setdefault(key, mutant)
    return list(chosen.values())


def _apply(category: str, code: str, start: int, end: int, text: str) -> Mutant:
    changed = code[:start] + text + code[end:]
    line = code.count("\n", 0, start)
    before, after = code.splitlines()[line], changed.splitlines()[line]
    return Mutant(category, line + 1, before.strip(), after.strip(), changed)


def _places(program: Program, code: str, category: str) -> Iterator[EditSite]:
    if category == OTHER_AXIS:
        yield from _other_axis(program, code)
    for pattern, text in BODY.get(category, ()):
        yield from _matches(pattern, text, code, in_plan=False)
    for pattern, text in PLAN.get(category, ()):
        yield from _matches(pattern, text, code, in_plan=True)


def _matches(pattern: str, text: Text, code: str, in_plan: bool) -> Iterator[EditSite]:
    for m in re.finditer(pattern, code):
        line = code[code.rfind("\n", 0, m.start()) + 1 : m.start()]
        if line.startswith("//") == in_plan:
            yield m.start(), m.end(), text(m) if callable(text) else m.expand(text)


def _other_axis(program: Program, code: str) -> Iterator[EditSite]:
    """The size of one axis for that of another one, of another size."""
    body = code.find("__global__")
    for m in re.finditer(r"\b[dk]\d+\b", code):
        axis = program.axis.get(m[0])
        others = [a.name for a in program.axes if axis and a.size != axis.size]
        if others and m.start() > body:
            yield m.start(), m.end(), others[m.start() % len(others)]


def _scaled(m: re.Match[str]) -> str:
    """Another constant: 1% more, 1 for 0; a tiny one, of which nobody could tell 1%, ten times as much."""
    value = float(m[1])
    changed = f"{1.0 if value == 0 else value * (10.0 if abs(value) < 1e-3 else 1.01):.9g}"
    return f"{changed}f" if "." in changed or "e" in changed else f"{changed}.0f"


def _rounded(dtype: str) -> Callable[[re.Match[str]], str]:
    def text(m: re.Match[str]) -> str:
        whole = m[2].count("(") == m[2].count(")")  # else it is the step of a loop
        return f"{m[1]}round_to<{dtype}>({m[2]});" if whole else m[0]

    return text


def _without_guard(m: re.Match[str]) -> str:
    """Nothing before a statement; before return, break and continue a condition that never holds."""
    return "" if m.string[m.end()] in "si" else "if (false) "


_FLOAT = r"(?<![\w.])(\d+\.\d*(?:e-?\d+)?|\d+e-?\d+)f\b"
_VALUE = r"[\w.]+(?:\[\w+\])*"
_AFTER_VALUE = r"(?<=[\w)\]] )"
_END = r"(?=[;,)])"
_ASSIGNED = r"const float \w+ = |\w+ \+= "

OTHER_AXIS = "wrong axis size"
BODY: dict[str, tuple[tuple[str, Text], ...]] = {
    "index off by one": (
        (r"\b(ld|st|vload<\d+>|vstore<\d+>)\((\w+) \+ ", r"\1(\2 + 1 + "),
        (r"\[(\w+)\](?= [=*+\-/])", r"[\1 + 1]"),
        (r"threadIdx\.x - 1", "threadIdx.x"),
    ),
    "loop starts late": ((r"(for \((?:const )?int \w+ = )([\w.]+);", r"\1\2 + 1;"),),
    "loop ends early": ((r"(; \w+) < ([\w. *]+);", r"\1 < \2 - 1;"),),
    "loop steps too far": ((r"\+= (\d+|\w+)\)", r"+= \1 + 1)"),),
    "missing barrier": ((r"__syncthreads\(\);|__syncwarp\(\);", ""),),
    "wrong constant": ((_FLOAT, _scaled),),
    "dropped guard": ((r"if \([^;{}]*?\) (?=return;|break;|continue;|st\(|if )", _without_guard),),
    "swapped operands": (
        (rf"({_VALUE}) ([-/]) ({_VALUE}){_END}", r"\3 \2 \1"),
        (rf"\? ({_VALUE}) : ({_VALUE}){_END}", r"? \2 : \1"),
    ),
    "< for <=": (
        (r"(?<= )<(?= )", "<="),
        (r"(?<= )<=(?= )", "<"),
        (r"(?<= )>(?= )", ">="),
        (r"(?<= )>=(?= )", ">"),
    ),
    "lower precision": (
        (rf"\b({_ASSIGNED}|\w+\[\w+\](?:\[\w+\])? = )([^;=?]+);", _rounded("bf16")),
        (rf"\b({_ASSIGNED})([^;=?]+);", _rounded("f16")),
    ),
    "+ for -": ((rf"{_AFTER_VALUE}\+(?= )", "-"), (rf"{_AFTER_VALUE}-(?= )", "+")),
    "* for +": ((rf"{_AFTER_VALUE}\*(?= [a-z])", "+"),),
    "omitted initialisation": ((r"\b((?:float|double) \w+) = (?:0\.0f?|-?INFINITY|1\.0f)(?=;)", r"\1"),),
    "max for min": tuple(
        (rf"\b{old}\(", f"{new}(")
        for a, b in (("maximum", "minimum"), ("block_max", "block_min"), ("warp_max", "warp_min"), ("max", "min"))
        for old, new in ((a, b), (b, a))
    ),
    "wrong start of a fold": ((r"= -INFINITY(?=;)", "= 0.0f"), (r"= 0\.0f(?=;)", "= 1.0f")),
    "less than the whole block": (
        (r"\bblock_(sum|max|min|prod)\(", r"warp_\1("),
        (r"\bwarp_(sum|max|min|prod)\(", r"("),
    ),
    "& for |": ((r"&&", "||"), (r"\|\|", "&&")),
    "sign dropped": ((r"(?<=[=(,?:*/] )-(?=[a-z])|(?<=\()-(?=[a-z])", ""),),
    "wrong function": (
        (r"\bexpf\(", "exp2f("),
        (r"\btanhf\(", "erff("),
        (r"\brsqrtf\(", "sqrtf("),
        (r"\b(?:relu|fabsf)\(", "("),
        (r"\bsigmoid\(", "tanhf("),
    ),
    "another lane": ((r"threadIdx\.x == 0\b", "threadIdx.x == 1"), (r"\blane_id\(\) == 0", "lane_id() == 1")),
}
PLAN: dict[str, tuple[tuple[str, Text], ...]] = {
    "omitted initialisation": ((r"( s\d+ \w+\[.*\]) = 0(?=\n)", r"\1"),),
    "grid too small": ((r"\bcdiv\(([^,()]+), ([^()]+)\)", r"max((\1) / (\2), 1)"),),
}
CATEGORIES = (*BODY, OTHER_AXIS, *(PLAN.keys() - BODY.keys()))
